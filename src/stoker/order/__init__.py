"""Which samples, in which step: pure arithmetic on integers; no disk, clock, thread or random module."""
