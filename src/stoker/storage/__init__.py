"""What Parquet is read from: local files, object stores, and the bytes they give."""
