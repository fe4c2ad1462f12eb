"""How well the order of a mixture mixes: labels over all data sets, and the share of each in a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stoker.order.mixed import MixedSamples, mixed_samples_of
from stoker.order.mixture import MixtureOrder
from stoker.order.plain import Int64
from stoker.order.quality import WEAK_CHI_SQUARE, Quality, centred, chi_square, lag_products
from stoker.order.steps import Steps

# Returns the labels, from 0, of samples of one component in one of its own epochs, given as chunk and row.
LabelOf = Callable[[int, int, Int64, Int64], npt.NDArray[np.integer]]


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one data set of a mixture is of the batches.

    Attributes:
        name: Of the data set.
        expected: Its part of an epoch.
        mean: Its part of the batches that were looked at.
        lowest: The smallest part that it has of one of them.
        highest: The largest.
        excess: What its labels add to chi-square because batches hold too few of its chunks; 0 where it is well mixed.
        chunks_per_window: Chunks of it that are mixed together, mean.
        chunks_per_lane: Chunks that could be.
    """

    name: str
    expected: float
    mean: float
    lowest: float
    highest: float
    excess: float
    chunks_per_window: float
    chunks_per_lane: float

    @property
    def farthest(self) -> float:
        """How far a batch's part is from the expected one, at most."""
        return max(self.highest - self.expected, self.expected - self.lowest)


@dataclass(frozen=True, kw_only=True)
class MixtureQuality(Quality):
    """What sampled batches of an epoch of a mixture look like.

    Labels are compared with draws of each data set's samples in its share. Shares are exact at every 1,024 samples, so
    chi-square may be less than 1 where data sets differ in their labels. The chunks of a window, and those that could
    be, are those of all data sets. Places that are correlated are those in each data set's fixed order, in its lane.

    Attributes:
        shares: What each data set is of the batches.
    """

    shares: tuple[Share, ...]

    @property
    def window_for_weak(self) -> int | None:
        """The smallest `window` whose chi-square should be 2 at most; None where only whole data sets will do.

        As for one data set, but each has an excess of its own.
        """
        allowed = WEAK_CHI_SQUARE - 1
        if self._excess(None) <= 0 or self.chi_square <= 1:
            return None
        low, high = 1, int(max(share.chunks_per_lane for share in self.shares))
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._excess(middle) <= allowed else (middle + 1, high)
        return low if self._excess(low) > 0 else None

    def _excess(self, window: int | None) -> float:
        """Return what drawing a window's chunks out of all of them adds to chi-square; with None, as it is."""
        total = 0.0
        for share in self.shares:
            held, all_of = share.chunks_per_window, share.chunks_per_lane
            drawn = 1 / held - 1 / all_of if held else 0.0
            if drawn <= 0:
                continue
            other = held if window is None else all_of / -(-all_of // window)
            total += max(share.excess, 0.0) * (1 / other - 1 / all_of) / drawn
        return total

    @property
    def sentence(self) -> str:
        """The answer in words, and how far a batch is from the shares that were asked for."""
        worst = max(self.shares, key=lambda share: share.farthest)
        return (
            f"{super().sentence} A batch has {worst.lowest:.1%} to {worst.highest:.1%} of {worst.name!r} where the "
            f"mixture has {worst.expected:.1%}; no data set is farther from its share."
        )


def mixture_quality(
    order: MixtureOrder,
    *,
    batch_size: int,
    label_of: LabelOf,
    label_counts: Sequence[npt.ArrayLike],
    epoch: int = 0,
    num_batches: int = 256,
    files: Sequence[npt.ArrayLike] | None = None,
) -> MixtureQuality:
    """Return how well a mixture mixes, from evenly spaced batches of one epoch; reads no data of its own.

    Args:
        order: The order.
        batch_size: Samples of a global batch.
        label_of: Labels of samples.
        label_counts: Samples of each label in each whole component. Shape [C] each.
        epoch: Which epoch of the mixture.
        num_batches: How many batches to look at, at most.
        files: A number for each chunk's file, of each component; no two components share one. Shape [K] each.

    Raises:
        ValueError: The epoch has fewer than two full batches, or fewer than two labels occur.
    """
    steps = Steps(lane_sizes=order.lane_sizes, global_batch_size=batch_size, remainder="drop")
    if steps.num_steps < 2:
        raise ValueError(f"{order.num_samples} samples make fewer than two batches of {batch_size}: nothing to compare")
    expected = np.zeros(len(np.asarray(label_counts[0])), dtype=np.float64)
    for counts, num in zip(label_counts, order.counts, strict=True):
        found = np.asarray(counts, dtype=np.float64)
        expected += found * (num / max(found.sum(), 1.0))
    if np.count_nonzero(expected) < 2:
        raise ValueError("fewer than two labels occur: every batch is like every other")

    lanes = order.lanes_of_epoch(epoch)
    lags = [1 << i for i in range(batch_size.bit_length() - 1)]
    chi_squares, parts, excess, chunks, distinct_files = [], [], [], [], []
    products = np.zeros(len(lags))
    for i in range(looked_at := min(num_batches, steps.num_steps)):
        batch = mixed_samples_of(lanes, steps, i * steps.num_steps // looked_at)
        labels, place = _labels(order, batch, label_of)
        chi_squares.append(chi_square(labels, expected))
        products += lag_products(place, lags)
        parts.append(np.bincount(batch.component, minlength=len(order.names)) / batch_size)
        excess.append(_excess(labels, batch.component, label_counts, expected))
        chunks.append(np.unique(np.stack([batch.component, batch.chunk]), axis=1).shape[1])
        if files is not None:
            numbers = [np.asarray(files[w])[batch.chunk[batch.component == w]] for w in range(len(order.names))]
            distinct_files.append(np.unique(np.concatenate(numbers)).size)
    shares = _shares(order, np.array(parts), np.mean(excess, axis=0).tolist(), epoch)
    return MixtureQuality(
        num_batches=looked_at,
        chi_square=float(np.mean(chi_squares)),
        lag_correlations=dict(zip(lags, (products / looked_at).tolist(), strict=True)),
        num_chunks=float(np.mean(chunks)),
        num_files=float(np.mean(distinct_files)) if distinct_files else None,
        chunks_per_window=sum(share.chunks_per_window for share in shares),
        chunks_per_lane=sum(share.chunks_per_lane for share in shares),
        shuffle=order.shuffle,
        shares=shares,
    )


def _labels(
    order: MixtureOrder, batch: MixedSamples, label_of: LabelOf
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the label of each sample, and its place in its component's fixed order, centred. Shape [B] each."""
    labels, place = np.empty(batch.row.size, dtype=np.int64), np.empty(batch.row.size)
    for which, epoch in sorted(set(zip(batch.component.tolist(), batch.epoch.tolist(), strict=True))):
        members = np.flatnonzero((batch.component == which) & (batch.epoch == epoch))
        chunk, row = batch.chunk[members], batch.row[members]
        component = order.component_in(which, epoch)
        labels[members] = label_of(which, epoch, chunk, row)
        sizes = np.array(component.lane_sizes, dtype=np.int64)
        starts, lane = np.cumsum(sizes) - sizes, batch.lane[members]
        place[members] = centred(component.chunk_starts[chunk] + row - starts[lane], sizes[lane])
    return labels, place


def _excess(
    labels: npt.NDArray[np.int64],
    component: Int64,
    label_counts: Sequence[npt.ArrayLike],
    expected: npt.NDArray[np.float64],
) -> list[float]:
    """Return what each component's labels add to the chi-square of a batch beyond what random ones of it would."""
    occurring = np.flatnonzero(expected)
    of_batch = expected[occurring] * (labels.size / expected.sum())
    found = []
    for which, counts in enumerate(label_counts):
        own = np.asarray(counts, dtype=np.float64)[occurring]
        seen = np.bincount(labels[component == which], minlength=expected.size)[occurring]
        num, size = float(seen.sum()), max(float(own.sum()), 1.0)
        part = own / size
        random = num * part * (1 - part) * max(size - num, 0.0) / max(size - 1, 1.0)
        found.append(float((((seen - num * part) ** 2 - random) / of_batch).sum() / (occurring.size - 1)))
    return found


def _shares(
    order: MixtureOrder, parts: npt.NDArray[np.float64], excess: Sequence[float], epoch: int
) -> tuple[Share, ...]:
    found = []
    for which, name in enumerate(order.names):
        lanes = [order.components[which].epoch(epoch, lane=lane) for lane in range(order.lanes)]
        num_windows = sum(lane.num_windows for lane in lanes)
        num_slots = sum(lane.window_chunks(window).size for lane in lanes for window in range(lane.num_windows))
        found.append(
            Share(
                name=name,
                expected=order.counts[which] / order.num_samples,
                mean=float(parts[:, which].mean()),
                lowest=float(parts[:, which].min()),
                highest=float(parts[:, which].max()),
                excess=excess[which],
                chunks_per_window=num_slots / max(num_windows, 1),
                chunks_per_lane=num_slots / len(lanes),
            )
        )
    return tuple(found)
