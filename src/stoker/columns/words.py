"""Words and integers to codes: places in a vocabulary, or hash buckets.

Work is done once per distinct value where that is cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker._native import hash_strings
from stoker.arrow import array_of, dtype_of, strings_of
from stoker.columns.arrays import buffer_of, decoded, integer_fits, is_held, numbers_of, split_lists, stored, validity
from stoker.columns.kinds import DType, ValueKind
from stoker.fields.compact import MisfitError
from stoker.fields.spec import Array
from stoker.hashing import integer_hash

MISSING = -1  # no code and no bucket is negative

# Arrow builds a table of the whole vocabulary at each call; a dict is built once, but costs more for each word. With a
# million words and a chunk of 50,000 different ones: 130 ms that way and 50 ms this way.
_FEW_WORDS = 8

Fill: TypeAlias = "bool | int | float | bytes"
"""What stands for null among the values delivered."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Codes:
    """How each value becomes a number: its place among words, or its stable hash modulo the number of buckets.

    A million words take longer to prepare than a chunk to look up: what is prepared stays here, by type.
    """

    words: Sequence[str | int] | None = None
    unknown: int | None = None  # code of a value outside of the vocabulary; None makes it an error
    num_buckets: int | None = None
    _arrays: dict[pa.DataType, pa.Array] = field(default_factory=dict, init=False, repr=False)
    _places: dict[pa.DataType, dict[Any, int]] = field(default_factory=dict, init=False, repr=False)

    def of(self, values: pa.Array) -> Array:
        """Return the code or bucket of each word or integer, int64 [n].

        MISSING stands for a value outside the vocabulary; what stands at nulls means nothing.
        """
        if len(values) == 0:
            return np.zeros(0, np.int64)
        if self.words is None:
            return self._buckets(values, self.num_buckets or 1)
        kind = values.type
        array = self._arrays.get(kind)
        if array is None:
            array = self._arrays.setdefault(kind, _vocabulary_array(self.words, kind))
        if len(self.words) < _FEW_WORDS * len(values):
            places = pc.index_in(values, value_set=array)
            found, valid = buffer_of(places, np.dtype(np.int32)).astype(np.int64), validity(places)
            return found if valid is None else np.where(valid, found, MISSING)
        if kind not in self._places:
            words = array.to_pylist()
            self._places[kind] = {word: code for code, word in enumerate(words) if word is not None}
        encoded, codes = values.dictionary_encode(), self._places[kind]
        of_words = [codes.get(word, MISSING) for word in encoded.dictionary.to_pylist()]
        places, valid = buffer_of(encoded.indices, np.dtype(np.int32)), validity(encoded.indices)
        return np.array(of_words or [MISSING], np.int64).take(places if valid is None else np.where(valid, places, 0))

    def _buckets(self, values: pa.Array, num_buckets: int) -> Array:
        if pa.types.is_integer(values.type):
            integers = buffer_of(values, dtype_of(values.type))
            return (integer_hash(integers) % np.uint64(num_buckets)).astype(np.int64)
        offsets, data = split_lists(values, None)
        found = np.empty(len(values), np.int64)
        hash_strings(buffer_of(data, np.dtype(np.uint8)), offsets, num_buckets, found)
        return found


def _vocabulary_array(words: Sequence[str | int], kind: pa.DataType) -> pa.Array:
    if not pa.types.is_integer(kind):
        return strings_of(list(map(str, words)), kind)
    # A word outside the type's range can never be met; a null keeps the places of those behind it.
    dtype = dtype_of(kind)
    inside = np.array([integer_fits(int(word), dtype) for word in words], np.bool_)
    found: Any = [int(word) if fits else 0 for word, fits in zip(words, inside.tolist(), strict=True)]
    return array_of(np.array(found, dtype), ~inside)


def _of_integers(values: Array, codes: Codes) -> Array:
    is_wide = codes.words is None or values.dtype == np.uint64
    return codes.of(array_of(values if is_wide else values.astype(np.int64, copy=False)))


def codes_of(
    array: pa.Array, leaf: ValueKind, codes: Codes, *, dtype: DType, fill: Fill | None
) -> tuple[Array, Array | None]:
    """Return the code or bucket of each value, `fill` or zero at nulls, and which rows had a value, None where all had.

    A value outside the vocabulary is a `MisfitError`, where nothing stands for such.
    """
    at_null = dtype.type(0 if fill is None or isinstance(fill, bytes) else fill)

    def code(values: pa.Array) -> tuple[Array, Array | None, int | None]:
        """Return codes, which values are there, and where the first one is that has no code and needs one."""
        valid, first = validity(values), None
        numbers = codes.of(as_binary(values)) if leaf.is_words else _of_integers(numbers_of(values, leaf, valid), codes)
        if codes.words is not None and codes.unknown != MISSING:
            odd = numbers == MISSING
            if codes.unknown is not None:
                numbers = np.where(odd, codes.unknown, numbers)
            elif (odd if valid is None else odd & valid).any():
                first = int(np.argmax(odd if valid is None else odd & valid))
        numbers = numbers.astype(dtype, copy=False)
        return numbers if valid is None else np.where(valid, numbers, at_null), valid, first

    if leaf.is_words and pa.types.is_dictionary(array.type) and len(array.dictionary) <= len(array):
        of_words, there, first = code(decoded(stored(array.dictionary)))
        if first is None:  # a word of the dictionary without a code need not be one of the rows
            places, valid = buffer_of(array.indices, dtype_of(array.indices.type)), validity(array.indices)
            if valid is not None:  # the first one is of rows without a word: a quarter faster than by `where`
                places = places.astype(np.intp)
                places += 1
                places *= valid
                of_words, there = np.append(at_null, of_words), None if there is None else np.append(False, there)
            return of_words.take(places), valid if there is None else there.take(places)
    array = decoded(array)
    numbers, valid, first = code(array)
    if first is None:
        return numbers, valid
    word = array[first].as_py()
    if isinstance(word, bytes):
        word = word.decode("utf-8", errors="backslashreplace")
    raise MisfitError(
        f"{word!r} is not among the {len(codes.words or ())} values of its vocabulary",
        index=first,
        advice="Add it, or give unknown= a code for such values.",
    )


def code_of_fill(fill: float | str, leaf: ValueKind, codes: Codes) -> int | None:
    """Return the code of a fill; None where it is one itself, as a number is where the column holds words.

    One without a code is a `MisfitError`.
    """
    if leaf.is_words:
        if not isinstance(fill, str):
            if codes.num_buckets is not None and not 0 <= fill < codes.num_buckets:
                raise MisfitError(f"fill={fill!r} is no bucket of {codes.num_buckets}")
            return None
        code = int(codes.of(strings_of([fill], pa.binary()))[0])
    else:
        if isinstance(fill, str) or not is_held(fill, leaf.dtype):
            raise MisfitError(f"fill={fill!r} is no {leaf.dtype.name}: it must be the value that stands for null here")
        code = int(_of_integers(np.array([int(fill)], leaf.dtype), codes)[0])
    if code == MISSING and codes.unknown is None:
        raise MisfitError(f"fill={fill!r} is not in the vocabulary; add it, or give unknown=")
    return codes.unknown if code == MISSING else code


def as_binary(array: pa.Array) -> pa.Array:
    """Return strings or binary of any layout as binary or large binary, a view where the layout is the same."""
    kind = array.type
    if pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.large_binary())
    if pa.types.is_large_string(kind):
        return array.view(pa.large_binary())
    return array.view(pa.binary()) if pa.types.is_string(kind) else array
