"""Spans and counters of the path a batch takes."""
