"""Parquet files that lie: in one length, count, offset or size at a time."""
