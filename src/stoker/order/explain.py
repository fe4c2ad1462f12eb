"""Which samples a step is made of: computed, without reading any data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stoker.order.epoch import EpochOrder
from stoker.order.plain import Int64
from stoker.order.shard import RankShare
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


def samples_of(lanes: Sequence[EpochOrder], steps: Steps, step: int, shard: RankShare = RankShare()) -> Samples:  # noqa: B008
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


def _located(order: EpochOrder, start: int, stop: int) -> tuple[Int64, Int64]:
    return order.locate(np.arange(start, stop, dtype=np.int64))


def _check(lanes: Sequence[EpochOrder], steps: Steps) -> None:
    sizes = tuple(lane.num_samples for lane in lanes)
    if sizes != steps.lane_sizes:
        raise ValueError(f"the steps are made for lanes of {steps.lane_sizes} samples, the order has {sizes}")
