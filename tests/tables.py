"""What tables give, by way of a loader, for tests."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa

import stoker


def flatten(table):
    """Return a table with a column for each member of its structs."""
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


def rows_of(source, *, cache=None, **options):
    """All rows that a loader delivers, by their id; each once."""
    lock, tables = threading.Lock(), []

    def note(table):
        with lock:
            tables.append(table)
        return {"id": table["id"].to_numpy()}

    dataset = stoker.Dataset(source, transform=note, transform_version="1", **options)
    with stoker.Loader(dataset, batch_size=7, shuffle=False, remainder="keep", cache=cache) as loader:
        ids = [int(i) for batch in loader for i in np.asarray(batch["id"])]
    assert len(set(ids)) == len(ids)
    found = {row["id"]: row for table in tables for row in table.to_pylist()}
    return {i: found[i] for i in sorted(ids)}


def expected_of(table):
    """The same of what a library scans."""
    rows = sorted(flatten(pa.table(table)).to_pylist(), key=lambda row: row["id"])
    return {row["id"]: row for row in rows}
