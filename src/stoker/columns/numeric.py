"""Arrow's buffers as NumPy arrays, lists as borders and values, and casts that never change a number unseen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker.columns.kinds import DType, Form, ValueKind, is_any_list, is_list_view
from stoker.errors import FieldError
from stoker.fields.offsets import offsets_of
from stoker.fields.spec import Array

_EXACT_INTEGER = 1 << 53  # every integer up to here is a float64
_EXACT_POWER = 22  # and every power of ten up to this one


@dataclass(frozen=True, kw_only=True)
class ValuePlace:
    """Where values come from, for messages.

    Attributes:
        column: Name of the column.
        where: File and row groups, as a text.
        row_of: Row of the table in which the i-th value stands.
    """

    column: str
    where: str
    row_of: Callable[[int], int]

    def error(self, what: str, *, index: int, advice: str) -> FieldError:
        """Return the error that says `what` is wrong with the value at `index`."""
        row = self.row_of(index)
        return FieldError(
            f"column {self.column!r}: {what} (row {row}, counted from 0, of {self.where}). {advice}",
            columns=[self.column],
        )


def validity(array: pa.Array) -> Array | None:
    """Return which elements are not null, bool [n]; None where all are there."""
    if array.null_count == 0:
        return None
    bits = array.buffers()[0]
    if bits is None:  # of a type that says it in another way
        valid: Array = pc.is_valid(array).to_numpy(zero_copy_only=False)
        return valid
    first, stop = array.offset // 8, -(-(array.offset + len(array)) // 8)
    unpacked = np.unpackbits(np.frombuffer(bits, np.uint8, count=stop - first, offset=first), bitorder="little")
    begin = array.offset - first * 8
    return unpacked[begin : begin + len(array)].view(np.bool_)


def buffer_of(array: pa.Array, dtype: DType, *, width: int = 1) -> Array:
    """Return the values of a fixed-width Arrow array as stored, [n * width] of `dtype`, without a copy.

    What stands at nulls means nothing.
    """
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array) * width, dtype)
    offset = array.offset * width * dtype.itemsize
    values: Array = np.frombuffer(buffer, dtype, count=len(array) * width, offset=offset)
    return values


def numbers_of(
    array: pa.Array, leaf: ValueKind, valid: Array | None, place: ValuePlace, *, at_null: float = 0
) -> Array:
    """Return the values of a column of numbers in the dtype Arrow stores them in.

    Decimals come as float64, each the nearest to its exact value.

    Args:
        array: The column.
        leaf: What its values are.
        valid: Which of them are there; None for all.
        place: For messages.
        at_null: What comes in place of others, where Arrow stores numbers as they are; zero comes elsewhere.
    """
    if leaf.form is Form.BOOL:
        values = buffer_of(array.cast(pa.uint8()), np.dtype(np.uint8))
    elif leaf.form is Form.DECIMAL:
        return decimals_as_float(_limbs(array, leaf, valid), scale=leaf.scale, place=place)
    else:
        values = buffer_of(array, leaf.storage)
    if valid is not None:
        values = np.where(valid, values, values.dtype.type(at_null))
    if leaf.form is Form.BOOL:
        values = values.view(np.bool_)
    elif leaf.form is Form.BOOL8:
        values = values != 0
    return values


def unscaled_of(array: pa.Array, leaf: ValueKind, valid: Array | None, place: ValuePlace) -> Array:
    """Return the unscaled integers of decimals, int64 [n], zeros at nulls.

    Raises:
        FieldError: One is beyond int64.
    """
    limbs = _limbs(array, leaf, valid)
    is_small = _fits_one_limb(limbs)
    if not is_small.all():
        i = int(np.argmin(is_small))
        raise place.error(
            f"{_whole(limbs[i])} has more digits than int64 can hold", index=i, advice="Use a float dtype."
        )
    return np.ascontiguousarray(limbs[:, 0]).astype(np.int64, copy=False)


def decimals_as_float(limbs: Array, *, scale: int, place: ValuePlace) -> Array:
    """Return the float64 nearest to each decimal, [n].

    An integer below 2**53 and a power of ten up to 10**22 are both exact floats, so that one division rounds
    rightly. The others are divided as Python's integers, each distinct value once.
    """
    small = limbs[:, 0].astype(np.int64, copy=False)
    is_easy = _fits_one_limb(limbs) & (small <= _EXACT_INTEGER) & (small >= -_EXACT_INTEGER)
    if not 0 <= scale <= _EXACT_POWER:
        is_easy = (limbs == 0).all(axis=1)
    floats = np.where(is_easy, small, 0).astype(np.float64) / float(10 ** min(max(scale, 0), _EXACT_POWER))
    hard = np.flatnonzero(~is_easy)
    if len(hard):
        rows = np.ascontiguousarray(limbs[hard])
        distinct, first, back = np.unique(
            rows.view(f"V{rows.itemsize * rows.shape[1]}")[:, 0], return_index=True, return_inverse=True
        )
        nearest = np.empty(len(distinct), np.float64)
        for i, at in enumerate(first):
            try:
                nearest[i] = _whole(rows[at]) / 10**scale if scale >= 0 else float(_whole(rows[at]) * 10**-scale)
            except OverflowError:
                raise place.error(
                    f"{_whole(rows[at])}e{-scale} is beyond float64",
                    index=int(hard[at]),
                    advice="Scale the column in a transform.",
                ) from None
        floats[hard] = nearest[back]
    return floats


def _limbs(array: pa.Array, leaf: ValueKind, valid: Array | None) -> Array:
    """Return decimals as stored, [n, limbs], lowest limb first, zeros at nulls."""
    num_limbs = leaf.width // leaf.storage.itemsize
    limbs = buffer_of(array, leaf.storage, width=num_limbs).reshape(len(array), num_limbs)
    return limbs if valid is None else np.where(valid[:, None], limbs, limbs.dtype.type(0))


def _fits_one_limb(limbs: Array) -> Array:
    """Return where the upper limbs only repeat the sign of the lowest, bool [n]."""
    if limbs.shape[1] == 1:
        return np.ones(len(limbs), np.bool_)
    fits: Array = (limbs[:, 1:] == (limbs[:, :1] >> 63)).all(axis=1)
    return fits


def _whole(limbs: Array) -> int:
    return int.from_bytes(np.ascontiguousarray(limbs).tobytes(), "little", signed=True)


def integer_fits(value: int, dtype: DType) -> bool:
    """Whether `dtype` can hold the integer exactly."""
    if dtype.kind == "b":
        return value in (0, 1)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return int(info.min) <= value <= int(info.max)
    return abs(value) <= 1 << exact_bits(dtype)


def is_held(number: float, dtype: DType) -> bool:
    """Whether `dtype` has the very number."""
    if dtype.kind in "iu":
        return float(number).is_integer() and integer_fits(int(number), dtype)
    with np.errstate(over="ignore"):
        return dtype.kind == "f" and float(np.array(number).astype(dtype)) == number


def exact_bits(dtype: DType) -> int:
    """Return how many bits an integer may have so that `dtype` holds every one of them exactly."""
    if dtype.kind == "f":
        return int(np.finfo(dtype).nmant) + 1
    return {"b": 1, "i": dtype.itemsize * 8 - 1, "u": dtype.itemsize * 8}[dtype.kind]


def cast_numbers(values: Array, dtype: DType, place: ValuePlace) -> Array:
    """Return `values` as `dtype`, [n]; the same array where it already is.

    To a float any number goes, rounded to the nearest, as long as it stays finite. To an integer or a boolean only
    what stays the same number.

    Raises:
        FieldError: A value would change; it names the first such value and its row.
    """
    source = values.dtype
    if source == dtype:
        return values
    if dtype.kind == "b":
        _refuse_first(
            (values != 0) & (values != 1), values, "is neither 0 nor 1", dtype, place, "Compare it in a transform."
        )
        return values.astype(np.bool_)
    if dtype.kind == "f":
        try:
            with np.errstate(over="raise", invalid="ignore"):
                return values.astype(dtype)
        except FloatingPointError:
            with np.errstate(over="ignore", invalid="ignore"):
                bad = np.isinf(values.astype(dtype)) & np.isfinite(values)
            _refuse_first(bad, values, "is too large", dtype, place, "Use a wider float, or clip it in a transform.")
            raise
    info = np.iinfo(dtype)
    if source.kind == "f":
        wide = values.astype(np.float64, copy=False)
        # Comparisons with NaN are false, so that NaN is refused as well; max + 1 is a power of two and so exact.
        inside = (wide >= float(info.min)) & (wide < float(int(info.max) + 1))
        _refuse_first(
            ~inside,
            values,
            "is not in its range",
            dtype,
            place,
            "Use a float dtype, or replace such values in a transform.",
        )
        _refuse_first(
            wide != np.trunc(wide),
            values,
            "is no whole number",
            dtype,
            place,
            "Use a float dtype, or round it in a transform.",
        )
    elif source.kind in "iu" and values.size and not np.can_cast(source, dtype, "safe"):
        low, high = int(values.min()), int(values.max())
        if not (integer_fits(low, dtype) and integer_fits(high, dtype)):
            i = int(np.argmin(values)) if not integer_fits(low, dtype) else int(np.argmax(values))
            raise _changed(values[i], "is not in its range", dtype, place, i, "Use a wider dtype.")
    return values.astype(dtype)


def _refuse_first(bad: Array, values: Array, why: str, dtype: DType, place: ValuePlace, advice: str) -> None:
    if bad.any():
        i = int(np.argmax(bad))
        raise _changed(values[i], why, dtype, place, i, advice)


def _changed(value: Any, why: str, dtype: DType, place: ValuePlace, index: int, advice: str) -> FieldError:
    return place.error(f"{value} {why}, so it cannot become {dtype.name}", index=index, advice=advice)


_MOST_BYTES = (1 << 31) - 1
_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


def without_encoding(array: pa.Array) -> pa.Array:
    """Return the array without run ends and without extensions that say nothing; dictionaries stay."""
    while True:
        if pa.types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        elif isinstance(array.type, pa.BaseExtensionType) and not isinstance(array.type, pa.FixedShapeTensorType):
            array = array.storage
        else:
            return array


def decoded(array: pa.Array) -> pa.Array:
    """Return the array without dictionaries; strings of more than 2 GiB as large ones."""
    while pa.types.is_dictionary(array.type):
        words = array.dictionary
        large = _LARGE.get(words.type)
        if large is not None and len(array) * words.nbytes > _MOST_BYTES:
            array = pa.DictionaryArray.from_arrays(array.indices, words.cast(large))
        array = without_encoding(array.dictionary_decode())
    return array


def split_lists(array: pa.Array, valid: Array | None) -> tuple[Array, pa.Array]:
    """Return the borders of lists or binary, int64 [n + 1] from 0, and the values between them.

    Values that stand under null lists, before the first list or behind the last are left out.
    """
    if is_list_view(array.type):
        # Views may overlap and lie in any order: Arrow brings the values in order.
        sizes = np.asarray(array.sizes).astype(np.int64)
        return offsets_of(sizes if valid is None else np.where(valid, sizes, 0)), array.flatten()
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
                return split_lists(array.fill_null(b""), None)
            return offsets_of(np.where(valid, lengths, 0).astype(np.int64)), array.flatten()
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
