"""From places in mapped windows to a batch: one gather into one buffer, and views of it as fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from stoker.gather.borders import Borders, borders_apart, join_strips, nested_borders, strip_borders
from stoker.gather.buffers import BufferPool
from stoker.gather.lists import reordered_lists
from stoker.gather.several import take_several
from stoker.gather.take import (
    Distinct,
    Places,
    Taken,
    Where,
    copy_fields,
    copy_lists,
    distinct,
    run_rows,
    take_located,
    take_records,
    take_rows,
    take_runs,
)
from stoker.offsets import offsets_of
from stoker.spec import Array, Arrays, Entry, Ragged, Shared, Spec, run_name
from stoker.windows.window import Rows, Window

Index = npt.NDArray[np.int64]


# With more different rows a batch than this share of its samples, each row for each sample is no more to carry, and
# spares whoever gets the batch the work of expanding it.
_MAX_DISTINCT = 0.75

Once: TypeAlias = Literal["never", "always", "where it pays"]
"""Whether what samples of a batch share is gathered once for all of them, rather than for each."""


class Part(NamedTuple):
    """Samples of a batch that lie in one window.

    Attributes:
        window: Where they lie; of what they share, the table of the window.
        where: Their places in it, which need not have been found: b of them.
    """

    window: Window | Rows
    where: Where

    @classmethod
    def at(cls, window: Window | Rows, slot: Index, row: Index) -> Part:
        """Return samples at places that have been found; see `slot` and `row`."""
        return cls(window, Places(slot, row))

    @property
    def slot(self) -> Index:
        """Chunk of each, as its place in the window. Shape [b]."""
        return self.where.slot

    @property
    def row(self) -> Index:
        """Row of each, counted through the window: `window.first_row[slot]` and its row in the chunk. Shape [b]."""
        return self.where.row


@dataclass(frozen=True)
class Residence:
    """Which samples of a batch lie on the device.

    Attributes:
        there: Their places in the batch, ascending, shape [R]; empty where all samples are there.
        rows: Their rows on the device. Shape [R].
        here: Places of the others, ascending. Shape [H].
    """

    there: Index
    rows: Index
    here: Index

    @property
    def num_samples(self) -> int:
        """R + H."""
        return len(self.rows) + len(self.here)


class Assembled(NamedTuple):
    """A batch before it has names.

    Attributes:
        spec: Spec of the samples; where `shared` has what they share, of the rest of their fields.
        num_samples: B.
        records: uint8, shape [B, record_bytes]: all fixed-width fields of the spec.
        ragged: Values and offsets of each of its ragged fields.
        shared: What samples share by each key, where it was gathered once.
        names: All fields in batch order; those of the spec unless told.
        residence: Which samples lie on the device already: records are those of the others alone, shape
            [H, record_bytes], and views are of these.
    """

    spec: Spec
    num_samples: int
    records: Array
    ragged: dict[str, Ragged]
    shared: tuple[SharedRows, ...] = ()
    names: tuple[str, ...] = ()
    residence: Residence | None = None

    def views(self) -> Arrays:
        """Return the fields by name, in the spec's order; fixed-width ones are views of `records`, not copies."""
        own = self._own_views()
        if not self.shared:
            return own
        views: dict[str, Any] = {**own}
        for shared in self.shared:
            views |= {name: Shared(field, shared.index) for name, field in shared.rows.views().items()}
        return dict(zip(self.names, map(views.__getitem__, self.names), strict=True))

    def cut(self, sizes: Sequence[int]) -> list[Assembled]:
        """Return the batches that lie in this one side by side, in the same memory.

        Args:
            sizes: Samples of each; together those of this one. Where something is shared, as `assemble` was told.
        """
        if len(sizes) == 1:
            return [self]
        batches, begin, records, lists = [], 0, self.records, self.ragged
        shared = zip(*(one.cut(sizes) for one in self.shared), strict=True) if self.shared else repeat(())
        for size, of_batch in zip(sizes, shared, strict=False):
            end = begin + size
            own = {name: lists_between(one, begin, end) for name, one in lists.items()} if lists else {}
            batches.append(Assembled(self.spec, size, records[begin:end], own, of_batch, self.names))
            begin = end
        return batches

    def _own_views(self) -> Arrays:
        # The fields of one structured array cost 0.1 microseconds each, arrays made one by one 2.5.
        if self.num_samples == 0 or self.spec.record_bytes == 0:
            return {
                entry.name: self.ragged[entry.name]
                if entry.is_ragged
                else np.empty((self.num_samples, *entry.shape), dtype=entry.dtype)
                for entry in self.spec
            }
        dtype, names = self.spec.record_dtype, self.spec.record_dtype.names or ()
        records: Array = np.ndarray(len(self.records), dtype, buffer=self.records)
        views: Arrays = dict(zip(names, map(records.__getitem__, names), strict=True))
        if not self.ragged:
            return views
        views |= self.ragged
        names = self.spec.names
        return dict(zip(names, map(views.__getitem__, names), strict=True))

    @property
    def size_bytes(self) -> int:
        """Bytes gathered."""
        if not (self.ragged or self.shared):
            return self.records.nbytes
        shared = sum(shared.rows.size_bytes + int(shared.index.nbytes) for shared in self.shared)
        return self.records.nbytes + sum(_ragged_bytes(ragged) for ragged in self.ragged.values()) + shared


@dataclass(frozen=True)
class SharedRows:
    """What the samples of a batch share by one key; or those of several batches side by side, each with its own.

    Attributes:
        rows: Each different row of a batch once: a batch of U.
        index: Which of its batch's each sample has, int32. Shape [B].
        counts: How many each batch has; for a single one it need not be told. Shape [N].
    """

    rows: Assembled
    index: Array
    counts: Index | None = None

    def cut(self, sizes: Sequence[int]) -> list[SharedRows]:
        """Return what the batches share that lie in this one side by side.

        Args:
            sizes: Samples of each.
        """
        assert self.counts is not None
        found, begin = [], 0
        for size, rows in zip(sizes, self.rows.cut(self.counts.tolist()), strict=True):
            found.append(SharedRows(rows, self.index[begin : begin + size]))
            begin += size
        return found


def lists_between(lists: Ragged, begin: int, end: int) -> Ragged:
    """Return lists [begin, end), their values in the same memory."""
    offsets = lists.offsets[begin : end + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    values = lists_between(lists.values, first, last) if isinstance(lists.values, Ragged) else lists.values[first:last]
    return Ragged(values, offsets - first if first else offsets)


def _ragged_bytes(ragged: Ragged) -> int:
    values = _ragged_bytes(ragged.values) if isinstance(ragged.values, Ragged) else ragged.values.nbytes
    return int(values) + int(ragged.offsets.nbytes)


def assemble(
    spec: Spec,
    parts: Sequence[Part],
    pool: BufferPool,
    *,
    once: Once = "never",
    places: Index | None = None,
    sizes: Sequence[int] | None = None,
) -> Assembled:
    """Gather the samples of `parts`, in their order unless told otherwise, into buffers of the pool.

        parts      window 3: rows 7 1 4      window 4: rows 0 9
        records  ┆ 7 ┆ 1 ┆ 4 ┆ 0 ┆ 9 ┆       one take a window
        values   ┆ 7 7 ┆ 4 4 4 ┆ 9 ┆         ragged: borders first, then one copy a list

    Args:
        spec: Spec of the samples.
        parts: Where they lie; all parts together are the batch.
        pool: Gives the memory.
        once: Whether what samples share is gathered once, with the place of each sample's.
        places: Where in the batch each sample of the parts goes: a permutation. Shape [B].
        sizes: Samples of each of several batches that all parts together are, in their order, where what these share
            is gathered once: of each batch by itself.
    """
    if not spec.keys:
        return _assembled(spec, [parts], pool, places)
    batches = np.array([sum(part.where.num for part in parts)] if sizes is None else sizes, dtype=np.int64)
    if once == "always" and places is None and len(parts) == len(spec.keys) == 1 and _is_only_records(spec.unshared):
        return _assembled_once(spec, parts[0], pool, batches)
    tables = [[Part(part.window.tables[0], part.where) for part in parts if isinstance(part.window, Window)]]
    tables += [_shared_parts(key, i, parts) for i, key in enumerate(spec.keys, start=1)]
    if once != "never":
        cut = _by_batch(parts, batches)
        found = [[distinct(part.row, own) for part, own in zip(table, cut, strict=True)] for table in tables[1:]]
        if once == "always" or _pays(found, num_samples=int(batches.sum())):
            shared = (
                _gathered_once(table_spec, table, rows, cut, pool)
                for table_spec, table, rows in zip(spec.tables[1:], tables[1:], found, strict=True)
            )
            if places is not None:
                shared = (replace(one, index=_placed(one.index, places)) for one in shared)
            own = _assembled(spec.unshared, tables[:1], pool, places)
            return own._replace(shared=tuple(shared), names=spec.names)
    return _assembled(spec, tables, pool, places)


def _is_only_records(spec: Spec) -> bool:
    return spec.record_bytes > 0 and not spec.ragged


def _by_batch(parts: Sequence[Part], sizes: Index) -> list[Index]:
    """Return how many samples of each part are of each batch. Shapes [N]."""
    borders = offsets_of(sizes)
    cut, begin = [], 0
    for part in parts:
        end = begin + part.where.num
        inside = np.clip(borders, begin, end)
        cut.append(inside[1:] - inside[:-1])
        begin = end
    return cut


def _assembled_once(spec: Spec, part: Part, pool: BufferPool, sizes: Index) -> Assembled:
    """Gather what each sample has for itself, and once what they share by the only key: all in one window."""
    assert isinstance(part.window, Window)
    (own, shared), (key,) = part.window.tables, spec.keys
    num, width = part.where.num, own.spec.record_bytes
    records = pool.take(num * width)[: num * width].reshape(num, width)
    runs = take_runs(
        own.records,
        part.slot,
        part.row,
        records,
        offset=own.spec.record_offsets[run_name(key)],
        first=shared.first_row,
        sizes=sizes,
    )
    rows = _assembled(spec.tables[1], [[Part.at(shared, runs.slot, runs.row)]], pool)
    once = SharedRows(rows, runs.number, runs.counts)
    return Assembled(spec.unshared, num, records, {}, (once,), spec.names)


def _assembled(
    spec: Spec, tables: Sequence[Sequence[Part]], pool: BufferPool, places: Index | None = None
) -> Assembled:
    """Gather some of the tables of a spec, side by side: from the first on, each with as many rows."""
    if len(tables) == 1 and (taken := _taken(spec, tables[0], pool, places)) is not None:
        return taken
    num_samples = sum(part.where.num for part in tables[0])
    width = spec.record_bytes
    records = pool.take(num_samples * width)[: num_samples * width].reshape(num_samples, width)
    ragged: dict[str, Ragged] = {}
    for table, parts, offset in zip(spec.tables, tables, spec.table_offsets, strict=False):
        at = 0
        for part in parts if width and table.record_bytes else ():
            begin, at = at, at + part.where.num
            if places is None:
                take_records(part.window.records, part.row, records[begin:at], at=offset)
            else:
                take_records(part.window.records, part.row, records, at=offset, places=places[begin:at])
        ragged |= _assemble_lists(table.ragged, parts, pool, places)
    return Assembled(spec=spec, num_samples=num_samples, records=records, ragged=ragged)


def _taken(spec: Spec, parts: Sequence[Part], pool: BufferPool, places: Index | None) -> Assembled | None:
    """Gather samples in as few calls as there are windows; None where that cannot be."""
    if not parts or not all(_is_whole(spec, _rows(part.window)) for part in parts):
        return None
    num, width = sum(part.where.num for part in parts), spec.record_bytes
    records = pool.take(num * width)[: num * width].reshape(num, width)
    if len(parts) > 1 or places is not None:
        several = [(_rows(part.window), part.where) for part in parts]
        taken = take_several(several, records, pool.take, places=places, has_lists=bool(spec.ragged))
    elif spec.ragged:
        taken = _taken_of_one(_rows(parts[0].window), parts[0].where, records, pool)
    else:
        if width:
            take_located(parts[0].window.records, parts[0].where, records)
        return Assembled(spec, num, records, {})
    if taken is None:
        return None
    return Assembled(spec=spec, num_samples=num, records=records, ragged=_named(spec.strip or spec.apart, taken))


def _is_whole(spec: Spec, rows: Rows) -> bool:
    """Return whether all of a row is asked for, and all of it can be gathered in one call."""
    if not spec.ragged:
        return spec.record_bytes == rows.spec.record_bytes
    return spec.record_bytes == rows.spec.record_bytes and spec.ragged == rows.spec.ragged and rows.lists is not None


def _taken_of_one(rows: Rows, where: Where, records: Array, pool: BufferPool) -> Taken | None:
    """Gather records and lists of rows of one window."""
    assert rows.lists is not None
    source = rows.records if records.shape[1] else rows.bytes[:0].reshape(1, 0)
    expected_bytes = int(where.num * rows.expected_bytes)
    taken = take_rows(source, rows.lists, where, records, pool.take, expected_bytes=expected_bytes)
    if taken is not None:
        rows.expect(taken.num_bytes, where.num)
    return taken


def _named(entries: Sequence[Entry], taken: Taken) -> dict[str, Ragged]:
    """Return the lists of several fields by name."""
    ragged = {}
    for entry, offsets, begin in zip(entries, taken.offsets, taken.begins.tolist(), strict=True):
        end = begin + int(offsets[-1]) * entry.value_bytes
        values = taken.values[begin:end].view(entry.dtype)
        ragged[entry.name] = Ragged(values.reshape(-1, *entry.shape) if entry.shape else values, offsets)
    return ragged


def assemble_beside(
    spec: Spec, parts: Sequence[Part], others: Sequence[Part], pool: BufferPool, residence: Residence
) -> Assembled:
    """Gather the lists of all samples, and the records of those that do not lie on a device.

    Args:
        spec: Of the samples, which share nothing.
        parts: Where all of them lie.
        others: Where those lie whose records are wanted.
        pool: Gives the memory.
        residence: Which samples these are.
    """
    num, width = len(residence.here), spec.record_bytes
    records = pool.take(num * width)[: num * width].reshape(num, width)
    at = 0
    for part in others:
        begin, at = at, at + part.where.num
        take_records(part.window.records, part.row, records[begin:at])
    ragged = _assemble_lists(spec.ragged, parts, pool)
    return Assembled(spec, residence.num_samples, records, ragged, residence=residence)


def _placed(values: Array, places: Index) -> Array:
    """Return an array in which value k stands at `places[k]`. Shape [B]."""
    placed = np.empty_like(values)
    placed[places] = values
    return placed


def _shared_parts(key: str, i: int, parts: Sequence[Part]) -> list[Part]:
    """Return where lies what samples share: their runs, as rows of a table of the windows.

    Cheap, though it goes through memory at random: gathering the samples finds the same lines in the cache.
    """
    found = []
    for part in parts:
        assert isinstance(part.window, Window)
        slot, row = part.slot, part.row
        own, shared = part.window.tables[0], part.window.tables[i]
        offset = own.spec.record_offsets[run_name(key)]
        found.append(Part.at(shared, slot, run_rows(own.records, offset, shared.first_row, slot, row)))
    return found


def _pays(found: Sequence[Sequence[Distinct]], *, num_samples: int) -> bool:
    num_rows = sum(len(one.row) for table in found for one in table)
    return num_rows <= _MAX_DISTINCT * num_samples * len(found)


def _gathered_once(
    spec: Spec, parts: Sequence[Part], found: Sequence[Distinct], cut: Sequence[Index], pool: BufferPool
) -> SharedRows:
    """Gather what samples share, of each batch each row once.

    Args:
        spec: Of what they share.
        parts: Where the rows lie, of all samples.
        found: The different ones of each part.
        cut: How many samples of each part are of each batch.
        pool: Gives the memory.
    """
    rows, index, counts = [], [np.empty(0, np.int32)], np.zeros(len(cut[0]) if cut else 1, dtype=np.int64)
    for part, own, sizes in zip(parts, found, cut, strict=True):
        slot = np.searchsorted(part.window.first_row, own.row, side="right") - 1
        rows.append(Part.at(part.window, slot, own.row))
        # A batch that a part before this one begins has rows already.
        before = np.where(sizes > 0, counts, 0)
        index.append(own.number + np.repeat(before, sizes).astype(np.int32) if before.any() else own.number)
        counts += own.counts
    return SharedRows(_assembled(spec, [rows], pool), index[1] if len(index) == 2 else np.concatenate(index), counts)


def _assemble_lists(
    entries: Sequence[Entry], parts: Sequence[Part], pool: BufferPool, places: Index | None = None
) -> dict[str, Ragged]:
    """Gather the lists of some fields of a table, those of each side by side; as `assemble` otherwise."""
    if not entries:
        return {}
    strip = _rows(parts[0].window).spec.strip if parts else ()
    names = {entry.name for entry in entries}
    chosen = [f for f, entry in enumerate(strip) if entry.name in names]
    found = _assemble_strips(chosen, parts, pool, places) if chosen else {}
    apart = [entry for entry in entries if entry.name not in found]
    if not apart:
        return found
    borders = [borders_apart(_rows(part.window), part.slot, part.row) for part in parts]
    order = None if places is None else _placed(np.arange(len(places), dtype=np.int64), places)
    for entry in apart:
        if entry.num_levels == 1:
            lists = _assemble_values(entry, parts, [fields[entry.name] for fields in borders], pool)
        else:
            lists = _assemble_levels(entry, parts, pool)
        found[entry.name] = lists if order is None else reordered_lists(lists, order, pool)
    return found


def _assemble_strips(
    chosen: Sequence[int], parts: Sequence[Part], pool: BufferPool, places: Index | None
) -> dict[str, Ragged]:
    """Gather the lists that lie side by side, those of a row at a time: of some fields of the strip."""
    found = [strip_borders(_rows(part.window), part.slot, part.row) for part in parts]
    strips = found[0] if len(found) == 1 and places is None else join_strips(found, places)
    entries = _rows(parts[0].window).spec.strip
    if len(chosen) < len(entries):
        strips = strips.only(chosen)
    taken = copy_fields(strips.memory, strips.sources, strips.value_bytes, strips.offsets, pool.take)
    return _named([entries[f] for f in chosen], taken)


def _rows(window: Window | Rows) -> Rows:
    """Return the rows that parts are of: of a window, those of the samples themselves."""
    return window.tables[0] if isinstance(window, Window) else window


def _assemble_levels(entry: Entry, parts: Sequence[Part], pool: BufferPool) -> Ragged:
    """Gather lists of lists."""
    borders = [nested_borders(_rows(part.window), entry.name, part.slot, part.row) for part in parts]
    # The lists of a row lie side by side, so its values are copied as one.
    values = _assemble_values(entry, parts, [found.values for found in borders], pool).values
    inner = Ragged(values, _join([found.inner for found in borders]))
    return Ragged(inner, _join([found.outer for found in borders]))


def _assemble_values(entry: Entry, parts: Sequence[Part], borders: Sequence[Borders], pool: BufferPool) -> Ragged:
    """Gather lists whose places are known."""
    value_bytes = entry.value_bytes
    total = sum(int(offsets[-1]) for _, offsets in borders)
    memory = pool.take(total * value_bytes)
    at = 0
    for part, (sources, offsets) in zip(parts, borders, strict=True):
        copy_lists(_rows(part.window).bytes, sources, value_bytes, offsets, memory[at:])
        at += int(offsets[-1]) * value_bytes
    values = memory[: total * value_bytes].view(entry.dtype).reshape(total, *entry.shape)
    return Ragged(values, _join([offsets for _, offsets in borders]))


def _join(offsets: Sequence[Index]) -> Index:
    """Return the offsets of several runs of lists, one run behind the other."""
    if len(offsets) == 1:
        return offsets[0]
    joined = [np.zeros(1, dtype=np.int64)]
    end = 0
    for run in offsets:
        joined.append(run[1:] + end)
        end += int(run[-1])
    return np.concatenate(joined)
