"""Batches of what the order counts: what they hold, under which names.

rows, draws, groups    rows as they are, one unit behind the other
windows over rows      [B, length, ...] of each field
packed rows            token ranges of many documents in rows of one length, and where each document stands
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from stoker._native import FoundLists, Rows, expand, fill_places, pack_values
from stoker.dataset.units.kinds import Grouped, NGram, Pack, SamplingUnit
from stoker.errors import FieldMismatchError
from stoker.fields.offsets import Int32, Int64, offsets_of, ranges
from stoker.fields.spec import Array, Arrays, Entry, Ragged, Spec
from stoker.loader.buffers import BufferPool
from stoker.loader.config import Once
from stoker.loader.gather import Assembled, Groups, Part, Together, assemble, lists_between, side_by_side
from stoker.loader.lane import OpenWindow, UnitPart
from stoker.sampling.units import Packed, Segments, SideBySide

# What packed rows have beside their fields: each token's document, and its place in that.
_PLACES = ("segment_ids", "positions")


class Shaping(NamedTuple):
    """How the fixed-width fields of [B x L] records come as [B, L, ...]: for windows over rows.

    Attributes:
        length: L.
        places: Field -> which of the L it comes at.
    """

    length: int
    places: Mapping[str, slice | list[int]]

    def apply(self, name: str, field: Any) -> Any:
        """Return a field of B x L samples, an array or a tensor, in its shape."""
        shape = (field.shape[0] // self.length, self.length, *field.shape[1:])
        return field.reshape(shape)[:, self.places[name]]


class Made(NamedTuple):
    """A batch of units.

    Attributes:
        arrays: Its fields.
        assembled: The memory that fixed-width fields are views of.
        shaping: How they are; None where as they lie.
        has_records: Whether they are views of `assembled` at all.
        num_samples: Samples in it.
    """

    arrays: Arrays
    assembled: Assembled
    shaping: Shaping | None
    has_records: bool
    num_samples: int


class Maker:
    """Makes batches of rows: of rows, draws, or groups, whose rows come one group behind the other.

    Args:
        unit: What a unit is; None for rows.
        spec: Spec of the samples.

    Attributes:
        spec: What a batch holds of each unit; of a group, of each of its rows.
        unit_bytes: What a unit takes, where that is known beforehand.
    """

    unit_bytes: float | None = None

    def __init__(self, unit: SamplingUnit | None, spec: Spec) -> None:
        self._samples, self._is_rows, self._is_grouped = spec, unit is None, isinstance(unit, Grouped)
        self.spec = spec.delivered

    def gather(
        self,
        parts: Sequence[UnitPart],
        sizes: Sequence[int],
        pool: BufferPool,
        *,
        once: Once = "never",
        places: Int64 | None = None,
    ) -> tuple[Made, int]:
        """Return the units of some batches as one, which `cut` cuts, and how many bytes they have.

        Args:
            parts: Where the units lie, those of each batch behind those of the batch before it, unless `places` says
                otherwise.
            sizes: Units of each batch.
            pool: Gives the memory.
            once: See `assemble`.
            places: Where each unit goes: a permutation. Shape [B].

        Raises:
            FieldMismatchError: Documents that are packed together have other numbers of values; of whichever batch.
        """
        arrays: Arrays = {}
        if self._is_rows:
            found = [Part(part.opened.window, part.where) for part in parts]
        else:
            found, offsets = _rows_of(parts)
            offsets, places = _placed(offsets, places)
            if self._is_grouped:
                arrays["group_offsets"] = offsets
                sizes = _num_rows(offsets, sizes)
        assembled = assemble(self._samples, found, pool, once=once, places=places, sizes=sizes)
        return Made(arrays, assembled, None, True, assembled.num_samples), assembled.size_bytes

    def cut(self, made: Made, sizes: Sequence[int]) -> list[Made]:
        """Return the batches that were gathered as one, in the same memory.

        Args:
            made: All of them.
            sizes: Units of each.
        """
        groups = made.arrays.get("group_offsets")
        batches = [
            Made(one.views(), one, None, True, one.num_samples)
            for one in made.assembled.cut(sizes if groups is None else _num_rows(cast("Int64", groups), sizes))
        ]
        if groups is not None:
            for batch, (begin, end) in zip(batches, pairwise([0, *accumulate(sizes)]), strict=True):
                batch.arrays["group_offsets"] = cast("Int64", groups)[begin : end + 1] - groups[begin]
        return batches

    def side_by_side(self, made: Made, sizes: Sequence[int], pool: BufferPool) -> Together | None:
        """Return the batches that were gathered as one as they can leave so; None where they must be cut before.

        Args:
            made: All of them.
            sizes: Units of each.
            pool: Gives memory that can be copied from.
        """
        groups = cast("Int64 | None", made.arrays.get("group_offsets"))
        if groups is None:
            return side_by_side(made.assembled, sizes, pool)
        return side_by_side(made.assembled, _num_rows(groups, sizes), pool, groups=Groups(groups, sizes))


class _FixedMaker(Maker):
    """Makes batches that are no rows any more: windows, packed rows."""

    def cut(self, made: Made, sizes: Sequence[int]) -> list[Made]:
        if len(sizes) == 1:
            return [made]
        # Memory of whose rows arrays are no views is held by all, as long as any is left of them.
        length = made.shaping.length if made.shaping is not None else 0
        cut = made.assembled.cut([length * size for size in sizes]) if length else [made.assembled] * len(sizes)
        return [
            made._replace(arrays=_between(made.arrays, begin, end), assembled=assembled, num_samples=end - begin)
            for assembled, (begin, end) in zip(cut, pairwise([0, *accumulate(sizes)]), strict=True)
        ]

    def side_by_side(self, made: Made, sizes: Sequence[int], pool: BufferPool) -> Together | None:  # noqa: ARG002
        return None


class _WindowMaker(_FixedMaker):
    """Makes batches of windows over consecutive rows."""

    def __init__(self, unit: NGram, spec: Spec) -> None:
        super().__init__(unit, spec)
        self._wanted = unit.windowed(spec)
        self._fixed = spec.only(spec.fixed)
        self._shaping = Shaping(
            unit.length, {name: _place(at) for name, at in self._wanted.items() if not spec[name].is_ragged}
        )
        wanted = [(spec.delivered[name], len(at)) for name, at in self._wanted.items()]
        self.spec = Spec(
            tuple(
                replace(one, num_levels=one.num_levels + 1) if one.is_ragged else replace(one, shape=(num, *one.shape))
                for one, num in wanted
            )
        )

    def gather(
        self,
        parts: Sequence[UnitPart],
        sizes: Sequence[int],  # noqa: ARG002
        pool: BufferPool,
        *,
        once: Once = "never",  # noqa: ARG002
        places: Int64 | None = None,
    ) -> tuple[Made, int]:
        shaping, (found, offsets) = self._shaping, _rows_of(parts)
        fixed = assemble(self._fixed, found, pool, places=_placed(offsets, places)[1])
        num, size_bytes = fixed.num_samples // shaping.length, fixed.size_bytes
        views = fixed.views()
        arrays: Arrays = {}
        for name, at in self._wanted.items():
            if self._samples[name].is_ragged:
                chosen = [_at_places(part, at, shaping.length) for part in found]
                lists, its_places = _placed(np.arange(num + 1, dtype=np.int64) * len(at), places)
                alone = self._samples.only((self._samples[name],))
                assembled = assemble(alone, chosen, pool, places=its_places)
                arrays[name] = Ragged(assembled.ragged[name], lists)
                size_bytes += assembled.size_bytes
            else:
                arrays[name] = shaping.apply(name, views[name])
        return Made(arrays, fixed, shaping, True, num), size_bytes


class _PackMaker(_FixedMaker):
    """Makes batches of packed rows."""

    def __init__(self, unit: Pack, spec: Spec) -> None:
        super().__init__(unit, spec)
        self._unit = unit
        self._fixed = spec.only(spec.fixed) if unit.per_segment else Spec(())
        places = [Entry(name=name, dtype=np.dtype(np.int32), shape=(unit.length,)) for name in _PLACES]
        packed = [spec.delivered[name] for name in unit.packed]
        rows = [replace(one, shape=(unit.length, *one.shape), num_levels=0) for one in packed]
        of_each = [replace(spec.delivered[name], num_levels=1) for name in unit.per_segment]
        self.spec = Spec((*rows, *places, *of_each))
        self.unit_bytes = float(sum(entry.value_bytes for entry in self.spec.fixed))

    def gather(
        self,
        parts: Sequence[UnitPart],
        sizes: Sequence[int],  # noqa: ARG002
        pool: BufferPool,
        *,
        once: Once = "never",  # noqa: ARG002
        places: Int64 | None = None,
    ) -> tuple[Made, int]:
        unit, found = self._unit, [_PackedPart.of(part) for part in parts]
        num_rows = sum(part.num_rows for part in found)
        ids, positions = (_memory(pool, (num_rows, unit.length), np.dtype(np.int32)) for _ in range(2))
        row = 0
        for part in found:
            at = slice(row, row + part.num_rows)
            fill_places(part.segments.num, part.segments.offsets, ids[at], positions[at])
            row += part.num_rows
        arrays: Arrays = {name: _packed(unit, self._samples[name], found, pool) for name in unit.packed}
        arrays |= {"segment_ids": ids, "positions": positions}
        if places is not None:
            arrays = {name: _in_places(cast("Array", array), places, pool) for name, array in arrays.items()}
        size_bytes = sum(array.nbytes for array in arrays.values() if isinstance(array, np.ndarray))
        offsets, its_places = _placed(_joined([part.segments.offsets for part in found]), places)
        documents = [Part.at(part.opened.window, part.slot, part.segments.row) for part in found]
        fixed = assemble(self._fixed, documents, pool, places=its_places)
        views = fixed.views()
        arrays |= {name: Ragged(views[name], offsets) for name in unit.per_segment}
        return Made(arrays, fixed, None, False, num_rows), size_bytes + fixed.size_bytes


def make_maker(unit: SamplingUnit | None, spec: Spec, *, marks_padding: bool = False) -> Maker:
    """Return what makes batches of rows or other units; checks at once whether that can be.

    Args:
        unit: What a unit is; None for rows.
        spec: Spec of the samples.
        marks_padding: Whether batches get `sample_mask`.

    Raises:
        ValueError: A name that batches need is taken by a field.
        FieldError: A field that was asked for is not there, or cannot be had in this way.
    """
    if unit is not None:
        unit.check(spec)
    delivered: Collection[str] = spec.names
    added: tuple[str, ...] = ("group_offsets",) if isinstance(unit, Grouped) else ()
    if isinstance(unit, NGram):
        delivered = unit.windowed(spec)
    elif isinstance(unit, Pack):
        delivered = (*unit.packed, *unit.per_segment)
        added = (*_PLACES, *(("cu_seqlens", "max_seqlen") if unit.cu_seqlens else ()))
    for name in (*added, *(("sample_mask",) if marks_padding else ())):
        if name in delivered:
            raise ValueError(
                f"batches get an array {name!r} of their own, but the data set has a field of this name: call "
                f'it otherwise, with fields={{"other": stoker.Field(columns="{name}")}}'
            )
    if isinstance(unit, NGram):
        return _WindowMaker(unit, spec)
    return _PackMaker(unit, spec) if isinstance(unit, Pack) else Maker(unit, spec)


def sequences_of(ids: Int32) -> dict[str, Any]:
    """Return what attention over packed rows as one sequence of B * length tokens is told of them.

    Args:
        ids: Each token's segment; 0 is padding. Shape [B, length].

    Returns:
        `cu_seqlens`, int32: where each segment, and each row's padding, begins, and the end. `max_seqlen`, int: the
        most tokens between two of them.
    """
    begins = np.ones(ids.shape, dtype=np.bool_)
    np.not_equal(ids[:, 1:], ids[:, :-1], out=begins[:, 1:])
    borders = np.append(np.flatnonzero(begins), ids.size).astype(np.int32)
    return {"cu_seqlens": borders, "max_seqlen": int(np.diff(borders).max(initial=0))}


# ---------------------------------------------------------------------------------------------- rows of units


def _rows_of(parts: Sequence[UnitPart]) -> tuple[list[Part], Int64]:
    """Return where the rows of units lie, and where each unit's rows begin if one stands behind the other."""
    found, offsets = [], []
    for opened, where in parts:
        assert isinstance(opened.units, SideBySide)
        slot = where.slot
        spans = opened.units.spans(opened.chunks[slot], where.row)
        slots, rows = np.empty((2, int(spans.offsets[-1])), dtype=np.int64)
        expand(slot, spans.first, spans.offsets, slots, rows)
        found.append(Part.at(opened.window, slots, rows))
        offsets.append(spans.offsets)
    return found, _joined(offsets)


def _joined(offsets: Sequence[Int64]) -> Int64:
    if len(offsets) == 1:
        return offsets[0]
    return offsets_of(np.concatenate([np.empty(0, np.int64), *(np.diff(one) for one in offsets)]))


def _placed(offsets: Int64, places: Int64 | None) -> tuple[Int64, Int64 | None]:
    """Return the offsets of units in their places, and where each row of theirs goes.

    Args:
        offsets: Where the rows of each unit begin, in the order in which they are gathered. Shape [B + 1].
        places: Where each unit goes. Shape [B]; None for one after the other.
    """
    if places is None:
        return offsets, None
    num = np.empty_like(places)
    num[places] = np.diff(offsets)
    placed = offsets_of(num)
    return placed, ranges(placed[places], offsets)


def _num_rows(offsets: Int64, sizes: Sequence[int]) -> list[int]:
    """Return how many rows each batch of groups has."""
    num_rows: list[int] = np.diff(offsets[[0, *accumulate(sizes)]]).tolist()
    return num_rows


def _between(fields: Arrays, begin: int, end: int) -> Arrays:
    """Return the fields of units [begin, end), in the same memory."""
    return {
        name: lists_between(field, begin, end) if isinstance(field, Ragged) else field[begin:end]
        for name, field in fields.items()
    }


def _place(at: Sequence[int]) -> slice | list[int]:
    """Return places as a slice where they are evenly spread: then a field is a view, not a copy."""
    step = at[1] - at[0] if len(at) > 1 else 1
    is_even = list(at) == list(range(at[0], at[-1] + 1, step))
    return slice(at[0], at[-1] + 1, step) if is_even else list(at)


def _at_places(part: Part, at: Sequence[int], length: int) -> Part:
    if len(at) == length:
        return part
    slot, row = (array.reshape(-1, length)[:, list(at)].reshape(-1) for array in (part.slot, part.row))
    return Part.at(part.window, slot, row)


# ---------------------------------------------------------------------------------------------- packed rows


@dataclass(frozen=True)
class _PackedPart:
    """Packed rows of a batch that lie in one window.

    Attributes:
        opened: The window.
        segments: What the rows are made of.
        slot: Chunk of each segment, as its place in the window. Shape [S].
        lists: Those of their documents, by field: found together with those of others, which of these it is, and how
            many values each list has, shape [S].
    """

    opened: OpenWindow
    segments: Segments
    slot: Int64
    lists: Mapping[str, tuple[FoundLists, int, Int64]]

    @classmethod
    def of(cls, part: UnitPart) -> _PackedPart:
        """Return what packed rows are made of."""
        opened, where = part
        assert isinstance(opened.units, Packed)
        segments = opened.units.segments(opened.chunks[where.slot], where.row)
        slot = np.repeat(where.slot, np.diff(segments.offsets))
        rows = Rows([(opened.window, 0, slot, segments.row)])
        found: dict[str, tuple[FoundLists, int, Int64]] = {}
        for number, group in enumerate(opened.window.layout.groups[0]):
            if group[0].num_levels == 1:
                offsets = np.empty((len(group), len(slot) + 1), dtype=np.int64)
                lists = rows.find(number, offsets)
                found |= {entry.name: (lists, f, np.diff(offsets[f])) for f, entry in enumerate(group)}
        return cls(opened, segments, slot, found)

    @property
    def num_rows(self) -> int:
        """Packed rows."""
        return len(self.segments.offsets) - 1

    def num_tokens(self, unit: Pack, entry: Entry) -> Int64:
        """Return how many tokens each segment's document has, without its end: as many as values. Shape [S].

        Raises:
            FieldMismatchError: A document has another number of values of a field than of tokens.
        """
        tokens, found = self.segments.lengths - unit.num_ends, self.lists[entry.name][2]
        if not np.array_equal(found, tokens):
            wrong = int(np.flatnonzero(found != tokens)[0])
            fragment = str(self.opened.fragments[int(self.opened.chunks[self.slot[wrong]])])
            raise FieldMismatchError(
                f"{fragment}: row {int(self.segments.row[wrong])} has {int(found[wrong]):,} values of {entry.name!r} "
                f"but {int(tokens[wrong]):,} of {unit.field!r}; they can only be packed together where every row has "
                "as many of both",
                fragment=fragment,
            )
        return tokens


def _packed(unit: Pack, entry: Entry, parts: Sequence[_PackedPart], pool: BufferPool) -> Array:
    """Return one field of packed rows, copied from where its values are mapped. Shape [B, length, ...].

    Args:
        unit: How they are packed.
        entry: The field.
        parts: The packed rows; all parts together are the batch.
        pool: Gives the memory.

    Raises:
        FieldMismatchError: See `_PackedPart.num_tokens`.
    """
    out = _memory(pool, (sum(part.num_rows for part in parts), unit.length, *entry.shape), entry.dtype)
    end, pad = (_one(entry, values[entry.name]) for values in (unit.end or unit.pad, unit.pad))
    row = 0
    for part in parts:
        segments, (lists, field, _) = part.segments, part.lists[entry.name]
        num_values = np.minimum(segments.num, part.num_tokens(unit, entry) - segments.first)
        rows = out[row : row + part.num_rows].reshape(-1).view(np.uint8)
        values = (lists, field, segments.first, num_values)
        pack_values(segments.num, segments.offsets, unit.length, *values, end, pad, rows)
        row += part.num_rows
    return out


def _one(entry: Entry, value: float) -> npt.NDArray[np.uint8]:
    """Return the bytes of one value of a field."""
    return np.full(entry.shape, value, entry.dtype).reshape(-1).view(np.uint8)


def _in_places(array: Array, places: Int64, pool: BufferPool) -> Array:
    """Return an array in whose place `places[k]` row k of another one stands, in memory of its own."""
    placed = _memory(pool, array.shape, array.dtype)
    placed[places] = array
    return placed


def _memory(pool: BufferPool, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Return memory for an array."""
    num_bytes = int(np.prod(shape)) * dtype.itemsize
    if not num_bytes:
        return np.empty(shape, dtype)
    return pool.take(num_bytes)[:num_bytes].view(dtype).reshape(shape)
