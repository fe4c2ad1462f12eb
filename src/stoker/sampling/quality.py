"""How well an order mixes: figures of sampled batches against those of a random permutation.

A window mixes only its own chunks. Whether that is enough depends on how the data lie, so it is measured: on the
worst case (data sorted by label) or on the labels of a real column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stoker.fields.offsets import Int64
from stoker.sampling.epoch import Order
from stoker.sampling.mixture import MixtureOrder
from stoker.sampling.steps import Samples, Steps, samples_of

# A random permutation stays within it at 65,536 samples and more: docs/concepts/order.md has the measurements.
RANDOM_CHI_SQUARE = 1.05
# Labels of a batch vary as those of a random batch of half the size would: so do its gradients.
WEAK_CHI_SQUARE = 2.0

# Returns the labels, from 0, of samples of a data set in one of its own epochs, given as places in its fixed order.
LabelOf = Callable[[int, int, Int64], npt.NDArray[np.integer]]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one data set is of the batches; one that stands alone is all of them.

    Attributes:
        name: Of the data set; empty where it stands alone.
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

    def excess_with(self, window: int) -> float:
        """Return what its labels would add to chi-square with another window.

        The excess comes from the draw of a window's k chunks out of all K, so it goes as 1 / k - 1 / K.
        """
        held, all_of = self.chunks_per_window, self.chunks_per_lane
        if held >= all_of or self.excess <= 0:
            return 0.0
        return self.excess * (-(-all_of // window) - 1) / (all_of / held - 1)


@dataclass(frozen=True, kw_only=True)
class Quality:
    """What sampled batches of an epoch look like.

    The labels of a mixture are compared with draws of each data set's samples in its share. Shares are exact at every
    1,024 samples, so chi-square may be less than 1 where data sets differ in their labels.

    Attributes:
        num_batches: Full batches that were looked at.
        chi_square: Of the labels in a batch, per degree of freedom, mean over the batches; 1 for a random
            permutation (drawing without replacement is allowed for), more where batches are of one kind.
        lag_correlations: By lag: correlation of samples' places in their data set's lane's fixed order that many rows
            apart in a batch; 0 for a random permutation.
        num_chunks: Distinct chunks in a batch, mean.
        num_files: Distinct files in a batch, mean; None where the chunks' files were not given.
        shares: What each data set is of the batches.
        shuffle: Whether the order is shuffled at all.
    """

    num_batches: int
    chi_square: float
    lag_correlations: dict[int, float]
    num_chunks: float
    num_files: float | None
    shares: tuple[Share, ...]
    shuffle: bool

    @property
    def chunks_per_window(self) -> float:
        """Chunks that are mixed together, mean; of all data sets."""
        return sum(share.chunks_per_window for share in self.shares)

    @property
    def chunks_per_lane(self) -> float:
        """Chunks that could be."""
        return sum(share.chunks_per_lane for share in self.shares)

    @property
    def window_for_weak(self) -> int | None:
        """The smallest `window` whose chi-square should be 2 at most; None where only the whole data set will do."""
        if self.chi_square <= 1:
            return None
        low, high = 1, int(np.ceil(max(share.chunks_per_lane for share in self.shares)))
        while low < high:
            middle = (low + high) // 2
            is_enough = self._excess_with(middle) <= WEAK_CHI_SQUARE - 1
            low, high = (low, middle) if is_enough else (middle + 1, high)
        return low if self._excess_with(low) > 0 else None

    def _excess_with(self, window: int) -> float:
        return sum(share.excess_with(window) for share in self.shares)

    @property
    def sentence(self) -> str:
        """The answer in words, with a window that would be large enough where this one is not.

        Of a mixture also how far a batch is from the shares that were asked for.
        """
        if len(self.shares) == 1:
            return self._mixing
        worst = max(self.shares, key=lambda share: share.farthest)
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
    order: Order | MixtureOrder,
    *,
    batch_size: int,
    epoch: int = 0,
    num_batches: int = 256,
    label_of: LabelOf | None = None,
    label_counts: Sequence[npt.ArrayLike] | None = None,
    files: Sequence[npt.ArrayLike] | None = None,
) -> Quality:
    """Return how well an order mixes, from evenly spaced batches of one epoch.

    Reads no data of its own. Without labels each data set counts as sorted by a label of 64 equal classes: the worst
    case. 1e9 samples take as long as 1e6, about half a second for 256 batches of 4,096.

    Args:
        order: The order, of one data set or of a mixture.
        batch_size: Samples of a global batch.
        epoch: Which epoch.
        num_batches: How many batches to look at, at most.
        label_of: Labels of samples; data sets have their labels in common.
        label_counts: Samples of each label in each whole data set. Shape [C] each. Goes with `label_of`.
        files: A number for each chunk's file, of each data set; no two share one. Shape [K] each.

    Raises:
        ValueError: The epoch has fewer than two full batches, only one of `label_of` and `label_counts` is given,
            fewer than two labels occur, or the counts are not those of the data sets.

    Examples:
        >>> sorted_days = Order([1000] * 365, shuffle=True, seed=0, window=4)
        >>> round(quality(sorted_days, batch_size=256).num_chunks)
        4
    """
    steps = Steps(lane_sizes=order.lane_sizes, global_batch_size=batch_size, remainder="drop")
    if steps.num_steps < 2:
        raise ValueError(f"{order.num_samples} samples make fewer than two batches of {batch_size}: nothing to compare")
    counts, expected = _checked_counts(order, label_of, label_counts)
    label_of = label_of or (lambda which, _, place: place * counts[which].size // int(counts[which].sum()))
    lanes = order.lanes_of_epoch(epoch)
    lags = [1 << i for i in range(batch_size.bit_length() - 1)]
    chi_squares, held, excess, num_chunks, num_files, products = [], [], [], [], [], np.zeros(len(lags))
    for i in range(looked_at := min(num_batches, steps.num_steps)):
        batch = samples_of(lanes, steps, i * steps.num_steps // looked_at)
        labels, place = _labels(order, batch, label_of)
        chi_squares.append(chi_square(labels, expected))
        products += lag_products(place, lags)
        held.append(np.bincount(batch.component, minlength=len(counts)) / batch_size)
        excess.append(_excess(labels, batch.component, counts, expected))
        whose, chunk = _distinct(batch.component, batch.chunk)
        num_chunks.append(chunk.size)
        num_files += [np.unique(np.asarray(all_of)[chunk[whose == i]]).size for i, all_of in enumerate(files or ())]
    return Quality(
        num_batches=looked_at,
        chi_square=float(np.mean(chi_squares)),
        lag_correlations=dict(zip(lags, (products / looked_at).tolist(), strict=True)),
        num_chunks=float(np.mean(num_chunks)),
        num_files=sum(num_files) / looked_at if num_files else None,  # no two data sets share one
        shares=_shares(order, np.array(held), np.mean(excess, axis=0).tolist(), epoch),
        shuffle=order.shuffle,
    )


def _checked_counts(
    order: Order | MixtureOrder, label_of: LabelOf | None, label_counts: Sequence[npt.ArrayLike] | None
) -> tuple[list[Int64], Floats]:
    """Return the samples of each label in each data set, and what of each an epoch has. Shapes [C].

    Raises:
        ValueError: The counts are not those of the data sets, or without labels, or fewer than two labels occur.
    """
    if (label_of is None) != (label_counts is None):
        raise ValueError("label_of and label_counts go together")
    sizes = [component.num_samples for component in _components(order)]
    counts = [np.asarray(one, dtype=np.int64) for one in label_counts or map(_sorted_counts, sizes)]
    for one, size in zip(counts, sizes, strict=True):
        if one.sum() != size:
            raise ValueError(f"label_counts add up to {one.sum()}, the data set has {size} samples")
    parts = np.array(sizes if isinstance(order, Order) else order.counts) / np.maximum(sizes, 1)
    expected = np.asarray(parts @ np.array(counts, dtype=np.float64))
    if np.count_nonzero(expected) < 2:
        raise ValueError("fewer than two labels occur: every batch is like every other")
    return counts, expected


def _components(order: Order | MixtureOrder) -> tuple[Order, ...]:
    return (order,) if isinstance(order, Order) else order.components


def _distinct(component: Int64, number: Int64) -> tuple[Int64, Int64]:
    """Return the pairs of a data set and a number below 2**40 that occur, each once."""
    pairs = np.unique(component << 40 | number)
    return pairs >> 40, pairs & ((1 << 40) - 1)


def _labels(order: Order | MixtureOrder, batch: Samples, label_of: LabelOf) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the label of each sample, and its place in its lane's fixed order, centred. Shape [B] each."""
    labels, places = np.empty(batch.row.size, dtype=np.int64), np.empty(batch.row.size)
    for which, epoch in zip(*(one.tolist() for one in _distinct(batch.component, batch.epoch)), strict=True):
        members = np.flatnonzero((batch.component == which) & (batch.epoch == epoch))
        component = order if isinstance(order, Order) else order.component_in(which, epoch)
        place = component.chunk_starts[batch.chunk[members]] + batch.row[members]
        labels[members] = label_of(which, epoch, place)
        sizes = np.array(component.lane_sizes, dtype=np.int64)
        lane = batch.lane[members]
        places[members] = centred(place - (np.cumsum(sizes) - sizes)[lane], sizes[lane])
    return labels, places


def _excess(labels: npt.NDArray[np.int64], component: Int64, counts: Sequence[Int64], expected: Floats) -> list[float]:
    """Return what each data set's labels add to the chi-square of a batch beyond what random ones of it would."""
    occurring = np.flatnonzero(expected)
    num_samples, batch_size = float(expected.sum()), labels.size
    of_batch = expected[occurring] * (batch_size / num_samples)
    correction = (num_samples - batch_size) / (num_samples - 1)  # as in `chi_square`
    found = []
    for which, all_of in enumerate(counts):
        own = all_of[occurring].astype(np.float64)
        seen = np.bincount(labels[component == which], minlength=expected.size)[occurring]
        num, size = float(seen.sum()), max(float(own.sum()), 1.0)
        part = own / size
        random = num * part * (1 - part) * max(size - num, 0.0) / max(size - 1, 1.0)
        varies = ((seen - num * part) ** 2 - random) / of_batch
        found.append(float(varies.sum() / (occurring.size - 1) / correction))
    return found


def _shares(order: Order | MixtureOrder, held: Floats, excess: Sequence[float], epoch: int) -> tuple[Share, ...]:
    found = []
    for which, component in enumerate(_components(order)):
        lanes = component.lanes_of_epoch(epoch)
        num_slots = sum(lane.window_chunks(window).size for lane in lanes for window in range(lane.num_windows))
        found.append(
            Share(
                name="" if isinstance(order, Order) else order.names[which],
                expected=1.0 if isinstance(order, Order) else order.counts[which] / order.num_samples,
                mean=float(held[:, which].mean()),
                lowest=float(held[:, which].min()),
                highest=float(held[:, which].max()),
                excess=excess[which],
                chunks_per_window=num_slots / max(sum(lane.num_windows for lane in lanes), 1),
                chunks_per_lane=num_slots / len(lanes),
            )
        )
    return tuple(found)


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
