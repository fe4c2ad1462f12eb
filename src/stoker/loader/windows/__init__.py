"""Chunks in memory: the files of a window side by side in one range of addresses, mapped or read."""
