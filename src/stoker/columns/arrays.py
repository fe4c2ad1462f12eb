"""Arrow's buffers as NumPy arrays, lists as borders and values, and casts that never change a number unseen."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from stoker.arrow import is_list, plain_array
from stoker.columns.kinds import DType, ValueKind, is_bool8
from stoker.errors import FieldError
from stoker.fields.compact import MisfitError
from stoker.fields.offsets import offsets_of
from stoker.fields.spec import Array

_EXACT_INTEGER = 1 << 53  # every integer up to here is a float64
_EXACT_POWER = 22  # and every power of ten up to this one
_MOST_STRING_BYTES = (1 << 31) - 1
_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
# Columns whose nulls a message counts one by one; all are named.
_MAX_COUNTED = 8


def null_error(counts: Mapping[str, int], *, where: str, inside: bool = False) -> FieldError:
    """Return the error for columns with so many nulls each that nothing stands for; no mask shows those in lists."""
    names = list(counts)
    nulls = "; ".join(f"column {n!r} has {counts[n]:,} null{'s' * (counts[n] != 1)}" for n in names[:_MAX_COUNTED])
    if rest := names[_MAX_COUNTED:]:
        nulls += f"; {len(rest):,} more have {sum(counts[name] for name in rest):,}: {', '.join(map(repr, rest))}"
    place, mask = (" inside its lists", "") if inside else ("", " or mask=True")
    return FieldError(
        f"{nulls}{place} in {where}. Give the field a value for them, such as "
        f"fields={{{names[0]!r}: Field(fill=...)}}{mask}, or leave such rows out with filters= or a transform",
        columns=names,
    )


def stored(array: pa.Array) -> pa.Array:
    """Return the array as it is stored: without views, run ends and extensions; dictionaries stay."""
    while isinstance(array.type, pa.BaseExtensionType):
        array = array.storage.cast(pa.bool_()) if is_bool8(array.type) else array.storage
    is_view = pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type)
    return array.cast(pa.large_binary()) if is_view else plain_array(array)


def decoded(array: pa.Array) -> pa.Array:
    """Return a stored array without dictionaries; strings of more than 2 GiB as large ones."""
    while pa.types.is_dictionary(array.type):
        words = array.dictionary
        large = _LARGE.get(words.type)
        if large is not None and len(array) * words.nbytes > _MOST_STRING_BYTES:
            array = pa.DictionaryArray.from_arrays(array.indices, words.cast(large))
        array = stored(array.dictionary_decode())
    return array


def validity(array: pa.Array) -> Array | None:
    """Return which elements are not null, bool [n]; None where all are there."""
    if array.null_count == 0:
        return None
    bits, skipped = array.buffers()[0], array.offset % 8
    octets = np.frombuffer(bits, np.uint8, offset=array.offset // 8)
    return np.unpackbits(octets, count=skipped + len(array), bitorder="little")[skipped:].view(np.bool_)


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


def split_lists(array: pa.Array, valid: Array | None) -> tuple[Array, pa.Array]:
    """Return the borders of lists or binary, int64 [n + 1] from 0, and the values between them.

    Values that stand under null lists, before the first list or behind the last are left out.
    """
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        lengths: Array = np.full(len(array), kind.list_size, np.int64)
        return offsets_of(lengths if valid is None else np.where(valid, lengths, 0)), array.flatten()
    if len(array) == 0:
        return np.zeros(1, np.int64), (array.flatten() if is_list(kind) else _bytes_under(array)).slice(0, 0)
    is_large = kind in (pa.large_string(), pa.large_binary()) or pa.types.is_large_list(kind)
    width = np.dtype(np.int64 if is_large else np.int32)
    starts = np.frombuffer(array.buffers()[1], width, len(array) + 1, array.offset * width.itemsize)
    if valid is not None:
        lengths = np.diff(starts)
        if lengths[~valid].any():
            if is_list(kind):
                return offsets_of(np.where(valid, lengths, 0).astype(np.int64)), array.flatten()
            return split_lists(array.fill_null(b""), None)
    first, last = int(starts[0]), int(starts[-1])
    offsets = starts.astype(np.int64, copy=False)
    values = array.values if is_list(kind) else _bytes_under(array)
    return (offsets - first if first else offsets), values.slice(first, last - first)


def _bytes_under(array: pa.Array) -> pa.Array:
    """Return the whole data of strings or binary."""
    data = array.buffers()[2]
    return pa.Array.from_buffers(pa.uint8(), 0 if data is None else data.size, [None, data])


def numbers_of(array: pa.Array, leaf: ValueKind, valid: Array | None, *, at_null: float = 0) -> Array:
    """Return the values of a column of numbers in the dtype Arrow stores them in, `at_null` at nulls.

    Decimals come as the nearest float64 each, and zero at nulls; one beyond float64 is a `MisfitError`.
    """
    if leaf.scale is not None:
        return _nearest(array, valid)
    is_bits = leaf.dtype.kind == "b"
    values = buffer_of(array.cast(pa.uint8()) if is_bits else array, np.dtype(np.uint8) if is_bits else leaf.dtype)
    if valid is not None:
        values = np.where(valid, values, values.dtype.type(at_null))
    return values.view(np.bool_) if is_bits else values


def unscaled_of(array: pa.Array, valid: Array | None) -> Array:
    """Return the unscaled integers of decimals, int64 [n], zeros at nulls; one beyond int64 is a `MisfitError`."""
    whole, fits = _lowest_limb(array, valid)
    if not fits.all():
        i = int(np.argmin(fits))
        why = f"{_whole(array, i)} has more digits than int64 can hold"
        raise MisfitError(why, index=i, advice="Use a float dtype.")
    return whole


def _nearest(array: pa.Array, valid: Array | None) -> Array:
    """Return the float64 nearest to each decimal, [n], zeros at nulls.

    An integer below 2**53 and a power of ten up to 10**22 are both exact floats, so that one division rounds
    rightly. The others are read as texts.
    """
    (whole, fits), scale = _lowest_limb(array, valid), int(array.type.scale)
    is_easy = fits & (whole <= _EXACT_INTEGER) & (whole >= -_EXACT_INTEGER)
    if not 0 <= scale <= _EXACT_POWER:
        is_easy &= whole == 0
    floats = np.where(is_easy, whole, 0) / float(10 ** min(max(scale, 0), _EXACT_POWER))
    for i in np.flatnonzero(~is_easy).tolist():
        text = f"{_whole(array, i)}e{-scale}"
        floats[i] = float(text)
        if np.isinf(floats[i]):
            raise MisfitError(f"{text} is beyond float64", index=i, advice="Scale the column in a transform.")
    return floats


def _lowest_limb(array: pa.Array, valid: Array | None) -> tuple[Array, Array]:
    """Return the lowest limb of each decimal's integer, int64 [n], zeros at nulls, and where it is all of it."""
    limb = np.dtype(np.int32 if array.type.byte_width == 4 else np.int64)
    num_limbs = array.type.byte_width // limb.itemsize
    limbs = buffer_of(array, limb, width=num_limbs).reshape(len(array), num_limbs)
    if valid is not None:
        limbs = np.where(valid[:, None], limbs, limbs.dtype.type(0))
    fits = (limbs[:, 1:] == (limbs[:, :1] >> (8 * limbs.itemsize - 1))).all(axis=1)  # above it, only the sign
    return np.ascontiguousarray(limbs[:, 0]).astype(np.int64, copy=False), fits


def _whole(array: pa.Array, i: int) -> int:
    octets = buffer_of(array.slice(i, 1), np.dtype(np.uint8), width=array.type.byte_width)
    return int.from_bytes(octets.tobytes(), "little", signed=True)


def integer_fits(value: int, dtype: DType) -> bool:
    """Whether `dtype` can hold the integer exactly."""
    if dtype.kind == "b":
        return value in (0, 1)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return int(info.min) <= value <= int(info.max)
    return abs(value) <= 1 << int(np.finfo(dtype).nmant) + 1


def is_held(number: float, dtype: DType) -> bool:
    """Whether `dtype` has the very number."""
    if dtype.kind in "biu":
        return float(number).is_integer() and integer_fits(int(number), dtype)
    with np.errstate(over="ignore"):
        return float(np.array(number).astype(dtype)) == number


def cast_numbers(values: Array, dtype: DType) -> Array:
    """Return `values` as `dtype`, [n]; the same array where it already is.

    To a float any number goes, rounded to the nearest, as long as it stays finite. To an integer or a boolean only
    what stays the same number: anything else is a `MisfitError`.
    """
    source, info = values.dtype, np.iinfo(dtype) if dtype.kind in "iu" else None
    if source == dtype or (source.kind != "f" and np.can_cast(source, dtype, "safe")):
        return values.astype(dtype, copy=False)
    why, advice = "is not in its range", "Use a wider dtype, or replace such values"
    bad = np.zeros(0, np.bool_)
    if dtype.kind == "f":
        try:
            with np.errstate(over="raise", invalid="ignore"):
                return values.astype(dtype)
        except FloatingPointError:
            with np.errstate(over="ignore", invalid="ignore"):
                bad = np.isinf(values.astype(dtype)) & np.isfinite(values)
            why, advice = "is too large", "Use a wider float, or clip it"
    elif info is None:
        bad, why, advice = (values != 0) & (values != 1), "is neither 0 nor 1", "Compare it"
    elif source.kind == "f":
        wide, advice = values.astype(np.float64, copy=False), "Use a float dtype, or replace such values"
        # Comparisons with NaN are false, so that NaN is refused as well; max + 1 is a power of two and so exact.
        bad = ~((wide >= float(info.min)) & (wide < float(int(info.max) + 1)))
        if not bad.any():
            bad, why, advice = wide != np.trunc(wide), "is no whole number", "Use a float dtype, or round it"
    elif values.size and not (info.min <= int(values.min()) and int(values.max()) <= info.max):
        bad = (values < info.min) | (values > info.max)
    if bad.any():
        i = int(np.argmax(bad))
        why = f"{values[i]} {why}, so it cannot become {dtype.name}"
        raise MisfitError(why, index=i, advice=f"{advice} in a transform.")
    return values.astype(dtype)
