"""Batches of units: what they hold, under which names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, repeat
from typing import Any, NamedTuple

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
from stoker.loader.lane import UnitPart
from stoker.loader.window import Window
from stoker.sampling.units import Packed, Segments, SideBySide

Place = slice | list[int]

# What packed rows have beside their fields: each token's document, and its place in that.
_PLACES = ("segment_ids", "positions")


@dataclass(frozen=True)
class Shaping:
    """How the fixed-width fields of [B x L] records come as [B, L, ...]: for windows over rows.

    Attributes:
        length: L.
        places: Field -> which of the L it comes at.
    """

    length: int
    places: Mapping[str, Place]

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
    """Makes batches of rows or other units; checks at once whether that can be.

    Args:
        unit: What a unit is; None for rows.
        spec: Spec of the samples.
        marks_padding: Whether batches get `sample_mask`.

    Raises:
        ValueError: A name that batches need is taken by a field.
        FieldError: A field that was asked for is not there, or cannot be had in this way.
    """

    def __init__(self, unit: SamplingUnit | None, spec: Spec, *, marks_padding: bool = False) -> None:
        self.unit = unit
        self._spec = spec
        self._fixed = spec.only(spec.fixed)
        if unit is not None:
            unit.check(spec)
        self._wanted: dict[str, tuple[int, ...]] = {}
        delivered = [entry.name for entry in spec]
        added: tuple[str, ...] = ()
        if isinstance(unit, Grouped):
            added = ("group_offsets",)
        elif isinstance(unit, NGram):
            self._wanted = unit.windowed(spec)
            delivered = list(self._wanted)
        elif isinstance(unit, Pack):
            delivered = [*unit.packed, *unit.per_segment]
            added = (*_PLACES, *(("cu_seqlens", "max_seqlen") if unit.cu_seqlens else ()))
        for name in (*added, *(("sample_mask",) if marks_padding else ())):
            if name in delivered:
                raise ValueError(
                    f"batches get an array {name!r} of their own, but the data set has a field of this name: call "
                    f'it otherwise, with fields={{"other": stoker.Field(columns="{name}")}}'
                )
        places = {name: _place(at) for name, at in self._wanted.items() if not spec[name].is_ragged}
        self._shaping = Shaping(unit.length, places) if isinstance(unit, NGram) else None

    @property
    def is_grouped(self) -> bool:
        """Whether units are groups: rows of any number, whose borders batches have."""
        return isinstance(self.unit, Grouped)

    @property
    def tells_sequences(self) -> bool:
        """Whether batches of packed rows get `cu_seqlens` and `max_seqlen`."""
        return isinstance(self.unit, Pack) and self.unit.cu_seqlens

    @property
    def spec(self) -> Spec:
        """What a batch holds of each unit; of a group, of each of its rows."""
        unit, spec = self.unit, self._spec.delivered
        if isinstance(unit, NGram):
            shapes = {name: (len(at), *spec[name].shape) for name, at in self._wanted.items()}
            wanted = [spec[name] for name in self._wanted]
            return Spec(
                tuple(
                    replace(one, num_levels=one.num_levels + 1)
                    if one.is_ragged
                    else replace(one, shape=shapes[one.name])
                    for one in wanted
                )
            )
        if not isinstance(unit, Pack):
            return spec
        places = [Entry(name=name, dtype=np.dtype(np.int32), shape=(unit.length,)) for name in _PLACES]
        packed = [spec[name] for name in unit.packed]
        rows = [replace(one, shape=(unit.length, *one.shape), num_levels=0) for one in packed]
        return Spec((*rows, *places, *(replace(spec[name], num_levels=1) for name in unit.per_segment)))

    @property
    def row_bytes(self) -> float | None:
        """What a packed row takes, what its documents have beside tokens aside; None for other units."""
        if not isinstance(self.unit, Pack):
            return None
        return float(sum(entry.value_bytes for entry in self.spec.fixed))

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
            FieldMismatchError: As `pack_field` says; of whichever batch.
        """
        if isinstance(self.unit, Pack):
            return self._packed(self.unit, parts, pool, places)
        if self.unit is None:
            found = [Part(part.opened.window, part.where) for part in parts]
            assembled = assemble(self._spec, found, pool, once=once, places=places, sizes=sizes)
            return Made({}, assembled, None, True, assembled.num_samples), assembled.size_bytes
        found, offsets = [], []
        for part in parts:
            opened, slot = part.opened, part.where.slot
            assert isinstance(opened.units, SideBySide)
            spans = opened.units.spans(opened.chunks[slot], part.where.row)
            slots, rows = np.empty((2, int(spans.offsets[-1])), dtype=np.int64)
            expand(slot, spans.first, spans.offsets, slots, rows)
            found.append(Part.at(opened.window, slots, rows))
            offsets.append(spans.offsets)
        if isinstance(self.unit, NGram):
            return self._windows(found, pool, places)
        row_offsets, row_places = _placed(_joined(offsets), places)
        num_rows = np.diff(row_offsets[[0, *accumulate(sizes)]]).tolist()
        assembled = assemble(self._spec, found, pool, once=once, places=row_places, sizes=num_rows)
        arrays: Arrays = {"group_offsets": row_offsets} if self.is_grouped else {}
        return Made(arrays, assembled, None, True, assembled.num_samples), assembled.size_bytes

    def cut(self, made: Made, sizes: Sequence[int]) -> list[Made]:
        """Return the batches that were gathered as one, in the same memory.

        Args:
            made: All of them.
            sizes: Units of each.
        """
        borders = [0, *accumulate(sizes)]
        if self._makes_rows:
            return self._cut_rows(made, sizes, borders)
        if len(sizes) == 1:
            return [made]
        assembled: Iterable[Assembled] = repeat(made.assembled)  # of documents, as long as any is left of them
        if isinstance(self.unit, NGram):
            assembled = made.assembled.cut([self.unit.length * size for size in sizes])
        return [
            made._replace(arrays=_between(made.arrays, begin, end), assembled=batch, num_samples=end - begin)
            for batch, (begin, end) in zip(assembled, pairwise(borders), strict=False)
        ]

    def side_by_side(self, made: Made, sizes: Sequence[int], pool: BufferPool) -> Together | None:
        """Return the batches that were gathered as one as they can leave so; None where they must be cut before.

        Args:
            made: All of them.
            sizes: Units of each.
            pool: Gives memory that can be copied from.
        """
        if not self._makes_rows:
            return None
        groups = Groups(_group_offsets(made), sizes) if self.is_grouped else None
        return side_by_side(made.assembled, self._num_rows(made, sizes), pool, groups=groups)

    @property
    def _makes_rows(self) -> bool:
        """Whether batches hold rows as they are, those of units behind each other."""
        return not isinstance(self.unit, Pack | NGram)

    def _num_rows(self, made: Made, sizes: Sequence[int]) -> list[int]:
        """Return how many rows each batch has; `sizes` says how many units."""
        if not self.is_grouped:
            return list(sizes)
        num_rows: list[int] = np.diff(_group_offsets(made)[[0, *accumulate(sizes)]]).tolist()
        return num_rows

    def _cut_rows(self, made: Made, sizes: Sequence[int], borders: Sequence[int]) -> list[Made]:
        batches = [
            Made(batch.views(), batch, None, True, batch.num_samples)
            for batch in made.assembled.cut(self._num_rows(made, sizes))
        ]
        if self.is_grouped:
            offsets = _group_offsets(made)
            for batch, (begin, end) in zip(batches, pairwise(borders), strict=True):
                batch.arrays["group_offsets"] = offsets[begin : end + 1] - offsets[begin]
        return batches

    def _windows(self, parts: Sequence[Part], pool: BufferPool, places: Int64 | None) -> tuple[Made, int]:
        shaping = self._shaping
        assert shaping is not None
        fixed = assemble(self._fixed, parts, pool, places=_row_places(places, shaping.length))
        views, lists = fixed.views(), {}
        for name, at in self._wanted.items():
            if self._spec[name].is_ragged:
                alone = self._spec.only((self._spec[name],))
                chosen = [_at_places(part, at, shaping.length) for part in parts]
                lists[name] = assemble(alone, chosen, pool, places=_row_places(places, len(at)))
        num = fixed.num_samples // shaping.length
        arrays: Arrays = {
            name: _lists_of_each(lists[name].ragged[name], num, len(at))
            if name in lists
            else shaping.apply(name, views[name])
            for name, at in self._wanted.items()
        }
        size_bytes = fixed.size_bytes + sum(one.size_bytes for one in lists.values())
        return Made(arrays, fixed, shaping, True, num), size_bytes

    def _packed(
        self, unit: Pack, parts: Sequence[UnitPart], pool: BufferPool, places: Int64 | None
    ) -> tuple[Made, int]:
        found = []
        for (window, _, chunks, units, fragments, _), where in parts:
            assert isinstance(units, Packed)
            slot = where.slot
            segments = units.segments(chunks[slot], where.row)
            slots = np.repeat(slot, np.diff(segments.offsets))
            names = _Names(fragments, chunks)
            lists = lists_of(window, slots, segments.row)
            found.append(PackedPart(window, slots, segments.row, segments, lists, names))
        num_rows = sum(part.num_rows for part in found)
        ids, positions = (
            pool.take(num_rows * unit.length * 4)[: num_rows * unit.length * 4].view(np.int32).reshape(num_rows, -1)
            if num_rows
            else np.empty((0, unit.length), np.int32)
            for _ in range(2)
        )
        row = 0
        for part in found:
            at = slice(row, row + part.num_rows)
            fill_places(part.segments.num, part.segments.offsets, ids[at], positions[at])
            row += part.num_rows
        arrays: Arrays = {name: pack_field(unit, self._spec[name], found, pool) for name in unit.packed}
        arrays |= {"segment_ids": ids, "positions": positions}
        if places is not None:
            arrays = {name: _in_places(array, places, pool) for name, array in arrays.items()}
        size_bytes = sum(array.nbytes for array in arrays.values() if isinstance(array, np.ndarray))
        chosen = self._fixed if unit.per_segment else Spec(())
        offsets, segment_places = _placed(_joined([part.segments.offsets for part in found]), places)
        documents = [Part.at(part.window, part.slot, part.row) for part in found]
        fixed = assemble(chosen, documents, pool, places=segment_places)
        views = fixed.views()
        for name in unit.per_segment:
            arrays[name] = Ragged(views[name], offsets)
        return Made(arrays, fixed, None, False, num_rows), size_bytes + fixed.size_bytes


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


def _in_places(array: Array | Ragged, places: Int64, pool: BufferPool) -> Array:
    """Return an array in whose place `places[k]` row k of another one stands, in memory of its own."""
    assert isinstance(array, np.ndarray)
    placed: Array = pool.take(array.nbytes)[: array.nbytes].view(array.dtype).reshape(array.shape)
    placed[places] = array
    return placed


def _row_places(places: Int64 | None, num_each: int) -> Int64 | None:
    """Return where each row goes of units that have so many each, which go to `places`."""
    if places is None:
        return None
    return (places[:, None] * num_each + np.arange(num_each, dtype=np.int64)).reshape(-1)


def _lists_of_each(lists: Ragged, num_windows: int, num_lists: int) -> Ragged:
    """Return lists as those of windows, so many each."""
    return Ragged(lists, np.arange(num_windows + 1, dtype=np.int64) * num_lists)


def _between(fields: Arrays, begin: int, end: int) -> Arrays:
    """Return the fields of units [begin, end), in the same memory."""
    found: Arrays = {}
    for name, field in fields.items():
        found[name] = lists_between(field, begin, end) if isinstance(field, Ragged) else field[begin:end]
    return found


def _group_offsets(made: Made) -> Int64:
    offsets = made.arrays["group_offsets"]
    assert isinstance(offsets, np.ndarray)
    return offsets


class _Names(Sequence[str]):
    """The fragments of a window's slots, each named when an error needs it."""

    def __init__(self, fragments: Sequence[object], chunks: Int64) -> None:
        self._fragments, self._chunks = fragments, chunks

    def __len__(self) -> int:
        return len(self._chunks)

    def __getitem__(self, i: Any) -> Any:
        return str(self._fragments[int(self._chunks[i])])


def _place(at: Sequence[int]) -> Place:
    """Return places as a slice where they are evenly spread: then a field is a view, not a copy."""
    step = at[1] - at[0] if len(at) > 1 else 1
    is_even = list(at) == list(range(at[0], at[-1] + 1, step))
    return slice(at[0], at[-1] + 1, step) if is_even else list(at)


def _at_places(part: Part, at: Sequence[int], length: int) -> Part:
    if len(at) == length:
        return part
    slot, row = (array.reshape(-1, length)[:, list(at)].reshape(-1) for array in (part.slot, part.row))
    return Part.at(part.window, slot, row)


def _joined(offsets: Sequence[Int64]) -> Int64:
    if len(offsets) == 1:
        return offsets[0]
    return offsets_of(np.concatenate([np.empty(0, np.int64), *(np.diff(one) for one in offsets)]))


class DocumentLists(NamedTuple):
    """Where the lists of one field lie, those of some rows.

    Attributes:
        group: The lists, found together with those of other fields.
        field: Which of these it is.
        lengths: Values of each list. Shape [S].
    """

    group: FoundLists
    field: int
    lengths: Int64


class PackedPart(NamedTuple):
    """Packed rows of a batch that lie in one window.

    Attributes:
        window: Where they lie.
        slot: Chunk of each segment, as its place in the window. Shape [S].
        row: Row of each segment's document. Shape [S].
        segments: What the rows are made of.
        lists: Those of these documents, by field; see `lists_of`.
        chunks: Texts that name the chunk of a slot, for errors.
    """

    window: Window
    slot: Int64
    row: Int64
    segments: Segments
    lists: Mapping[str, DocumentLists]
    chunks: Sequence[str]

    @property
    def num_rows(self) -> int:
        """Packed rows."""
        return len(self.segments.offsets) - 1


def lists_of(window: Window, slot: Int64, row: Int64) -> dict[str, DocumentLists]:
    """Return the lists of some rows, of all fields that have one level of them.

    Args:
        window: Where they lie; its samples share nothing that has lists.
        slot: Chunk of each row, as its place in the window. Shape [S].
        row: Row of each, counted in its chunk. Shape [S].
    """
    found: dict[str, DocumentLists] = {}
    rows = Rows([(window, 0, slot, row)])
    for number, group in enumerate(window.layout.groups[0]):
        if group[0].num_levels == 1:
            offsets = np.empty((len(group), len(row) + 1), dtype=np.int64)
            lists = rows.find(number, offsets)
            lengths = np.diff(offsets)
            found |= {entry.name: DocumentLists(lists, f, lengths[f]) for f, entry in enumerate(group)}
    return found


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


def pack_field(unit: Pack, entry: Entry, parts: Sequence[PackedPart], pool: BufferPool) -> Array:
    """Return one field of packed rows, copied from where its values are mapped. Shape [B, length, ...].

    Args:
        unit: How they are packed.
        entry: The field.
        parts: The packed rows; all parts together are the batch.
        pool: Gives the memory.

    Raises:
        FieldMismatchError: A document has another number of values of this field than of tokens.
    """
    num_rows = sum(part.num_rows for part in parts)
    size = num_rows * unit.length
    memory = pool.take(size * entry.value_bytes)[: size * entry.value_bytes]
    out = memory.view(entry.dtype).reshape(size, *entry.shape)
    end, pad = (_one(entry, values[entry.name]) for values in (unit.end or unit.pad, unit.pad))
    row = 0
    for part in parts:
        segments = part.segments
        tokens, lists = _checked_tokens(unit, entry, part), part.lists[entry.name]
        num_values = np.minimum(segments.num, tokens - segments.first)
        rows = out[row * unit.length : (row + part.num_rows) * unit.length].reshape(-1).view(np.uint8)
        values = (lists.group, lists.field, segments.first, num_values)
        pack_values(segments.num, segments.offsets, unit.length, *values, end, pad, rows)
        row += part.num_rows
    return out.reshape(num_rows, unit.length, *entry.shape)


def _one(entry: Entry, value: float) -> npt.NDArray[np.uint8]:
    """Return the bytes of one value of a field."""
    return np.full(entry.shape, value, entry.dtype).reshape(-1).view(np.uint8)


def _checked_tokens(unit: Pack, entry: Entry, part: PackedPart) -> Int64:
    """Return how many tokens each segment's document has, without its end: as many as values. Shape [S]."""
    segments = part.segments
    tokens = segments.lengths - unit.num_ends
    found = part.lists[entry.name].lengths
    if not np.array_equal(found, tokens):
        wrong = int(np.flatnonzero(found != tokens)[0])
        raise FieldMismatchError(
            f"{part.chunks[int(part.slot[wrong])]}: row {int(segments.row[wrong])} has {int(found[wrong]):,} values of "
            f"{entry.name!r} but {int(tokens[wrong]):,} of {unit.field!r}; they can only be packed together where "
            "every row has as many of both",
            fragment=part.chunks[int(part.slot[wrong])],
        )
    return tokens
