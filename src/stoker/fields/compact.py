"""Fields kept narrower than they are delivered: fewer bytes on SSD, through memory and to a device.

    delivered   float32 [40]    ┆ 4 bytes each ┆           int64        ┆ 8 bytes ┆       bool [12]   ┆ 12 bytes ┆
    kept        float16 [40]    ┆ 2 ┆                      int32        ┆ 4 ┆             bits [2]    ┆ 2 ┆

A value that the narrow form cannot hold is an error where the chunk is built, so nothing is lost in silence: integers
and bits come back as they were; floats as near as their form says.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from stoker._native import widen_float16
from stoker.arguments import explain_arguments

Array: TypeAlias = npt.NDArray[Any]
Form: TypeAlias = Literal["cast", "bfloat16", "bits", "scaled"]

STORAGE_DTYPES = ("float16", "bfloat16", "int8", "int16", "int32", "uint8", "uint16", "uint32", "bits")
"""What `Field(storage_dtype=...)` takes, beside a `Scaled`."""

# bfloat16 is the upper half of a float32.
_HALF = 16


@explain_arguments({})
@dataclass(frozen=True)
class Scaled:
    """Floats of a known range, kept as evenly spaced steps: 256 of them as uint8, 65,536 as uint16.

    A value comes back within half a step, (high - low) / 510 or / 131,070.

    Args:
        low: The least value.
        high: The greatest.
        dtype: "uint8" or "uint16".

    Raises:
        ValueError: The range is empty, not finite, or wider than any float; or the dtype is another one.

    Examples:
        >>> Scaled(0.0, 1.0).step
        0.00392156862745098
    """

    low: float
    high: float
    dtype: str = "uint8"

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value: Any = getattr(self, name)
            value = value.item() if isinstance(value, np.number) else value
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"Scaled: {name} must be a number, not {value!r}")
            if not abs(value) <= sys.float_info.max:
                raise ValueError(f"Scaled: {name}, an end of the range, must be finite, not {value}")
            object.__setattr__(self, name, float(value))  # one range has one name, however its ends were written
        if not 0 < self.high - self.low <= sys.float_info.max:
            what = "empty" if not self.low < self.high else "wider than any float"
            raise ValueError(f"Scaled: the range must not be {what}, not {self.low} to {self.high}")
        if self.dtype not in ("uint8", "uint16"):
            raise ValueError(f"Scaled: dtype must be 'uint8' or 'uint16', not {self.dtype!r}")

    @property
    def step(self) -> float:
        """What lies between one kept value and the next."""
        return (self.high - self.low) / int(np.iinfo(self.dtype).max)


StorageDtype: TypeAlias = str | Scaled


@dataclass(frozen=True)
class Compact:
    """How a field is widened from what is kept: to this dtype and shape of one sample or value."""

    form: Form  # "cast" is NumPy's own, "bits" has eight bools a byte, "scaled" has steps of a range
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    low: float = 0.0
    step: float = 0.0

    def to_json(self) -> dict[str, object]:
        """Return it as JSON can write it."""
        scale = {"low": self.low, "step": self.step} if self.form == "scaled" else {}
        return {"form": self.form, "dtype": self.dtype.name, "shape": list(self.shape), **scale}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Compact:
        """Return what `to_json` wrote."""
        low, step = data.get("low", 0.0), data.get("step", 0.0)
        return cls(data["form"], np.dtype(data["dtype"]), tuple(data["shape"]), low, step)

    def told(self, kept: np.dtype[Any]) -> str:
        """Return the form in words, with what is kept: "int32", "uint8 steps from 0 to 1"."""
        if self.form == "scaled":
            high = self.low + self.step * int(np.iinfo(kept).max)
            return f"{kept.name} steps from {self.low:g} to {high:g}"
        return kept.name if self.form == "cast" else self.form


class MisfitError(ValueError):
    """A column, or the value in row `index`, cannot become what is asked for: why, for whoever knows where it is."""

    def __init__(self, why: object, *, index: int = 0, advice: str = "") -> None:
        super().__init__(str(why))
        self.index, self.advice = index, advice


def check_storage_dtype(storage_dtype: StorageDtype) -> None:
    """Raise a `ValueError` where a name is none of a form, and a `TypeError` for anything else but a `Scaled`."""
    is_name = isinstance(storage_dtype, str)
    if not (isinstance(storage_dtype, Scaled) or (is_name and storage_dtype in STORAGE_DTYPES)):
        wrong = f"Field: storage_dtype must be one of {', '.join(STORAGE_DTYPES)}, or a Scaled, not {storage_dtype!r}"
        raise (ValueError if is_name else TypeError)(wrong)


def plan_compact(
    storage_dtype: StorageDtype, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> tuple[np.dtype[Any], tuple[int, ...], Compact]:
    """Return dtype and shape of what is kept of a sample or value, and how it is widened to those delivered.

    A field that cannot be kept so is a `MisfitError`.
    """
    is_float, told = dtype.kind == "f", f"and the field is {dtype.name}"
    if isinstance(storage_dtype, Scaled):
        low, high, kept = storage_dtype.low, storage_dtype.high, np.dtype(storage_dtype.dtype)
        if not is_float or dtype.itemsize <= kept.itemsize:
            raise MisfitError(f"a range in {kept} is for wider floats, {told}")
        compact = Compact("scaled", dtype, shape, low, storage_dtype.step)
        with np.errstate(over="ignore", invalid="ignore"):
            ends = widen(np.array([0, np.iinfo(kept).max], kept), compact)
        if not np.isfinite(ends).all():
            raise MisfitError(f"the range from {low:g} to {high:g} is larger than any {dtype.name}")
        if dtype.type(compact.step) == 0:
            raise MisfitError(f"steps of {compact.step:g} are nothing in {dtype.name}")
        return kept, shape, compact
    if storage_dtype == "bits":
        if dtype.kind != "b":
            raise MisfitError(f"bits are for bools, {told}")
        if not shape:
            raise MisfitError("a single bool takes a byte in any form; stack several in one field")
        return np.dtype(np.uint8), (*shape[:-1], -(-shape[-1] // 8)), Compact("bits", dtype, shape)
    form: Form = "bfloat16" if storage_dtype == "bfloat16" else "cast"
    kept = np.dtype("uint16" if form == "bfloat16" else storage_dtype)
    is_kept_float = form == "bfloat16" or kept.kind == "f"
    if (is_float if is_kept_float else dtype.kind in "iu") and dtype.itemsize > kept.itemsize:
        return kept, shape, Compact(form, dtype, shape)
    raise MisfitError(f"{storage_dtype} is for wider {'floats' if is_kept_float else 'integers'}, {told}")


def narrow(values: Array, compact: Compact, kept: np.dtype[Any]) -> Array:
    """Return values in the form and dtype they are kept in; one that has no such form is a `MisfitError`.

    They have shape [n, ...]: for bits the whole field, else whatever of it.
    """
    if compact.form == "bits":
        return np.packbits(values, axis=-1, bitorder="little")
    with np.errstate(invalid="ignore", over="ignore"):
        if compact.form == "scaled":
            found = np.rint((values.astype(np.float64) - compact.low) / compact.step)
            fits = (found >= 0) & (found <= np.iinfo(kept).max)
        elif compact.form == "bfloat16":
            bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
            # To the nearest, ties to even, as processors do; and what is no number stays none, whatever its low bits.
            found = (bits + np.uint32(0x7FFF) + ((bits >> _HALF) & np.uint32(1))) >> _HALF
            found = np.where(np.isnan(values), (bits >> _HALF) | np.uint32(0x40), found).astype(kept)
            fits = ((found & 0x7FFF) != 0x7F80) | ~np.isfinite(values)
        elif kept.kind == "f":
            found = values.astype(kept)
            fits = np.isfinite(found) | ~np.isfinite(values)
        else:
            limits, found = np.iinfo(kept), values
            fits = (values >= limits.min) & (values <= limits.max)
    if not fits.all():
        at = int(np.argmin(fits.reshape(-1)))
        row = at // max(1, int(np.prod(values.shape[1:], dtype=np.int64)))
        raise MisfitError(values.reshape(-1)[at], index=row)
    return found.astype(kept, copy=found is values)


def widen(kept: Array, compact: Compact) -> Array:
    """Return values of shape [..., and that of what is kept] as they are delivered, new."""
    if compact.form == "cast":
        if kept.dtype != np.float16:
            return kept.astype(compact.dtype)
        singles = np.empty(kept.shape, dtype=np.float32)
        widen_float16(np.ascontiguousarray(kept).reshape(-1).view(np.uint16), singles.reshape(-1))
        with np.errstate(invalid="ignore"):  # what is no number, and says so whenever it is looked at
            return singles.astype(compact.dtype, copy=False)
    if compact.form == "bits":
        # A copy in one piece: unpackbits takes the last axis of any array, but is slow where it is strided.
        packed = np.ascontiguousarray(kept)
        return np.unpackbits(packed, axis=-1, count=compact.shape[-1], bitorder="little").view(np.bool_)
    if compact.form == "bfloat16":
        wide = kept.astype(np.uint32)
        wide <<= _HALF
        return wide.view(np.float32).astype(compact.dtype, copy=False)
    values = kept.astype(compact.dtype)
    values *= compact.dtype.type(compact.step)
    values += compact.dtype.type(compact.low)
    return values
