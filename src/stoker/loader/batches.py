"""Batches of a run: the samples of steps gathered, those of several at a time where they may be; and finished.

steps ─► positions ─► windows ─► gathered ─► widened ─► padding marked ─► augmented ─► prepared for where it goes
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from stoker._native import group_places
from stoker.dataset.units.kinds import Pack
from stoker.errors import FieldMismatchError
from stoker.fields.compact import Compact, widen
from stoker.fields.offsets import Int32, Int64
from stoker.fields.spec import Deduplicated, Ragged, Spec
from stoker.loader.augmenting import Augmenter
from stoker.loader.buffers import BufferPool
from stoker.loader.delivery import DeliveryForm, RunSettings
from stoker.loader.gather import Together, assemble_resident
from stoker.loader.lane import Lane, Range, UnitPart
from stoker.loader.units import Made, sequences_of
from stoker.metrics.stages import Stages, timed
from stoker.sampling.steps import Slice, Steps

# How large batches may be together that are gathered in one call, and how many: more would save little, and a batch
# that is kept keeps the memory of all that were gathered with it. Of 4.2 MB each, two threads: 8.1 GB/s with 16 MiB,
# 9.0 with 24, 8.8 with 32.
TOGETHER_BYTES, _MAX_TOGETHER = 24 << 20, 16
# To a device: half a block of the pool, so that a group of them lies in one that others share. What a group costs
# beside its bytes, 0.3 ms of the interpreter's lock, comes out of the time of a loop that launches operations: of each
# step of such a loop, beside batches of 8 MB, 0.85 ms with 24 MiB, 0.65 with 32 and 0.50 with 64.
_CROSSING_BYTES = 64 << 20
# Where the loop makes its batches itself, none should take long, nor memory that nobody asked for. Batches of one row
# and three tensors take 28 microseconds so, made one by one 79 (Zen 3).
_NOW_TOGETHER_BYTES = 1 << 20

_LaneRanges: TypeAlias = tuple[int, list[Range]]  # a lane, and positions in it


class Gathered(NamedTuple):
    """Batches that were gathered in one go.

    Attributes:
        slices: Which samples each has.
        made: The batches, in their order; none where they leave as one.
        together: All of them as one, where they leave so.
    """

    slices: list[tuple[Slice, ...]]
    made: list[Made]
    together: Together | None = None


class Gatherer:
    """Gathers the samples of steps out of the windows of their lanes.

    Safe to use from several threads.

    Args:
        lanes: Where their samples are found.
        steps: Says which samples of which lanes a step has.
        spec: What a sample is.
        pool: Memory for batches.
        settings: See `RunSettings`.
        stages: Told of gathering.
        num_ahead: Batches that are made ahead of the step.
        leave_together: Whether those gathered in one go leave as one where they can; see `Finisher`.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        steps: Steps,
        spec: Spec,
        *,
        pool: BufferPool,
        settings: RunSettings,
        stages: Stages,
        num_ahead: int,
        leave_together: bool = False,
    ) -> None:
        self._lanes, self._steps, self._spec, self._pool = lanes, steps, spec, pool
        self._settings, self._stages = settings, stages
        self._crosses, self._leave_together = settings.delivery.copies, leave_together
        self._together_bytes = TOGETHER_BYTES if num_ahead else _NOW_TOGETHER_BYTES
        if num_ahead and leave_together and self._crosses:
            self._together_bytes = _CROSSING_BYTES
        self._batch_bytes = settings.batch_bytes or self._together_bytes
        self._num_ahead = num_ahead
        self._num_together = 1  # the most so far
        self._is_warming = num_ahead > 0

    @property
    def max_together(self) -> int:
        """How many batches may be gathered in one go; more make the wait for one of them longer."""
        settings = self._settings
        if settings.delivery.resident is not None and not self._leave_together:
            return 1  # which of them lie on the device is found out for all of them as one
        if settings.num_sets > 1 and settings.once != "never":
            return 1  # what samples share is found data set by data set, not batch by batch
        return max(1, min(_MAX_TOGETHER, int(self._together_bytes / max(1.0, self._batch_bytes))))

    def gather(self, numbers: Sequence[int]) -> Gathered:
        """Return the batches of the first of these steps and of those after it whose windows are open already.

        Blocks: until the windows of the first are open.
        """
        # Those with lists differ in size, and may be larger than they were thought to be.
        num = max(1, int(2 * self._together_bytes / self._batch_bytes))
        slices = self._steps.slices_of(numbers[:num], self._settings.shard)
        try:
            by_lane = _by_lane(slices)
            while (parts := self._parts(by_lane, waits=len(slices) == 1)) is None:
                slices.pop()
                by_lane = _by_lane(slices)
            start_ns = time.perf_counter_ns()
            gathered, size_bytes = self._gathered(parts, slices, by_lane)
        except FieldMismatchError:
            if len(slices) == 1:
                raise
            # It belongs to one of these steps, and shall be found where that one is asked for.
            return self.gather(numbers[:1])
        self._stages("gather", start_ns, time.perf_counter_ns(), size_bytes)
        self._batch_bytes = max(1, size_bytes // len(slices))
        if self._is_warming:
            self._num_together = max(self._num_together, len(slices))
            if size_bytes <= self._together_bytes:
                # What batches take at a time: those ahead and the one in use, in so many groups and a part of one.
                num_groups = -(-(self._num_ahead + 1) // self._num_together) + 1
                self._is_warming = self._pool.warm(num_groups * self._num_together * int(self._batch_bytes))
        return gathered

    def _parts(self, by_lane: Sequence[_LaneRanges], *, waits: bool) -> list[UnitPart] | None:
        """Return where samples lie; None where that is not known without waiting."""
        found: list[UnitPart] = []
        for lane, ranges in by_lane:
            parts = self._lanes[lane].parts(ranges, waits=waits)
            if parts is None:
                return None
            found += parts
        return found

    def _gathered(
        self, parts: list[UnitPart], slices: list[tuple[Slice, ...]], by_lane: Sequence[_LaneRanges]
    ) -> tuple[Gathered, int]:
        """Return the batches of steps, and how many bytes they have.

        Args:
            parts: Where their samples lie.
            slices: Which samples each batch has.
            by_lane: The same as ranges of lanes, in the order of the parts.
        """
        settings, maker, pool = self._settings, self._settings.maker, self._pool
        sizes = [sum([stop - start for _, start, stop, _ in pieces]) for pieces in slices]
        whose: Int64 | None = None
        places: Int64 | None = None
        if settings.num_sets > 1 or settings.source_field is not None:
            # Data set after data set, so that the windows of each are gathered from once.
            found = [self._lanes[lane].datasets_of(*one) for lane, ranges in by_lane for one in ranges]
            whose = np.concatenate([np.empty(0, dtype=np.int64), *found])
            parts = sorted(parts, key=lambda part: part.opened.which)
            places = np.empty_like(whose)
            group_places(whose, settings.num_sets, places)
        if (resident := settings.delivery.resident) is not None:
            assembled = assemble_resident(self._spec, parts, resident.first_row, pool)
            made, size_bytes = Made({}, assembled, None, True, assembled.num_samples), assembled.size_bytes
        else:
            made, size_bytes = maker.gather(parts, sizes, pool, once=settings.once, places=places)
        # A lone one has nothing to gain by leaving as one where it stays here.
        if self._leave_together and (self._crosses or len(sizes) > 1):
            together = maker.side_by_side(made, sizes, pool)
            if together is not None:
                return Gathered(slices, [], together), size_bytes
        batches = maker.cut(made, sizes)
        if settings.source_field is not None and whose is not None:
            sources = whose.astype(np.int32)
            for batch, begin, size in zip(batches, accumulate(sizes, initial=0), sizes, strict=False):
                batch.arrays[settings.source_field] = sources[begin : begin + size]
        return Gathered(slices, batches), size_bytes


def _by_lane(slices: Sequence[Sequence[Slice]]) -> list[_LaneRanges]:
    """Return the ranges of batches in their order, those of one lane that follow each other together."""
    found: list[_LaneRanges] = []
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


class Prepared(NamedTuple):
    """What the threads have made ready for a step.

    Attributes:
        content: What the delivery prepared.
        num_samples: Samples of the batch.
    """

    content: Any
    num_samples: int


class Finisher:
    """Makes of what was gathered what a step gets.

    Args:
        settings: See `RunSettings`.
        compact: Fields that are kept in a narrower form, by name.
        stages: Told of augmenting and copying.
        epoch: Decides, beside the seed and the place of a batch, the randomness of `augment`.

    Attributes:
        is_quick: Whether it takes little beside gathering: nothing is copied, and nothing of the user's is called.
        takes_together: Whether batches that were gathered in one go may leave as one: nothing is done to one by itself.
    """

    def __init__(self, settings: RunSettings, compact: Mapping[str, Compact], *, stages: Stages, epoch: int) -> None:
        delivery, config = settings.delivery, settings.config
        self._settings, self._stages, self._delivery = settings, stages, delivery
        self._augmenter = None if config.augment is None else Augmenter(config.augment, seed=config.seed, epoch=epoch)
        is_augmented, is_cut = config.augment is not None, config.sequence_shard is not None
        # What looks at values or cuts shapes wants them as they are delivered, and so does a loop without a device.
        is_widened = bool(compact) and (not delivery.widens or is_augmented or is_cut)
        self._form = DeliveryForm(
            is_augmented=is_augmented,
            sequence_shard=config.sequence_shard,
            is_expanded=config.deduplicated == "expand",
            compact=compact,
            is_widened=is_widened,
        )
        self._tells_sequences = isinstance(config.unit, Pack) and config.unit.cu_seqlens
        self._pads = config.remainder == "pad"
        self._changes = is_widened or self._pads or self._tells_sequences or is_augmented or is_cut
        self.is_quick = not (is_augmented or delivery.copies)
        # In threads it pays for what copies alone: each of the calls it takes gives the interpreter's lock up. And what
        # says which data set each sample is of is written to each batch.
        pays = delivery.copies or not settings.prefetch
        self._prepare_together = delivery.prepare_together if pays and not self._changes else None
        self.takes_together = self._prepare_together is not None and settings.source_field is None

    def finish(self, gathered: Gathered, steps: Sequence[int]) -> Iterator[Prepared]:
        """Return batches as they are handed over."""
        if (together := gathered.together) is not None:
            assert self._prepare_together is not None
            if not self._delivery.copies:
                return map(Prepared, self._prepare_together(together, self._form), together.sizes)
            with self._stages.span("copy", together.assembled.size_bytes) as span:
                span.num_calls = len(together.sizes)
                return map(Prepared, self._prepare_together(together, self._form), together.sizes)
        made: Sequence[Made] | Iterator[Made] = gathered.made
        if self._changes:
            made = map(self._changed, made, gathered.slices, steps)
        return map(self._prepared, made)

    def _prepared(self, made: Made) -> Prepared:
        if not self._delivery.copies:
            return Prepared(self._delivery.prepare(made, self._form), made.num_samples)
        with self._stages.span("copy", made.assembled.size_bytes):
            return Prepared(self._delivery.prepare(made, self._form), made.num_samples)

    def _changed(self, made: Made, slices: Sequence[Slice], step: int) -> Made:
        config, arrays = self._settings.config, made.arrays
        if self._form.is_widened:
            compact = self._form.compact
            arrays = {name: _wide(one, compact[name]) if name in compact else one for name, one in arrays.items()}
        if self._pads:
            is_padding = [np.full(piece.num_samples, piece.is_padding) for piece in slices]
            arrays["sample_mask"] = ~np.concatenate([np.zeros(0, dtype=np.bool_), *is_padding])
        if self._tells_sequences:
            arrays |= sequences_of(cast("Int32", arrays["segment_ids"]))
        if self._augmenter is not None:
            with timed(self._stages, "augment"):
                arrays = self._augmenter(arrays, slices, step=step)
        if config.sequence_shard is not None:
            config.sequence_shard.check_batch(arrays)
        return made._replace(arrays=arrays)


def _wide(array: Any, compact: Compact) -> Any:
    if isinstance(array, Deduplicated):
        return Deduplicated(_wide(array.values, compact), array.index)
    if isinstance(array, Ragged):
        return Ragged(_wide(array.values, compact), array.offsets)
    return widen(array, compact)
