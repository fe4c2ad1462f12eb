"""The arithmetic of the order in NumPy: the reference, and what runs where numba cannot be imported.

`compiled.py` does the same in machine code. The two must agree on every integer; the laws hold them to it.
docs/reference/order.md explains the construction, so change nothing here without a new order version.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
UInt64 = npt.NDArray[np.uint64]

# Up to here a table is drawn up by Fisher and Yates: exact where a Feistel network's halves would have so few bits
# that some permutations could not occur at all.
TABLE_SIZE = 256

# Even, so that both halves are hashed equally often. Measured on sorted data (chi-square a degree of freedom, 65,536
# samples): 2 rounds 4.1, 4 rounds 1.03, 6 and 8 rounds 1.00. 8 leave a margin for the smallest halves, 4 and 5 bits,
# and cost 1 ns an index more than 6.
NUM_ROUNDS = 8

# Splitmix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014; its two
# multipliers are Stafford's variant 13 of the murmur3 finaliser.
GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB

_MASK_64 = (1 << 64) - 1


def mix(value: int) -> int:
    """Return 64 bits that depend on every bit of `value`: the finaliser of splitmix64."""
    value = ((value ^ (value >> 30)) * MIX_1) & _MASK_64
    value = ((value ^ (value >> 27)) * MIX_2) & _MASK_64
    return value ^ (value >> 31)


def draws(key: int, num_draws: int) -> list[int]:
    """Return the first numbers of the splitmix64 stream that begins at `key`."""
    return [mix((key + (i + 1) * GOLDEN) & _MASK_64) for i in range(num_draws)]


def table(size: int, key: int) -> Int64:
    """Return a permutation of a few integers, drawn by Fisher and Yates. Shape [size]."""
    values = list(range(size))
    for i, draw in zip(range(size - 1, 0, -1), draws(key, size - 1), strict=True):
        j = (draw >> 32) * (i + 1) >> 32
        values[i], values[j] = values[j], values[i]
    return np.array(values, dtype=np.int64)


def _hash(half: UInt64, round_key: np.uint64) -> UInt64:
    """Return 64 bits of which the topmost are the best mixed: the caller takes those."""
    mixed = (half ^ round_key) * np.uint64(MIX_1)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(MIX_2)
    return mixed


def _cipher(values: UInt64, num_bits: int, key: int, *, inverse: bool) -> UInt64:
    """Return the Feistel network's values: a bijection on [0, 2**num_bits), num_bits >= 2."""
    left_bits = num_bits // 2
    right_bits = num_bits - left_bits
    left_shift, right_shift = np.uint64(64 - left_bits), np.uint64(64 - right_bits)
    left = values >> np.uint64(right_bits)
    right = values & np.uint64((1 << right_bits) - 1)
    round_keys = [np.uint64(draw) for draw in draws(key, NUM_ROUNDS)]
    for i in reversed(range(NUM_ROUNDS)) if inverse else range(NUM_ROUNDS):
        if i % 2 == 0:
            left = left ^ (_hash(right, round_keys[i]) >> left_shift)
        else:
            right = right ^ (_hash(left, round_keys[i]) >> right_shift)
    return (left << np.uint64(right_bits)) | right


def _walk(index: Int64, size: int, key: int, *, inverse: bool) -> Int64:
    """Return the bijection on [0, size): apply the wider one until the value falls inside."""
    num_bits = (size - 1).bit_length()
    values = _cipher(index.astype(np.uint64), num_bits, key, inverse=inverse)
    outside = np.flatnonzero(values >= np.uint64(size))
    while outside.size:
        values[outside] = _cipher(values[outside], num_bits, key, inverse=inverse)
        outside = outside[values[outside] >= np.uint64(size)]
    return values.astype(np.int64)


def permute(index: Int64, size: int, key: int) -> Int64:
    """Return where each index goes. Shape [B], every index below `size`."""
    return table(size, key)[index] if size <= TABLE_SIZE else _walk(index, size, key, inverse=False)


def unpermute(index: Int64, size: int, key: int) -> Int64:
    """Return the index that goes to each value. Shape [B], every value below `size`."""
    return np.argsort(table(size, key))[index] if size <= TABLE_SIZE else _walk(index, size, key, inverse=True)


class Tables(NamedTuple):
    """One window of an epoch, as the arithmetic wants it.

    Attributes:
        start: First position of the window.
        stop: One past its last.
        key: Of the window's permutation.
        shuffle: Whether to permute at all.
        slot_starts: Position at which each slot of the epoch begins. Shape [S], increasing.
        shifts: What to add to a position to get its row. Shape [K], a slot of the window each.
        guide: Slot in which each stretch of `1 << guide_shift` positions begins. Used by the compiled twin.
        guide_shift: Logarithm of the stretch.
        first_slot: Slot of the epoch that is the window's first.
    """

    start: int
    stop: int
    key: np.uint64
    shuffle: bool
    slot_starts: Int64
    shifts: Int64
    guide: Int32
    guide_shift: int
    first_slot: int


def locate(position: Int64, tables: Tables) -> tuple[Int64, Int64]:
    """Return slot and row of positions within a window; slots count from the window's first.

    Args:
        position: Shape [B], each in the window.
        tables: Of the window.
    """
    start, stop = tables.start, tables.stop
    if tables.shuffle:
        position = permute(position - start, stop - start, int(tables.key)) + start
    slot = np.searchsorted(tables.slot_starts, position, side="right") - 1 - tables.first_slot
    return slot, position + tables.shifts[slot]


def locate_range(first: int, last: int, tables: Tables) -> tuple[Int64, Int64]:
    """Return slot and row of positions [first, last) within a window. Shape [last - first] each."""
    return locate(np.arange(first, last, dtype=np.int64), tables)


def arrange(counts: Int64, keys: UInt64, first: int, num: int) -> Int64:
    """Return whose some places of blocks side by side are: those of a block permuted by its key. Shape [num].

    Args:
        counts: How many places of each block each component has. Shape [J, K].
        keys: Of the blocks' permutations. Shape [J].
        first: First place that is asked for.
        num: How many, none of them behind the last block.
    """
    blocks = [np.empty(0, dtype=np.int64)]
    for block, key in zip(counts, keys.tolist(), strict=True):
        whose = np.repeat(np.arange(len(block), dtype=np.int64), block)
        blocks.append(whose[permute(np.arange(whose.size), whose.size, key)])
    return np.concatenate(blocks)[first : first + num]


def grouped(whose: Int64, num_components: int) -> Int64:
    """Return the places of each component, ascending, one component behind the other. Shape [B].

    Args:
        whose: Component at each place. Shape [B].
        num_components: How many there are.
    """
    # Numbers of 16 bits are sorted by radix, five times as fast.
    return np.argsort(whose.astype(np.uint16) if num_components < 1 << 16 else whose, kind="stable")
