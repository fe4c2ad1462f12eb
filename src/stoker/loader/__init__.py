"""Batches ahead of their step: which chunks to have, whose rows each step takes, handing over in order."""
