"""Which samples a step is made of: computed, without reading any data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stoker.fields.offsets import Int64
from stoker.sampling.epoch import EpochOrder
from stoker.sampling.mixture import MixtureEpoch
from stoker.sampling.shard import RankShare
from stoker.sampling.steps import Steps


class Samples(NamedTuple):
    """The samples of a batch, in the order in which they are delivered. Shape [B] each.

    Attributes:
        lane: Lane that gives the sample.
        component: Number of its data set in a mixture, else 0.
        epoch: That data set's own epoch.
        chunk: Its chunk, in fixed order.
        row: Its row in that chunk.
        is_padding: Whether it only fills the batch.
    """

    lane: Int64
    component: Int64
    epoch: Int64
    chunk: Int64
    row: Int64
    is_padding: npt.NDArray[np.bool_]


def samples_of(
    lanes: Sequence[EpochOrder] | Sequence[MixtureEpoch],
    steps: Steps,
    step: int,
    shard: RankShare = RankShare(),  # noqa: B008  frozen
) -> Samples:
    """Return every sample of a step on a rank; for one rank of one, of the global batch.

    Args:
        lanes: The epoch's order: `Order.lanes_of_epoch(epoch)`, or a mixture's.
        steps: The epoch's steps.
        step: Which of them.
        shard: Rank and world size.

    Raises:
        ValueError: There is no such step, or `steps` belong to other lanes.
    """
    sizes = tuple(lane.num_samples for lane in lanes)
    if sizes != steps.lane_sizes:
        raise ValueError(f"the steps are made for lanes of {steps.lane_sizes} samples, the order has {sizes}")
    nothing = np.empty(0, dtype=np.int64)
    parts = [Samples(nothing, nothing, nothing, nothing, nothing, nothing.astype(np.bool_))]
    for lane, start, stop, is_padding in steps.slices(step, shard):
        located = lanes[lane].samples(start, stop)
        parts.append(Samples(np.full(stop - start, lane), *located, is_padding=np.full(stop - start, is_padding)))
    return Samples(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
