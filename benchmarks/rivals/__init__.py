"""Ours beside every loader a user might take instead: same rows, same columns, each in an environment of its own."""
