"""Batches: the samples of steps gathered, those of several steps at a time where they may be, finished, and delivered.

steps ─► positions ─► windows ─► gathered ─► widened ─► padding marked ─► augmented ─► prepared for where it goes
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise, repeat
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from stoker._native import expand, group_places
from stoker.dataset.units.kinds import Grouped, NGram, Pack, SamplingUnit
from stoker.errors import FieldMismatchError
from stoker.fields.compact import Compact, widen
from stoker.fields.offsets import Int64, offsets_of, ranges
from stoker.fields.spec import Array, Arrays, Deduplicated, Entry, Ragged, Spec
from stoker.host.huge import memory as memory_in_huge_pages
from stoker.loader.augmenting import augmented
from stoker.loader.buffers import BufferPool
from stoker.loader.config import LoaderConfig, Once, default_prefetch
from stoker.loader.gather import (
    Assembled,
    Part,
    Range,
    Together,
    assemble,
    assemble_resident,
    can_leave_together,
    side_by_side,
)
from stoker.loader.lane import Lane
from stoker.loader.opened import OpenDatasets
from stoker.loader.sequence import SequenceShard
from stoker.metrics.stages import Stages
from stoker.sampling.steps import Slice, Steps

# How large batches may be together that are gathered in one call, and how many: more would save little, and a batch
# that is kept keeps the memory of all that were gathered with it. Of 4.2 MB each, two threads: 8.1 GB/s with 16 MiB,
# 9.0 with 24, 8.8 with 32.
TOGETHER_BYTES, _MAX_TOGETHER = 24 << 20, 16
# To a device: half a block of the pool, so that a group of them lies in one that others share. What a group costs
# beside its bytes, 0.3 ms of the interpreter's lock, comes out of the time of a loop that launches operations: of each
# step of such a loop, beside batches of 8 MB, 0.85 ms with 24 MiB, 0.65 with 32 and 0.50 with 64.
_CROSSING_BYTES = 64 << 20
# Where the loop makes its batches itself, none should take long, nor memory that nobody asked for. Of one row, 16 at a
# time took 21 microseconds each as three tensors, and 73 as 69; 64 at a time 10 and 60 (Zen 4, two busy cores).
_NOW_TOGETHER_BYTES, _MAX_NOW_TOGETHER = 1 << 20, 64

_log = logging.getLogger("stoker")

_LaneRanges: TypeAlias = tuple[int, list[Range]]  # a lane, and positions in it


class Made(NamedTuple):
    """A batch of what the order counts."""

    arrays: Arrays  # its fields
    assembled: Assembled  # the memory that fixed-width fields are views of
    num_samples: int
    # Returns the fixed-width fields of that memory, arrays or tensors, as the batch has them: those that stay views.
    # None where none of its fields is one.
    shaped: Callable[[dict[str, Any]], dict[str, Any]] | None = dict


class Collator:
    """Makes batches where the order counts rows, draws, or groups, whose rows come one group behind the other."""

    unit_bytes: float | None = None  # of each unit, where all have as many
    adds: Callable[[Arrays], dict[str, Any]] | None = None  # makes further fields of a batch's own

    def __init__(self, unit: SamplingUnit | None, spec: Spec) -> None:
        self._samples, self._is_rows, self._is_grouped = spec, unit is None, isinstance(unit, Grouped)

    def entries(self) -> list[Entry]:
        """Return the fields of a batch, as it holds them of each unit; of a group, of each of its rows."""
        return list(self._samples.delivered)

    def gather(
        self, parts: Sequence[Part], sizes: Sequence[int], pool: BufferPool, *, once: Once, places: Int64 | None
    ) -> tuple[Made, int]:
        """Return the units of some batches as one, which `cut` cuts, and how many bytes they have; see `assemble`.

        Raises:
            FieldMismatchError: Documents that are packed together have other numbers of values; of whichever batch.
        """
        arrays: Arrays = {}
        if not self._is_rows:
            parts, offsets = rows_of(parts)
            offsets, places = placed(offsets, places)
            if self._is_grouped:
                arrays["group_offsets"] = offsets
                sizes = _num_rows(offsets, sizes)
        assembled = assemble(self._samples, parts, pool, once=once, places=places, sizes=sizes)
        return Made(arrays, assembled, assembled.num_samples), assembled.size_bytes

    def cut(self, made: Made, sizes: Sequence[int]) -> list[Made]:
        """Return the batches that were gathered as one, in the same memory; `sizes` are the units of each."""
        groups = cast("Int64 | None", made.arrays.get("group_offsets"))
        num_rows = sizes if groups is None else _num_rows(groups, sizes)
        batches = [Made(one.views(), one, one.num_samples) for one in made.assembled.cut(num_rows)]
        if groups is not None:
            for batch, (begin, end) in zip(batches, pairwise([0, *accumulate(sizes)]), strict=True):
                batch.arrays["group_offsets"] = groups[begin : end + 1] - groups[begin]
        return batches

    def side_by_side(self, made: Made, sizes: Sequence[int], pool: BufferPool) -> Together:
        """Return the batches that were gathered as one as they leave so."""
        groups = cast("Int64 | None", made.arrays.get("group_offsets"))
        if groups is None:
            return side_by_side(made.assembled, sizes, pool)
        return side_by_side(made.assembled, _num_rows(groups, sizes), pool, groups=(groups, sizes))


def rows_of(parts: Sequence[Part]) -> tuple[list[Part], Int64]:
    """Return where the rows of units lie, and where each unit's rows begin if one stands behind the other."""
    found, offsets = [], []
    for part in parts:
        window, slot = part.window, part.slot
        assert window.units is not None
        first, its_offsets = window.units.spans(window.chunks[slot], part.row)
        slots, rows = np.empty((2, int(its_offsets[-1])), dtype=np.int64)
        expand(slot, first, its_offsets, slots, rows)
        found.append(Part.at(window, slots, rows))
        offsets.append(its_offsets)
    return found, joined(offsets)


def joined(offsets: Sequence[Int64]) -> Int64:
    """Return offsets that go on from each part to the next."""
    if len(offsets) == 1:
        return offsets[0]
    return offsets_of(np.concatenate([np.empty(0, np.int64), *(np.diff(one) for one in offsets)]))


def placed(offsets: Int64, places: Int64 | None) -> tuple[Int64, Int64 | None]:
    """Return the offsets of units in their places, and where each row of theirs goes; None for one after the other.

    The `offsets` are of the units as they are gathered, shape [B + 1], and `places` say where each unit goes.
    """
    if places is None:
        return offsets, None
    num = np.empty_like(places)
    num[places] = np.diff(offsets)
    found = offsets_of(num)
    return found, ranges(found[places], offsets)


def _num_rows(offsets: Int64, sizes: Sequence[int]) -> list[int]:
    """Return how many rows each batch of groups has."""
    num_rows: list[int] = np.diff(offsets[[0, *accumulate(sizes)]]).tolist()
    return num_rows


# ---------------------------------------------------------------------------------------------- how they leave


class Delivery:
    """Batches of a loader as dicts of NumPy arrays, as they were gathered; one for another framework brings its own.

    Must not refer to the loader, which could never be let go.
    """

    # Whether `prepare` copies the batch to a device: time worth a stage of its own. What samples share is expanded
    # behind the copy then, and what is kept narrower is widened there, so that as little is copied.
    copies = False
    takes_together = False  # whether `prepare_together` can be called
    resident: Any = None  # keeps records on a device, as `stoker.torch.cuda.ResidentRows` does
    # What follows `fit` sets.
    is_augmented = False  # whether `augment` has been at the fields, which may be no views of what was gathered then
    sequence_shard: SequenceShard | None = None
    is_expanded = True  # whether what was gathered once leaves as each sample's; else as `Deduplicated`
    compact: Mapping[str, Compact] = MappingProxyType({})  # of the fields that are kept narrower than they leave
    is_widened = False  # whether these are widened already in a batch's arrays; in what was gathered they never are

    def fit(self, config: LoaderConfig, spec: Spec) -> None:
        """Learn how the batches of a loader leave, all of them alike."""
        self.is_augmented, self.sequence_shard = config.augment is not None, config.sequence_shard
        self.is_expanded, self.compact = config.deduplicated == "expand", spec.compact
        # What looks at values or cuts shapes wants them as they are delivered, and so does a loop without a device.
        is_looked_at = not self.copies or self.is_augmented or self.sequence_shard is not None
        self.is_widened = bool(self.compact) and is_looked_at

    def cut(self, name: str, array: Any) -> Any:
        """Return what leaves of a field, an array or a tensor: all of it, or this rank's part of each sequence."""
        if self.sequence_shard is None or name not in self.sequence_shard.fields:
            return array
        return self.sequence_shard.part(array)

    def allocate(self, num_bytes: int) -> Array:
        """Return memory for batches: uint8, shape [num_bytes]."""
        return memory_in_huge_pages(num_bytes)

    def prepare(self, made: Made) -> Any:
        """Do what can be done ahead of the step; runs in the threads that assemble."""
        if self.sequence_shard is None:
            return made.arrays
        return {name: self.cut(name, array) for name, array in made.arrays.items()}

    def prepare_together(self, together: Together) -> Sequence[Any]:
        """Do what `prepare` does for several batches as one, neither augmented nor cut; return what becomes of each."""
        raise NotImplementedError

    def deliver(self, prepared: Any) -> Any:
        """Return what the loop gets; runs in the loop's own thread, when the step is due."""
        return prepared


# ---------------------------------------------------------------------------------------------- making them


class Batches:
    """Makes the batches of a loader, whose ranks are known by now; raises where these contradict its arguments.

    An epoch has `num_units` of what the order counts. Safe to use from several threads.
    """

    def __init__(
        self,
        config: LoaderConfig,
        opened: OpenDatasets,
        *,
        collator: Collator,
        delivery: Delivery,
        stages: Stages,
        num_units: int,
    ) -> None:
        self.config, self._opened, self._collator, self.delivery = config, opened, collator, delivery
        self._stages, self.resident = stages, delivery.resident
        self.pool = BufferPool(delivery.allocate, is_pinned=delivery.copies)
        self.shard = shard = config.ranks.settle()
        self.global_batch_size = size = config.global_size(shard)
        if size < shard.world_size:
            text = "a global batch of %d samples leaves some of %d ranks without any in every step: make it larger"
            _log.warning(text, size, shard.world_size)
        unit_bytes = _unit_bytes(config, opened, collator, num_units)
        self._batch_size = size / shard.world_size
        batch_bytes = None if unit_bytes is None else self._batch_size * unit_bytes
        # Batches ahead of the step; 0 makes them in the calling thread when one is asked for.
        prefetch = (
            default_prefetch(batch_bytes, crosses=delivery.copies) if config.prefetch is None else config.prefetch
        )
        self.prefetch, self._num_sets = prefetch, len(opened.datasets)
        self._source_field = None if opened.mixture is None else opened.mixture.source_field
        delivery.fit(config, opened.spec)
        self._pads, is_cut = config.remainder == "pad", config.sequence_shard is not None
        needs_each = delivery.is_augmented or isinstance(config.unit, NGram | Pack)
        self._once: Once = "where it pays" if delivery.copies and not needs_each else "never"
        if not delivery.is_expanded:
            self._once = "always"
        # Whether making one takes little beside gathering: nothing is copied, nothing of the user's is called.
        self.is_quick = not (delivery.is_augmented or delivery.copies)
        adds = collator.adds is not None
        self._changes = self._pads or adds or delivery.is_augmented or delivery.is_widened or is_cut
        # Batches leave as one where nothing is done to each by itself. Threads gain by that only where they copy to a
        # device: each of the calls it takes gives the interpreter's lock up.
        gains = delivery.takes_together and (delivery.copies or not prefetch) and can_leave_together(opened.spec)
        self._leaves_together = gains and not (needs_each or self._changes or self._source_field is not None)
        self._together_bytes = TOGETHER_BYTES if prefetch else _NOW_TOGETHER_BYTES
        if prefetch and self._leaves_together:
            self._together_bytes = _CROSSING_BYTES
        self._batch_bytes: float = batch_bytes or self._together_bytes

    @property
    def max_together(self) -> int:
        """How many batches may be gathered in one go; more make the wait for one of them longer."""
        is_lone = not (self.prefetch or self.is_quick)  # nothing is called or copied unless asked for
        is_lone |= self.resident is not None and not self._leaves_together  # where they lie is found for all
        is_lone |= self._num_sets > 1 and self._once != "never"  # what samples share is found data set by data set
        most = _MAX_TOGETHER if self.prefetch else _MAX_NOW_TOGETHER
        return 1 if is_lone else max(1, min(most, int(self._together_bytes / max(1.0, self._batch_bytes))))

    # ------------------------------------------------------------------ gathering

    def gather(
        self, lanes: Sequence[Lane], steps: Steps, numbers: Sequence[int]
    ) -> tuple[list[tuple[Slice, ...]], list[Made] | Together]:
        """Return the batches of the first of some steps and of those after it whose windows are open already.

        They come in their order, or all of them as one, beside which samples each has.

        Blocks: until the windows of the first are open.
        """
        # Those with lists differ in size, and may be larger than they were thought to be.
        num = max(1, int(2 * self._together_bytes / self._batch_bytes))
        slices = steps.slices_of(numbers[:num], self.shard)
        try:
            while (parts := _parts_of(lanes, by_lane := _by_lane(slices), waits=len(slices) == 1)) is None:
                slices.pop()
            start_ns = time.perf_counter_ns()
            made, size_bytes = self._gathered(parts, slices, lanes, by_lane)
        except FieldMismatchError:
            if len(slices) == 1:
                raise
            # It belongs to one of these steps, and shall be found where that one is asked for.
            return self.gather(lanes, steps, numbers[:1])
        self._stages("gather", start_ns, time.perf_counter_ns(), size_bytes)
        num_samples = sum([stop - start for pieces in slices for _, start, stop, _ in pieces])
        if num_samples:  # by the sample: the last batch of an epoch may be a small one
            self._batch_bytes = max(1.0, size_bytes / num_samples * self._batch_size)
        return slices, made

    def _gathered(
        self,
        parts: Sequence[Part],
        slices: Sequence[tuple[Slice, ...]],
        lanes: Sequence[Lane],
        by_lane: Sequence[_LaneRanges],
    ) -> tuple[list[Made] | Together, int]:
        """Return the batches of steps, whose samples lie in `parts`, and how many bytes they have."""
        collator, pool = self._collator, self.pool
        sizes = [sum([stop - start for _, start, stop, _ in pieces]) for pieces in slices]
        whose: Int64 | None = None
        places: Int64 | None = None
        if self._num_sets > 1 or self._source_field is not None:
            # Data set after data set, so that the windows of each are gathered from once.
            found = [lanes[lane].order.components(*one) for lane, its_ranges in by_lane for one in its_ranges]
            whose = np.concatenate([np.empty(0, dtype=np.int64), *found])
            parts = sorted(parts, key=lambda part: part.window.which)
            places = np.empty_like(whose)
            group_places(whose, self._num_sets, places)
        if self.resident is not None:
            assembled = assemble_resident(self._opened.spec, parts, self.resident.first_row, pool)
            made, size_bytes = Made({}, assembled, assembled.num_samples), assembled.size_bytes
        else:
            made, size_bytes = collator.gather(parts, sizes, pool, once=self._once, places=places)
        # A lone one has nothing to gain by leaving as one where it stays here.
        if self._leaves_together and (self.delivery.copies or len(sizes) > 1):
            return collator.side_by_side(made, sizes, pool), size_bytes
        batches = collator.cut(made, sizes)
        if self._source_field is not None and whose is not None:
            sources = whose.astype(np.int32)
            for batch, (begin, end) in zip(batches, pairwise(accumulate(sizes, initial=0)), strict=True):
                batch.arrays[self._source_field] = sources[begin:end]
        return batches, size_bytes

    # ------------------------------------------------------------------ finishing

    def finish(
        self, made: list[Made] | Together, slices: Sequence[Sequence[Slice]], steps: Sequence[int], epoch: int
    ) -> Iterator[tuple[Any, int]]:
        """Return what `gather` returned as it is handed over, and how many samples each batch has.

        Their steps are for errors; the epoch decides, beside the seed and the place of a batch, what `augment` draws.
        """
        if not isinstance(made, Together):
            return map(self._finished, made, slices, steps, repeat(epoch))
        if not self.delivery.copies:
            return zip(self.delivery.prepare_together(made), made.sizes, strict=True)
        with self._stages.span("copy", made.assembled.size_bytes) as span:
            span.num_calls = len(made.sizes)
            return zip(self.delivery.prepare_together(made), made.sizes, strict=True)

    def _finished(self, made: Made, slices: Sequence[Slice], step: int, epoch: int) -> tuple[Any, int]:
        if self._changes:
            made = made._replace(arrays=self._changed(made.arrays, slices, step, epoch))
        if not self.delivery.copies:
            return self.delivery.prepare(made), made.num_samples
        with self._stages.span("copy", made.assembled.size_bytes):
            return self.delivery.prepare(made), made.num_samples

    def _changed(self, arrays: Arrays, slices: Sequence[Slice], step: int, epoch: int) -> Arrays:
        delivery, collator, config = self.delivery, self._collator, self.config
        if delivery.is_widened:
            compact = delivery.compact
            arrays = {name: _wide(one, compact[name]) if name in compact else one for name, one in arrays.items()}
        if self._pads:
            is_padding = [np.full(piece.num_samples, piece.is_padding) for piece in slices]
            arrays["sample_mask"] = ~np.concatenate([np.zeros(0, dtype=np.bool_), *is_padding])
        if collator.adds is not None:
            arrays |= collator.adds(arrays)
        if config.augment is not None:
            with self._stages.span("augment"):
                arrays = augmented(config.augment, arrays, slices, seed=config.seed, step=step, epoch=epoch)
        if delivery.sequence_shard is not None:
            delivery.sequence_shard.check_batch(arrays)
        return arrays


def _parts_of(lanes: Sequence[Lane], by_lane: Iterable[_LaneRanges], *, waits: bool) -> list[Part] | None:
    """Return where samples lie; None where that is not known without waiting."""
    found: list[Part] = []
    for lane, its_ranges in by_lane:
        if (parts := lanes[lane].parts(its_ranges, waits=waits)) is None:
            return None
        found += parts
    return found


def _by_lane(slices: Sequence[Sequence[Slice]]) -> list[_LaneRanges]:
    """Return the ranges of batches in their order, those of one lane that follow each other together."""
    found: list[_LaneRanges] = []
    for pieces in slices:
        for lane, start, stop, _ in pieces:
            if not found or found[-1][0] != lane:
                found.append((lane, [(start, stop)]))
            elif (its_ranges := found[-1][1])[-1][1] == start:
                its_ranges[-1] = its_ranges[-1][0], stop
            else:
                its_ranges.append((start, stop))
    return found


def _wide(array: Any, compact: Compact) -> Any:
    if isinstance(array, Deduplicated | Ragged):
        return replace(array, values=_wide(array.values, compact))
    return widen(array, compact)


def _unit_bytes(config: LoaderConfig, opened: OpenDatasets, collator: Collator, num_units: int) -> float | None:
    """Return about how much one of what the order counts takes in a batch; None where only making one tells."""
    unit = config.unit
    if collator.unit_bytes is not None:
        return collator.unit_bytes
    if isinstance(unit, Grouped):
        if opened.mixture is not None:
            return None
        return int(opened.num_samples.sum()) / max(1, num_units) * opened.sample_bytes
    return opened.sample_bytes * (unit.length if isinstance(unit, NGram) else 1)
