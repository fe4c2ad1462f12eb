"""Arrow arrays to NumPy arrays, as planned: views where Arrow's layout allows, never a Python object per row."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from stoker.columns.arrays import (
    ValuePlace,
    buffer_of,
    cast_numbers,
    decoded,
    is_held,
    null_error,
    numbers_of,
    split_lists,
    stored,
    unscaled_of,
    validity,
)
from stoker.columns.kinds import WORDS, Form, Level, is_bytes
from stoker.columns.plan import ColumnPlan
from stoker.columns.words import Buckets, Codes, FixedBytes, as_binary, codes_of
from stoker.fields.spec import Array

# What numbers become without a detour.
_STORED_AS_THEY_ARE = (Form.INTEGER, Form.TIME, Form.FLOAT)


@dataclass(frozen=True, kw_only=True)
class Unfolded:
    """Some rows of a column as arrays.

    Attributes:
        values: Shape [rows, ...], or of all innermost values together where `offsets` are given.
        offsets: int64 [n + 1] for each ragged level, outermost first; each begins at 0.
        valid: Which rows had a value, bool [rows]; None where all had.
    """

    values: Array
    offsets: tuple[Array, ...] = ()
    valid: Array | None = None


def unfold(array: pa.Array, column: ColumnPlan, place: ValuePlace, depth: int = 0) -> Unfolded:
    """Return an array of the column's level `depth` as arrays.

    Raises:
        FieldError: A value cannot become what its field asks for, or is null without an answer.
    """
    array = stored(array)
    if depth == len(column.levels):
        return _unfold_leaf(array, column, place, depth)
    array = decoded(array)
    level, is_ragged = column.levels[depth], depth < column.num_levels
    valid = there = validity(array)  # what the mask shows, and which lists really hold values
    _check_fill(valid, column, place, depth)
    if is_bytes(array.type):
        array = as_binary(array)
        if there is not None and isinstance(column.fill, bytes):
            array, there = array.fill_null(column.fill), None
    offsets, child = split_lists(array, there)
    if level.size is not None and not pa.types.is_fixed_size_list(array.type):
        lengths = np.diff(offsets)
        wrong = lengths != level.size if there is None else (lengths != level.size) & there
        if wrong.any():
            i = int(np.argmax(wrong))
            raise place.error(
                f"a list of length {lengths[i]}, but shape= asks for {level.size} values",
                index=i,
                advice="Leave shape= out to have ragged lists, or pad or cut them in a transform.",
            )
    inside = replace(place, row_of=lambda i: place.row_of(int(np.searchsorted(offsets, i, side="right")) - 1))
    inner = unfold(child, column, inside, depth + 1)
    if is_ragged:
        return Unfolded(values=inner.values, offsets=(offsets, *inner.offsets), valid=valid)
    num_there = len(array) if there is None else int(np.count_nonzero(there))
    values = _shape_level(inner.values, level, num_there)
    return Unfolded(values=values if there is None else _spread(values, there, column), valid=valid)


def _shape_level(values: Array, level: Level, num_rows: int) -> Array:
    """Return the values of lists of one length with the lists' dimensions in front, [num_rows, ...]."""
    rest = values.shape[1:]
    if level.permutation is None or level.physical is None:
        return values.reshape(num_rows, *level.shape, *rest)
    as_stored = values.reshape(num_rows, *level.physical, *rest)
    behind = range(1 + len(level.physical), as_stored.ndim)
    return np.ascontiguousarray(as_stored.transpose(0, *(axis + 1 for axis in level.permutation), *behind))


def _spread(values: Array, there: Array, column: ColumnPlan) -> Array:
    """Return `values` at the rows that have one, and the fill throughout, or zeros, everywhere else."""
    spread = np.zeros((len(there), *values.shape[1:]), values.dtype)
    if isinstance(column.fill, bytes):
        spread[...] = np.frombuffer(column.fill.ljust(values.shape[-1], b"\0"), values.dtype)
    elif column.fill:
        spread[...] = column.fill
    spread[there] = values
    return spread


def _check_fill(valid: Array | None, column: ColumnPlan, place: ValuePlace, depth: int) -> None:
    """Raise where nulls have no answer: a fill anywhere, a mask only for whole samples."""
    if valid is not None and column.fill is None and (depth > 0 or not column.has_mask):
        raise null_error({column.name: int(np.count_nonzero(~valid))}, where=place.where, inside=depth > 0)


def _unfold_leaf(array: pa.Array, column: ColumnPlan, place: ValuePlace, depth: int) -> Unfolded:
    """Return innermost values in the dtype planned, nulls filled, [n, *value_shape]."""
    leaf = column.leaf
    if isinstance(column.way, Codes | Buckets):
        values, valid = codes_of(array, leaf, column.way, dtype=column.dtype, fill=column.fill, place=place)
        _check_fill(valid, column, place, depth)
        return Unfolded(values=values, valid=valid)
    array = decoded(array)
    valid = validity(array)
    _check_fill(valid, column, place, depth)
    if leaf.form in WORDS:
        is_fixed = isinstance(column.way, FixedBytes) or leaf.form is Form.FIXED_BYTES
        # The bytes of strings were split into lists above.
        values = _fixed_bytes(array, column, valid, place) if is_fixed else buffer_of(array, leaf.storage)
        return Unfolded(values=values, valid=valid)
    at_null = 0 if column.fill is None or isinstance(column.fill, bytes) else column.fill
    # In one pass with what is left out, where the column itself has room for it.
    is_filled = not at_null or (leaf.form in _STORED_AS_THEY_ARE and is_held(at_null, leaf.storage))
    if leaf.form is Form.DECIMAL and column.dtype.kind in "iu":
        values = unscaled_of(array, leaf, valid, place)
    else:
        values = numbers_of(array, leaf, valid, place, at_null=at_null if is_filled else 0)
    # Where the columns of a stacked field are packed, they are widened as well.
    if not column.casts_late or not is_filled:
        values = cast_numbers(values, column.dtype, place)
    if valid is not None and not is_filled:
        values = np.where(valid, values, values.dtype.type(at_null))
    return Unfolded(values=values, valid=valid)


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
    array = as_binary(array)
    offsets, child = split_lists(array if valid is None else array.fill_null(fill), None)
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
