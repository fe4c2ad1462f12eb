"""The way out for data that is not Parquet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

# Formats that pyarrow reads: the name it has for them, and how their files end.
_FORMATS = {
    "csv": (".csv", ".csv.gz", ".csv.bz2"),
    "json": (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz"),
    "feather": (".arrow", ".feather", ".ipc"),
    "orc": (".orc",),
}


def way_out(where: str, urls: Iterable[str]) -> str:
    """Return how files become Parquet, in words, to follow what is wrong; "" where they may be Parquet.

    Args:
        where: The file or folder that was named.
        urls: Of the files; what most of them are counts.
    """
    found = Counter(_kind(url.rpartition("/")[2].lower()) for url in urls)
    kind = found.most_common(1)[0][0] if found else ""
    if not kind:
        return ""
    if kind not in _FORMATS:
        return f"; Stoker reads Parquet, not {kind}: write it as Parquet once, with pyarrow.parquet.write_table"
    return (
        f"; Stoker reads Parquet, not {kind}: convert it once, with `import pyarrow.dataset as ds; "
        f"ds.write_dataset(ds.dataset({where!r}, format={kind!r}), 'parquet/', format='parquet')`"
    )


def _kind(name: str) -> str:
    for kind, ends in _FORMATS.items():
        if name.endswith(ends):
            return kind
    end = name.rpartition(".")[2] if "." in name else ""
    known = ("safetensors", "npy", "npz", "h5", "hdf5", "tfrecord", "tfrecords", "avro", "tar", "mds", "lance", "txt")
    return end if end in (*known, "tsv", "xlsx", "pkl", "pickle", "pt", "zip", "lmdb", "zarr") else ""
