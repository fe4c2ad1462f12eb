"""Loops of real frameworks, each in its own way; what of them is not installed is skipped."""
