"""What a transform may return, as one Arrow table: arrays of NumPy or Arrow, ragged lists, or a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from stoker.arrow import TIME_UNITS, array_of
from stoker.errors import FieldMismatchError
from stoker.fields.spec import Array, Ragged

Columns: TypeAlias = "pa.Table | pa.RecordBatch | Mapping[str, Array | pa.Array | pa.ChunkedArray | Ragged]"

_OBJECTS = "give numbers a NumPy dtype, and anything else as pyarrow.array(..., type=...)"


def as_table(columns: Columns, *, where: str) -> pa.Table:
    """Return columns of any allowed kind as a table; numbers are not copied where they lie in order.

    What is no array with one leading dimension, or differs in length from the others, is a `FieldMismatchError`.
    """
    if isinstance(columns, pa.Table):
        return columns
    if isinstance(columns, pa.RecordBatch):
        return pa.Table.from_batches([columns])
    if not isinstance(columns, Mapping):
        about = f"the transform returned {_kind(columns)}; return a mapping of names to arrays or a table ({where})"
        raise FieldMismatchError(about, fragment=where)
    lengths = {name: _num_rows(name, values, where) for name, values in columns.items()}
    if not lengths:
        raise FieldMismatchError(f"the transform returned no arrays ({where})", fragment=where)
    if len(set(lengths.values())) > 1:
        text = ", ".join(f"{name!r} has {n:,}" for name, n in lengths.items())
        raise FieldMismatchError(f"the arrays differ in their number of rows: {text} ({where})", fragment=where)
    arrays = [_as_arrow(name, values, where) for name, values in columns.items()]
    return pa.Table.from_arrays(arrays, names=list(columns))


def _kind(value: object) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}".replace("a builtins.", "a ")


def _num_rows(name: object, values: object, where: str) -> int:
    if not isinstance(name, str):
        raise FieldMismatchError(f"the name {name!r} of an array is no string ({where})", fragment=where)
    if not isinstance(values, Ragged | pa.Array | pa.ChunkedArray | np.ndarray):
        raise _mismatch(name, f"is {_kind(values)}; give a NumPy array, a pyarrow array or a stoker.Ragged", where)
    if isinstance(values, np.ndarray) and values.ndim == 0:
        raise _mismatch(name, "is a single value; give one value a row, shape [rows, ...]", where)
    return len(values)


def _mismatch(name: str, what: str, where: str) -> FieldMismatchError:
    return FieldMismatchError(f"{name!r} of the transform's result {what} ({where})", fragment=where)


def _as_arrow(name: str, values: Any, where: str) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if not isinstance(values, Ragged):
        return _from_numpy(name, values, where)
    offsets, inner = np.asarray(values.offsets), values.values
    if not isinstance(inner, pa.Array | np.ndarray | Ragged):
        raise _mismatch(name, f"has values that are {_kind(inner)}; give a NumPy array", where)
    num_values = _num_rows(name, inner, where)
    is_valid = offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) > 0
    if not is_valid or offsets[0] != 0 or (np.diff(offsets) < 0).any() or offsets[-1] != num_values:
        about = "integers that begin with 0, never fall, and end with the number of values"
        raise _mismatch(name, f"has offsets that do not cut its {num_values:,} values into lists: give {about}", where)
    return pa.LargeListArray.from_arrays(array_of(offsets.astype(np.int64)), _as_arrow(name, inner, where))


def _from_numpy(name: str, values: Array, where: str) -> pa.Array:
    """Return an array [N, k...] as fixed-size lists around a flat array."""
    mask = None
    if isinstance(values, np.ma.MaskedArray):
        mask = np.ascontiguousarray(np.ma.getmaskarray(values)).reshape(-1)
        values = np.ma.getdata(values)
    shape = values.shape
    leaf = _flat_from_numpy(name, np.ascontiguousarray(values).reshape(-1), mask, where)
    for axis in range(len(shape) - 1, 0, -1):
        kind = pa.list_(leaf.type, shape[axis])
        length = int(np.prod(shape[:axis], dtype=np.int64))
        leaf = pa.Array.from_buffers(kind, length, [None], null_count=0, children=[leaf])
    return leaf


def _flat_from_numpy(name: str, flat: Array, mask: Array | None, where: str) -> pa.Array:
    kind = flat.dtype.kind
    if kind in "biuf":
        native = flat.astype(flat.dtype.newbyteorder("="), copy=False)
        if native.dtype.itemsize > 8:
            raise _mismatch(name, f"has the dtype {flat.dtype}, which no device knows; use float64", where)
        return array_of(native, mask)
    if kind in "mM":
        return _times(name, flat, mask, where)
    if kind not in "SUOT":
        raise _mismatch(name, f"has the dtype {flat.dtype}, which is no number; {_OBJECTS}", where)
    try:
        words = pa.array(flat.astype(object), mask=mask)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise _mismatch(name, f"has Python objects that are no strings ({error}); {_OBJECTS}", where) from None
    if pa.types.is_null(words.type):
        # Which kind of nothing it is must not depend on the rows of one fragment.
        return words.cast(pa.binary() if kind == "S" else pa.string())
    if words.type not in (pa.string(), pa.large_string(), pa.binary()):
        raise _mismatch(name, f"has Python objects ({words.type}) that are no strings; {_OBJECTS}", where)
    return words


def _times(name: str, flat: Array, mask: Array | None, where: str) -> pa.Array:
    """Return datetime64 or timedelta64 as Arrow's timestamps or durations; NaT is null."""
    unit, count = np.datetime_data(flat.dtype)
    if count != 1 or unit not in (*TIME_UNITS, "m", "h", "D", "W", "M", "Y"):
        raise _mismatch(name, f"has the dtype {flat.dtype}; use one of s, ms, us, ns as its unit", where)
    is_span = flat.dtype.kind == "m"
    if is_span and unit in ("M", "Y"):
        raise _mismatch(name, f"has the dtype {flat.dtype}: months differ in length; use days or seconds", where)
    if unit not in TIME_UNITS:
        unit = "s"
    native = flat.astype(f"{'m8' if is_span else 'M8'}[{unit}]", copy=False)
    missing = np.isnat(native) if mask is None else np.isnat(native) | mask
    numbers = array_of(native.view(np.int64), missing if missing.any() else None)
    return numbers.view(pa.duration(unit) if is_span else pa.timestamp(unit))
