"""Parquet as it lies there: footers, schemas, pages, and the values decoded from them."""
