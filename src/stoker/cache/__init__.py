"""Transformed once, kept on SSD: chunks, the store that publishes them, and what builds them."""
