"""Stoker keeps GPUs fed."""
