"""What keeping fields narrower would save, and cost: from a look at some rows, and a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from stoker.columns import to_arrays
from stoker.dataset.catalogue import Catalogue
from stoker.fields.compact import MisfitError, narrow, plan_compact, widen
from stoker.fields.spec import Array, Arrays, Entry, Ragged
from stoker.plan.sharing import look_at

BATCH_SIZE = 4096
# Of a batch: fields that save less are left as they are.
_MIN_SAVING = 0.01
_NUM_ROUNDS = 7
_COPY_BYTES = 64 << 20
# Integers that were seen are seldom all there are: a form is proposed that holds twice as much.
_HEADROOM = 2


@dataclass(frozen=True, kw_only=True)
class Narrower:
    """A form in which a field would take fewer bytes.

    Attributes:
        field: The field.
        storage_dtype: What to give `Field`.
        row_bytes: Mean bytes of a row that it holds now.
        kept_bytes: The same in that form.
        error: The largest difference of a value that was seen from what would come back, as a share of the value; 0
            where each comes back as it was.
        widen_ns: Nanoseconds a row of widening it here, on one core.
        move_ns: Nanoseconds a row that this machine takes to copy the bytes that are saved, on one core.
    """

    field: str
    storage_dtype: str
    row_bytes: float
    kept_bytes: float
    error: float
    widen_ns: float
    move_ns: float

    @property
    def pays_here(self) -> bool:
        """Whether widening on the host costs less than what it spares: on a device it does in any case."""
        return self.widen_ns < self.move_ns


@dataclass(frozen=True, kw_only=True)
class NarrowingFound:
    """What could be kept narrower.

    Attributes:
        fields: Those that would save something, in batch order; forms that lose nothing before those that round.
        num_rows: Rows that were looked at.
        row_bytes: Mean bytes of a row, all fields.
    """

    fields: tuple[Narrower, ...]
    num_rows: int
    row_bytes: float

    @property
    def kept_bytes(self) -> float:
        """Mean bytes of a row with all of them, those that round left out."""
        return self.row_bytes - sum(one.row_bytes - one.kept_bytes for one in self.fields if not one.error)

    @property
    def rounded_bytes(self) -> float:
        """Mean bytes of a row with all of them."""
        return self.row_bytes - sum(one.row_bytes - one.kept_bytes for one in self.fields)


def find_narrowing(catalogue: Catalogue) -> NarrowingFound:
    """Return which fields could be kept narrower, from some fragments: they are read, and transformed.

    Raises:
        StokerError: A fragment cannot be read, transformed, or become tensors.
    """
    dataset = catalogue.dataset
    arrays: dict[str, list[Array]] = {}
    num_rows = 0
    row_bytes = 0.0
    entries: dict[str, Entry] = {}
    for columns, spec, num, where in look_at(catalogue):
        found = to_arrays(columns, dataset.fields, where=where)
        for entry in spec:
            entries[entry.name] = entry
            arrays.setdefault(entry.name, []).append(_values(found, entry.name))
        row_bytes += sum(_num_bytes(found[entry.name]) for entry in spec.delivered)
        num_rows += num
    byte_s = _byte_s()
    proposals = [
        narrower
        for name, parts in arrays.items()
        if entries[name].compact is None
        and (narrower := _narrower(entries[name], np.concatenate(parts), num_rows, byte_s)) is not None
        and narrower.row_bytes - narrower.kept_bytes >= _MIN_SAVING * row_bytes / max(1, num_rows)
    ]
    return NarrowingFound(fields=tuple(proposals), num_rows=num_rows, row_bytes=row_bytes / max(1, num_rows))


def _values(arrays: Arrays, name: str) -> Array:
    field = arrays[name]
    while isinstance(field, Ragged):
        field = cast("Array | Ragged", field.values)
    return field


def _num_bytes(field: Array | Ragged) -> int:
    if isinstance(field, Ragged):
        return int(field.offsets.nbytes) + _num_bytes(cast("Array | Ragged", field.values))
    return field.nbytes


def _byte_s() -> float:
    """Return the seconds that one core takes to copy a byte that lies in no cache, as the rows of a window do."""
    source = np.ones(_COPY_BYTES, np.uint8)
    target = np.ones_like(source)
    return _seconds(lambda: np.copyto(target, source)) / _COPY_BYTES


def _narrower(entry: Entry, values: Array, num_rows: int, byte_s: float) -> Narrower | None:
    """Return the narrowest form that holds the values: that loses nothing, or else the one that rounds least."""
    if not values.size:
        return None
    for storage_dtype in _forms(entry, values):
        planned = plan_compact(storage_dtype, values.dtype, values.shape[1:])
        if isinstance(planned, str):
            continue
        dtype, _, compact = planned
        try:
            kept = narrow(values, compact, dtype)
        except MisfitError:
            continue
        error = _error(values, widen(kept, compact))
        sample = np.ascontiguousarray(kept[: max(1, BATCH_SIZE * len(kept) // num_rows)])
        rows = len(sample) * num_rows / len(kept)
        return Narrower(
            field=entry.name,
            storage_dtype=storage_dtype,
            row_bytes=values.nbytes / num_rows,
            kept_bytes=kept.nbytes / num_rows,
            error=error,
            widen_ns=_seconds(lambda: widen(sample, compact)) / rows * 1e9,  # noqa: B023  called at once
            move_ns=(values.nbytes - kept.nbytes) / num_rows * byte_s * 1e9,
        )
    return None


def _forms(entry: Entry, values: Array) -> list[str]:
    if values.dtype.kind == "b":
        return ["bits"]
    if values.dtype.kind == "f":
        return ["float16", "bfloat16"] if values.dtype.itemsize > 2 else []
    if values.dtype.kind not in "iu" or entry.unit is not None:
        return []  # instants go on where the sample ends
    low, high = int(values.min()), int(values.max())
    kinds = ("uint8", "uint16", "uint32") if low >= 0 else ("int8", "int16", "int32")
    return [kind for kind in kinds if np.iinfo(kind).min <= _HEADROOM * low and _HEADROOM * high <= np.iinfo(kind).max]


def _error(values: Array, back: Array) -> float:
    differ = values != back
    if not differ.any():
        return 0.0
    there, came = values[differ].astype(np.float64), back[differ].astype(np.float64)
    usual = np.isfinite(there) & (there != 0)
    return float((np.abs(came[usual] - there[usual]) / np.abs(there[usual])).max(initial=0.0))


def _seconds(work: Callable[[], object]) -> float:
    """Return how long it takes, at best: everything else only adds to it."""
    times = []
    for _ in range(_NUM_ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
