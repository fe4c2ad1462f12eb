"""Hypothesis strategies and small data that tests share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st

from stoker import _native
from stoker.sampling.mixture import MixtureOrder
from stoker.testing import example_table, write_example

sample_table = example_table


def examples(num: int) -> settings:
    """Return how many examples a law draws: so many, the same at every run; in `make test-slow` ten times as many."""
    return settings(max_examples=num * (10 if settings.get_current_profile_name() == "others" else 1))


def alone(order) -> MixtureOrder:
    """Return the order of a data set that stands alone, as a loader has it."""
    settings = {name: getattr(order, name) for name in ("shuffle", "seed", "window", "lanes")}
    return MixtureOrder([np.diff(order.chunk_starts)], names=None, weights=None, **settings)


def permute(index, *, size: int, key: int) -> np.ndarray:
    """Return where each position lands after shuffling `size` things."""
    moved = np.empty(len(index), np.int64)
    _native.permute(np.ascontiguousarray(index, np.int64), 0, size, key, moved)
    return moved


def unpermute(places, *, size: int, key: int) -> np.ndarray:
    """Return which position landed at each place: the inverse of `permute`."""
    moved = np.empty(len(places), np.int64)
    _native.unpermute(np.ascontiguousarray(places, np.int64), 0, size, key, moved)
    return moved


def arrays_in(field) -> list:
    """All arrays of a field."""
    return getattr(field, "arrays", [field])


def flat(field) -> list[np.ndarray]:
    """Return a field's values and the lengths of its lists: what can be put side by side over ranks."""
    is_ragged = hasattr(field, "offsets")
    return [*flat(field.values), np.diff(field.offsets)] if is_ragged else [np.asarray(field)]


def check_samples(batch) -> None:
    """Check every field of a batch of `sample_table` rows against its id."""
    ids = np.asarray(batch["id"])
    np.testing.assert_array_equal(np.asarray(batch["half"]), (ids / 2).astype(np.float32))
    np.testing.assert_array_equal(np.asarray(batch["flag"]), ids % 3 == 0)
    np.testing.assert_array_equal(np.asarray(batch["vector"]), np.repeat(ids, 3).reshape(-1, 3).astype(np.float32))
    values, offsets = (np.asarray(part) for part in batch["history"].arrays)
    np.testing.assert_array_equal(np.diff(offsets), ids % 5)
    np.testing.assert_array_equal(values, np.repeat(ids, ids % 5) * 10)
    expected = [f"w{i % 7}" * (i % 3) for i in ids]
    assert [np.asarray(word).tobytes().decode() for word in batch["word"]] == expected


def nested_table(num_rows: int) -> pa.Table:
    """Return rows of numbers, texts with nulls, lists, structs and bytes of one length: a leaf of each kind."""
    return pa.table(
        {
            "a": range(num_rows),
            "s": [None if i % 7 == 0 else str(i % 5) for i in range(num_rows)],
            "l": [[i] * (i % 3) for i in range(num_rows)],
            "u": [{"x": float(i), "y": i % 2 == 0} for i in range(num_rows)],
            "f": pa.array([b"12345"] * num_rows, pa.binary(5)),
        }
    )


def write_files(folder: Path, sizes: list[int], *, row_group_size: int = 64) -> Path:
    """Write one file a size, ids counting through all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_example(folder, rows_of_files=sizes, row_group_size=row_group_size)


file_sizes = st.lists(st.integers(0, 300), min_size=1, max_size=8)
