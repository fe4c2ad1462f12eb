"""Fingerprints of things and keys of the order: both are hashes of labelled text.

Labelled, so that no two questions can share an answer: `order_key(seed=1, epoch=1)` has nothing to do with
`order_key(seed=2, epoch=0)`, which is the same key wherever a loader adds the two.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt

ORDER_VERSION = "v1"
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def fingerprint(label: str, content: object) -> str:
    """Return 32 hex digits that stand for `content`, a value JSON can write.

    Two contents that differ anywhere, or the same content under two labels, differ in their fingerprint. Key order
    of mappings does not count. The text that is hashed is the canonical JSON: change nothing here, every chunk on
    every disk is named by it.
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.blake2b(f"{label}:{text}".encode(), digest_size=16).hexdigest()


def order_key(*, seed: int, epoch: int, purpose: str) -> int:
    """Return the 64-bit key of one random decision: `purpose` says which ("chunks", "window:3", "augment:17:0")."""
    text = f"order:{ORDER_VERSION}:{seed}:{epoch}:{purpose}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def sample_seeds(key: int, positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return a seed for each position of an epoch; two positions never have the same. Shape [B]."""
    with np.errstate(over="ignore"):
        return integer_hash(np.uint64(key) + positions * _GOLDEN)


def integer_hash(values: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return the 64-bit hashes of integers, shape of `values`.

    The same number has the same hash whatever its dtype: it is taken as 64 bits, in two's complement.

    Source:
        Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014: SplitMix64.
    """
    wide = values if values.dtype == np.uint64 else values.astype(np.int64).view(np.uint64)
    with np.errstate(over="ignore"):
        hashed: npt.NDArray[np.uint64] = wide + _GOLDEN
        hashed = (hashed ^ (hashed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        hashed = (hashed ^ (hashed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return hashed ^ (hashed >> np.uint64(31))
