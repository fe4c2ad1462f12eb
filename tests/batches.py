"""What batches hold, as arrays of NumPy, whatever their library and wherever they lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from stoker import Deduplicated, Ragged


def ids_of(batches: Any) -> list[int]:
    """Return the ids of all samples of some batches, one after the other."""
    return [i for batch in batches for i in batch["id"].tolist()]


def plain(field: Any) -> Any:
    """Return a field of arrays or tensors as arrays of its own."""
    if isinstance(field, Ragged | Deduplicated):
        return field.map(plain)
    return np.array(field.cpu().numpy() if hasattr(field, "cpu") else field, order="C")


def expanded(field: Any) -> Any:
    """Return a field as each sample has it, also where several share one value."""
    return field.values[field.index] if isinstance(field, Deduplicated) else field


def contents(batches: Any, *, expands: bool = True) -> list[dict[str, Any]]:
    """Return the fields of batches as arrays of their own, shared ones as each sample has them unless told."""
    found = ({name: plain(field) for name, field in batch.items()} for batch in batches)
    return [{name: expanded(field) if expands else field for name, field in batch.items()} for batch in found]


def same(a: Any, b: Any) -> bool:
    """Return whether two fields are of one kind, and their arrays the same bit for bit."""
    if isinstance(a, Ragged | Deduplicated):
        return type(a) is type(b) and all(map(same, a.arrays, b.arrays)) and len(a.arrays) == len(b.arrays)
    if isinstance(b, Ragged | Deduplicated):
        return False
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def check_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Check that batches of arrays have the same fields in the same order, bit for bit."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        assert [name for name in one if not same(one[name], other[name])] == []
