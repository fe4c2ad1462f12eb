"""Where rows come from: storages, Parquet footers, fragments, and what Arrow columns become."""
