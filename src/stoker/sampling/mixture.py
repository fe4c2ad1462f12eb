"""Several data sets as one order, mixed by weights: which of them gives the sample at each position.

A data set that stands alone is a mixture of one, and its own epochs are the epochs of the mixture.

positions     0 1 2 3 4 5 6 7 │ 8 ...                      cut into blocks of about 1,024
component     a b a a a b a a │ a a b ...                  shares exact at each border, arranged by key "mixture:0"
web (a)       0   1 2 3   4 5   6 7                        each component is a stream of its own epochs,
code (b)        0       1           2                      read in its own order, epoch after epoch
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from stoker._native import mix_blocks
from stoker.fields.offsets import Int64
from stoker.hashing import order_key
from stoker.sampling.epoch import MAX_SIZE, EpochOrder, Order

Until = Literal["first", "last"]

# Positions between two borders at which the shares are exact. Small against an epoch, so that the shares hold in every
# part of it; large enough that what is done once a block (a hash, a dozen NumPy calls) costs little a position, and
# that the arrangement inside has no pattern that a batch size could fall in with.
BLOCK_SIZE = 1024

# Blocks kept: the next batch begins in the block in which this one ends.
_NUM_KEPT = 64
# Of a component with few samples, so many own epochs are opened as one as have this many samples together: opening one
# takes a quarter of a millisecond.
_MANY_SAMPLES = 4096
# Epochs of a component kept: the one in use and the next. Each has 40 bytes a chunk.
_NUM_EPOCHS_KEPT = 2


ComponentRange: TypeAlias = tuple[int, int, int, int]
"""A component, its own epoch, not the mixture's, and consecutive positions [start, stop) of that, in the lane."""


@dataclass(frozen=True)
class Leg:
    """Where in an epoch a mixture goes on with other weights, or over other files. `MixtureOrder` decides the rest.

    The rest of the epoch takes what is left of each component by the new weights, until the first one, or the last
    one, is used up. What a component gave to this epoch before counts as used.
    """

    epoch: int  # under way
    start: int  # positions of it that came before
    given: tuple[int, ...]  # how many of them each component gave
    streams: tuple[tuple[int, int], ...]  # of each component, its own epoch and the position there that comes next

    def __post_init__(self) -> None:
        numbers = self.epoch, self.start, *self.given, *(number for stream in self.streams for number in stream)
        if not 0 <= min(numbers) <= max(numbers) < 1 << 63:
            raise ValueError(f"leg has a negative number, or one of more than 63 bits: {self}")


ChunksIn = Callable[[int, int], tuple[npt.ArrayLike | None, Int64 | None]]
"""Returns the samples and the segments of a component's chunks in one of its own epochs, None where they are as always.

The samples must have the same sum in every epoch; for segments, see `Order`.
"""


def mixture_counts(
    sizes: Sequence[int],
    *,
    weights: Sequence[float | Fraction] | None,
    until: Until,
    names: Sequence[str],
) -> tuple[int, ...]:
    """Return how many samples each component gives to one epoch of the mixture.

    With weights, one component comes exactly once and sets the scale: with "first" the one that the shares use up
    first, with "last" the one they use up last. Sizes 700, 1,000, weights 7 and 3:

        until="first"    700, 300     the 700 once, 300 of the 1,000; the next epoch goes on with the other 700
        until="last"    2333, 1000    the 1,000 once, the 700 three times and a third

    The scale of the weights means nothing. Without weights every sample of every component comes once.

    Raises:
        ValueError: A weight is not a positive number, a component is empty, its share of an epoch is less than half
            a sample, or an epoch would have more than 2**62 samples.
    """
    if weights is None:
        return tuple(map(int, sizes))
    for name, size in zip(names, sizes, strict=True):
        if size < 1:
            raise ValueError(f"{name!r} has no samples, so it can have no share of a mixture: leave it out")
    counts = _counts(sizes, weights, until)
    for name, count, weight in zip(names, counts, weights, strict=True):
        if not count:
            raise ValueError(
                f"{name!r} with weight {weight} would give no sample to an epoch of {sum(counts):,}: raise its weight "
                "or leave it out"
            )
    if sum(counts) > MAX_SIZE:
        raise ValueError("an epoch of the mixture would have more than 2**62 samples")
    return counts


def _counts(sizes: Sequence[int], weights: Sequence[float | Fraction], until: Until) -> tuple[int, ...]:
    """Return counts in the shares of the weights, of which the first one, or the last one, is all of its size."""
    # By way of its text, so that 0.7 is 7 / 10 and not the nearest binary fraction.
    shares = [weight if isinstance(weight, Fraction) else Fraction(str(weight)) for weight in weights]
    if min(shares) <= 0:
        raise ValueError(f"a weight must be a positive number, not {min(shares)}")
    rounds = [Fraction(int(size)) / share for size, share in zip(sizes, shares, strict=True)]
    scale = min(rounds) if until == "first" else max(rounds)
    return tuple(int(scale * share + Fraction(1, 2)) for share in shares)


def component_seed(seed: int, name: str) -> int:
    """Return the seed by which a component is shuffled, so that no two of a mixture are shuffled alike."""
    return order_key(seed=seed, epoch=0, purpose=f"mixture:{name}")


class MixtureOrder:
    """The order of all epochs of a mixture: a function of its components' chunks, the weights and a few settings.

    Each component is a stream: its epoch 0, then its epoch 1, ..., each shuffled anew under keys of its own. An epoch
    of the mixture takes the same number of samples from each stream and leaves it where it stopped, so a component
    that is not used up goes on in the next epoch of the mixture, and no sample comes again before its whole component
    has been through (`stoker.Mixture` draws it).

    With several lanes, every lane is such a mixture of its own. Samples of a component that cannot be divided evenly
    are dealt to the lanes from the last one downwards, and the next component goes on where this one stopped, so lanes
    differ by one sample at most. Lanes round their shares at different places, so that a component with few samples in
    each lane does not come in all lanes at once.

    Not shuffled, the components are interleaved as evenly as can be. A component's keys come from its name, so no two
    are shuffled alike. Where `names` is None there is one, which stands alone: its keys come from the seed alone, and
    its lanes are as `Order` shares them out. For the other arguments see there, and `mixture_counts`.

    Raises:
        ValueError: As `Order` and `mixture_counts` say, or a component has fewer samples than there are lanes.

    Examples:
        >>> order = MixtureOrder(
        ...     [[6], [10]], names=("web", "code"), weights=(2, 1), until="first", shuffle=False, seed=0, window=None
        ... )
        >>> order.counts, order.epoch(0).components(0, 9).tolist()
        ((6, 3), [0, 1, 0, 0, 1, 0, 0, 1, 0])
    """

    def __init__(
        self,
        num_samples: Sequence[npt.ArrayLike],
        *,
        names: Sequence[str] | None,
        weights: Sequence[float | Fraction] | None,
        until: Until = "first",
        shuffle: bool,
        seed: int,
        window: int | None,
        lanes: int = 1,
    ) -> None:
        self.is_alone, self.names = names is None, ("",) if names is None else tuple(names)
        self.shuffle, self.window, self.lanes, self.seed = shuffle, window, lanes, seed
        alone = [self._component(counts, component) for component, counts in enumerate(num_samples)]
        self.weights, self.until = weights, until
        self.leg: Leg | None = None
        self.chunks_in: ChunksIn | None = None
        self.counts = mixture_counts(
            [order.num_samples for order in alone], weights=weights, until=until, names=self.names
        )
        self.rest: tuple[int, ...] = ()
        firsts = list(accumulate((count % self.lanes for count in self.counts[:-1]), initial=0))
        self.components: tuple[Order, ...] = tuple(
            order if self.is_alone else order.with_lane_sizes(_dealt(order.num_samples, self.lanes, first))
            for order, first in zip(alone, firsts, strict=True)
        )
        by_component = [
            self.components[0].lane_sizes if self.is_alone else _dealt(count, self.lanes, first)
            for count, first in zip(self.counts, firsts, strict=True)
        ]
        # Of each lane, how many samples each component gives to an epoch.
        self.lane_counts: tuple[tuple[int, ...], ...] = tuple(zip(*by_component, strict=True))
        # Of each lane, where between two borders it rounds each component's share.
        self.lane_phases = tuple(zip(*(_phases(counts, turn) for turn, counts in enumerate(by_component)), strict=True))
        for name, order, counts in zip(self.names, self.components, by_component, strict=True):
            if any(count and not size for count, size in zip(counts, order.lane_sizes, strict=True)):
                raise ValueError(
                    f"{name!r} has {order.num_samples} sample{'s' * (order.num_samples != 1)}, too few to share out "
                    f"among {lanes} lanes: use fewer lanes, or leave it out"
                )

    def _component(self, num_samples: npt.ArrayLike, component: int, segments: Int64 | None = None) -> Order:
        return Order(
            num_samples,
            shuffle=self.shuffle,
            seed=self.seed if self.is_alone else component_seed(self.seed, self.names[component]),
            window=self.window,
            lanes=self.lanes,
            segments=segments,
        )

    def going_on(self, leg: Leg | None = None, *, chunks_in: ChunksIn | None = None) -> MixtureOrder:
        """Return the same order, that goes on from what another mixture left, or whose chunks differ in some epochs.

        Raises:
            ValueError: There is a leg, and there are several lanes.
        """
        other = copy.copy(self)
        other.leg, other.chunks_in = leg, chunks_in
        if leg is not None:
            if self.lanes > 1:
                raise ValueError("a mixture in lanes cannot go on from another one")
            left = [max(one.num_samples - gave, 0) for one, gave in zip(self.components, leg.given, strict=True)]
            other.rest = tuple(left) if self.weights is None else _counts(left, self.weights, self.until)
        return other

    @property
    def lane_sizes(self) -> tuple[int, ...]:
        """Samples of each lane in an epoch; they differ by one at most."""
        return tuple(sum(counts) for counts in self.lane_counts)

    @property
    def num_samples(self) -> int:
        """Samples of an epoch, over all lanes: what its steps share out."""
        return sum(self.counts)

    def lane_sizes_in(self, epoch: int) -> tuple[int, ...]:
        """Return the samples of each lane in one epoch; in a leg's epoch, those that came before it and the rest."""
        if self.is_alone:
            return self.component_in(0, epoch).lane_sizes
        if self.leg is not None and self.leg.epoch == epoch:
            return (self.leg.start + sum(self.rest),)
        return self.lane_sizes

    def streams_in(self, epoch: int, lane: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return, of each component in a lane, the samples of an epoch of its own, of this epoch, and of those before.

        Where the epoch has a leg, what it gives to the leg, and what it gave before that.
        """
        if self.is_alone:  # whose lanes may be of other sizes in an epoch that files were added to
            size = self.lane_sizes_in(epoch)[lane]
            return (size,), (size,), (epoch * size,)
        sizes = tuple(component.lane_sizes[lane] for component in self.components)
        counts, leg = self.lane_counts[lane], self.leg
        if leg is None or epoch < leg.epoch:
            return sizes, counts, tuple(epoch * count for count in counts)
        begins = tuple(own * size + place for (own, place), size in zip(leg.streams, sizes, strict=True))
        if epoch == leg.epoch:
            return sizes, self.rest, begins
        more = zip(begins, self.rest, counts, strict=True)
        return sizes, counts, tuple(begin + rest + (epoch - leg.epoch - 1) * count for begin, rest, count in more)

    def component_in(self, component: int, epoch: int) -> Order:
        """Return the order of a component in one of its own epochs."""
        order = self.components[component]
        counts, segments = (None, None) if self.chunks_in is None else self.chunks_in(component, epoch)
        if counts is None and segments is None:
            return order
        found = self._component(np.diff(order.chunk_starts) if counts is None else counts, component, segments)
        return found if self.is_alone or segments is not None else found.with_lane_sizes(order.lane_sizes)

    def epoch(self, epoch: int, *, lane: int = 0) -> MixtureEpoch:
        """Return the order of one lane in one epoch; that of a component is worked out when it is first needed."""
        return MixtureEpoch(self, epoch=epoch, lane=lane)

    def lanes_of_epoch(self, epoch: int) -> tuple[MixtureEpoch, ...]:
        """Return the orders of all lanes in one epoch, lane 0 first."""
        return tuple(self.epoch(epoch, lane=lane) for lane in range(self.lanes))


class MixtureEpoch:
    """The order of one lane in one epoch of a mixture: position -> component, and its sample.

    The epoch's m positions are cut into J = ceil(m / 1024) blocks. Before block j, component d with c samples an epoch
    has given floor(c * j / J + p) of them, where p is 1/2: so its share is exact to half a sample at every border. With
    lanes, those n of them that have the same c have p = 1/2n, 3/2n, ..., so that together they are as exact.
    Which of a block's positions are whose is a permutation under a key of its own. Each component's samples then come
    in its own order, so a slice of positions is one slice of each component's stream.

    Immutable but for what it remembers; threads may share it. Made by `MixtureOrder.epoch`.
    """

    def __init__(self, order: MixtureOrder, *, epoch: int, lane: int) -> None:
        self.epoch, self.lane = epoch, lane
        self._order, self._phases = order, order.lane_phases[lane]
        self._sizes, self._counts, self._begins = order.streams_in(self.epoch, lane)
        # Positions before the leg, in its epoch, which another mixture decided; blocks are counted from there.
        self.first = order.leg.start if order.leg is not None and order.leg.epoch == self.epoch else 0
        self._size = sum(self._counts)
        self.num_samples = self.first + self._size
        self._num_blocks = -(-self._size // BLOCK_SIZE)
        self._purpose = f"lane:{lane}:mixture" if order.lanes > 1 else "mixture"
        if self.first:
            self._purpose = f"leg:{self.first}:{self._purpose}"
        self._num_together = (1,) * len(self._sizes)
        self._block = lru_cache(maxsize=_NUM_KEPT)(self._arranged_block)
        # Asked for where a batch ends, where the next one begins, and when it is passed.
        self.given_before = lru_cache(maxsize=_NUM_KEPT)(self._given_before)
        self.component_epoch = lru_cache(maxsize=_NUM_EPOCHS_KEPT * len(order.components))(self._component_epoch)

    def few_long_epochs(self) -> MixtureEpoch:
        """Return the same, with several own epochs counted as one where a component has few samples in one chunk."""
        order, other = self._order, copy.copy(self)
        if not (order.is_alone or order.chunks_in is not None):  # whose epochs are the mixture's, or are not all alike
            is_one = [sum(len(chunks) for chunks, _, _ in one.held(self.lane)) == 1 for one in order.components]
            other._num_together = tuple(
                max(1, _MANY_SAMPLES // size) if has_one else 1
                for size, has_one in zip(self._sizes, is_one, strict=True)
            )
        other._sizes = tuple(size * num for size, num in zip(self._sizes, other._num_together, strict=True))
        other.component_epoch = lru_cache(self.component_epoch.cache_parameters()["maxsize"])(other._component_epoch)
        return other

    def components(self, start: int, stop: int) -> Int64:
        """Return the component of each position in [start, stop). Shape [B]."""
        if start == stop or len(self._counts) == 1:
            return np.zeros(stop - start, dtype=np.int64)
        start, stop = start - self.first, stop - self.first
        first, last = self._block_of(start), self._block_of(stop - 1)
        begin = start - sum(self._before(first))
        if first == last:  # small batches have many neighbours in a block
            return self._block(first)[begin : begin + stop - start]
        return self._arranged(first, last + 1, begin, stop - start)

    def component_ranges(self, start: int, stop: int) -> tuple[ComponentRange, ...]:
        """Return what each component gives to positions [start, stop): none is empty, components in order.

        The samples at the positions where `components` says d are those of d's ranges, one after the other.
        """
        found: list[ComponentRange] = []
        given = zip(self.given_before(start), self.given_before(stop), strict=True)
        for component, (first, last) in enumerate(given):
            size, begin = self._sizes[component], self._begins[component]
            while first < last:
                number, at = divmod(begin + first, size)
                taken = min(last - first, size - at)
                found.append((component, number, at, at + taken))
                first += taken
        return tuple(found)

    def streams_at(self, position: int) -> tuple[tuple[int, int], ...]:
        """Return of each component which of its own epochs, and which position there, comes next at a position."""
        return tuple(
            divmod(begin + done, size) if size else (0, 0)
            for done, begin, size in zip(self.given_before(position), self._begins, self._sizes, strict=True)
        )

    def position_of(self, component: int, epoch: int, place: int) -> int | None:
        """Return where in this epoch a position of a component's own epoch stands; None where it does not."""
        ordinal = epoch * self._sizes[component] + place - self._begins[component]
        return self.first_use(component, epoch, place) if 0 <= ordinal < self._counts[component] else None

    def first_use(self, component: int, epoch: int, place: int) -> int:
        """Return at which position of this epoch a component's own epoch has come to a place, or is beyond it."""
        ordinal, count = epoch * self._sizes[component] + place - self._begins[component], self._counts[component]
        if not 0 <= ordinal < count:
            return self.first if ordinal < 0 else self.num_samples
        if len(self._counts) == 1:
            return self.first + ordinal
        # The last block before which it has not been given: one less than the smallest j with
        # c * j / J + p >= ordinal + 1. It is computed, not searched: a rare component gives nothing in most blocks.
        part, whole = self._phases[component]
        block = -(-self._num_blocks * (whole * (ordinal + 1) - part) // (count * whole)) - 1
        before = self._before(block)
        inside = int(np.flatnonzero(self._block(block) == component)[ordinal - before[component]])
        return self.first + sum(before) + inside

    def samples(self, start: int, stop: int) -> tuple[Int64, Int64, Int64, Int64]:
        """Return component, its own epoch, chunk and row at positions [start, stop). Shape [B] each."""
        component = self.components(start, stop)
        epoch, chunk, row = (np.empty_like(component) for _ in range(3))
        places = [np.flatnonzero(component == number) for number in range(len(self._sizes))]
        for number, own_epoch, first, last in self.component_ranges(start, stop):
            members, places[number] = np.split(places[number], [last - first])
            epoch[members] = own_epoch
            chunk[members], row[members] = self.component_epoch(number, own_epoch).locate(np.arange(first, last))
        return component, epoch, chunk, row

    def own_epochs(self, component: int) -> range:
        """Return which of its own epochs a component gives samples of to this epoch, in this lane."""
        size, count, begin = self._sizes[component], self._counts[component], self._begins[component]
        return range(begin // size, -(-(begin + count) // size)) if size and count else range(0)

    def _component_epoch(self, component: int, epoch: int) -> EpochOrder:
        """Return the order of this lane of a component in one of its own epochs; the last ones are kept."""
        num, order = self._num_together[component], self._order.component_in(component, epoch)
        return order.epoch(epoch * num, lane=self.lane, num_epochs=num)

    def _arranged_block(self, block: int) -> Int64:
        """Return the component at each place of a block."""
        arranged = self._arranged(block, block + 1, 0, sum(self._before(block + 1)) - sum(self._before(block)))
        arranged.setflags(write=False)
        return arranged

    def _arranged(self, first: int, last: int, begin: int, num: int) -> Int64:
        """Return the component at some places of blocks [first, last), counted from the first's beginning."""
        borders = np.array([self._before(block) for block in range(first, last + 1)], dtype=np.int64)
        counts = borders[1:] - borders[:-1]
        if self._order.shuffle:
            purposes = (f"{self._purpose}:{block}" for block in range(first, last))
            keys = [order_key(seed=self._order.seed, epoch=self.epoch, purpose=purpose) for purpose in purposes]
            arranged = np.empty(num, dtype=np.int64)
            mix_blocks(counts, np.array(keys, dtype=np.uint64), begin, arranged)
            return arranged
        return np.concatenate([_interleaved(block, self._phases) for block in counts.tolist()])[begin : begin + num]

    def _before(self, block: int) -> tuple[int, ...]:
        """Return how many samples each component has given when a block begins: floor(c * j / J + p)."""
        num_blocks = max(self._num_blocks, 1)
        return tuple(
            (count * block * whole + part * num_blocks) // (num_blocks * whole)
            for count, (part, whole) in zip(self._counts, self._phases, strict=True)
        )

    def _block_of(self, position: int) -> int:
        # Borders lie within a sample a component of j * m / J, so the first guess is right or nearly so.
        block = position * self._num_blocks // self._size
        while sum(self._before(block)) > position:
            block -= 1
        while sum(self._before(block + 1)) <= position:
            block += 1
        return block

    def _given_before(self, position: int) -> tuple[int, ...]:
        """Return how many samples each component has given before a position, or before the end, from `first` on."""
        position -= self.first
        if not 0 <= position <= self._size:
            raise ValueError(f"position {position} lies outside [0, {self._size}]")
        if len(self._counts) == 1:
            return (position,)
        if position == self._size:
            return self._counts
        block = self._block_of(position)
        before = self._before(block)
        counts = np.bincount(self._block(block)[: position - sum(before)], minlength=len(before)).tolist()
        return tuple(n + m for n, m in zip(before, counts, strict=True))


def _interleaved(counts: Sequence[int], phases: Sequence[tuple[int, int]]) -> Int64:
    """Return whose each place of a block is where nothing is shuffled.

    Sample k of n belongs at (k + p) / n of the block. Equal places are equal floats: division is exact to the last bit
    everywhere.
    """
    whose = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    places = [(np.arange(count) + part / whole) / count for count, (part, whole) in zip(counts, phases, strict=True)]
    return whose[np.argsort(np.concatenate([np.empty(0), *places]), kind="stable")]


def _dealt(total: int, lanes: int, first: int) -> tuple[int, ...]:
    """Return equal shares of `total`, the rest dealt one each from lane `lanes - 1 - first` downwards, around."""
    sizes = [total // lanes] * lanes
    for i in range(total % lanes):
        sizes[(lanes - 1 - first - i) % lanes] += 1
    return tuple(sizes)


def _phases(counts: Sequence[int], turn: int) -> list[tuple[int, int]]:
    """Return by what each lane rounds a component's share: evenly spread over the lanes that give as many samples.

    A fraction, as the numbers above and below its line, that is added before a share is cut to an integer: 1 and 2
    round to the nearest. `turn` says which of these lanes comes first: another one for each component.
    """
    num_alike, num_before, phases = Counter(counts), Counter[int](), []
    for count in counts:
        number = (num_before[count] + turn) % num_alike[count]
        phases.append((2 * number + 1, 2 * num_alike[count]))
        num_before[count] += 1
    return phases
