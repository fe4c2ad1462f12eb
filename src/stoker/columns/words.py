"""Words to numbers: vocabularies, hash buckets and bytes of one length.

Work is done once per distinct value where that is cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker._native import hash_strings
from stoker.arrow import array_of, dtype_of, strings_of
from stoker.columns.arrays import (
    ValuePlace,
    buffer_of,
    decoded,
    integer_fits,
    numbers_of,
    split_lists,
    stored,
    validity,
)
from stoker.columns.kinds import WORDS, DType, Refused, ValueKind
from stoker.fields.spec import Array
from stoker.hashing import integer_hash

MISSING = -1  # no code and no bucket is negative

Fill: TypeAlias = "bool | int | float | bytes"
"""What stands for null among the values delivered."""


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


class Coded(NamedTuple):
    """Some rows of a column as codes.

    Attributes:
        values: Codes or buckets in the dtype planned, the fill or zero at nulls. Shape [n].
        valid: Which rows had a value, bool [n]; None where all had.
    """

    values: Array
    valid: Array | None


def codes_of(
    array: pa.Array, leaf: ValueKind, way: Codes | Buckets, *, dtype: DType, fill: Fill | None, place: ValuePlace
) -> Coded:
    """Return the code or bucket of each value.

    Args:
        array: Values as they are stored.
        leaf: What they are.
        way: How they become numbers.
        dtype: Of the codes.
        fill: Code at nulls.
        place: For messages.

    Raises:
        FieldError: A value is outside the vocabulary, and nothing stands for such.
    """
    at_null = dtype.type(0 if fill is None or isinstance(fill, bytes) else fill)
    unknown = way.unknown if isinstance(way, Codes) else MISSING  # no bucket is missing

    def code(values: pa.Array) -> tuple[Coded, int | None]:
        """Return codes, and where the first value is that has none and needs one."""
        valid = validity(values)
        if leaf.form in WORDS:
            numbers = number_words(as_binary(values), way)
        else:
            numbers = _number_integers(numbers_of(values, leaf, valid, place), way)
        odd = (numbers == MISSING) if unknown is None or unknown != MISSING else np.zeros(0, np.bool_)
        first = None
        if unknown is None:
            odd = odd if valid is None else odd & valid
            first = int(np.argmax(odd)) if odd.any() else None
        elif odd.any():
            numbers = np.where(odd, unknown, numbers)
        numbers = numbers.astype(dtype, copy=False)
        return Coded(numbers if valid is None else np.where(valid, numbers, at_null), valid), first

    if leaf.form in WORDS and pa.types.is_dictionary(array.type) and len(array.dictionary) <= len(array):
        (of_words, there), first = code(decoded(stored(array.dictionary)))
        if first is None:  # a word of the dictionary without a code need not be one of the rows
            places, valid = buffer_of(array.indices, dtype_of(array.indices.type)), validity(array.indices)
            if valid is not None:
                places, of_words = np.where(valid, places, len(of_words)), np.append(of_words, at_null)
            if there is not None:
                valid = np.append(there, False).take(places)
            return Coded(of_words.take(places), valid)
    array = decoded(array)
    found, first = code(array)
    if first is not None:
        word = array[first].as_py()
        if isinstance(word, bytes):
            word = word.decode("utf-8", errors="backslashreplace")
        num_words = len(way.words) if isinstance(way, Codes) else 0
        raise place.error(
            f"{word!r} is not among the {num_words} values of its vocabulary",
            index=first,
            advice="Add it, or give unknown= a code for such values.",
        )
    return found


def code_of_fill(fill: float | str, leaf: ValueKind, way: Codes | Buckets) -> int | None:
    """Return the code of a fill; None where it is one itself, as a number is where the column holds words.

    Raises:
        Refused: It has none.
    """
    if leaf.form in WORDS:
        if not isinstance(fill, str):
            if isinstance(way, Buckets) and not 0 <= fill < way.num_buckets:
                raise Refused(f"fill={fill!r} is no bucket of {way.num_buckets}")
            return None
        code = int(number_words(strings_of([fill], pa.binary()), way)[0])
    else:
        if isinstance(fill, str) or not np.isfinite(fill) or fill != int(fill):
            raise Refused(f"fill={fill!r} must be an integer here: the value that stands for null")
        if not integer_fits(int(fill), leaf.storage):
            raise Refused(f"fill={fill!r} does not fit {leaf.storage.name}")
        code = int(_number_integers(np.array([int(fill)], leaf.storage), way)[0])
    if code == MISSING and isinstance(way, Codes):
        if way.unknown is None:
            raise Refused(f"fill={fill!r} is not in the vocabulary; add it, or give unknown=")
        return way.unknown
    return code


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


def _number_integers(values: Array, way: Codes | Buckets) -> Array:
    """Return the code or bucket of each integer, int64 [n]; MISSING for one outside the vocabulary."""
    if isinstance(way, Buckets):
        return (integer_hash(values) % np.uint64(way.num_buckets)).astype(np.int64)
    wide = values if values.dtype == np.uint64 else values.astype(np.int64, copy=False)
    return number_words(array_of(wide), way)


def as_binary(array: pa.Array) -> pa.Array:
    """Return strings or binary of any layout as binary or large binary, a view where the layout is the same."""
    kind = array.type
    if pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.binary())
    if pa.types.is_large_string(kind):
        return array.view(pa.large_binary())
    return array.view(pa.binary()) if pa.types.is_string(kind) else array


# Arrow builds a table of the whole vocabulary at each call; a dict is built once, but costs more for each word. With a
# million words and a chunk of 50,000 different ones: 130 ms that way and 50 ms this way.
_FEW_WORDS = 8


class _Lookup:
    """One vocabulary made ready: an Arrow array to find many words in it, a dict to find few."""

    def __init__(self, words: Sequence[str | int], kind: pa.DataType) -> None:
        self.words = words
        self.array = _vocabulary_array(words, kind)
        self._codes: dict[bytes | int, int] | None = None

    def codes(self, words: pa.Array) -> Array:
        """Return the place of each word in the vocabulary, int64 [n], MISSING where it is not in it."""
        if len(self.words) < _FEW_WORDS * len(words):
            places = pc.index_in(words, value_set=self.array)
            found, valid = buffer_of(places, np.dtype(np.int32)).astype(np.int64), validity(places)
            return found if valid is None else np.where(valid, found, MISSING)
        if self._codes is None:
            self._codes = {word: code for code, word in enumerate(self.array.to_pylist()) if word is not None}
        encoded = words.dictionary_encode()
        # What stands at nulls means nothing.
        of_words = [self._codes.get(word, MISSING) for word in encoded.dictionary.to_pylist()]
        places, valid = buffer_of(encoded.indices, np.dtype(np.int32)), validity(encoded.indices)
        return np.array(of_words or [MISSING], np.int64).take(places if valid is None else np.where(valid, places, 0))


def _vocabulary_array(words: Sequence[str | int], kind: pa.DataType) -> pa.Array:
    if not pa.types.is_integer(kind):
        return strings_of(list(map(str, words)), kind)
    # A word outside the type's range can never be met; a null keeps the places of those behind it.
    dtype = dtype_of(kind)
    inside = np.array([integer_fits(int(word), dtype) for word in words], np.bool_)
    found: Any = [int(word) if fits else 0 for word, fits in zip(words, inside.tolist(), strict=True)]
    return array_of(np.array(found, dtype), ~inside)
