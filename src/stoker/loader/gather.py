"""From places in open windows to a batch: gathered into buffers by native code, and views of these as fields.

parts      window 3: rows 7 1 4      window 4: rows 0 9
records  ┆ 7 ┆ 1 ┆ 4 ┆ 0 ┆ 9 ┆       the fixed-width fields of a sample side by side
values   ┆ 7 7 ┆ 4 4 4 ┆ 9 ┆         of lists, beside their offsets
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, repeat
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from stoker._native import Rows
from stoker._native import distinct as find_distinct
from stoker.cache.builder import empty_arrays
from stoker.fields.offsets import Int64, offsets_of
from stoker.fields.spec import Array, Arrays, Deduplicated, Entry, Ragged, Spec, run_name
from stoker.loader.buffers import BufferPool
from stoker.loader.config import Once
from stoker.loader.window import Window

# If a batch has more different rows than this share of its samples, one row for each sample is hardly more to carry,
# and spares whoever gets the batch the work of expanding it.
_MAX_DISTINCT = 0.75

Range: TypeAlias = tuple[int, int]
"""First and past-the-last position."""


class Part:
    """`num` samples, or rows that samples share, which lie in one table of one window.

    They are given by ranges of the window's positions, which are not checked again, or by places (slot and row) that
    were found. Native code finds the places of a single range while it gathers, unless they were asked for before.
    """

    __slots__ = ("_found", "_ranges", "num", "table", "window")

    def __init__(self, window: Window, ranges: Sequence[Range]) -> None:
        self.window, self._ranges, self.table = window, ranges, 0
        self.num = sum([stop - start for start, stop in ranges])
        self._found: tuple[Int64, Int64] | None = None

    @classmethod
    def at(cls, window: Window, slot: Int64, row: Int64, table: int = 0) -> Part:
        """Return rows at places that have been found, known to be in range."""
        part = cls(window, ())
        part._found, part.table, part.num = (slot, row), table, len(row)
        return part

    @property
    def slot(self) -> Int64:
        """Chunk of each, as its place in the window. Shape [b]."""
        return self._places()[0]

    @property
    def row(self) -> Int64:
        """Row of each, counted in its chunk. Shape [b]."""
        return self._places()[1]

    @property
    def native(self) -> Any:
        """The same as native code takes it."""
        if self._found is None and len(self._ranges) == 1:
            return self.window, self.table, self.window.order, self._ranges[0][0], self.num
        return self.window, self.table, *self._places()

    def _places(self) -> tuple[Int64, Int64]:
        if self._found is None:
            self._found = np.empty(self.num, np.int64), np.empty(self.num, np.int64)
            if len(self._ranges) == 1:
                self.window.order.locate_range(self._ranges[0][0], *self._found)
            else:
                positions = np.concatenate([np.arange(*one, dtype=np.int64) for one in self._ranges])
                self.window.order.locate(positions, *self._found)
        return self._found


class Assembled(NamedTuple):
    """A batch of B samples before it has names, or several side by side."""

    spec: Spec  # of the samples; where `shared` has what they share, of the rest of their fields
    num_samples: int
    records: Array  # all fixed-width fields of the spec: uint8, shape [B, record_bytes]
    ragged: dict[str, Ragged]
    # What samples share by each key, where it was gathered once: each different row of a batch once, and which of its
    # batch's each sample has, int32, shape [B].
    shared: tuple[tuple[Assembled, Array], ...] = ()
    names: tuple[str, ...] = ()  # all fields in batch order; those of the spec unless told
    # Row of each sample on the device, -1 where it does not lie there yet, shape [B]: records are those of the others.
    resident: Int64 | None = None
    sizes: Sequence[int] = ()  # of what samples of several batches share: how many rows each batch has

    def views(self) -> Arrays:
        """Return the fields by name, in the spec's order; fixed-width ones are views of `records`, not copies."""
        spec, names = self.spec, self.names or self.spec.names
        if self.num_samples and spec.record_bytes:
            # The fields of one structured array cost 0.1 microseconds each, arrays made one by one 2.5.
            dtype = spec.record_dtype
            fixed = dtype.names or ()
            records: Array = np.ndarray(len(self.records), dtype, buffer=self.records)
            views: dict[str, Any] = dict(zip(fixed, map(records.__getitem__, fixed), strict=True))
            if len(fixed) == len(names):
                return views
        else:
            views = {one.name: np.empty((self.num_samples, *one.shape), one.dtype) for one in spec.fixed}
        views |= self.ragged
        for rows, index in self.shared:
            views |= {name: Deduplicated(field, index) for name, field in rows.views().items()}
        return dict(zip(names, map(views.__getitem__, names), strict=True))

    def cut(self, sizes: Sequence[int]) -> list[Assembled]:
        """Return the batches of so many samples that lie in this one side by side, in the same memory."""
        if len(sizes) == 1:
            return [self]
        batches, begin, records, lists = [], 0, self.records, self.ragged
        ends = np.cumsum(sizes)[:-1] if self.shared else ()
        shared = [zip(rows.cut(rows.sizes), np.split(index, ends), strict=True) for rows, index in self.shared]
        for size, of_batch in zip(sizes, zip(*shared, strict=True) if shared else repeat(()), strict=False):
            end = begin + size
            own = {name: lists_between(one, begin, end) for name, one in lists.items()} if lists else {}
            batches.append(Assembled(self.spec, size, records[begin:end], own, of_batch, self.names))
            begin = end
        return batches

    @property
    def size_bytes(self) -> int:
        """Bytes gathered."""
        lists = sum([int(one.offsets.nbytes + one.values.nbytes) for one in self.ragged.values()])
        return self.records.nbytes + lists + sum([rows.size_bytes + int(index.nbytes) for rows, index in self.shared])


def lists_between(lists: Ragged, begin: int, end: int) -> Ragged:
    """Return lists [begin, end), their values in the same memory."""
    offsets = lists.offsets[begin : end + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    values = lists_between(lists.values, first, last) if isinstance(lists.values, Ragged) else lists.values[first:last]
    return Ragged(values, offsets - first if first else offsets)


# ---------------------------------------------------------------------------------------------- gathering


def assemble(
    spec: Spec,
    parts: Sequence[Part],
    pool: BufferPool,
    *,
    once: Once = "never",
    places: Int64 | None = None,
    sizes: Sequence[int] | None = None,
) -> Assembled:
    """Gather the samples of all `parts`, or some of their fields, into buffers of the pool.

    In their order, unless `places` says where in the batch each goes: a permutation, shape [B]. `once` says
    whether what samples share is gathered once, with the place of each sample's: for each batch by itself, where all
    are several of so many samples, `sizes`, one behind the other.
    """
    if not spec.keys:
        return _assembled(spec, [parts], pool, places)
    own, num, records = spec.unshared, sum(part.num for part in parts), None
    if once == "always" and own.record_bytes and not own.ragged:  # lists are found while records are copied
        records = pool.array((num, own.record_bytes))
    tables = [parts]
    for i, key in enumerate(spec.keys, start=1):
        tables.append(_shared_parts(key, i, parts, places, records if i == 1 else None))
    if once != "never":
        batches = np.array([num] if sizes is None else sizes, dtype=np.int64)
        found = [_distinct(table, batches) for table in tables[1:]]
        if once == "always" or sum(int(counts.sum()) for *_, counts in found) <= _MAX_DISTINCT * num * len(found):
            shared = tuple(
                (
                    _assembled(table, [rows], pool)._replace(sizes=counts.tolist()),
                    index if places is None else put(index, places, pool),
                )
                for table, (rows, index, counts) in zip(spec.tables[1:], found, strict=True)
            )
            rest = _assembled(own, tables[:1], pool, places) if records is None else Assembled(own, num, records, {})
            return rest._replace(shared=shared, names=spec.names)
    return _assembled(spec, tables, pool, places)


def _assembled(
    spec: Spec, tables: Sequence[Sequence[Part]], pool: BufferPool, places: Int64 | None = None
) -> Assembled:
    """Gather some of the tables of a spec, side by side: from the first on, each with as many rows."""
    num = sum([part.num for part in tables[0]])
    records = pool.array((num, spec.record_bytes))
    ragged: dict[str, Ragged] = {}
    for table, parts, at in zip(spec.tables, tables, spec.table_offsets, strict=False):
        is_wanted = spec.record_bytes and table.record_bytes  # runs alone are no records of a batch of lists
        ragged |= _take(table, parts, pool, places, records if is_wanted else None, at)
    return Assembled(spec, num, records, ragged)


def _take(
    spec: Spec,
    parts: Sequence[Part],
    pool: BufferPool,
    places: Int64 | None,
    records: Array | None = None,
    at: int = 0,
) -> dict[str, Ragged]:
    """Gather rows of one table, and return their lists; in one call, unless lists hold lists, or some are not wanted.

    Their records go to `records` from byte `at` of each row on, uint8, shape [B, ...]; unless nobody wants them.
    """
    if not parts:
        return {name: field for name, field in empty_arrays(spec).items() if isinstance(field, Ragged)}
    rows, found = Rows([part.native for part in parts], places), dict[str, Ragged]()
    if spec.ragged:
        num, wanted = sum(part.num for part in parts), {entry.name for entry in spec.ragged}
        for number, group in enumerate(parts[0].window.layout.groups[parts[0].table]):
            chosen = [f for f, entry in enumerate(group) if entry.name in wanted]
            if not chosen:
                continue
            offsets, inner = np.empty((len(group), num + 1), dtype=np.int64), None
            if records is not None and len(chosen) == len(group) and group[0].num_levels == 1:
                expected = (part.window.expected_bytes[part.table] * part.num for part in parts)
                values = pool.take(int(sum(expected)))
                lists, records = rows.take_with_lists(records, at, number, offsets, values), None
                is_copied = lists.num_bytes <= len(values)
                if not is_copied:
                    for part in parts:
                        part.window.expect(part.table, lists.num_bytes, num)
            else:
                lists, is_copied = rows.find(number, offsets), False
                if group[0].num_levels > 1:
                    inner = np.empty(int(offsets[0, -1]) + 1, dtype=np.int64)
                    lists.descend(inner)
                elif len(chosen) < len(group):
                    lists.choose(chosen)
            if not is_copied:
                values = pool.take(lists.num_bytes)
                lists.copy(values)
            begins = lists.begins
            for f in chosen:
                found[group[f].name] = _as_field(group[f], values[begins[f] :], offsets[f], inner)
    if records is not None:
        rows.take(records, at)
    return found


def _as_field(entry: Entry, values: Array, offsets: Int64, inner: Int64 | None) -> Ragged:
    """Return a ragged field whose values lie at the beginning of some memory."""
    total = int((offsets if inner is None else inner)[-1])
    values = values[: total * entry.value_bytes].view(entry.dtype)
    if entry.shape:
        values = values.reshape(total, *entry.shape)
    return Ragged(values if inner is None else Ragged(values, inner), offsets)


def put(values: Array, places: Int64, pool: BufferPool) -> Array:
    """Return an array in which value k stands at `places[k]`, in memory of the pool."""
    out = pool.array(values.shape, values.dtype)
    out[places] = values
    return out


# ---------------------------------------------------------------------------------------------- what samples share


def _distinct(parts: Sequence[Part], sizes: Int64) -> tuple[list[Part], Array, Int64]:
    """Return the different rows of each batch, in the order in which they come first, and so part by part.

    Beside them which of its batch's each of all is, int32, shape [B], and how many each batch has, shape [N].
    """
    if len(parts) == 1:
        slots, rows = parts[0].slot, parts[0].row
    else:  # The slot's upper half is the number of the part: rows of two parts are never the same.
        none = np.empty(0, np.int64)
        slots = np.concatenate([none, *(part.slot + (i << 32) for i, part in enumerate(parts))])
        rows = np.concatenate([none, *(part.row for part in parts)])
    slot, row = np.empty((2, len(rows)), dtype=np.int64)
    number, counts = np.empty(len(rows), dtype=np.int32), np.empty(len(sizes), dtype=np.int64)
    num = find_distinct(slots, rows, sizes, slot, row, number, counts)
    borders = np.searchsorted(slot[:num] >> 32, np.arange(len(parts) + 1)).tolist()
    found = [
        Part.at(part.window, slot[begin:end] - (i << 32), row[begin:end], part.table)
        for i, (part, (begin, end)) in enumerate(zip(parts, pairwise(borders), strict=True))
    ]
    return found, number, counts


def _shared_parts(
    key: str, table: int, parts: Sequence[Part], places: Int64 | None, records: Array | None
) -> list[Part]:
    """Return where lies what samples share: their runs, as rows of a table of the windows.

    Cheap, though it goes through memory at random: gathering the samples finds the same lines in the cache. Records are
    gathered meanwhile, if there is memory for them.
    """
    rows = Rows([(part.window, 0, part.slot, part.row) for part in parts], places)
    runs = np.empty(sum(part.num for part in parts), dtype=np.int64)
    for part in parts[:1]:
        offset = part.window.layout.spec.tables[0].record_offsets[run_name(key)]
        rows.runs(offset, runs) if records is None else rows.take_with_runs(records, offset, runs)
    own = np.split(runs, np.cumsum([part.num for part in parts])[:-1])
    return [Part.at(part.window, part.slot, some, table) for part, some in zip(parts, own, strict=False)]


def assemble_resident(spec: Spec, parts: Sequence[Part], first_row: Int64, pool: BufferPool) -> Assembled:
    """Gather what of a batch does not lie on the device: records of the other samples, and everybody's lists.

        rows of a batch    7 1 4 0 9
        on the device      0 - 5 - 2      their rows there, -1 for the others
        gathered here        1   0

    A chunk goes there when its window opens, as long as there is room, and stays: every epoch uses every chunk once, so
    one is worth its room as much as another. Its records begin at its `first_row` there, -1 where it does not lie
    there, shape [N]. Samples share nothing here.
    """
    num = sum(part.num for part in parts)
    rows = pool.array([num], np.int64)  # they cross to the device
    others, begin = [], 0
    for part in parts:
        # Looked at once: a chunk may arrive there while this goes on.
        first = first_row[part.window.chunks][part.slot]
        out = rows[begin : begin + part.num]
        np.add(part.row, first, out=out)
        if (missing := np.flatnonzero(first < 0)).size:
            out[missing] = -1
            others.append(Part.at(part.window, part.slot[missing], part.row[missing]))
        begin += part.num
    records = pool.array((sum(part.num for part in others), spec.record_bytes))
    if others:
        Rows([part.native for part in others]).take(records, 0)
    ragged = _take(spec, parts, pool, None) if spec.ragged else {}
    return Assembled(spec, num, records, ragged, resident=rows)


# ---------------------------------------------------------------------------------------------- leaving together


class Together(NamedTuple):
    """Several batches of rows that were gathered side by side and leave as one.

        records     │ batch 0 │ batch 1 │ …                       as they were gathered
        values      │ batch 0 │ batch 1 │ …
        offsets     0 2 5 9 11 …    ──►    0 2 5 9 ┆ 0 2 …        each batch's from zero on, in memory to copy from

    They are cut behind a single copy.
    """

    assembled: Assembled  # all of them
    sizes: Sequence[int]  # samples of each
    offsets: Array  # of each ragged field: int64, shape [F, B + N]
    num_values: list[list[int]]  # of each ragged field, in each batch: [F][N]
    shared: list[tuple[Together, Array]]  # as `Assembled.shared`
    # Where the order counts groups: their offsets in each batch, int64, shape [G + N], and how many each batch has.
    groups: tuple[Array, Sequence[int]] | None = None


def can_leave_together(spec: Spec) -> bool:
    """Return whether batches of these samples can be copied as one: without lists of lists or records of no bytes."""
    is_nested = any(entry.num_levels > 1 for entry in spec.ragged)
    return not is_nested and all(one.record_bytes or not one.fixed for one in (spec, spec.unshared, *spec.tables[1:]))


def side_by_side(
    assembled: Assembled,
    sizes: Sequence[int],
    pool: BufferPool,
    *,
    groups: tuple[Array, Sequence[int]] | None = None,
) -> Together:
    """Return batches of so many samples as one that can be copied whole, where they can leave together.

    `groups` are as in `Together`, but their offsets go on through all batches.
    """
    lists, shared = assembled.ragged.values(), []
    for rows, its_index in assembled.shared:
        index = pool.array(its_index.shape, its_index.dtype)
        np.copyto(index, its_index)
        shared.append((side_by_side(rows, rows.sizes, pool), index))
    offsets = pool.array((len(lists), sum(sizes) + len(sizes)), np.int64)
    num_values = _from_zero([one.offsets for one in lists], sizes, offsets)
    if groups is not None:
        out = pool.array((1, sum(groups[1]) + len(sizes)), np.int64)
        _from_zero([groups[0]], groups[1], out)
        groups = out[0], groups[1]
    return Together(assembled, sizes, offsets, num_values, shared, groups)


def _from_zero(fields: Sequence[Array], sizes: Sequence[int], out: Array) -> list[list[int]]:
    """Write the offsets of fields through all batches as those of each, [F, B + N]; return their values, [F][N]."""
    # In one go for all batches: what works on thousands of numbers gives the interpreter's lock up, and wants it back.
    borders = offsets_of(np.array(sizes, dtype=np.int64))
    counts = np.diff(borders) + 1
    places = np.arange(counts.sum()) - np.repeat(np.arange(len(sizes)), counts)  # each border belongs to two batches
    num_values = []
    for offsets, row in zip(fields, out, strict=True):
        at_borders = offsets[borders]
        np.take(offsets, places, out=row)
        np.subtract(row, np.repeat(at_borders[:-1], counts), out=row)
        num_values.append(np.diff(at_borders).tolist())
    return num_values
