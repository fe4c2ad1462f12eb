"""From units to batches: a unit's rows or token ranges, by arithmetic on a kept index, and their arrays."""
