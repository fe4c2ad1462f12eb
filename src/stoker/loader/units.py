"""Batches of units that are not rows of the source: windows over rows, and rows that documents are packed into."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, TypeAlias, cast

import numpy as np

from stoker._native import FoundLists, Rows, fill_places, pack_values
from stoker.dataset.units.kinds import Grouped, NGram, Pack
from stoker.errors import FieldMismatchError
from stoker.fields.offsets import Int64
from stoker.fields.spec import Array, Arrays, Entry, Ragged, Spec
from stoker.loader.batches import Collator, Made, joined, placed, rows_of
from stoker.loader.buffers import BufferPool
from stoker.loader.config import LoaderConfig, Once
from stoker.loader.gather import Assembled, Part, assemble, lists_between, put
from stoker.sampling.units import Packed, Segments

# What packed rows have beside their fields: each token's document, and its place in that.
_PLACES = ("segment_ids", "positions")


class _WindowCollator(Collator):
    """Makes batches of windows over consecutive rows: [B, length, ...] of each field."""

    def __init__(self, unit: NGram, spec: Spec) -> None:
        super().__init__(unit, spec)
        self._wanted = unit.windowed(spec)
        self._fixed = spec.only(spec.fixed)
        self._length = unit.length
        self._places = {name: _place(at) for name, at in self._wanted.items() if not spec[name].is_ragged}

    def entries(self) -> list[Entry]:
        wanted = [(self._samples.delivered[name], len(at)) for name, at in self._wanted.items()]
        return [
            replace(one, num_levels=one.num_levels + 1) if one.is_ragged else replace(one, shape=(num, *one.shape))
            for one, num in wanted
        ]

    def gather(
        self, parts: Sequence[Part], sizes: Sequence[int], pool: BufferPool, *, once: Once, places: Int64 | None
    ) -> tuple[Made, int]:
        del sizes, once  # all units are as large, and nothing of theirs is shared
        found, offsets = rows_of(parts)
        fixed = assemble(self._fixed, found, pool, places=placed(offsets, places)[1])
        num, size_bytes = fixed.num_samples // self._length, fixed.size_bytes
        views = fixed.views()
        arrays: Arrays = {}
        for name, at in self._wanted.items():
            if self._samples[name].is_ragged:
                chosen = [_at_places(part, at, self._length) for part in found]
                lists, its_places = placed(np.arange(num + 1, dtype=np.int64) * len(at), places)
                alone = self._samples.only((self._samples[name],))
                assembled = assemble(alone, chosen, pool, places=its_places)
                arrays[name] = Ragged(assembled.ragged[name], lists)
                size_bytes += assembled.size_bytes
            else:
                arrays[name] = self._windowed(name, views[name])
        return Made(arrays, fixed, num, self._shaped), size_bytes

    def cut(self, made: Made, sizes: Sequence[int]) -> list[Made]:
        return _cut(made, sizes, made.assembled.cut([self._length * size for size in sizes]))

    def _windowed(self, name: str, field: Any) -> Any:
        """Return a field of [B x L] rows, an array or a tensor, as [B, L, ...] at the places that it is wanted at."""
        shape = (field.shape[0] // self._length, self._length, *field.shape[1:])
        return field.reshape(shape)[:, self._places[name]]

    def _shaped(self, fields: dict[str, Any]) -> dict[str, Any]:
        # Places that are no slice would be a copy, in memory of its own and by an index that has to cross to a device
        # first: NumPy has made that copy already.
        views = [name for name, place in self._places.items() if isinstance(place, slice)]
        return {name: self._windowed(name, fields[name]) for name in views}


class _PackCollator(Collator):
    """Makes batches of packed rows: token ranges of many documents in rows of one length, and where each one stands."""

    def __init__(self, unit: Pack, spec: Spec) -> None:
        super().__init__(unit, spec)
        self._unit = unit
        self._fixed = spec.only(spec.fixed) if unit.per_segment else Spec(())
        self.unit_bytes = float(sum(entry.value_bytes for entry in self.entries() if not entry.is_ragged))
        self.adds = _sequences_of if unit.cu_seqlens else None

    def entries(self) -> list[Entry]:
        unit, delivered = self._unit, self._samples.delivered
        rows = [replace(delivered[name], num_levels=0) for name in unit.packed]
        rows += [Entry(name=name, dtype=np.dtype(np.int32)) for name in _PLACES]
        rows = [replace(one, shape=(unit.length, *one.shape)) for one in rows]
        return [*rows, *(replace(delivered[name], num_levels=1) for name in unit.per_segment)]

    def gather(
        self, parts: Sequence[Part], sizes: Sequence[int], pool: BufferPool, *, once: Once, places: Int64 | None
    ) -> tuple[Made, int]:
        del sizes, once  # all units are as large, and nothing of theirs is shared
        unit, found = self._unit, list(map(_segments_of, parts))
        num_rows = sum(part.num for part in parts)
        ids, positions = (pool.array((num_rows, unit.length), np.int32) for _ in range(2))
        row = 0
        for segments, _, _ in found:
            end = row + len(segments.offsets) - 1
            fill_places(segments.num, segments.offsets, ids[row:end], positions[row:end])
            row = end
        arrays: Arrays = {name: _packed(unit, self._samples[name], found, pool) for name in unit.packed}
        arrays |= {"segment_ids": ids, "positions": positions}
        if places is not None:
            arrays = {name: put(cast("Array", array), places, pool) for name, array in arrays.items()}
        size_bytes = sum(array.nbytes for array in arrays.values() if isinstance(array, np.ndarray))
        offsets, its_places = placed(joined([segments.offsets for segments, _, _ in found]), places)
        fixed = assemble(self._fixed, [documents for _, documents, _ in found], pool, places=its_places)
        views = fixed.views()
        arrays |= {name: Ragged(views[name], offsets) for name in unit.per_segment}
        return Made(arrays, fixed, num_rows, None), size_bytes + fixed.size_bytes

    def cut(self, made: Made, sizes: Sequence[int]) -> list[Made]:
        # The arrays are no views of records that could be cut: each batch keeps the memory of all of them.
        return _cut(made, sizes, [made.assembled] * len(sizes))


def make_collator(config: LoaderConfig, spec: Spec) -> Collator:
    """Return what makes batches of what the order counts, for which the spec was checked; the rest is checked here.

    Raises:
        ValueError: A name that batches need is taken by a field; or `sequence_shard` cuts a field that is not there, of
            another shape, or shared.
    """
    unit = config.unit
    delivered: Collection[str] = spec.names
    added: tuple[str, ...] = ("group_offsets",) if isinstance(unit, Grouped) else ()
    if isinstance(unit, NGram):
        delivered = unit.windowed(spec)
    elif isinstance(unit, Pack):
        delivered = (*unit.packed, *unit.per_segment)
        added = (*_PLACES, *(("cu_seqlens", "max_seqlen") if unit.cu_seqlens else ()))
    for name in (*added, *(("sample_mask",) if config.remainder == "pad" else ())):
        if name in delivered:
            raise ValueError(
                f"batches get an array {name!r} of their own, but the data set has a field of this name: call "
                f'it otherwise, with fields={{"other": stoker.Field(columns="{name}")}}'
            )
    if isinstance(unit, NGram):
        found: Collator = _WindowCollator(unit, spec)
    else:
        found = _PackCollator(unit, spec) if isinstance(unit, Pack) else Collator(unit, spec)
    if (shard := config.sequence_shard) is not None:
        shard.check_fields(found.entries())
        for name in shard.fields if config.deduplicated == "unique" else ():
            if spec[name].deduplicated_by is not None:
                raise ValueError(
                    f"sequence_shard cuts {name!r}, which comes as it is shared; leave it out of deduplicate=, or take "
                    "deduplicated='expand'"
                )
    return found


def _sequences_of(arrays: Arrays) -> dict[str, Any]:
    """Return the arguments of variable-length attention over packed rows as one sequence of B * length tokens.

    `cu_seqlens`, int32, are where each segment, and each row's padding, begins, and the end; `max_seqlen` is the most
    tokens between two of them.
    """
    ids: Any = arrays["segment_ids"]
    begins = np.ones(ids.shape, dtype=np.bool_)
    np.not_equal(ids[:, 1:], ids[:, :-1], out=begins[:, 1:])
    borders = np.append(np.flatnonzero(begins), ids.size).astype(np.int32)
    return {"cu_seqlens": borders, "max_seqlen": int(np.diff(borders).max(initial=0))}


def _cut(made: Made, sizes: Sequence[int], assembled: Sequence[Assembled]) -> list[Made]:
    """Return batches of so many units each that were gathered as one, in the same memory."""
    if len(sizes) == 1:
        return [made]
    batches = []
    for its, (begin, end) in zip(assembled, pairwise([0, *accumulate(sizes)]), strict=True):
        arrays = {
            name: lists_between(field, begin, end) if isinstance(field, Ragged) else field[begin:end]
            for name, field in made.arrays.items()
        }
        batches.append(Made(arrays, its, end - begin, made.shaped))
    return batches


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


_Lists: TypeAlias = tuple[FoundLists, int, Int64]
"""Those of documents: found together with those of other fields, which of these they are, and their lengths, [S]."""


def _segments_of(part: Part) -> tuple[Segments, Part, dict[str, _Lists]]:
    """Return what packed rows are made of, where the document of each segment lies, and the lists of these by field."""
    window = part.window
    assert isinstance(window.units, Packed)
    segments = window.units.segments(window.chunks[part.slot], part.row)
    documents = Part.at(window, np.repeat(part.slot, np.diff(segments.offsets)), segments.row)
    rows, found = Rows([documents.native]), dict[str, _Lists]()
    for number, group in enumerate(window.layout.groups[0]):
        if group[0].num_levels == 1:
            offsets = np.empty((len(group), documents.num + 1), dtype=np.int64)
            lists = rows.find(number, offsets)
            found |= {entry.name: (lists, f, np.diff(offsets[f])) for f, entry in enumerate(group)}
    return segments, documents, found


def _packed(
    unit: Pack, entry: Entry, parts: Sequence[tuple[Segments, Part, dict[str, _Lists]]], pool: BufferPool
) -> Array:
    """Return one field of packed rows, copied from where its values are mapped. Shape [B, length, ...]."""
    num_rows = sum(len(segments.offsets) - 1 for segments, _, _ in parts)
    out = pool.array((num_rows, unit.length, *entry.shape), entry.dtype)
    ends = (np.full(entry.shape, one[entry.name], entry.dtype) for one in (unit.end or unit.pad, unit.pad))
    end, pad = (one.reshape(-1).view(np.uint8) for one in ends)
    row = 0
    for segments, documents, found in parts:
        lists, field, lengths = found[entry.name]
        tokens = segments.lengths - unit.num_ends
        if not np.array_equal(lengths, tokens):
            wrong, window = int(np.flatnonzero(lengths != tokens)[0]), documents.window
            fragment = str(window.fragments[int(window.chunks[documents.slot[wrong]])])
            raise FieldMismatchError(
                f"{fragment}: row {int(segments.row[wrong])} has {int(lengths[wrong]):,} values of {entry.name!r} but "
                f"{int(tokens[wrong]):,} of {unit.field!r}; they can only be packed together where every row has as "
                "many of both",
                fragment=fragment,
            )
        last = row + len(segments.offsets) - 1
        rows, row = out[row:last].reshape(-1).view(np.uint8), last
        values = (lists, field, segments.first, np.minimum(segments.num, tokens - segments.first))
        pack_values(segments.num, segments.offsets, unit.length, *values, end, pad, rows)
    return out
