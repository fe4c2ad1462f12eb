"""How well an order mixes: figures of sampled batches against those of a random permutation.

A window mixes only its own chunks. Whether that is enough depends on how the data lie, so it is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stoker.fields.offsets import Int64
from stoker.sampling.mixture import MixtureOrder
from stoker.sampling.steps import Samples, Steps, samples_of

# A random permutation stays within it at 65,536 samples and more: docs/concepts/order.md has the measurements.
RANDOM_CHI_SQUARE = 1.05
# Labels of a batch vary as those of a random batch of half the size would: so do its gradients.
WEAK_CHI_SQUARE = 2.0

# Returns the labels, from 0, of samples of a data set in one of its own epochs, given as places in its fixed order.
LabelOf = Callable[[int, int, Int64], npt.NDArray[np.integer]]


@dataclass(frozen=True, kw_only=True)
class DatasetShare:
    """What one data set is of an epoch, and of the batches that were looked at: mean, least and most of one batch."""

    name: str  # empty where it stands alone
    expected: float
    mean: float
    lowest: float
    highest: float
    chunks_per_window: float  # that are mixed together, mean
    chunks_per_lane: float  # that window="all" would mix together, mean


@dataclass(frozen=True, kw_only=True)
class Quality:
    """What sampled batches of an epoch look like.

    The labels of a mixture are compared with draws of each data set's samples in its share. Shares are exact at every
    1,024 samples, so chi-square may be less than 1 where data sets differ in their labels.
    """

    num_batches: int  # full ones that were looked at
    chi_square: float  # mean over the batches; see the function of this name
    num_chunks: float  # distinct ones in a batch, mean
    num_files: float
    shares: tuple[DatasetShare, ...]
    shuffle: bool

    @property
    def chunks_per_window(self) -> float:
        """Chunks of all data sets that are mixed together, mean."""
        return sum(share.chunks_per_window for share in self.shares)

    @property
    def chunks_per_lane(self) -> float:
        """Chunks of all data sets that window="all" would mix together, mean."""
        return sum(share.chunks_per_lane for share in self.shares)

    @property
    def window_for_weak(self) -> int | None:
        """The smallest `window` whose chi-square should be 2 at most; None where only the whole data set will do.

        What chi-square has above 1 comes from drawing a window's k chunks out of all K: it goes as 1 / k - 1 / K.
        """
        largest = max(self.shares, key=lambda share: share.chunks_per_lane)
        held, all_of = largest.chunks_per_window, largest.chunks_per_lane
        if self.chi_square <= 1 or held >= all_of:
            return None
        allowed = (WEAK_CHI_SQUARE - 1) / (self.chi_square - 1) * (all_of / held - 1)
        window = max(int(np.ceil(all_of / (np.floor(allowed) + 1))), 1)
        return window if window < all_of else None

    @property
    def sentence(self) -> str:
        """The answer in words; of a mixture also how far a batch is from the shares that were asked for."""
        if len(self.shares) == 1:
            return self._mixing
        worst = max(self.shares, key=lambda one: max(one.highest - one.expected, one.expected - one.lowest))
        return (
            f"{self._mixing} A batch has {worst.lowest:.1%} to {worst.highest:.1%} of {worst.name!r} where the "
            f"mixture has {worst.expected:.1%}; no data set is farther from its share."
        )

    @property
    def _mixing(self) -> str:
        figure = f"the labels of a batch vary {self.chi_square:.2f} times as much as in a random permutation"
        if self.chi_square <= RANDOM_CHI_SQUARE:
            return f"Well mixed: {figure}."
        if self.chi_square <= WEAK_CHI_SQUARE:
            return f"Nearly well mixed: {figure}; a larger window brings it closer."
        if not self.shuffle:
            return f"Not mixed: {figure}; shuffle=True would mix them."
        if self.chunks_per_window >= self.chunks_per_lane:
            return f"Badly mixed: {figure}, although all chunks are mixed together."
        window = self.window_for_weak
        remedy = 'only window="all"' if window is None else f"window={window}"
        return (
            f"Badly mixed: {figure}, because {self.chunks_per_window:.0f} chunks are too few for data that lie so; "
            f"{remedy} would bring it to {WEAK_CHI_SQUARE:.0f}."
        )


def quality(
    order: MixtureOrder,
    *,
    label_of: LabelOf,
    label_counts: Sequence[npt.ArrayLike],
    files: Int64,
    batch_size: int,
    epoch: int = 0,
    num_batches: int = 256,
) -> Quality:
    """Return how well an order mixes, from evenly spaced batches of one epoch, `num_batches` of them at most.

    Reads no data of its own. 1e9 samples take as long as 1e6, about half a second for 256 batches of 4,096.

    `label_of` tells the labels of samples, which the data sets have in common; `label_counts` are the samples of each
    label in each whole data set, shapes [C]; `files` has a number for each chunk's file, of all data sets, shape [K].

    Raises:
        ValueError: The epoch has fewer than two full batches, or fewer than two labels occur.
    """
    steps = Steps(lane_sizes=order.lane_sizes_in(epoch), global_batch_size=batch_size, remainder="drop")
    if steps.num_steps < 2:
        raise ValueError(f"{order.num_samples} samples make fewer than two batches of {batch_size}: nothing to compare")
    sizes = [one.num_samples for one in order.components]
    expected = np.zeros(np.shape(label_counts[0]))  # how often each label comes in an epoch
    for part, size, counts in zip(order.counts, sizes, label_counts, strict=True):
        expected += np.asarray(counts) * (part / max(size, 1))
    if np.count_nonzero(expected) < 2:
        raise ValueError("fewer than two labels occur: every batch is like every other")
    first_chunks = np.cumsum([0, *(len(one.chunk_starts) - 1 for one in order.components)])
    lanes = order.lanes_of_epoch(epoch)
    chi_squares, held, num_chunks, num_files = [], [], [], []
    for i in range(looked_at := min(num_batches, steps.num_steps)):
        batch = samples_of(lanes, steps, i * steps.num_steps // looked_at)
        chi_squares.append(chi_square(_labels(order, batch, label_of), expected))
        held.append(np.bincount(batch.component, minlength=len(sizes)) / batch_size)
        chunk = np.unique(first_chunks[batch.component] + batch.chunk)
        num_chunks.append(chunk.size)
        num_files.append(np.unique(files[chunk]).size)
    return Quality(
        num_batches=looked_at,
        chi_square=float(np.mean(chi_squares)),
        num_chunks=float(np.mean(num_chunks)),
        num_files=float(np.mean(num_files)),
        shares=tuple(_share(order, which, np.array(held)[:, which], epoch) for which in range(len(sizes))),
        shuffle=order.shuffle,
    )


def _labels(order: MixtureOrder, batch: Samples, label_of: LabelOf) -> Int64:
    """Return the label of each sample. Shape [B]."""
    labels = np.empty(batch.row.size, dtype=np.int64)
    for which, epoch in np.unique(np.stack([batch.component, batch.epoch], axis=1), axis=0).tolist():
        members = np.flatnonzero((batch.component == which) & (batch.epoch == epoch))
        first = order.component_in(which, epoch).chunk_starts[batch.chunk[members]]
        labels[members] = label_of(which, epoch, first + batch.row[members])
    return labels


def _share(order: MixtureOrder, which: int, held: npt.NDArray[np.float64], epoch: int) -> DatasetShare:
    """Return what a data set is of the batches, of which it has these parts."""
    lanes = [order.components[which].epoch(epoch, lane=lane) for lane in range(order.lanes)]
    num_slots = sum(lane.window_chunks(window).size for lane in lanes for window in range(lane.num_windows))
    return DatasetShare(
        name=order.names[which],
        expected=order.counts[which] / order.num_samples,
        mean=float(held.mean()),
        lowest=float(held.min()),
        highest=float(held.max()),
        chunks_per_window=num_slots / max(sum(lane.num_windows for lane in lanes), 1),
        chunks_per_lane=num_slots / len(lanes),
    )


def chi_square(labels: npt.NDArray[np.integer], label_counts: npt.NDArray[np.integer | np.floating]) -> float:
    """Return chi-square per degree of freedom of a batch's labels: 1 is what a random permutation gives on average.

    More is what batches of one kind have. A batch is drawn without replacement, so its counts vary less than
    independent draws would, by (N - B) / (N - 1); that is divided out, which makes 1 exact however small the data set.

    Args:
        labels: Labels of a batch, from 0. Shape [B].
        label_counts: Samples of each label in the whole data set. Shape [C], at least two of them not 0.
    """
    num_samples, batch_size = round(float(label_counts.sum())), labels.size
    occurring = np.flatnonzero(label_counts)
    expected = label_counts[occurring] * (batch_size / num_samples)
    seen = np.bincount(labels, minlength=label_counts.size)[occurring]
    correction = (num_samples - batch_size) / (num_samples - 1)
    return float(((seen - expected) ** 2 / expected).sum() / (occurring.size - 1) / correction)
