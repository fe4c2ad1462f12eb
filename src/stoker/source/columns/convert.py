"""Arrow arrays to NumPy arrays, as planned: views where Arrow's layout allows, never a Python object per row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker.errors import FieldError
from stoker.source.columns.kinds import DType, Form, Level, is_any_list, is_bytes, is_list_view
from stoker.source.columns.nulls import null_error
from stoker.source.columns.numeric import Place, buffer_of, cast_numbers, numbers_of, unscaled_of, validity
from stoker.source.columns.plan import ColumnPlan, FieldPlan
from stoker.source.columns.words import (
    MISSING,
    Buckets,
    FixedBytes,
    Vocabulary,
    bytes_as_binary,
    number_integers,
    number_words,
    take_words,
)
from stoker.spec import Array, Arrays, Ragged

# Rows of a stacked field that are filled column by column before the next ones: their part of the result stays in the
# cache between two columns. Whole columns run at a quarter of the speed.
_BLOCK_ROWS = 4096


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


def convert_table(table: pa.Table, plans: Sequence[FieldPlan], *, where: str) -> Arrays:
    """Return the arrays of all planned fields.

    Raises:
        FieldError: A value cannot become what its field asks for, or is null without a fill or a mask.
    """
    _refuse_nulls(table, plans, where)
    # Batches share their borders among all columns, so that stacked columns need not be joined first.
    batches = [batch for batch in table.to_batches() if batch.num_rows]
    arrays: Arrays = {}
    for plan in plans:
        if plan.match.is_stacked:
            _stack_columns(plan, batches, table.num_rows, where, arrays)
        else:
            _join_column(plan, batches, where, arrays)
    return arrays


def _refuse_nulls(table: pa.Table, plans: Sequence[FieldPlan], where: str) -> None:
    """Raise one error for all columns whose nulls are seen without looking into them."""
    counts = {
        column.name: table.column(column.name).null_count
        for plan in plans
        for column in plan.columns
        if column.fill is None and not column.has_mask
    }
    found = {name: n for name, n in counts.items() if n}
    if found:
        raise null_error(found, where=where)


def _join_column(plan: FieldPlan, batches: Sequence[pa.RecordBatch], where: str, arrays: Arrays) -> None:
    column = plan.columns[0]
    pieces: list[Piece] = []
    start = 0
    for batch in batches:
        pieces.append(_convert(batch.column(column.name), column, 0, _place(column, where, start)))
        start += batch.num_rows
    if not pieces:
        pieces = [_no_rows(column)]
    values = pieces[0].values if len(pieces) == 1 else np.concatenate([piece.values for piece in pieces])
    joined: Array | Ragged = values if column.num_levels else values.reshape(start, *column.shape)
    for level in reversed(range(column.num_levels)):
        joined = Ragged(joined, _join_offsets([piece.offsets[level] for piece in pieces]))
    arrays[plan.entry.name] = joined
    if plan.mask is not None:
        masks = [
            np.ones(batch.num_rows, np.bool_) if piece.valid is None else piece.valid
            for batch, piece in zip(batches, pieces, strict=False)
        ]
        arrays[plan.mask.name] = np.concatenate([np.zeros(0, np.bool_), *masks])


def _stack_columns(
    plan: FieldPlan, batches: Sequence[pa.RecordBatch], num_rows: int, where: str, arrays: Arrays
) -> None:
    stacked = np.empty((num_rows, len(plan.columns)), plan.entry.dtype)
    mask = None if plan.mask is None else np.ones(stacked.shape, np.bool_)
    start = 0
    for batch in batches:
        sources: list[Array] = []
        for j, column in enumerate(plan.columns):
            piece = _convert(batch.column(column.name), column, 0, _place(column, where, start))
            sources.append(piece.values)
            if mask is not None and piece.valid is not None:
                mask[start : start + batch.num_rows, j] = piece.valid
        try:
            _fill_blocks(stacked[start : start + batch.num_rows], sources)
        except FloatingPointError:
            for column, source in zip(plan.columns, sources, strict=True):
                cast_numbers(source, column.dtype, _place(column, where, start))
            raise
        start += batch.num_rows
    arrays[plan.entry.name] = stacked.reshape(num_rows, *plan.entry.shape)
    if plan.mask is not None and mask is not None:
        arrays[plan.mask.name] = mask.reshape(num_rows, *plan.entry.shape)


def _fill_blocks(out: Array, columns: Sequence[Array]) -> None:
    with np.errstate(over="raise", invalid="ignore"):
        for start in range(0, len(out), _BLOCK_ROWS):
            block = out[start : start + _BLOCK_ROWS]
            for j, column in enumerate(columns):
                block[:, j] = column[start : start + _BLOCK_ROWS]


def _place(column: ColumnPlan, where: str, start: int) -> Place:
    return Place(column=column.name, where=where, row_of=lambda i: start + i)


def _no_rows(column: ColumnPlan) -> Piece:
    values = np.zeros((0, *column.shape), column.dtype)
    return Piece(values=values, offsets=(np.zeros(1, np.int64),) * column.num_levels)


def _join_offsets(parts: Sequence[Array]) -> Array:
    if len(parts) == 1:
        return parts[0]
    joined = [parts[0]]
    for part in parts[1:]:
        joined.append(part[1:] + joined[-1][-1])
    return np.concatenate(joined)


def _convert(array: pa.Array, column: ColumnPlan, depth: int, place: Place) -> Piece:
    """Return an array of the column's level `depth` as arrays."""
    array = _without_encoding(array)
    if depth == len(column.levels):
        return _convert_leaf(array, column, depth, place)
    array = _decoded(array)
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
        offsets, child = _split(array, there)
        inner = _convert(child, column, depth + 1, replace(place, row_of=_row_in_lists(place, offsets)))
        return Piece(values=inner.values, offsets=(offsets, *inner.offsets), valid=valid)
    return _convert_sized(array, column, depth, place, valid=valid, there=there)


def _convert_sized(
    array: pa.Array, column: ColumnPlan, depth: int, place: Place, *, valid: Array | None, there: Array | None
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
        offsets, child = _split(array, there)
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
    inner = _convert(child, column, depth + 1, replace(place, row_of=row_of))
    if depth < column.num_levels:
        lengths = np.full(len(array), size, np.int64) if there is None else np.where(there, size, 0)
        return Piece(values=inner.values, offsets=(_offsets_of(lengths), *inner.offsets), valid=valid)
    values = _shape_level(inner.values, level, num_there)
    if alive is not None:
        spread = np.full((len(array), *values.shape[1:]), _fill_or_zero(column), values.dtype)
        spread[alive] = values
        values = spread
    return Piece(values=values, valid=valid)


def _shape_level(values: Array, level: Level, num_rows: int) -> Array:
    """Return the values of lists of one length with the lists' dimensions in front, [num_rows, ...]."""
    rest = values.shape[1:]
    if level.permutation is None or level.physical is None:
        return values.reshape(num_rows, *level.shape, *rest)
    stored = values.reshape(num_rows, *level.physical, *rest)
    behind = range(1 + len(level.physical), stored.ndim)
    return np.ascontiguousarray(stored.transpose(0, *(axis + 1 for axis in level.permutation), *behind))


def _convert_leaf(array: pa.Array, column: ColumnPlan, depth: int, place: Place) -> Piece:
    """Return innermost values in the dtype planned, nulls filled, [n, *value_shape]."""
    if isinstance(column.way, Vocabulary | Buckets):
        values, valid = _codes(array, column, place)
    else:
        array = _decoded(array)
        valid = validity(array)
        values = _plain_values(array, column, valid, place)
    if valid is None:
        # The copy into a stacked array casts and checks as it goes.
        return Piece(values=values if column.casts_late else cast_numbers(values, column.dtype, place))
    _check_fill(valid, column, depth, place)
    values = cast_numbers(values, column.dtype, place)
    if column.fill is not None and not isinstance(column.fill, bytes):
        values = np.where(valid, values, values.dtype.type(column.fill))
    return Piece(values=values, valid=valid)


def _plain_values(array: pa.Array, column: ColumnPlan, valid: Array | None, place: Place) -> Array:
    leaf = column.leaf
    if leaf.form in (Form.BYTES, Form.FIXED_BYTES):
        if isinstance(column.way, FixedBytes) or leaf.form is Form.FIXED_BYTES:
            return _fixed_bytes(array, column, valid, place)
        return buffer_of(array, leaf.storage)  # the bytes of strings, split into lists above
    if leaf.form is Form.DECIMAL and column.dtype.kind in "iu":
        return unscaled_of(array, leaf, valid, place)
    return numbers_of(array, leaf, valid, place)


def _codes(array: pa.Array, column: ColumnPlan, place: Place) -> tuple[Array, Array | None]:
    """Return the code or bucket of each value, int64 [n], zeros at nulls, and which are there."""
    way = column.way
    if not isinstance(way, Vocabulary | Buckets):
        raise TypeError(f"{way!r} gives no codes")
    if column.leaf.form not in (Form.BYTES, Form.FIXED_BYTES):
        array = _decoded(array)
        valid = validity(array)
        codes = number_integers(numbers_of(array, column.leaf, valid, place), way)
    elif pa.types.is_dictionary(array.type) and len(array.dictionary) <= len(array):
        # On the words of the dictionary, not on the rows; what no row uses may be outside the vocabulary.
        words = bytes_as_binary(_decoded(_without_encoding(array.dictionary)))
        codes = take_words(number_words(words, way), array.indices)
        valid = validity(array.indices)
        if words.null_count:
            word_valid = take_words(np.asarray(pc.is_valid(words).to_numpy(zero_copy_only=False)), array.indices)
            valid = word_valid.astype(np.bool_) if valid is None else valid & word_valid.astype(np.bool_)
    else:
        array = bytes_as_binary(_decoded(array))
        valid = validity(array)
        codes = number_words(array, way)
    missing = codes == MISSING
    if valid is not None:
        missing &= valid
        codes = np.where(valid, codes, 0)
    if isinstance(way, Vocabulary) and missing.any():
        if way.unknown is None:
            i = int(np.argmax(missing))
            raise _unknown_word(array, way, i, place)
        codes = np.where(missing, way.unknown, codes)
    return codes, valid


def _unknown_word(array: pa.Array, way: Vocabulary, index: int, place: Place) -> FieldError:
    word = array[index].as_py()
    if isinstance(word, bytes):
        word = word.decode("utf-8", errors="backslashreplace")
    return place.error(
        f"{word!r} is not among the {len(way.words)} values of its vocabulary",
        index=index,
        advice="Add it, or give unknown= a code for such values.",
    )


def _fixed_bytes(array: pa.Array, column: ColumnPlan, valid: Array | None, place: Place) -> Array:
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
    offsets, child = _split(array, None)
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


def _split(array: pa.Array, valid: Array | None) -> tuple[Array, pa.Array]:
    """Return the borders of lists or binary, int64 [n + 1] from 0, and the values between them.

    Values that stand under null lists, before the first list or behind the last are left out.
    """
    if is_list_view(array.type):
        # Views may overlap and lie in any order: Arrow brings the values in order.
        return _offsets_of(np.asarray(array.value_lengths().fill_null(0)).astype(np.int64)), array.flatten()
    if is_any_list(array.type):
        stored = np.asarray(array.offsets) if len(array) else np.zeros(1, np.int64)
        values = array.values
    else:
        width = np.dtype(np.int64 if pa.types.is_large_binary(array.type) else np.int32)
        stored, values = _binary_parts(array, width)
    first, last = int(stored[0]), int(stored[-1])
    if valid is not None:
        lengths = np.diff(stored)
        if lengths[~valid].any():
            if not is_any_list(array.type):
                return _split(array.fill_null(b""), None)
            return _offsets_of(np.where(valid, lengths, 0).astype(np.int64)), array.flatten()
    offsets = stored.astype(np.int64, copy=False)
    return (offsets - first if first else offsets), values.slice(first, last - first)


def _binary_parts(array: pa.Array, width: DType) -> tuple[Array, pa.Array]:
    """Return the stored offsets of binary, [n + 1], and all its bytes as an Arrow array of uint8."""
    _, borders, data = array.buffers()
    if len(array) == 0 or borders is None:
        return np.zeros(1, np.int64), pa.array([], pa.uint8())
    offsets = np.frombuffer(borders, width, count=len(array) + 1, offset=array.offset * width.itemsize)
    size = 0 if data is None else data.size
    return offsets, pa.Array.from_buffers(pa.uint8(), size, [None, data])


def _offsets_of(lengths: Array) -> Array:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _without_encoding(array: pa.Array) -> pa.Array:
    """Return the array without run ends and without extensions that say nothing; dictionaries stay."""
    while True:
        if pa.types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        elif isinstance(array.type, pa.BaseExtensionType) and not isinstance(array.type, pa.FixedShapeTensorType):
            array = array.storage
        else:
            return array


def _decoded(array: pa.Array) -> pa.Array:
    """Return the array without dictionaries."""
    while pa.types.is_dictionary(array.type):
        array = _without_encoding(array.dictionary_decode())
    return array


def _check_fill(valid: Array, column: ColumnPlan, depth: int, place: Place) -> None:
    """Raise where nulls have no answer: a fill anywhere, a mask only for whole samples."""
    if column.fill is None and (depth > 0 or not column.has_mask):
        raise null_error({column.name: int(np.count_nonzero(~valid))}, where=place.where, inside=depth > 0)


def _fill_or_zero(column: ColumnPlan) -> bool | int | float:
    return 0 if column.fill is None or isinstance(column.fill, bytes) else column.fill


def _row_in_lists(place: Place, offsets: Array) -> Callable[[int], int]:
    return lambda i: place.row_of(int(np.searchsorted(offsets, i, side="right")) - 1)


def _row_in_sized(place: Place, size: int, alive: Array | None) -> Callable[[int], int]:
    return lambda i: place.row_of(i // size if alive is None else int(alive[i // size]))
