"""Batches ahead of their step: which chunks to have, gathering samples from them, handing over in order."""
