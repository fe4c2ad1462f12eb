"""Words to numbers: vocabularies, hash buckets and bytes of one length.

Work is done once per distinct value where that is cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker._native import hash_strings
from stoker.columns.kinds import dtype_of, is_bytes_view
from stoker.columns.numeric import buffer_of, split_lists
from stoker.fields.spec import Array

MISSING = -1  # no code and no bucket is negative


@dataclass(frozen=True, kw_only=True, eq=False)
class Codes:
    """Each word becomes its place in `words`.

    A million words take longer to prepare than a chunk to look up: what is prepared stays here, by type.
    """

    words: Sequence[str | int]
    unknown: int | None
    _lookups: dict[pa.DataType, _Lookup] = field(default_factory=dict, init=False, repr=False)

    def lookup(self, kind: pa.DataType) -> _Lookup:
        """Return the vocabulary made ready for values of a type."""
        found = self._lookups.get(kind)
        return found if found is not None else self._lookups.setdefault(kind, _Lookup(self.words, kind))


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Each value becomes its stable hash modulo `num_buckets`."""

    num_buckets: int


@dataclass(frozen=True, kw_only=True)
class FixedBytes:
    """Each value becomes its bytes, zeros behind."""

    num_bytes: int


Way = Codes | Buckets | FixedBytes


def integer_hash(values: Array) -> Array:
    """Return the 64-bit hashes of integers, uint64, shape of `values`.

    The same number has the same hash whatever its dtype: it is taken as 64 bits, in two's complement.

    Source:
        Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014: SplitMix64.
    """
    wide = values if values.dtype == np.uint64 else values.astype(np.int64).view(np.uint64)
    with np.errstate(over="ignore"):
        z = wide + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashed: Array = z ^ (z >> np.uint64(31))
    return hashed


def number_words(words: pa.Array, way: Codes | Buckets) -> Array:
    """Return the code or bucket of each word, int64 [len(words)].

    MISSING stands for a word outside the vocabulary; what stands at nulls means nothing.
    """
    if len(words) == 0:
        return np.zeros(0, np.int64)
    if isinstance(way, Codes):
        return way.lookup(words.type).codes(words)
    offsets, data = split_lists(words, None)
    found = np.empty(len(words), np.int64)
    hash_strings(buffer_of(data, np.dtype(np.uint8)), offsets, way.num_buckets, found)
    return found


def number_integers(values: Array, way: Codes | Buckets) -> Array:
    """Return the code or bucket of each integer, int64 [n]; MISSING for one outside the vocabulary."""
    if isinstance(way, Buckets):
        return (integer_hash(values) % np.uint64(way.num_buckets)).astype(np.int64)
    wide = values if values.dtype == np.uint64 else values.astype(np.int64, copy=False)
    return number_words(pa.array(wide), way)


def bytes_as_binary(array: pa.Array) -> pa.Array:
    """Return strings or binary of any layout as binary or large binary, a view where the layout is the same."""
    kind = array.type
    if is_bytes_view(kind):
        return array.cast(pa.large_binary())
    if pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.binary())
    if pa.types.is_large_string(kind):
        return array.view(pa.large_binary())
    if pa.types.is_string(kind):
        return array.view(pa.binary())
    return array


class _Lookup:
    """One vocabulary made ready: an Arrow array to find many words in it, a dict to find few."""

    def __init__(self, words: Sequence[str | int], kind: pa.DataType) -> None:
        self.words = words
        self.array = _vocabulary_array(words, kind)
        self._codes: dict[bytes | int, int] | None = None

    def codes(self, words: pa.Array) -> Array:
        """Return the place of each word in the vocabulary, int64 [n], MISSING where it is not in it."""
        if len(self.words) < _FEW_WORDS * len(words):
            places = pc.index_in(words, value_set=self.array).fill_null(MISSING)
            return buffer_of(places, np.dtype(np.int32)).astype(np.int64)
        if self._codes is None:
            self._codes = {word: code for code, word in enumerate(self.array.to_pylist()) if word is not None}
        encoded = words.dictionary_encode()
        distinct = encoded.dictionary.to_pylist()
        # What stands at nulls means nothing.
        found = np.array([self._codes.get(word, MISSING) for word in distinct] or [MISSING], np.int64)
        return found.take(buffer_of(encoded.indices.fill_null(0), np.dtype(np.int32)))


# Arrow builds a table of the whole vocabulary at each call; a dict is built once, but costs more for each word. With a
# million words and a chunk of 50,000 different ones: 130 ms that way and 50 ms this way.
_FEW_WORDS = 8


def _vocabulary_array(words: Sequence[str | int], kind: pa.DataType) -> pa.Array:
    if not pa.types.is_integer(kind):
        return pa.array([str(word).encode() for word in words], type=kind)
    # A word outside the type's range can never be met; a null keeps the places of those behind it.
    info = np.iinfo(dtype_of(kind))
    inside: list[Any] = [word if info.min <= int(word) <= info.max else None for word in words]
    return pa.array(inside, type=kind)
