"""What storing fields differently saves, from a look at some rows: shared by neighbours, or as narrower numbers."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import cast

import numpy as np

from stoker.cache.tables import find_begins
from stoker.columns import as_table, plan_spec, to_arrays
from stoker.dataset.catalogue import Catalogue
from stoker.fields.compact import MisfitError, narrow, plan_compact, widen
from stoker.fields.offsets import Bools
from stoker.fields.spec import Array, Arrays, Entry, Ragged, Spec
from stoker.loader.orders import window_chunks

BATCH_SIZE = 4096
# Looked at in all, evenly spread: enough for the number of rows a key to about a hundredth.
_MAX_FRAGMENTS = 4
_MAX_ROWS = 1 << 16
# A key must save this share of a row's bytes: a number more in each record, and one more table, are not free.
_MIN_SHARED = 0.05
# A record keeps the run of its sample in so many bytes, for each key.
_RUN_BYTES = 4
# Of a row: fields that save less by being narrower are left as they are.
_MIN_NARROWER = 0.01
# Integers that were seen are seldom all there are: a form is proposed that holds twice as much.
_HEADROOM = 2


def _look_at(catalogue: Catalogue) -> tuple[Spec, list[Arrays], list[int]]:
    """Return what a sample is, and of the first rows of some fragments: their arrays, and how many rows they are."""
    dataset, spec = catalogue.dataset, Spec(())
    parts: list[Arrays] = []
    nums: list[int] = []
    filled = np.flatnonzero(catalogue.num_samples)
    chosen = filled[np.unique(np.linspace(0, len(filled) - 1, _MAX_FRAGMENTS).astype(int))] if len(filled) else filled
    for i in chosen.tolist():
        with closing(catalogue.read(i)) as tables:  # type: ignore[type-var]  # it is a generator
            table = next(table for j, table in tables if j == i).slice(0, -(-_MAX_ROWS // len(chosen)))
        where = str(catalogue.fragments[i])
        columns = as_table(table if dataset.transform is None else dataset.transform(table), where=where)
        parts.append(to_arrays(columns, dataset.fields, where=where))
        nums.append(table.num_rows)
        spec = plan_spec(columns.schema, dataset.fields)
    return spec, parts, nums


# ---------------------------------------------------------------------- what neighbours share


@dataclass(frozen=True, kw_only=True)
class ShareableKey:
    """Fields that are the same on neighbouring rows of one key.

    Attributes:
        fields: Those that do not change within a run, without the key, in batch order.
        patterns: Names and patterns that name just these, for `Dataset(deduplicate=...)`.
        run_rows: Mean rows of a run.
        row_bytes: Mean bytes of a row that the key and these fields hold.
    """

    key: str
    fields: tuple[str, ...]
    patterns: tuple[str, ...]
    run_rows: float
    row_bytes: float


@dataclass(frozen=True, kw_only=True)
class SharingFound:
    """What sharing would save: keys, the largest saving first, or none where it would not pay.

    `num_rows` were looked at, of `row_bytes` on average, all fields. The default window mixes `window_rows`.
    """

    keys: tuple[ShareableKey, ...]
    num_rows: int
    row_bytes: float
    window_rows: int

    @property
    def kept_bytes(self) -> float:
        """Mean bytes of a row on SSD with sharing; and in batches, where rows of a key come together."""
        return self._bytes([one.run_rows for one in self.keys])

    @property
    def shuffled_bytes(self) -> float:
        """Mean bytes of a row in batches of `BATCH_SIZE` rows in random order over the default window.

        A run counts once for all its rows that meet in a batch, which are few where the window has many runs.
        """
        rows, num_rows = [], min(BATCH_SIZE, self.window_rows)
        for one in self.keys:
            num_runs = max(self.window_rows / one.run_rows, 1.0)
            share_missed = math.exp(num_rows * math.log1p(-1 / num_runs)) if num_runs > 1 else 0.0
            rows.append(min(num_rows / (num_runs * (1 - share_missed)), one.run_rows))
        return self._bytes(rows)

    def _bytes(self, rows: Sequence[float]) -> float:
        """Return the mean bytes of a row where so many rows carry what they share once."""
        saved = sum(one.row_bytes * (1 - 1 / num) - _RUN_BYTES for one, num in zip(self.keys, rows, strict=True))
        return self.row_bytes - saved


def find_sharing(catalogue: Catalogue) -> SharingFound:
    """Return what neighbouring rows share, from some fragments: they are read, and transformed."""
    spec, parts, nums = _look_at(catalogue)
    num_rows, begins, sizes = sum(nums), dict[str, Bools](), dict[str, float]()
    for entry in spec:
        found = [arrays[entry.name] for arrays in parts]
        pairs = zip(found, nums, strict=True)
        begins[entry.name] = np.concatenate([find_begins([field], num_rows=num) for field, num in pairs])
        num_bytes = sum(_num_offsets(field) * 8 + len(_values(field)) * entry.value_bytes for field in found)
        sizes[entry.name] = num_bytes / max(num_rows, 1)
    filled = catalogue.num_samples[catalogue.num_samples > 0]
    window = window_chunks(None, catalogue.num_samples, spec.plain_bytes)
    return SharingFound(
        keys=tuple(_choose(spec, begins, sizes, num_rows)),
        num_rows=num_rows,
        row_bytes=sum(sizes.values()),
        window_rows=int(filled[:window].sum()),
    )


def _values(field: Array | Ragged) -> Array:
    """Return the innermost values of a field."""
    return _values(cast("Array | Ragged", field.values)) if isinstance(field, Ragged) else field


def _num_offsets(field: Array | Ragged) -> int:
    """Return how many lists a field has, those inside others included."""
    return len(field) + _num_offsets(cast("Array | Ragged", field.values)) if isinstance(field, Ragged) else 0


def _choose(spec: Spec, begins: Mapping[str, Bools], sizes: Mapping[str, float], num_rows: int) -> list[ShareableKey]:
    """Return keys and what hangs on each, the one that saves most first, as long as one saves enough."""
    left, found = list(spec.names), list[ShareableKey]()
    while left and num_rows:
        hanging = {key: [name for name in left if not (begins[name] & ~begins[key]).any()] for key in left}
        row_bytes = {key: sum(sizes[name] for name in names) for key, names in hanging.items()}
        num_runs = {key: float(begins[key].sum()) for key in left}
        savings = {key: row_bytes[key] * (1 - num_runs[key] / num_rows) - _RUN_BYTES for key in left}
        # Fields that change at the same rows save the same: the one that looks like a key is taken.
        key = max(left, key=lambda name: (round(savings[name], 6), _looks_like_a_key(spec[name]), -left.index(name)))
        if savings[key] < _MIN_SHARED * sum(sizes.values()):
            break
        fields = tuple(name for name in hanging[key] if name != key)
        patterns, run_rows = _patterns(fields, spec.names, key), num_rows / num_runs[key]
        found.append(
            ShareableKey(key=key, fields=fields, patterns=patterns, run_rows=run_rows, row_bytes=row_bytes[key])
        )
        left = [name for name in left if name not in hanging[key]]
    return found


def _looks_like_a_key(entry: Entry) -> int:
    is_number = not entry.is_ragged and entry.shape == () and entry.dtype.kind in "iu" and entry.dtype.itemsize >= 4
    is_named = re.search(r"(^|_)(id|key|uuid|hash)($|_)", entry.name.lower()) is not None
    return 2 * is_named + is_number


def _patterns(fields: Sequence[str], names: Sequence[str], key: str) -> tuple[str, ...]:
    """Return names and patterns of just these fields: "context_*" for context_0 to context_5, if there are no more."""
    allowed = {*fields, key}
    patterns: dict[str, None] = {}
    for name in fields:
        pattern = re.sub(r"\d+$", "", name) + "*"
        matched = [one for one in names if fnmatch.fnmatchcase(one, pattern)]
        is_safe = not set(name) & set("*?[") and len(matched) > 1 and set(matched) <= allowed and pattern != "*"
        patterns[pattern if is_safe else name] = None
    return tuple(patterns)


# ---------------------------------------------------------------------- what could be narrower


@dataclass(frozen=True, kw_only=True)
class Narrower:
    """A form in which a field would take fewer bytes: `kept_bytes` in place of `row_bytes` a row, on average.

    `error` is the largest difference of a value that was seen from what would come back, as a share of the value; 0
    where each comes back as it was.
    """

    field: str
    storage_dtype: str
    row_bytes: float
    kept_bytes: float
    error: float


@dataclass(frozen=True, kw_only=True)
class NarrowingFound:
    """What could be kept narrower: fields that would save something, in batch order.

    `num_rows` were looked at, of `row_bytes` on average, all fields.
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
    """Return which fields could be kept narrower, from some fragments: they are read, and transformed."""
    spec, parts, nums = _look_at(catalogue)
    num_rows = sum(nums)
    row_bytes = sum(arrays[name].nbytes for arrays in parts for name in spec.names) / max(1, num_rows)
    proposals = (
        _narrower(entry, np.concatenate([_values(arrays[entry.name]) for arrays in parts]), num_rows)
        for entry in spec
        if entry.compact is None
    )
    return NarrowingFound(
        fields=tuple(one for one in proposals if one and one.row_bytes - one.kept_bytes >= _MIN_NARROWER * row_bytes),
        num_rows=num_rows,
        row_bytes=row_bytes,
    )


def _narrower(entry: Entry, values: Array, num_rows: int) -> Narrower | None:
    """Return the narrowest form that holds the values: that loses nothing, or else the one that rounds least."""
    for storage_dtype in _forms(entry, values) if values.size else ():
        try:
            dtype, _, compact = plan_compact(storage_dtype, values.dtype, values.shape[1:])
            kept = narrow(values, compact, dtype)
        except MisfitError:
            continue
        return Narrower(
            field=entry.name,
            storage_dtype=storage_dtype,
            row_bytes=values.nbytes / num_rows,
            kept_bytes=kept.nbytes / num_rows,
            error=_error(values, widen(kept, compact)),
        )
    return None


def _forms(entry: Entry, values: Array) -> list[str]:
    if values.dtype.kind == "b":
        return ["bits"]
    if values.dtype.kind == "f":
        return ["float16", "bfloat16"] if values.dtype.itemsize > 2 else []
    if values.dtype.kind not in "iu" or entry.unit is not None:
        return []  # instants that come later are larger than those seen
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
