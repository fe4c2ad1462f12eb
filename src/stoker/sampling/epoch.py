"""Which sample stands at which position of an epoch: chunks permuted, cut into windows, samples permuted inside each.

The permutation is a bijection computed on the fly: no table, constant memory, the same on every machine. Its
specification is in docs/reference/order.md.

fixed order   chunk 0 │ chunk 1 │ chunk 2 │ chunk 3 │ chunk 4        path, then fragment: never changes
                  ╲ permuted by key "chunks" ╱
slots         chunk 3 │ chunk 0 │ chunk 4 │ chunk 2 │ chunk 1        whole chunks, one epoch's order
              └──── window 0 ───┘ └──────── window 1 ───────┘        read and held together
                  ╲ samples permuted by key "window:0", "window:1" ╱
positions     0 1 2 3 ...        │ window_starts[1] ...              what a step is a slice of
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stoker._native import WindowOrder, permute, unpermute
from stoker.fields.offsets import Int64, offsets_of
from stoker.hashing import order_key
from stoker.host.forks import cached_property

# With more, the domain that a permutation walks, up to twice as large, would not fit a signed 64-bit index.
MAX_SIZE = 1 << 62
# Buckets of positions per slot: with 4, three positions out of four need no comparison at all.
_BUCKETS_PER_SLOT = 4


class Order:
    """The order of all epochs: a function of the chunks' sizes and five settings, and of nothing else.

    A lane is a fixed equal share of the samples in their fixed order. Each lane is shuffled for itself, and gives an
    equal part of every batch, so that a node that feeds one lane never needs another lane's chunks. With 11 samples
    and 3 lanes, lane l has samples [l * 11 // 3, (l + 1) * 11 // 3):

        chunk      │ 0           │ 1     │ 2             │ 3         │
        sample     │ 0   1   2   │ 3   4 │ 5   6   7   8 │ 9  10     │
        lane       │ 0   0   0   │ 1   1 │ 1   1   2   2 │ 2   2     │   sizes 3, 4, 4: never more than one apart
                                          └───── chunk 2 lies on a border: rows 0-1 in lane 1, rows 2-3 in lane 2

    Args:
        num_samples: Samples of each chunk in fixed order; 0 is allowed. Shape [K].
        shuffle: Whether epochs are permuted; if not, every epoch is the fixed order.
        seed: Any integer. Two seeds have nothing in common, whatever their epochs.
        window: At most how many chunks are mixed together; None mixes the whole lane. The slots are cut into as few
            windows as that allows, of equal numbers of chunks (never more than one apart).
        lanes: How many lanes. They belong to the order: another number of lanes gives other batches.
        segments: For an epoch to which chunks were added while it was under way: for each chunk the number, from 0, of
            the segment that it came with; None where all were there. Shape [K]. The segments come one after the other,
            each shuffled for itself, so that what came before stays as it was.

    Raises:
        ValueError: There are more than 2**62 samples.

    Examples:
        >>> order = Order([3, 2, 4, 2], shuffle=False, seed=0, window=2)
        >>> chunk, row = order.epoch(0).locate([0, 4, 5])
        >>> chunk.tolist(), row.tolist()
        ([0, 1, 2], [0, 1, 0])
    """

    def __init__(
        self,
        num_samples: npt.ArrayLike,
        *,
        shuffle: bool,
        seed: int,
        window: int | None,
        lanes: int = 1,
        segments: Int64 | None = None,
    ) -> None:
        counts = np.asarray(num_samples, dtype=np.int64)
        if float(counts.sum(dtype=np.float64)) > MAX_SIZE:
            raise ValueError("more than 2**62 samples")
        self.chunk_starts = offsets_of(counts)
        self.chunk_starts.setflags(write=False)
        self.shuffle, self.seed, self.window, self.lanes = shuffle, seed, window, lanes
        self._held: dict[int, list[tuple[Int64, Int64, Int64]]] = {}  # what `held` returned: the same in every epoch
        self._members: tuple[Int64, ...] = (np.arange(counts.size, dtype=np.int64),)
        if segments is not None:
            by_number = [np.flatnonzero(segments == number).astype(np.int64) for number in np.unique(segments)]
            self._members = tuple(by_number) or self._members

    @property
    def num_samples(self) -> int:
        """Samples of an epoch, over all lanes."""
        return int(self.chunk_starts[-1])

    @cached_property
    def lane_sizes(self) -> tuple[int, ...]:
        """Samples of each lane; they differ by one at most."""
        return tuple(map(sum, zip(*self._segment_sizes, strict=True)))

    @cached_property
    def _segment_sizes(self) -> list[tuple[int, ...]]:
        return shares([int(np.diff(self.chunk_starts)[members].sum()) for members in self._members], self.lanes)

    def with_lane_sizes(self, lane_sizes: tuple[int, ...]) -> Order:
        """Return the same order in lanes of these sizes, each of which is an equal share, give or take one sample."""
        other = copy.copy(self)
        other.lane_sizes, other._segment_sizes, other._held = lane_sizes, [lane_sizes], {}
        return other

    def held(self, lane: int) -> list[tuple[Int64, Int64, Int64]]:
        """Return what a lane has in each segment: chunks in fixed order, their first rows and numbers of rows."""
        if lane in self._held:
            return self._held[lane]
        found = []
        for members, sizes in zip(self._members, self._segment_sizes, strict=True):
            starts = offsets_of(np.diff(self.chunk_starts)[members])
            first = sum(sizes[:lane])
            last = first + sizes[lane]
            low = max(int(np.searchsorted(starts, first, side="right")) - 1, 0)
            high = min(int(np.searchsorted(starts, last, side="left")), members.size)
            begins, ends = np.maximum(starts[low:high], first), np.minimum(starts[low + 1 : high + 1], last)
            filled = np.flatnonzero(ends > begins)
            found.append((members[low:high][filled], (begins - starts[low:high])[filled], (ends - begins)[filled]))
        self._held[lane] = found
        return found

    def epoch(self, epoch: int, *, lane: int = 0, num_epochs: int = 1) -> EpochOrder:
        """Return the order of one lane in one epoch.

        For a lane with one chunk, `num_epochs` epochs may be taken as one: positions count through all of them.
        Costs a few milliseconds for 100,000 chunks, and 40 bytes a chunk as long as it is kept.
        """
        return EpochOrder(self, epoch=epoch, lane=lane, num_epochs=num_epochs)


def shares(segments: Sequence[int], lanes: int) -> list[tuple[int, ...]]:
    """Return how many samples each lane has of each segment; lanes never differ by more than one in all."""
    first, *others = segments
    found = [tuple((lane + 1) * first // lanes - lane * first // lanes for lane in range(lanes))]
    totals = [*found[0]]
    for num_samples in others:
        # What the division leaves over goes to the lanes that have fewest so far.
        by_total = sorted(range(lanes), key=totals.__getitem__)
        odd = by_total[: num_samples % lanes]
        found.append(tuple(num_samples // lanes + (lane in odd) for lane in range(lanes)))
        totals = [total + size for total, size in zip(totals, found[-1], strict=True)]
    return found


class EpochOrder:
    """The order of one lane in one epoch: a bijection between positions and (chunk, row).

    Positions count from 0 in each lane. Immutable, so threads may share it. Made by `Order.epoch`.

    Attributes:
        num_windows: Windows of this lane; none of them is empty.
        window_starts: Position at which each window begins, and the end. Shape [num_windows + 1].
    """

    def __init__(self, order: Order, *, epoch: int, lane: int, num_epochs: int = 1) -> None:
        self.epoch, self.lane = epoch, lane
        self._shuffle, self._seed = order.shuffle, order.seed
        self._purpose = f"lane:{lane}:" if order.lanes > 1 else ""

        # The lane's slots: chunk, first row and number of rows of each, segment by segment.
        segments = order.held(lane)
        held, rows, sizes = (np.concatenate(found) for found in zip(*segments, strict=True))
        of_slot, window_slots, before = np.empty_like(held), [np.zeros(1, dtype=np.int64)], 0
        for segment, (chunks, _, _) in enumerate(segments):
            inside = np.arange(chunks.size, dtype=np.int64)
            places = inside.copy()
            if self._shuffle:
                key = self._key(f"segment:{segment}:chunks" if segment else "chunks", self.epoch)
                permute(inside, 0, chunks.size, key, places)
            of_slot[before + places] = before + inside
            num_windows = min(chunks.size, 1 if order.window is None else -(-chunks.size // order.window))
            window_slots.append(before + np.arange(1, num_windows + 1) * chunks.size // max(num_windows, 1))
            before += chunks.size
        self._window_slots: Int64 = np.concatenate(window_slots)
        self.num_windows = self._window_slots.size - 1
        num_slots = of_slot.size
        self._slot_counts: Int64 = sizes[of_slot]
        self._slot_chunks: Int64 = held[of_slot]
        self._slot_starts: Int64 = offsets_of(self._slot_counts)[:-1]
        self._row_shifts: Int64 = rows[of_slot] - self._slot_starts
        size, self._num_epochs = order.lane_sizes[lane], num_epochs
        self.num_samples = size * num_epochs
        self.window_starts: Int64 = np.append(self._slot_starts, self.num_samples)[self._window_slots]

        # The slot in which each bucket of 2**bucket_bits positions begins: a search from there is short.
        self._bucket_bits = max(size // max(_BUCKETS_PER_SLOT * num_slots, 1), 1).bit_length() - 1
        num_buckets = (size >> self._bucket_bits) + 1
        buckets = np.arange(num_buckets + 1, dtype=np.int64) << self._bucket_bits
        self._bucket_slots = (np.searchsorted(self._slot_starts, buckets, side="right") - 1).astype(np.int32)
        for array in (self.window_starts, self._slot_chunks):
            array.setflags(write=False)

    def window_chunks(self, window: int) -> Int64:
        """Return the chunks of a window in slot order; a read-only view. Shape [K]."""
        return self._slot_chunks[self._slots(window)]

    def tables(self, window: int) -> WindowOrder:
        """Return the tables by which slot and row of a window's positions are found, made once for many batches."""
        slots = self._slots(window)
        epochs = range(self.epoch, self.epoch + self._num_epochs)
        keys = [self._key(f"window:{window}", epoch) if self._shuffle else 0 for epoch in epochs]
        return WindowOrder(
            start=int(self.window_starts[window]),
            stop=int(self.window_starts[window + 1]),
            keys=np.array(keys, np.uint64),
            shuffle=self._shuffle,
            slot_starts=self._slot_starts,
            shifts=self._row_shifts[slots],
            bucket_slots=self._bucket_slots,
            bucket_bits=self._bucket_bits,
            first_slot=slots.start,
        )

    def locate(self, positions: npt.ArrayLike) -> tuple[Int64, Int64]:
        """Return chunk and row of any positions in [0, num_samples). Shape [B] each."""
        positions = np.asarray(positions, dtype=np.int64)
        chunk, row = np.empty_like(positions), np.empty_like(positions)
        for window, members in self._by_window(self.window_starts, positions):
            slot, found = np.empty_like(members), np.empty_like(members)
            self.tables(window).locate(positions[members], slot, found)
            chunk[members], row[members] = self.window_chunks(window)[slot], found
        return chunk, row

    def positions_of(self, chunk: Int64, row: Int64) -> Int64:
        """Return where in this lane and epoch samples stand, of those that it holds: the inverse of `locate`."""
        by_chunk, is_here = np.argsort(self._slot_chunks), np.isin(chunk, self._slot_chunks)
        slot = by_chunk[np.searchsorted(self._slot_chunks, chunk[is_here], sorter=by_chunk)]
        place = row[is_here] - self._row_shifts[slot]
        inside = place - self._slot_starts[slot]
        is_held = (inside >= 0) & (inside < self._slot_counts[slot])
        slot, place = slot[is_held], place[is_held]
        for window, members in self._by_window(self._window_slots, slot) if self._shuffle else ():
            start, stop = self.window_starts[window : window + 2].tolist()
            found = place[members]
            unpermute(found, start, stop - start, self._key(f"window:{window}", self.epoch), found)
            place[members] = found
        return place

    def _key(self, purpose: str, epoch: int) -> int:
        return order_key(seed=self._seed, epoch=epoch, purpose=self._purpose + purpose)

    def _slots(self, window: int) -> slice:
        if not 0 <= window < self.num_windows:
            raise ValueError(f"window {window} lies outside [0, {self.num_windows})")
        return slice(int(self._window_slots[window]), int(self._window_slots[window + 1]))

    @staticmethod
    def _by_window(borders: Int64, values: Int64) -> list[tuple[int, Int64]]:
        """Return each window that `values` touch, with the places of its values."""
        window = np.searchsorted(borders, values, side="right") - 1
        by_window = np.argsort(window, kind="stable")
        found, begins = np.unique(window[by_window], return_index=True)
        return list(zip(found.tolist(), np.split(by_window, begins[1:]), strict=False))
