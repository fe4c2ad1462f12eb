"""Batches as digests, to compare runs byte by byte without keeping them."""

from __future__ import annotations

import numpy as np
import xxhash

from stoker.fields.spec import Array, Arrays, Ragged


def digest_of(batch: Arrays) -> str:
    """Return 32 hex digits of a batch: names, order, dtypes, shapes and every byte of every value."""
    digest = xxhash.xxh3_128()
    for name, array in batch.items():
        digest.update(name.encode())
        _update(digest, array)
    return digest.hexdigest()


def _update(digest: xxhash.xxh3_128, array: Array | Ragged) -> None:
    if isinstance(array, Ragged):
        _update(digest, array.offsets)
        _update(digest, array.values)
        return
    digest.update(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data if array.size else b"")
