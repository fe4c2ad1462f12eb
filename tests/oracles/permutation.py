"""The order's arithmetic in NumPy, written from docs/reference/order.md: what the native code is held against."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
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


def mix_blocks(counts: Int64, keys: UInt64, first: int, num: int) -> Int64:
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


def group_places(component: Int64) -> Int64:
    """Return the places of component 0, ascending, then those of component 1, and so on. Shape [B]."""
    return np.argsort(component, kind="stable")
