"""Which positions, and so which samples, a rank takes in which step: arithmetic, without reading any data."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from stoker.arguments import integer
from stoker.fields.offsets import Int64
from stoker.host.forks import cached_property
from stoker.sampling.mixture import MixtureEpoch

Remainder = Literal["keep", "drop", "pad"]


@dataclass(frozen=True)
class RankShare:
    """The rank's share of every global batch. Raises a TypeError or a ValueError where there is no such rank."""

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        for name, at_least in ("rank", None), ("world_size", 1):
            object.__setattr__(self, name, integer(getattr(self, name), f"Shard: {name}", at_least=at_least))
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"Shard: rank {self.rank} lies outside [0, {self.world_size}): {self.world_size} ranks count from 0"
            )


class Slice(NamedTuple):
    """Consecutive positions [start, stop) of one lane; padding is samples that came before and only fill the batch."""

    lane: int
    start: int
    stop: int
    is_padding: bool = False

    @property
    def num_samples(self) -> int:
        """How many positions these are."""
        return self.stop - self.start


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The steps from some point of an epoch to its end, the same on every rank.

    Every lane gives the same part of every global batch, and a batch is the parts side by side. Rank r of W takes
    places [r * B // W, (r + 1) * B // W) of it. B = 8, two lanes, three ranks:

        lane          │ 0               │ 1               │
        lane position │ 4t ...     4t+3 │ 4t ...     4t+3 │
        place         │ 0   1   2   3   │ 4   5   6   7   │
        rank          │ 0   0   1   1   │ 1   2   2   2   │

    The remainder: what is left where no whole batch is. With 22 samples, B = 8, one lane, three ranks:

        step    0               1               2
        "keep"  ████████        ████████        ██████       6 samples, 2 + 2 + 2
        "drop"  ████████        ████████                     6 samples are not delivered in this epoch
        "pad"   ████████        ████████        ██████░░     positions 0 and 1 again, marked as padding

    In the last batch of "keep" each lane's part is spread over its ranks as a full part is, in proportion: a rank
    never needs a lane that it does not need in a full batch. It may get nothing at all, but it has the step. With
    "pad" each lane repeats its own beginning: docs/how-to/ranks-and-resume.md draws both for two lanes.

    Args:
        lane_sizes: Samples of each lane, of which no two differ by more than one.
        global_batch_size: Samples of a global batch, over all ranks.
        remainder: What happens to samples that do not fill a batch.
        start: Samples of this epoch that were consumed before, over all lanes. Steps count from there.
        first: Position in each lane from which on samples are taken as padding.

    Raises:
        ValueError: The batch is no multiple of the lanes, or `start` is not a place where a step can begin.

    Examples:
        >>> steps = Steps(lane_sizes=(22,), global_batch_size=8, remainder="pad")
        >>> steps.num_steps, steps.slices(2, RankShare(2, 3))
        (3, (Slice(lane=0, start=21, stop=22, is_padding=False), Slice(lane=0, start=0, stop=2, is_padding=True)))
    """

    lane_sizes: tuple[int, ...]
    global_batch_size: int
    remainder: Remainder = "keep"
    start: int = 0
    first: int = 0

    def __post_init__(self) -> None:
        if self.global_batch_size % self.num_lanes:
            raise ValueError(
                f"each of {self.num_lanes} lanes gives an equal part of every batch: a global batch of "
                f"{self.global_batch_size} is no multiple of {self.num_lanes}"
            )
        if not 0 <= self.start <= self.num_samples:
            raise ValueError(f"start {self.start} lies outside [0, {self.num_samples}]")
        if self.start % self.num_lanes and self.start != self.num_samples:
            raise ValueError(f"start {self.start} is no multiple of {self.num_lanes} lanes")

    @cached_property
    def num_lanes(self) -> int:
        """How many lanes."""
        return len(self.lane_sizes)

    @cached_property
    def num_samples(self) -> int:
        """Samples of the epoch, over all lanes."""
        return sum(self.lane_sizes)

    @cached_property
    def part_size(self) -> int:
        """Samples of a full batch that come from one lane."""
        return self.global_batch_size // self.num_lanes

    @cached_property
    def lane_start(self) -> int:
        """Samples of each lane that were consumed before `start`."""
        return self.start // self.num_lanes

    @cached_property
    def num_steps(self) -> int:
        """Steps from `start` to the end of the epoch: the same on every rank."""
        if self.start == self.num_samples:
            return 0
        if self.remainder == "drop":
            return (min(self.lane_sizes) - self.lane_start) // self.part_size
        return -(-(max(self.lane_sizes) - self.lane_start) // self.part_size)

    def consumed_before(self, step: int) -> int:
        """Return how many samples of the epoch, over all lanes, are consumed when `step` begins; not padding.

        For `step == num_steps` that is when the last step is over; beyond is a ValueError.
        """
        if not 0 <= step <= self.num_steps:
            raise ValueError(f"step {step} lies outside [0, {self.num_steps}]")
        consumed = self.start + step * self.global_batch_size
        return consumed if step < self.num_steps or self.remainder == "drop" else min(consumed, self.num_samples)

    def slices(self, step: int, shard: RankShare = RankShare()) -> tuple[Slice, ...]:
        """Return what a rank takes in a step. No slice is empty, but there may be no slices at all.

        The rank's batch is the slices one after the other, and the global batch is the ranks' batches one after the
        other: for one rank of one this is the global batch. A step outside [0, num_steps) is a ValueError.
        """
        if not 0 <= step < self.num_steps:
            raise ValueError(f"step {step} lies outside [0, {self.num_steps})")
        taken: list[Slice] = []
        first, last = shard.rank * self.num_lanes, (shard.rank + 1) * self.num_lanes
        for lane in range(first // shard.world_size, -(-last // shard.world_size)):
            begin, size, part = self.lane_start + step * self.part_size, self.lane_sizes[lane], self.part(step, lane)
            start, stop = (
                begin + self.cut(boundary, part=part, lane=lane, world_size=shard.world_size)
                for boundary in (shard.rank, shard.rank + 1)
            )
            if start < min(stop, size):
                taken.append(Slice(lane, start, min(stop, size)))
            if stop > size:
                taken += self._padding(lane, max(start, size) - size, stop - size)
        return tuple(taken)

    def slices_of(self, steps: Sequence[int], shard: RankShare = RankShare()) -> list[tuple[Slice, ...]]:
        """Return `slices` of several steps, which ascend."""
        most, first = self.part_size, self.lane_start
        if self.num_lanes > 1 or not steps or steps[0] < 0 or first + (steps[-1] + 1) * most > self.lane_sizes[0]:
            return [self.slices(step, shard) for step in steps]
        # Full batches of one lane, as nearly all are: every one is cut at the same places.
        low, high = (first + rank * most // shard.world_size for rank in (shard.rank, shard.rank + 1))
        if low == high:
            return [() for _ in steps]
        return [(Slice(0, low + step * most, high + step * most),) for step in steps]

    def cut(self, boundary: int, *, part: int, lane: int, world_size: int) -> int:
        """Return where a rank boundary cuts a lane's part of a batch: a place in [0, part].

        Boundary r stands at r / W of the batch, so at r * L / W - l of lane l's part. For full parts that is exactly
        place r * B // W of the batch; for the last, smaller parts it keeps the proportion.
        """
        inside = min(max(boundary * self.num_lanes - lane * world_size, 0), world_size)
        return inside * part // world_size

    def use_of(self, position: int, *, lane: int, world_size: int) -> tuple[int, int] | None:
        """Return the step and the rank that get a position of a lane; None where no step delivers it."""
        step, place = divmod(position - self.lane_start, self.part_size)
        if not 0 <= step < self.num_steps:
            return None
        part = self.part(step, lane)
        cuts = [self.cut(rank, part=part, lane=lane, world_size=world_size) for rank in range(world_size + 1)]
        return step, bisect_right(cuts, place) - 1

    def part(self, step: int, lane: int) -> int:
        """Return how many rows a lane gives to a step's global batch, padding included."""
        if self.remainder == "pad":
            return self.part_size
        return min(self.part_size, self.lane_sizes[lane] - self.lane_start - step * self.part_size)

    def _padding(self, lane: int, start: int, stop: int) -> list[Slice]:
        """Return positions [start, stop) of what fills the last batch: the lane from `first` on, as often as needed."""
        # With fewer samples than lanes, an empty lane has nothing to repeat: the last lane lends, which is never empty.
        source = lane if self.lane_sizes[lane] else self.num_lanes - 1
        size = self.lane_sizes[source] - self.first
        pieces = []
        while start < stop:
            begin = start % size
            end = min(begin + stop - start, size)
            pieces.append(Slice(source, self.first + begin, self.first + end, is_padding=True))
            start += end - begin
        return pieces


class Samples(NamedTuple):
    """The samples of a batch, in the order in which they are delivered. Shape [B] each."""

    lane: Int64
    component: Int64  # number of the data set in a mixture, else 0
    epoch: Int64  # the data set's own
    chunk: Int64  # in fixed order
    row: Int64  # in that chunk
    is_padding: npt.NDArray[np.bool_]


def samples_of(lanes: Sequence[MixtureEpoch], steps: Steps, step: int, shard: RankShare = RankShare()) -> Samples:
    """Return every sample of a step on a rank; for one rank of one, of the global batch.

    The lanes are `MixtureOrder.lanes_of_epoch(epoch)`, and `steps` those of that epoch.
    """
    slices = steps.slices(step, shard) or (Slice(0, lanes[0].first, lanes[0].first),)  # so that there is what to join
    parts = [
        (np.full(stop - start, lane), *lanes[lane].samples(start, stop), np.full(stop - start, is_padding))
        for lane, start, stop, is_padding in slices
    ]
    return Samples(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
