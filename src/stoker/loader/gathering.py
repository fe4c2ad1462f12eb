"""The samples of steps, gathered out of open windows: those of several steps in one call where that may be."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from stoker._native import group_places
from stoker.errors import FieldMismatchError
from stoker.fields.offsets import Int64, offsets_of
from stoker.fields.offsets import ranges as spread
from stoker.loader.gather.assemble import Assembled, Part, assemble
from stoker.loader.gather.buffers import BufferPool
from stoker.loader.gather.together import side_by_side
from stoker.loader.open_datasets import OpenDatasets
from stoker.loader.reorder import reordered
from stoker.loader.residence import assemble_resident
from stoker.loader.run_settings import RunSettings
from stoker.loader.streams import Acquired, Range, Stream
from stoker.loader.units.make import Gathered, Maker, UnitPart, rows_made
from stoker.metrics.stages import Stages
from stoker.sampling.steps import Slice

# Batches that one thread makes in one go, at most, and how large they may be together: more would save little more,
# and a batch that is kept keeps the memory of all that were gathered with it. Batches of 4.2 MB, two threads: 8.1 GB/s
# with 16 MiB, 9.0 with 24, 8.8 with 32.
_MAX_TOGETHER = 8
TOGETHER_BYTES = 24 << 20
# To a device: half a block of the pool, so that a group of them lies in one that others share. What a group costs
# beside its bytes, 0.3 ms of the interpreter's lock, comes out of the time of a loop that launches operations: of each
# step of such a loop, beside batches of 8 MB, 0.85 ms with 24 MiB, 0.65 with 32 and 0.50 with 64.
_CROSSING_BYTES = 64 << 20
# And of small ones, which cost little but what each call costs. Batches of one row, two threads: 65 to 74 microseconds
# with 8 at a time, 51 to 58 with 13, as many as go into 40 ahead; of 2.6 MB none.
_MAX_SMALL_TOGETHER, _SMALL_TOGETHER_BYTES = 16, 8 << 20
# Where the loop makes its batches itself, none should take long, nor memory that nobody asked for. Batches of one row
# and three tensors take 28 microseconds so, made one by one 79 (Zen 3).
_NOW_TOGETHER_BYTES = 1 << 20
# How many times as large as they are thought to be batches may turn out, without those made together being too large.
_MOST_ABOVE = 1.15


class Gatherer:
    """Gathers the samples of steps out of the windows of their lanes.

    Safe to use from several threads.

    Args:
        streams: The windows of each lane.
        slices_of: Says which samples of which lanes some steps have; they ascend.
        opened: The data sets that the samples are of.
        pool: Memory for batches.
        settings: See `RunSettings`.
        stages: Told of gathering.
        num_ahead: Batches that are made ahead of the step.
        leave_together: Whether those gathered in one go leave as one where they can; see `Finisher`.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        slices_of: Callable[[Sequence[int]], list[tuple[Slice, ...]]],
        *,
        opened: OpenDatasets,
        pool: BufferPool,
        settings: RunSettings,
        stages: Stages,
        num_ahead: int,
        leave_together: bool = False,
    ) -> None:
        self._streams = streams
        self._slices_of = slices_of
        self._opened = opened
        self._pool = pool
        self._settings = settings
        self._stages = stages
        self._scratch = BufferPool()
        self._crosses = settings.delivery.copies
        self._most_together_bytes = _CROSSING_BYTES if leave_together and self._crosses else TOGETHER_BYTES
        self._batch_bytes = self._most_together_bytes  # of the last one; until one is made, one at a time
        self._num_ahead = num_ahead
        self._leave_together = leave_together
        self._num_together = 1  # the most so far
        self._is_warming = num_ahead > 0

    @property
    def max_together(self) -> int:
        """How many batches may be gathered in one go; more make the wait for one of them longer."""
        settings = self._settings
        if settings.delivery.resident is not None and not self._leave_together:
            return 1  # which of them lie on the device is found out for all of them as one
        if self._opened.is_mixed and settings.once != "never":
            return 1  # what samples share is found data set by data set, not batch by batch
        if settings.batch_bytes is None:
            return 1
        batch_bytes = max(1.0, settings.batch_bytes)
        small_bytes = _SMALL_TOGETHER_BYTES if self._num_ahead else _NOW_TOGETHER_BYTES
        if _MAX_SMALL_TOGETHER * batch_bytes <= small_bytes:
            return _MAX_SMALL_TOGETHER
        if self._num_ahead == 0:
            return 1
        # Batches with lists differ in size, and those that are claimed together should be gathered in one go.
        return max(1, min(_MAX_TOGETHER, int(self._most_together_bytes / (_MOST_ABOVE * batch_bytes))))

    def gather(self, numbers: Sequence[int]) -> tuple[Gathered, list[tuple[Slice, ...]]]:
        """Return the batches of the first of these steps and of those after it whose windows are open already.

        Blocks: until the windows of the first are open.
        """
        streams = self._streams
        slices = self._slices_of(numbers[: max(1, self._most_together_bytes // self._batch_bytes)])
        by_lane = _by_lane(slices)
        while len(slices) > 1 and not self._are_open(by_lane):
            slices.pop()
            by_lane = _by_lane(slices)
        spots = None
        if len(slices) > 1 and len(by_lane) > 1 and self._may_come_in_any_order:
            by_lane, spots = _lane_after_lane(slices)
        acquired: Acquired = []
        try:
            parts = []
            for lane, ranges in by_lane:
                parts += streams[lane].parts(ranges, acquired)
            start_ns = time.perf_counter_ns()
            sizes = _sizes(slices)
            if self._opened.is_mixed:
                gathered = self._mixed(parts, sizes, self._whose(by_lane), spots)
            else:
                gathered = self._gathered(parts, sizes, spots)
        except FieldMismatchError:
            if len(slices) == 1:
                raise
            # It belongs to one of these steps, and shall be found where that one is asked for.
            return self.gather(numbers[:1])
        finally:
            for windows, window in acquired:
                windows.release(window)
        size_bytes = gathered.size_bytes
        self._stages("gather", start_ns, time.perf_counter_ns(), size_bytes)
        self._batch_bytes = max(1, size_bytes // len(slices))
        if self._is_warming:
            self._num_together = max(self._num_together, len(slices))
            if size_bytes <= self._most_together_bytes:
                self._is_warming = self._pool.warm(self._most_bytes)
        return gathered, slices

    def _are_open(self, by_lane: Sequence[tuple[int, Sequence[Range]]]) -> bool:
        streams = self._streams
        return all(streams[lane].is_open(start, stop) for lane, ranges in by_lane for start, stop in ranges)

    @property
    def _most_bytes(self) -> int:
        """What batches take at a time: those ahead and the one in use, in so many groups and a part of one."""
        num_groups = -(-(self._num_ahead + 1) // self._num_together) + 1
        return num_groups * self._num_together * self._batch_bytes

    @property
    def _may_come_in_any_order(self) -> bool:
        """Whether samples may be gathered in another order than that of their steps, each to its place."""
        settings = self._settings
        return settings.maker is None and settings.delivery.resident is None and settings.once == "never"

    def _whose(self, by_lane: Sequence[tuple[int, Sequence[Range]]]) -> Int64:
        """Return the data set of each sample, range by range. Shape [B]."""
        found = [self._streams[lane].whose(start, stop) for lane, ranges in by_lane for start, stop in ranges]
        return np.concatenate([np.empty(0, dtype=np.int64), *(one for one in found if one is not None)])

    def _gathered(self, parts: Sequence[UnitPart], sizes: Sequence[int], spots: Int64 | None) -> Gathered:
        """Return batches of one data set; `spots` says where each sample goes, unless that is one after the other."""
        settings, spec = self._settings, self._opened.spec
        if settings.maker is not None:
            return self._units_made(settings.maker, parts, sizes)
        if (resident := settings.delivery.resident) is not None:
            assembled = assemble_resident(spec, parts, resident.first_row, self._pool)
        else:
            assembled = assemble(spec, _rows(parts), self._pool, once=settings.once, places=spots, sizes=sizes)
        return self._rows_made(assembled, sizes)

    def _leave_as_one(self, sizes: Sequence[int]) -> bool:
        """Whether batches should leave as one: a lone one has nothing to gain where it stays here."""
        return self._leave_together and (self._crosses or len(sizes) > 1)

    def _units_made(self, maker: Maker, parts: Sequence[UnitPart], sizes: Sequence[int]) -> Gathered:
        """Return batches of units that were gathered side by side."""
        whole = maker.make_together(parts, sizes, self._pool, once=self._settings.once)
        (made,) = whole.made
        if self._leave_as_one(sizes) and (together := maker.side_by_side(made, sizes, self._pool)) is not None:
            return Gathered([], whole.size_bytes, together)
        return Gathered(maker.cut(made, sizes), whole.size_bytes)

    def _rows_made(self, assembled: Assembled, sizes: Sequence[int]) -> Gathered:
        """Return the batches of rows that were gathered side by side."""
        if self._leave_as_one(sizes) and (together := side_by_side(assembled, sizes, self._pool)) is not None:
            return Gathered([], assembled.size_bytes, together)
        return Gathered([rows_made(batch) for batch in assembled.cut(sizes)], assembled.size_bytes)

    def _mixed(self, parts: Sequence[UnitPart], sizes: Sequence[int], whose: Int64, spots: Int64 | None) -> Gathered:
        """Return batches of several data sets, each sample at its place.

        Args:
            parts: Where they lie.
            sizes: Samples of each batch.
            whose: Data set of each sample, in the order in which their positions were asked for. Shape [B].
            spots: Where in the batches each of these goes, unless that is one after the other. Shape [B].
        """
        settings, maker = self._settings, self._settings.maker
        parts, places = _by_data_set(parts), np.empty_like(whose)
        group_places(whose, self._opened.num_sets, places)
        if spots is not None:
            places = spots[places]
        if maker is None:
            assembled = assemble(self._opened.spec, _rows(parts), self._pool, once=settings.once, places=places)
            gathered = self._rows_made(assembled, sizes)
        else:  # what is more than one row is put in order afterwards
            order = np.empty_like(places)
            order[places] = np.arange(len(places))
            whole = maker.make_together(parts, sizes, self._scratch, once=settings.once)
            (together,) = (reordered(one, order, self._pool, is_grouped=maker.is_grouped) for one in whole.made)
            gathered = Gathered(maker.cut(together, sizes), whole.size_bytes)
        if settings.source_field is not None:
            sources = np.empty(len(whose), dtype=np.int32)
            sources[slice(None) if spots is None else spots] = whose
            for batch, begin in zip(gathered.made, accumulate(sizes, initial=0), strict=False):
                batch.arrays[settings.source_field] = sources[begin : begin + batch.num_samples]
        return gathered


def _by_data_set(parts: Sequence[UnitPart]) -> list[UnitPart]:
    return sorted(parts, key=lambda part: part.which)


def _by_lane(slices: Sequence[Sequence[Slice]]) -> list[tuple[int, list[Range]]]:
    """Return the ranges of batches in their order, those of one lane that follow each other together."""
    found: list[tuple[int, list[Range]]] = []
    now, begin, end = -1, 0, 0  # the lane, and the range in it that may go on
    for pieces in slices:
        for lane, start, stop, _ in pieces:
            if lane == now and start == end:
                end = stop
                continue
            if now >= 0:
                found[-1][1].append((begin, end))
            if lane != now:
                found.append((lane, []))
            now, begin, end = lane, start, stop
    if now >= 0:
        found[-1][1].append((begin, end))
    return found


def _lane_after_lane(slices: Sequence[Sequence[Slice]]) -> tuple[list[tuple[int, list[Range]]], Int64]:
    """Return the ranges of batches lane after lane, and where in the batches each of their samples goes. Shape [B].

    So each lane's windows are gathered from once, not once a batch:

        batches    │ lane 0: 4 5 │ lane 1: 4 5 │ │ lane 0: 6 7 │ lane 1: 6 7 │
        lanes      │ lane 0: 4 5 6 7           │ │ lane 1: 4 5 6 7           │
        spots                0 1 4 5                       2 3 6 7
    """
    pieces = [piece for pieces in slices for piece in pieces]
    sizes = np.array([piece.num_samples for piece in pieces], dtype=np.int64)
    order = np.argsort(np.array([piece.lane for piece in pieces], dtype=np.int64), kind="stable")
    begins = offsets_of(sizes)[:-1]
    by_lane = _by_lane([[pieces[i] for i in order.tolist()]])
    return by_lane, spread(begins[order], offsets_of(sizes[order]))


def _rows(parts: Sequence[UnitPart]) -> list[Part]:
    return [Part(part.window, part.where) for part in parts]


def _sizes(slices: Sequence[Sequence[Slice]]) -> list[int]:
    """Return how many samples each batch has."""
    return [sum([stop - start for _, start, stop, _ in pieces]) for pieces in slices]
