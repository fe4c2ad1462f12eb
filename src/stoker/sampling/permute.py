"""A shuffle without a table: where position `i` of `size` goes is computed when it is asked for.

index ──► at most 256: a table drawn by Fisher and Yates
      ──► more: 8 Feistel rounds on the next power of two, again while the value is >= size ──► place
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stoker._native import permute as permute_into
from stoker._native import unpermute as unpermute_into
from stoker.fields.offsets import Int64

# Beyond, the doubled domain of the walk would not fit a signed 64-bit index.
MAX_SIZE = 1 << 62


def as_index(index: npt.ArrayLike, *, start: int = 0, stop: int, name: str) -> Int64:
    """Return `index` as contiguous int64, all of it checked to lie in [start, stop). Shape [B].

    Raises:
        TypeError: It does not hold integers.
        ValueError: It is not one-dimensional, or one value lies outside; the message shows that value.
    """
    values = np.asarray(index)
    if values.dtype != np.int64:
        if values.size and values.dtype.kind not in "iu":
            raise TypeError(f"{name} must be integers, not {values.dtype}")
        values = values.astype(np.int64)
    if values.ndim != 1:
        raise ValueError(f"{name} must have one dimension, not {values.ndim}")
    if values.size:
        low, high = int(values.min()), int(values.max())
        if low < start or high >= stop:
            raise ValueError(f"{name} {low if low < start else high} lies outside [{start}, {stop})")
    return np.ascontiguousarray(values)


def permute(index: npt.ArrayLike, *, size: int, key: int) -> Int64:
    """Return where each position lands after shuffling `size` things.

    A bijection on [0, size) computed on the fly: no table, constant memory, the same on every machine and with every
    version of NumPy.

    Args:
        index: Positions, each in [0, size). Shape [B].
        size: How many things are shuffled.
        key: Which shuffle: an unsigned 64-bit integer from `stoker.hashing.order_key`.

    Returns:
        A new int64 array. Shape [B].

    Raises:
        ValueError: An index is outside [0, size), or size or key is out of range.

    Source:
        Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002: cycle walking. Fisher and Yates for
        sizes up to 256. docs/reference/order.md has the whole construction with examples.

    Examples:
        >>> permute([0, 1, 2, 3, 4], size=5, key=7)
        array([3, 4, 2, 0, 1])
    """
    checked, out = _checked(index, size, key)
    permute_into(checked, 0, size, key, out)
    return out


def unpermute(index: npt.ArrayLike, *, size: int, key: int) -> Int64:
    """Return which position landed at each place: the inverse of `permute` with the same size and key.

    Args:
        index: Places, each in [0, size). Shape [B].
        size: How many things are shuffled.
        key: Which shuffle.

    Returns:
        A new int64 array. Shape [B].

    Raises:
        ValueError: An index is outside [0, size), or size or key is out of range.

    Examples:
        >>> unpermute(permute([0, 1, 2], size=1000, key=7), size=1000, key=7)
        array([0, 1, 2])
    """
    checked, out = _checked(index, size, key)
    unpermute_into(checked, 0, size, key, out)
    return out


def _checked(index: npt.ArrayLike, size: int, key: int) -> tuple[Int64, Int64]:
    """Return the index, checked, and room for as many."""
    if not 0 <= size <= MAX_SIZE:
        raise ValueError(f"size must lie in [0, 2**62], got {size}")
    if not 0 <= key < 1 << 64:
        raise ValueError(f"key must be an unsigned 64-bit integer, got {key}")
    checked = as_index(index, stop=size, name="index")
    return checked, np.empty_like(checked)
