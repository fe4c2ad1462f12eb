"""Which samples a step of a mixture is made of, and which step uses a position: computed, without reading data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stoker.order.mixture import MixtureEpoch
from stoker.order.plain import Int64
from stoker.order.shard import RankShare
from stoker.order.steps import Steps


class MixedSamples(NamedTuple):
    """The samples of a batch of a mixture, in the order in which they are delivered. Shape [B] each.

    Attributes:
        lane: Lane that gives the sample.
        component: Number of the component that the sample is of.
        epoch: That component's own epoch.
        chunk: Its chunk, as the component numbers them.
        row: Its row in that chunk.
        is_padding: Whether it only fills the batch.
    """

    lane: Int64
    component: Int64
    epoch: Int64
    chunk: Int64
    row: Int64
    is_padding: npt.NDArray[np.bool_]


def mixed_samples_of(
    lanes: Sequence[MixtureEpoch],
    steps: Steps,
    step: int,
    shard: RankShare = RankShare(),  # noqa: B008  frozen
) -> MixedSamples:
    """Return every sample of a step on a rank; for one rank of one, of the global batch.

    Args:
        lanes: The epoch's order: `MixtureOrder.lanes_of_epoch(epoch)`.
        steps: The epoch's steps.
        step: Which of them.
        shard: Rank and world size.

    Raises:
        ValueError: There is no such step.
    """
    pieces = [_piece(lanes[lane], start, stop, padding) for lane, start, stop, padding in steps.slices(step, shard)]
    nothing = np.empty(0, dtype=np.int64)
    empty = MixedSamples(nothing, nothing, nothing, nothing, nothing, nothing.astype(bool))
    return MixedSamples(*(np.concatenate(parts) for parts in zip(empty, *pieces, strict=True)))


def _piece(lane: MixtureEpoch, start: int, stop: int, is_padding: bool) -> MixedSamples:
    component = lane.components(start, stop)
    epoch, chunk, row = (np.empty_like(component) for _ in range(3))
    places = [np.flatnonzero(component == which) for which in range(int(component.max(initial=-1)) + 1)]
    taken = [0] * len(places)
    for which, own_epoch, first, last in lane.stretches(start, stop):
        members = places[which][taken[which] : taken[which] + last - first]
        taken[which] += last - first
        epoch[members] = own_epoch
        chunk[members], row[members] = lane.component_epoch(which, own_epoch).locate(np.arange(first, last))
    lane_of_each = np.full_like(component, lane.lane)
    return MixedSamples(lane_of_each, component, epoch, chunk, row, np.full(component.size, is_padding))


def use_at(steps: Steps, *, lane: int, position: int, world_size: int) -> tuple[int, int] | None:
    """Return the step and the rank that get a position of a lane; None where no step delivers it.

    Args:
        steps: The epoch's steps.
        lane: The lane.
        position: The position there.
        world_size: How many ranks there are.
    """
    step, place = divmod(position - steps.lane_start, steps.part_size)
    if not 0 <= step < steps.num_steps:
        return None
    part = steps.part(step, lane)
    cuts = [steps.cut(rank, part=part, lane=lane, world_size=world_size) for rank in range(world_size + 1)]
    return step, int(np.searchsorted(cuts, place, side="right")) - 1
