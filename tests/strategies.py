"""Hypothesis strategies and small data that tests share."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st


def sample_table(num_rows: int, *, first: int = 0) -> pa.Table:
    """A table in which every value of a row follows from the row's id, so that mixed-up rows show."""
    ids = np.arange(first, first + num_rows, dtype=np.int64)
    lengths = ids % 5
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    history = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.repeat(ids, lengths) * 10))
    return pa.table(
        {
            "id": ids,
            "half": (ids / 2).astype(np.float32),
            "flag": ids % 3 == 0,
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(ids, 3).astype(np.float32)), 3),
            "history": history,
            "word": pa.array([f"w{i % 7}" * (i % 3) for i in ids], type=pa.string()),
        }
    )


def check_samples(batch) -> None:
    """Check every field of a batch of `sample_table` rows against its id."""
    ids = np.asarray(batch["id"])
    np.testing.assert_array_equal(np.asarray(batch["half"]), (ids / 2).astype(np.float32))
    np.testing.assert_array_equal(np.asarray(batch["flag"]), ids % 3 == 0)
    np.testing.assert_array_equal(np.asarray(batch["vector"]), np.repeat(ids, 3).reshape(-1, 3).astype(np.float32))
    values, offsets = (np.asarray(part) for part in batch["history"])
    np.testing.assert_array_equal(np.diff(offsets), ids % 5)
    np.testing.assert_array_equal(values, np.repeat(ids, ids % 5) * 10)
    words, borders = (np.asarray(part) for part in batch["word"])
    expected = [f"w{i % 7}" * (i % 3) for i in ids]
    assert [words[a:b].tobytes().decode() for a, b in itertools.pairwise(borders)] == expected


def write_files(folder: Path, sizes: list[int], *, row_group_size: int = 64) -> Path:
    """Write one file a size, ids counting through all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for i, size in enumerate(sizes):
        pq.write_table(sample_table(size, first=first), folder / f"part-{i:05}.parquet", row_group_size=row_group_size)
        first += size
    return folder


file_sizes = st.lists(st.integers(0, 300), min_size=1, max_size=8)
