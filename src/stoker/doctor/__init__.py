"""Why the accelerator waits, and what a fix would give."""
