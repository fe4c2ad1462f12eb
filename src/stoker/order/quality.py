"""How well an order mixes: figures of sampled batches against those of a random permutation.

A window mixes only its own chunks. Whether that is enough depends on how the data lie, so it is measured: on the
worst case (data sorted by label) or on the labels of a real column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stoker.order.epoch import Order
from stoker.order.explain import Samples, samples_of
from stoker.order.plain import Int64
from stoker.order.steps import Steps

# A random permutation stays within it at 65,536 samples and more: docs/concepts/order.md has the measurements.
RANDOM_CHI_SQUARE = 1.05
# Labels of a batch vary as those of a random batch of half the size would: so do its gradients.
WEAK_CHI_SQUARE = 2.0


@dataclass(frozen=True, kw_only=True)
class Quality:
    """What sampled batches of an epoch look like.

    Attributes:
        num_batches: Full batches that were looked at.
        chi_square: Of the labels in a batch, per degree of freedom, mean over the batches; 1 for a random
            permutation (drawing without replacement is allowed for), more where batches are of one kind.
        lag_correlations: By lag: correlation of samples' places in their lane's fixed order that many rows apart in a
            batch; 0 for a random permutation.
        num_chunks: Distinct chunks in a batch, mean.
        num_files: Distinct files in a batch, mean; None where the chunks' files were not given.
        chunks_per_window: Chunks that are mixed together, mean.
        chunks_per_lane: Chunks that could be.
        shuffle: Whether the order is shuffled at all.
    """

    num_batches: int
    chi_square: float
    lag_correlations: dict[int, float]
    num_chunks: float
    num_files: float | None
    chunks_per_window: float
    chunks_per_lane: float
    shuffle: bool

    @property
    def window_for_weak(self) -> int | None:
        """The smallest `window` whose chi-square should be 2 at most; None where only the whole data set will do.

        The excess over 1 comes from the draw of a window's k chunks out of all K, so it goes as 1 / k - 1 / K.
        """
        if self.chi_square <= 1 or self.chunks_per_window >= self.chunks_per_lane:
            return None
        excess_per_draw = (self.chi_square - 1) / (1 / self.chunks_per_window - 1 / self.chunks_per_lane)
        needed = 1 / ((WEAK_CHI_SQUARE - 1) / excess_per_draw + 1 / self.chunks_per_lane)
        num_windows = int(self.chunks_per_lane // needed)
        return int(np.ceil(self.chunks_per_lane / num_windows)) if num_windows > 1 else None

    @property
    def sentence(self) -> str:
        """The answer in words, with a window that would be large enough where this one is not."""
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
    order: Order,
    *,
    batch_size: int,
    epoch: int = 0,
    num_batches: int = 256,
    label_of: Callable[[Int64, Int64], npt.NDArray[np.integer]] | None = None,
    label_counts: npt.ArrayLike | None = None,
    files: npt.ArrayLike | None = None,
) -> Quality:
    """Return how well an order mixes, from evenly spaced batches of one epoch.

    Reads no data of its own. Without labels the data count as sorted by a label of 64 equal classes: the worst case.
    1e9 samples take as long as 1e6, about half a second for 256 batches of 4,096.

    Args:
        order: The order.
        batch_size: Samples of a global batch.
        epoch: Which epoch.
        num_batches: How many batches to look at, at most.
        label_of: Labels, from 0, of samples given as chunk and row. Shape [B] each.
        label_counts: Samples of each label in the whole data set. Shape [C]. Goes with `label_of`.
        files: A number for each chunk's file. Shape [K].

    Raises:
        ValueError: The epoch has fewer than two full batches, only one of `label_of` and `label_counts` is given,
            fewer than two labels occur, or the counts are not those of the data set.

    Examples:
        >>> sorted_days = Order([1000] * 365, shuffle=True, seed=0, window=4)
        >>> round(quality(sorted_days, batch_size=256).num_chunks)
        4
    """
    num_samples = order.num_samples
    steps = Steps(lane_sizes=order.lane_sizes, global_batch_size=batch_size, remainder="drop")
    if steps.num_steps < 2:
        raise ValueError(f"{num_samples} samples make fewer than two batches of {batch_size}: nothing to compare")
    if (label_of is None) != (label_counts is None):
        raise ValueError("label_of and label_counts go together")
    if label_counts is None:
        counts = _sorted_counts(num_samples)
    else:
        counts = np.asarray(label_counts, dtype=np.int64)
        if counts.sum() != num_samples:
            raise ValueError(f"label_counts add up to {counts.sum()}, the data set has {num_samples} samples")
    if np.count_nonzero(counts) < 2:
        raise ValueError("fewer than two labels occur: every batch is like every other")

    lanes = order.lanes_of_epoch(epoch)
    num_slots = sum(lane.window_chunks(window).size for lane in lanes for window in range(lane.num_windows))
    lane_sizes = np.array(order.lane_sizes, dtype=np.int64)
    lane_starts = np.cumsum(lane_sizes) - lane_sizes
    lags = [1 << i for i in range(batch_size.bit_length() - 1)]
    chi_squares, products, distinct_chunks, distinct_files = [], np.zeros(len(lags)), [], []
    for i in range(looked_at := min(num_batches, steps.num_steps)):
        batch = samples_of(lanes, steps, i * steps.num_steps // looked_at)
        place = order.chunk_starts[batch.chunk] + batch.row
        labels = place * counts.size // num_samples if label_of is None else label_of(batch.chunk, batch.row)
        chi_squares.append(chi_square(labels, counts))
        in_lane = centred(place - lane_starts[batch.lane], lane_sizes[batch.lane])
        products += lag_products(in_lane, lags)
        distinct_chunks.append(np.unique(batch.chunk).size)
        if files is not None:
            distinct_files.append(_distinct_files(batch, files))
    return Quality(
        num_batches=looked_at,
        chi_square=float(np.mean(chi_squares)),
        lag_correlations=dict(zip(lags, (products / looked_at).tolist(), strict=True)),
        num_chunks=float(np.mean(distinct_chunks)),
        num_files=float(np.mean(distinct_files)) if distinct_files else None,
        chunks_per_window=num_slots / sum(lane.num_windows for lane in lanes),
        chunks_per_lane=num_slots / len(lanes),
        shuffle=order.shuffle,
    )


def chi_square(labels: npt.NDArray[np.integer], label_counts: npt.NDArray[np.integer | np.floating]) -> float:
    """Return chi-square per degree of freedom of a batch's labels: 1 is what a random permutation gives on average.

    A batch is drawn without replacement, so its counts vary less than independent draws would, by
    (N - B) / (N - 1); that is divided out, which makes 1 exact however small the data set.

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


def lag_correlations(place: Int64, lags: list[int], *, num_samples: int) -> dict[int, float]:
    """Return how samples that many rows apart in a batch hang together: 0 for a random permutation.

    Args:
        place: Places in the fixed order of the samples of consecutive rows. Shape [B].
        lags: Distances in rows, each below B.
        num_samples: Samples of the data set: mean and variance are those of all places, not of these.
    """
    return dict(zip(lags, lag_products(centred(place, num_samples), lags).tolist(), strict=True))


def centred(place: Int64, num_samples: int | Int64) -> npt.NDArray[np.float64]:
    """Return places among so many with mean 0 and variance 1 over all of them. Shape [B]."""
    num = np.asarray(num_samples, dtype=np.float64)
    return np.asarray((place - (num - 1) / 2) / np.sqrt(np.maximum(num**2 - 1, 1.0) / 12), dtype=np.float64)


def lag_products(place: npt.NDArray[np.float64], lags: list[int]) -> npt.NDArray[np.float64]:
    """Return the mean product of centred places that many rows apart, for each lag."""
    return np.array([np.mean(place[:-lag] * place[lag:]) for lag in lags])


def _sorted_counts(num_samples: int, num_labels: int = 64) -> Int64:
    """Return the class sizes of `place * num_labels // num_samples`."""
    borders = -(-np.arange(num_labels + 1, dtype=np.int64) * num_samples // num_labels)
    return np.diff(borders)


def _distinct_files(batch: Samples, files: npt.ArrayLike) -> int:
    return np.unique(np.asarray(files)[batch.chunk]).size
