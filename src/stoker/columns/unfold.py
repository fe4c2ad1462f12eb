"""Arrow arrays to NumPy arrays, as planned: views where Arrow's layout allows, never a Python object per row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from stoker.columns.column import ColumnPlan
from stoker.columns.kinds import WORDS, Form, Level, dtype_of, is_bytes
from stoker.columns.nulls import null_error
from stoker.columns.numeric import (
    ValuePlace,
    buffer_of,
    cast_numbers,
    decoded,
    is_held,
    numbers_of,
    split_lists,
    unscaled_of,
    validity,
    without_encoding,
)
from stoker.columns.words import (
    MISSING,
    Buckets,
    Codes,
    FixedBytes,
    bytes_as_binary,
    number_integers,
    number_words,
)
from stoker.errors import FieldError
from stoker.fields.offsets import offsets_of
from stoker.fields.spec import Array

# What numbers become without a detour.
_STORED_AS_THEY_ARE = (Form.INTEGER, Form.TIME, Form.FLOAT)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some rows of a column as arrays.

    Attributes:
        values: Shape [rows, ...], or of all innermost values together where `offsets` are given.
        offsets: int64 [n + 1] for each ragged level, outermost first; each begins at 0.
        valid: Which rows had a value, bool [rows]; None where all had.
    """

    values: Array
    offsets: tuple[Array, ...] = ()
    valid: Array | None = None


def unfold(array: pa.Array, column: ColumnPlan, depth: int, place: ValuePlace) -> Piece:
    """Return an array of the column's level `depth` as arrays."""
    array = without_encoding(array)
    if depth == len(column.levels):
        return _unfold_leaf(array, column, depth, place)
    array = decoded(array)
    level = column.levels[depth]
    valid = validity(array)
    if valid is not None:
        _check_fill(valid, column, depth, place)
    there = valid
    if is_bytes(array.type):
        array = bytes_as_binary(array)
        if there is not None and (isinstance(column.fill, bytes)):
            array, there = array.fill_null(column.fill), None
    if level.size is None:
        offsets, child = split_lists(array, there)
        inner = unfold(child, column, depth + 1, replace(place, row_of=_row_in_lists(place, offsets)))
        return Piece(values=inner.values, offsets=(offsets, *inner.offsets), valid=valid)
    return _unfold_sized(array, column, depth, place, valid=valid, there=there)


def _unfold_sized(
    array: pa.Array, column: ColumnPlan, depth: int, place: ValuePlace, *, valid: Array | None, there: Array | None
) -> Piece:
    """Return lists that all have one length: as dimensions where nothing ragged is inside, else as lists.

    `valid` is what the mask shows; `there` which lists really hold values, None for all.
    """
    level = column.levels[depth]
    size = level.size or 0
    if pa.types.is_fixed_size_list(array.type) or isinstance(array.type, pa.FixedShapeTensorType):
        storage = array.storage if isinstance(array.type, pa.FixedShapeTensorType) else array
        child = storage.flatten()  # without what stands under null lists
    else:
        offsets, child = split_lists(array, there)
        lengths = np.diff(offsets)
        wrong = lengths != size if there is None else (lengths != size) & there
        if wrong.any():
            i = int(np.argmax(wrong))
            raise place.error(
                f"a list of length {lengths[i]}, but shape= asks for {size} values",
                index=i,
                advice="Leave shape= out to have ragged lists, or pad or cut them in a transform.",
            )
    num_there = len(array) if there is None else int(np.count_nonzero(there))
    alive = None if there is None else np.flatnonzero(there)
    row_of = _row_in_sized(place, size, alive)
    inner = unfold(child, column, depth + 1, replace(place, row_of=row_of))
    if depth < column.num_levels:
        lengths = np.full(len(array), size, np.int64) if there is None else np.where(there, size, 0)
        return Piece(values=inner.values, offsets=(offsets_of(lengths), *inner.offsets), valid=valid)
    values = _shape_level(inner.values, level, num_there)
    if alive is not None:
        values = _spread(values, alive, len(array), column)
    return Piece(values=values, valid=valid)


def _shape_level(values: Array, level: Level, num_rows: int) -> Array:
    """Return the values of lists of one length with the lists' dimensions in front, [num_rows, ...]."""
    rest = values.shape[1:]
    if level.permutation is None or level.physical is None:
        return values.reshape(num_rows, *level.shape, *rest)
    stored = values.reshape(num_rows, *level.physical, *rest)
    behind = range(1 + len(level.physical), stored.ndim)
    return np.ascontiguousarray(stored.transpose(0, *(axis + 1 for axis in level.permutation), *behind))


def _unfold_leaf(array: pa.Array, column: ColumnPlan, depth: int, place: ValuePlace) -> Piece:
    """Return innermost values in the dtype planned, nulls filled, [n, *value_shape]."""
    if isinstance(column.way, Codes | Buckets):
        coded = codes(array, column, place)
        if coded.valid is not None:
            _check_fill(coded.valid, column, depth, place)
        return Piece(values=coded.values, valid=coded.valid)
    array = decoded(array)
    valid = validity(array)
    if valid is not None:
        _check_fill(valid, column, depth, place)
    at_null = 0 if column.fill is None or isinstance(column.fill, bytes) else column.fill
    # In one pass with what is left out, where the column itself has room for it.
    is_filled = not at_null or (column.leaf.form in _STORED_AS_THEY_ARE and is_held(at_null, column.leaf.storage))
    values = _plain_values(array, column, valid, place, at_null=at_null if is_filled else 0)
    # Where the columns of a stacked field are packed, they are widened as well.
    if not column.casts_late or not is_filled:
        values = cast_numbers(values, column.dtype, place)
    if valid is not None and not is_filled:
        values = np.where(valid, values, values.dtype.type(at_null))
    return Piece(values=values, valid=valid)


def _plain_values(
    array: pa.Array, column: ColumnPlan, valid: Array | None, place: ValuePlace, *, at_null: float
) -> Array:
    leaf = column.leaf
    if leaf.form in WORDS:
        if isinstance(column.way, FixedBytes) or leaf.form is Form.FIXED_BYTES:
            return _fixed_bytes(array, column, valid, place)
        return buffer_of(array, leaf.storage)  # the bytes of strings, split into lists above
    if leaf.form is Form.DECIMAL and column.dtype.kind in "iu":
        return unscaled_of(array, leaf, valid, place)
    return numbers_of(array, leaf, valid, place, at_null=at_null)


def _fixed_bytes(array: pa.Array, column: ColumnPlan, valid: Array | None, place: ValuePlace) -> Array:
    """Return each value's bytes with zeros behind, uint8 [n, num_bytes]."""
    (num_bytes,) = column.value_shape
    octet = np.dtype(np.uint8)
    fill = column.fill if isinstance(column.fill, bytes) else b""
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        values = buffer_of(array, octet, width=width).reshape(len(array), width)
        if valid is None and width == num_bytes:
            return values
        out = np.zeros((len(array), num_bytes), octet)
        out[:, :width] = values
        if valid is not None:
            out[~valid] = np.frombuffer(fill.ljust(num_bytes, b"\0"), octet)
        return out
    array = bytes_as_binary(array)
    if valid is not None:
        array = array.fill_null(fill)
    offsets, child = split_lists(array, None)
    lengths = np.diff(offsets)
    if lengths.size and int(lengths.max()) > num_bytes:
        i = int(np.argmax(lengths > num_bytes))
        raise place.error(
            f"a value of {lengths[i]} bytes, more than num_bytes={num_bytes}",
            index=i,
            advice="Give more bytes, cut such values in a transform, or use hash_buckets=.",
        )
    data = buffer_of(child, octet)
    if len(data) == len(array) * num_bytes:
        return data.reshape(len(array), num_bytes)
    out = np.zeros((len(array), num_bytes), octet)
    # The bytes lie in the order in which the places below are visited: row after row, first byte first.
    out[np.arange(num_bytes) < lengths[:, None]] = data
    return out


def _check_fill(valid: Array, column: ColumnPlan, depth: int, place: ValuePlace) -> None:
    """Raise where nulls have no answer: a fill anywhere, a mask only for whole samples."""
    if column.fill is None and (depth > 0 or not column.has_mask):
        raise null_error({column.name: int(np.count_nonzero(~valid))}, where=place.where, inside=depth > 0)


def _spread(values: Array, places: Array, num_rows: int, column: ColumnPlan) -> Array:
    """Return `values` at their places among `num_rows`, and the fill throughout, or zeros, everywhere else."""
    spread = np.zeros((num_rows, *values.shape[1:]), values.dtype)
    if isinstance(column.fill, bytes):
        spread[...] = np.frombuffer(column.fill.ljust(values.shape[-1], b"\0"), values.dtype)
    elif column.fill:
        spread[...] = column.fill
    spread[places] = values
    return spread


def _row_in_lists(place: ValuePlace, offsets: Array) -> Callable[[int], int]:
    return lambda i: place.row_of(int(np.searchsorted(offsets, i, side="right")) - 1)


def _row_in_sized(place: ValuePlace, size: int, alive: Array | None) -> Callable[[int], int]:
    return lambda i: place.row_of(i // size if alive is None else int(alive[i // size]))


class Coded(NamedTuple):
    """Some rows of a column as codes.

    Attributes:
        values: Codes or buckets in the dtype planned, the fill or zero at nulls. Shape [n].
        valid: Which rows had a value, bool [n]; None where all had.
    """

    values: Array
    valid: Array | None


def is_coded(column: ColumnPlan) -> bool:
    """Whether a column is one of words, without lists around them, each of which becomes a number."""
    is_numbered = isinstance(column.way, Codes | Buckets)
    return is_numbered and column.leaf.form is Form.BYTES and not column.levels


def codes(array: pa.Array, column: ColumnPlan, place: ValuePlace) -> Coded:
    """Return the code or bucket of each value.

    Raises:
        FieldError: A value is outside the vocabulary, and nothing stands for such.
    """
    if column.leaf.form in WORDS and pa.types.is_dictionary(array.type) and len(array.dictionary) <= len(array):
        found = _codes_by_dictionary(array, column, place)
        if found is not None:
            return found
    array = decoded(array)
    numbers, valid = _numbers(array, column, place)
    odd = _first_without_code(numbers, valid, column)
    if odd is not None:
        raise _unknown_word(array, column, odd, place)
    values = _as_delivered(numbers, column)
    return Coded(values if valid is None else np.where(valid, values, _at_null(column)), valid)


def _codes_by_dictionary(array: pa.DictionaryArray, column: ColumnPlan, place: ValuePlace) -> Coded | None:
    """Return the codes of rows that are places in a dictionary; None where one of its words, used or not, has none."""
    words = decoded(without_encoding(array.dictionary))
    numbers, there = _numbers(words, column, place)
    if _first_without_code(numbers, there, column) is not None:
        return None
    values, valid = _as_delivered(numbers, column), validity(array.indices)
    places = buffer_of(array.indices, dtype_of(array.indices.type))
    if there is not None:
        values = np.where(there, values, _at_null(column))
    if valid is not None:
        places, values = np.where(valid, places, len(words)), np.append(values, _at_null(column))
    if there is not None:
        valid = np.append(there, False).take(places)
    return Coded(values.take(places), valid)


def _numbers(array: pa.Array, column: ColumnPlan, place: ValuePlace) -> tuple[Array, Array | None]:
    """Return the code or bucket of each value, int64 [n], MISSING where it has none, and which values are there."""
    way = column.way
    if not isinstance(way, Codes | Buckets):
        raise TypeError(f"{way!r} gives no codes")
    if column.leaf.form in WORDS:
        return number_words(bytes_as_binary(array), way), validity(array)
    valid = validity(array)
    return number_integers(numbers_of(array, column.leaf, valid, place), way), valid


def _first_without_code(numbers: Array, there: Array | None, column: ColumnPlan) -> int | None:
    """Return where the first value is that is outside of its vocabulary, where nothing stands for such."""
    way = column.way
    if not isinstance(way, Codes) or way.unknown is not None:
        return None
    is_missing = numbers == MISSING if there is None else (numbers == MISSING) & there
    return int(np.argmax(is_missing)) if is_missing.any() else None


def _as_delivered(numbers: Array, column: ColumnPlan) -> Array:
    """Return codes in the dtype planned, which can hold all of them."""
    way = column.way
    if isinstance(way, Codes) and way.unknown is not None:
        numbers = np.where(numbers == MISSING, way.unknown, numbers)
    return numbers.astype(column.dtype, copy=False)


def _at_null(column: ColumnPlan) -> Any:
    """Return what stands where there is no value, in the dtype planned."""
    return column.dtype.type(0 if column.fill is None or isinstance(column.fill, bytes) else column.fill)


def _unknown_word(array: pa.Array, column: ColumnPlan, index: int, place: ValuePlace) -> FieldError:
    way = column.way
    assert isinstance(way, Codes)
    word = array[index].as_py()
    if isinstance(word, bytes):
        word = word.decode("utf-8", errors="backslashreplace")
    return place.error(
        f"{word!r} is not among the {len(way.words)} values of its vocabulary",
        index=index,
        advice="Add it, or give unknown= a code for such values.",
    )
