"""Compiled loops of the order's arithmetic; `compiled.py` calls them, and `plain.py` has the same in NumPy.

Imported where loops are compiled. All signatures are given, so that every call, with writable arrays or read-only ones,
uses the one compiled version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numba
import numpy as np
from numba import types

from stoker.compiling import LockKept, compile_loop, reads, writes
from stoker.order.plain import GOLDEN, MIX_1, MIX_2, NUM_ROUNDS, TABLE_SIZE, Int32, Int64, UInt64

_Function = TypeVar("_Function", bound=Callable[..., object])

_GOLDEN, _MIX_1, _MIX_2 = np.uint64(GOLDEN), np.uint64(MIX_1), np.uint64(MIX_2)
_0, _1, _27, _30, _31, _32, _64 = (np.uint64(n) for n in (0, 1, 27, 30, 31, 32, 64))

# Values that are enciphered together: their halves stay in registers, or nearly. An AMD EPYC takes 4.0 nanoseconds a
# value so, 5.2 with 64 of them and 8.0 with 16.
_BLOCK = 32
_READ = reads(types.int64)
_READ_32 = reads(types.int32)
_WRITE = writes(types.int64)


def _inline(function: _Function) -> _Function:
    compiled: _Function = numba.njit(inline="always")(function)
    return compiled


def _compile(function: _Function, *arguments: object, keeps_lock: bool = False) -> _Function:
    compiled: _Function = compile_loop(types.void(*arguments), keeps_lock=keeps_lock)(function)
    return compiled


def _mix_source(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> _30)) * _MIX_1
    value = (value ^ (value >> _27)) * _MIX_2
    return value ^ (value >> _31)


_mix = _inline(_mix_source)


def _hash_source(half: np.uint64, round_key: np.uint64) -> np.uint64:
    mixed = (half ^ round_key) * _MIX_1
    return (mixed ^ (mixed >> _32)) * _MIX_2


_hash = _inline(_hash_source)


def _table_source(size: np.uint64, key: np.uint64) -> Int64:
    values = np.arange(np.int64(size))
    for n in range(np.int64(size) - 1):
        i = np.int64(size) - 1 - n
        draw = _mix(key + np.uint64(n + 1) * _GOLDEN)
        j = np.int64(((draw >> _32) * np.uint64(i + 1)) >> _32)
        values[i], values[j] = values[j], values[i]
    return values


_table = _inline(_table_source)


def _round_keys_source(key: np.uint64) -> UInt64:
    keys = np.empty(NUM_ROUNDS, dtype=np.uint64)
    for i in range(NUM_ROUNDS):
        keys[i] = _mix(key + np.uint64(i + 1) * _GOLDEN)
    return keys


_round_keys = _inline(_round_keys_source)


def _right_bits_source(size: np.uint64) -> np.uint64:
    num_bits = _0
    while (_1 << num_bits) < size:
        num_bits += _1
    return num_bits - (num_bits >> _1)


_right_bits = _inline(_right_bits_source)


def _left_bits_source(size: np.uint64) -> np.uint64:
    num_bits = _0
    while (_1 << num_bits) < size:
        num_bits += _1
    return num_bits >> _1


_left_bits = _inline(_left_bits_source)


def _encipher_source(
    values: UInt64, num: int, keys: UInt64, right_bits: np.uint64, left_shift: np.uint64, right_shift: np.uint64
) -> None:
    # A round of many values after the other, not a value after the other: a round's products wait for those of the
    # round before, and beside them there must be others to work on. Always as many, and all in one array, which
    # spares compilers doubt. So `values` has room for whole blocks: what lies behind the first `num` is enciphered in
    # vain.
    halves = np.empty((2, _BLOCK), dtype=np.uint64)
    left, right = halves[0], halves[1]
    mask = (_1 << right_bits) - _1
    for begin in range(0, num, _BLOCK):
        for i in range(_BLOCK):
            left[i] = values[begin + i] >> right_bits
            right[i] = values[begin + i] & mask
        for n in range(0, NUM_ROUNDS, 2):
            for i in range(_BLOCK):
                left[i] ^= _hash(right[i], keys[n]) >> left_shift
            for i in range(_BLOCK):
                right[i] ^= _hash(left[i], keys[n + 1]) >> right_shift
        for i in range(_BLOCK):
            values[begin + i] = (left[i] << right_bits) | right[i]


_encipher = _compile(
    _encipher_source,
    writes(types.uint64),
    types.int64,
    reads(types.uint64),
    types.uint64,
    types.uint64,
    types.uint64,
)


def _decipher_source(
    value: np.uint64, keys: UInt64, right_bits: np.uint64, left_shift: np.uint64, right_shift: np.uint64
) -> np.uint64:
    left = value >> right_bits
    right = value & ((_1 << right_bits) - _1)
    for i in range(NUM_ROUNDS - 2, -1, -2):
        right ^= _hash(left, keys[i + 1]) >> right_shift
        left ^= _hash(right, keys[i]) >> left_shift
    return (left << right_bits) | right


_decipher = _inline(_decipher_source)


def _permute_source(index: Int64, start: int, size: np.uint64, key: np.uint64, out: Int64) -> None:
    if size <= np.uint64(TABLE_SIZE):
        drawn = _table(size, key)
        for i in range(index.shape[0]):
            out[i] = drawn[index[i] - start] + start
        return
    keys = _round_keys(key)
    right_bits = _right_bits(size)
    left_shift, right_shift = _64 - _left_bits(size), _64 - right_bits
    # First all of them, then those that fell outside, packed side by side, again and again.
    num = index.shape[0]
    values = np.empty((num + _BLOCK - 1) // _BLOCK * _BLOCK, dtype=np.uint64)  # see `_encipher`
    for i in range(num):
        values[i] = np.uint64(index[i] - start)
    _encipher(values, num, keys, right_bits, left_shift, right_shift)
    outside = np.empty(num, dtype=np.int64)
    num_outside = 0
    for i in range(num):
        out[i] = np.int64(values[i]) + start
        outside[num_outside] = i
        num_outside += values[i] >= size
    for j in range(num_outside):
        values[j] = values[outside[j]]
    while num_outside:
        _encipher(values, num_outside, keys, right_bits, left_shift, right_shift)
        num_left = 0
        for j in range(num_outside):
            i, value = outside[j], values[j]
            out[i] = np.int64(value) + start
            outside[num_left], values[num_left] = i, value
            num_left += value >= size
        num_outside = num_left


_PERMUTED = (_READ, types.int64, types.uint64, types.uint64, _WRITE)
permute_into = _compile(_permute_source, *_PERMUTED)
permute_few_into = LockKept(permute_into)


def _unpermute_source(index: Int64, size: np.uint64, key: np.uint64, out: Int64) -> None:
    if size <= np.uint64(TABLE_SIZE):
        values = _table(size, key)
        inverse = np.empty_like(values)
        for i in range(values.shape[0]):
            inverse[values[i]] = i
        for i in range(index.shape[0]):
            out[i] = inverse[index[i]]
        return
    keys = _round_keys(key)
    right_bits = _right_bits(size)
    left_shift, right_shift = _64 - _left_bits(size), _64 - right_bits
    for i in range(index.shape[0]):
        out[i] = np.int64(_decipher(np.uint64(index[i]), keys, right_bits, left_shift, right_shift))
    for i in range(index.shape[0]):
        value = np.uint64(out[i])
        while value >= size:
            value = _decipher(value, keys, right_bits, left_shift, right_shift)
        out[i] = np.int64(value)


unpermute_into = _compile(_unpermute_source, _READ, types.uint64, types.uint64, _WRITE)


def _find_source(
    slot_starts: Int64, shifts: Int64, guide: Int32, guide_shift: int, first_slot: int, slot: Int64, row: Int64
) -> None:
    for i in range(row.shape[0]):
        place = row[i]
        bucket = place >> guide_shift
        low, high = np.int64(guide[bucket]), np.int64(guide[bucket + 1])
        while low + 1 < high:
            middle = (low + high) >> 1
            if slot_starts[middle] <= place:
                low = middle
            else:
                high = middle - 1
        # One border at most, as in nearly every stretch: before or behind it is anyone's guess, the processor's too.
        low += (high - low) * np.int64(slot_starts[high] <= place)
        slot[i] = low - first_slot
        row[i] = place + shifts[low - first_slot]


_find = _inline(_find_source)


def _locate_source(
    position: Int64,
    start: int,
    stop: int,
    key: np.uint64,
    shuffle: bool,
    slot_starts: Int64,
    shifts: Int64,
    guide: Int32,
    guide_shift: int,
    first_slot: int,
    slot: Int64,
    row: Int64,
) -> None:
    if shuffle:
        permute_into(position, start, np.uint64(stop - start), key, row)
    else:
        for i in range(position.shape[0]):
            row[i] = position[i]
    _find(slot_starts, shifts, guide, guide_shift, first_slot, slot, row)


def _locate_range_source(
    first: int,
    start: int,
    stop: int,
    key: np.uint64,
    shuffle: bool,
    slot_starts: Int64,
    shifts: Int64,
    guide: Int32,
    guide_shift: int,
    first_slot: int,
    slot: Int64,
    row: Int64,
) -> None:
    target = slot if shuffle else row  # the positions themselves, where their slots will be
    for i in range(row.shape[0]):
        target[i] = first + i
    if shuffle:
        permute_into(slot, start, np.uint64(stop - start), key, row)
    _find(slot_starts, shifts, guide, guide_shift, first_slot, slot, row)


def _arrange_source(counts: Int64, keys: UInt64, first: int, out: Int64) -> None:
    num_blocks, num_components = counts.shape
    end = 0  # of the block, among all places
    for block in range(num_blocks):
        begin = end
        for component in range(num_components):
            end += counts[block, component]
        start, stop = max(begin, first), min(end, first + out.shape[0])
        if start >= stop:
            continue
        whose = np.empty(end - begin, dtype=np.int64)
        at = 0
        for component in range(num_components):
            for place in range(at, at + counts[block, component]):
                whose[place] = component
            at += counts[block, component]
        places = np.arange(start - begin, stop - begin)
        permuted = np.empty_like(places)
        permute_into(places, 0, np.uint64(end - begin), keys[block], permuted)
        for i in range(stop - start):
            out[start - first + i] = whose[permuted[i]]


_ARRANGED = (reads(types.int64, 2), reads(types.uint64), types.int64, _WRITE)
arrange_into = _compile(_arrange_source, *_ARRANGED)
arrange_few_into = LockKept(arrange_into)


def _grouped_source(whose: Int64, begins: Int64, out: Int64) -> None:
    for place in range(whose.shape[0]):
        begins[whose[place] + 1] += 1
    for component in range(1, begins.shape[0]):
        begins[component] += begins[component - 1]
    for place in range(whose.shape[0]):
        component = whose[place]
        out[begins[component]] = place
        begins[component] += 1


grouped_into = _compile(_grouped_source, _READ, _WRITE, _WRITE, keeps_lock=True)


TABLES = (types.int64, types.int64, types.uint64, types.boolean, _READ, _READ, _READ_32, types.int64, types.int64)
locate_into = _compile(_locate_source, _READ, *TABLES, _WRITE, _WRITE)
locate_range_into = _compile(_locate_range_source, types.int64, *TABLES, _WRITE, _WRITE)
locate_few_into = LockKept(locate_range_into)
