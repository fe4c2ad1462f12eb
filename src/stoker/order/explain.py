"""Which samples a step is made of, and in which step a sample is used: computed, without reading any data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stoker.order.epoch import EpochOrder, Order
from stoker.order.plain import Int64
from stoker.order.shard import Shard
from stoker.order.steps import Steps


class Samples(NamedTuple):
    """The rows of a batch, in the order in which they are delivered. Shape [B] each.

    Attributes:
        lane: Lane that gives the sample.
        position: Its position there.
        chunk: Its chunk, in fixed order.
        row: Its row in that chunk.
        is_padding: Whether it only fills the batch.
    """

    lane: Int64
    position: Int64
    chunk: Int64
    row: Int64
    is_padding: npt.NDArray[np.bool_]


class Uses(NamedTuple):
    """Where samples are used. Shape [B] each.

    Attributes:
        step: The step, counted from the steps' start; -1 where none of them delivers the sample, because it was
            consumed before or is dropped.
        rank: The rank that gets it, or -1.
        lane: Its lane.
        position: Its position there.
    """

    step: Int64
    rank: Int64
    lane: Int64
    position: Int64


def samples_of(lanes: Sequence[EpochOrder], steps: Steps, step: int, shard: Shard = Shard()) -> Samples:  # noqa: B008
    """Return every sample of a step on a rank; for one rank of one, of the global batch.

    Args:
        lanes: The epoch's order: `Order.lanes_of_epoch(epoch)`.
        steps: The epoch's steps.
        step: Which of them.
        shard: Rank and world size.

    Raises:
        ValueError: There is no such step, or `steps` belong to other lanes.
    """
    _check(lanes, steps)
    pieces = [
        (
            piece,
            np.arange(piece.start, piece.stop, dtype=np.int64),
            *_located(lanes[piece.lane], piece.start, piece.stop),
        )
        for piece in steps.slices(step, shard)
    ]
    nothing = np.empty(0, dtype=np.int64)
    return Samples(
        lane=np.concatenate([nothing, *(np.full(position.size, piece.lane) for piece, position, _, _ in pieces)]),
        position=np.concatenate([nothing, *(position for _, position, _, _ in pieces)]),
        chunk=np.concatenate([nothing, *(chunk for _, _, chunk, _ in pieces)]),
        row=np.concatenate([nothing, *(row for _, _, _, row in pieces)]),
        is_padding=np.concatenate(
            [nothing.astype(bool), *(np.full(position.size, piece.is_padding) for piece, position, _, _ in pieces)]
        ),
    )


def uses_of(
    order: Order,
    lanes: Sequence[EpochOrder],
    steps: Steps,
    *,
    chunk: npt.ArrayLike,
    row: npt.ArrayLike,
    world_size: int = 1,
) -> Uses:
    """Return in which step, and on which rank, samples are used: the inverse of `samples_of`.

    Padding is no use: a sample that fills the last batch is found where it was delivered first.

    Args:
        order: The order.
        lanes: One epoch of it: `order.lanes_of_epoch(epoch)`.
        steps: That epoch's steps.
        chunk: Chunks, in fixed order. Shape [B].
        row: Rows in those chunks. Shape [B].
        world_size: How many ranks there are.

    Raises:
        ValueError: A chunk or row does not exist, or `steps` belong to other lanes.
    """
    _check(lanes, steps)
    chunk, row = np.asarray(chunk, dtype=np.int64), np.asarray(row, dtype=np.int64)
    lane = order.lane_of(chunk, row)
    position, step, rank = np.empty_like(lane), np.full_like(lane, -1), np.full_like(lane, -1)
    for number in np.unique(lane).tolist():
        members = np.flatnonzero(lane == number)
        position[members] = lanes[number].positions_of(chunk[members], row[members])
        found = (position[members] - steps.lane_start) // steps.part_size
        found[(position[members] < steps.lane_start) | (found >= steps.num_steps)] = -1
        step[members] = found
        # All parts but those of the last step are full, and equal parts are cut at equal places.
        last = steps.num_steps - 1
        for one, among in ((0, members[(found >= 0) & (found < last)]), (last, members[found == last])):
            if not among.size or last < 0:
                continue
            part = steps.part(one, number)
            cuts = [
                steps.cut(boundary, part=part, lane=number, world_size=world_size) for boundary in range(world_size + 1)
            ]
            place = position[among] - steps.lane_start - step[among] * steps.part_size
            rank[among] = np.searchsorted(cuts, place, side="right") - 1
    return Uses(step=step, rank=rank, lane=lane, position=position)


def _located(order: EpochOrder, start: int, stop: int) -> tuple[Int64, Int64]:
    return order.locate(np.arange(start, stop, dtype=np.int64))


def _check(lanes: Sequence[EpochOrder], steps: Steps) -> None:
    sizes = tuple(lane.num_samples for lane in lanes)
    if sizes != steps.lane_sizes:
        raise ValueError(f"the steps are made for lanes of {steps.lane_sizes} samples, the order has {sizes}")
