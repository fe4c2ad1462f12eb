"""The compiled loop that hashes words, XXH3 of 64 bits; held equal to the `xxhash` package by a test.

Imported where loops are compiled; see `machine_code`.

Source:
    XXH3 as specified in xxHash's doc/xxhash_spec.md, version 0.2.0: inputs of 0 to 240 bytes, seed 0, default secret.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from stoker.addresses import load_1, load_4, load_8
from stoker.compiling import compile_loop, reads, writes

_PRIME_1, _PRIME_2, _PRIME_3 = (
    np.uint64(prime) for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
)
_PRIME_MX_1, _PRIME_MX_2 = np.uint64(0x165667919E3779F9), np.uint64(0x9FB21C651E98DF25)
_15, _24, _28, _29, _32, _33, _35, _37, _40, _49 = (
    np.uint64(bits) for bits in (15, 24, 28, 29, 32, 33, 35, 37, 40, 49)
)
# Longer words are hashed in another way, which is left to the package.
_MOST_BYTES = 240


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _folded(_typing_context: Any, a: Any, b: Any) -> Any:
    """Return the two halves of a product of 128 bits, one over the other."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(arguments[0], wide), builder.zext(arguments[1], wide))
        halves = (builder.trunc(part, ir.IntType(64)) for part in (product, builder.lshr(product, wide(64))))
        return builder.xor(*halves)

    return types.uint64(a, b), generate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _swapped(_typing_context: Any, value: Any) -> Any:
    """Return eight bytes in the other order."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bswap(arguments[0])

    return types.uint64(value), generate


@numba.njit(inline="always")  # type: ignore[untyped-decorator,unused-ignore]
def _read(at):
    return np.uint64(load_8(at))


@numba.njit(inline="always")  # type: ignore[untyped-decorator,unused-ignore]
def _read_4(at):
    return np.uint64(load_4(at))


@numba.njit(inline="always")  # type: ignore[untyped-decorator,unused-ignore]
def _avalanche(value):
    value = (value ^ (value >> _37)) * _PRIME_MX_1
    return value ^ (value >> _32)


@numba.njit(inline="always")  # type: ignore[untyped-decorator,unused-ignore]
def _avalanche_64(value):
    value = (value ^ (value >> _33)) * _PRIME_2
    value = (value ^ (value >> _29)) * _PRIME_3
    return value ^ (value >> _32)


@numba.njit(inline="always")  # type: ignore[untyped-decorator,unused-ignore]
def _mixed(at, secret):
    return _folded(_read(at) ^ _read(secret), _read(at + 8) ^ _read(secret + 8))


@compile_loop(types.uint64(types.int64, types.int64, types.int64))
def _hashed(at, num, secret):
    """Return the hash of `num` bytes, at most 240, at an address.

    Args:
        at: The address.
        num: How many.
        secret: Address of the default secret.
    """
    length = np.uint64(num)
    if num <= 16:
        if num > 8:
            low = _read(at) ^ _read(secret + 24) ^ _read(secret + 32)
            high = _read(at + num - 8) ^ _read(secret + 40) ^ _read(secret + 48)
            return _avalanche(length + _swapped(low) + high + _folded(low, high))
        if num >= 4:
            mixed = (_read_4(at + num - 4) + (_read_4(at) << _32)) ^ _read(secret + 8) ^ _read(secret + 16)
            mixed ^= ((mixed << _49) | (mixed >> _15)) ^ ((mixed << _24) | (mixed >> _40))
            mixed *= _PRIME_MX_2
            mixed ^= (mixed >> _35) + length
            mixed *= _PRIME_MX_2
            return mixed ^ (mixed >> _28)
        if num > 0:
            first, middle, last = load_1(at), load_1(at + (num >> 1)), load_1(at + num - 1)
            joined = np.uint64((first << 16) | (middle << 24) | last | (num << 8))
            return _avalanche_64(joined ^ _read_4(secret) ^ _read_4(secret + 4))
        return _avalanche_64(_read(secret + 56) ^ _read(secret + 64))
    total = length * _PRIME_1
    if num <= 128:
        # From both ends to the middle, 16 bytes each.
        for i in range((num - 1) >> 5, -1, -1):
            total += _mixed(at + 16 * i, secret + 32 * i) + _mixed(at + num - 16 * (i + 1), secret + 32 * i + 16)
        return _avalanche(total)
    for i in range(8):
        total += _mixed(at + 16 * i, secret + 16 * i)
    total = _avalanche(total)
    for i in range(8, num >> 4):
        total += _mixed(at + 16 * i, secret + 16 * (i - 8) + 3)
    return _avalanche(total + _mixed(at + num - 16, secret + 119))


@compile_loop(
    types.int64(reads(types.uint8), reads(types.int64), reads(types.uint8), types.uint64, writes(types.int64)),
)
def buckets(data, offsets, secret, num_buckets, out):
    """Write the bucket of each word, and return how many are left to others: longer ones, and what are none.

    Args:
        data: The bytes of all words.
        offsets: Where each begins, and the last one ends. Shape [N + 1].
        secret: The default secret, as far as it is needed: 136 bytes.
        num_buckets: How many there are.
        out: Filled: hash modulo `num_buckets`; -1 for what is left. Shape [N].
    """
    base, key = types.int64(data.ctypes.data), types.int64(secret.ctypes.data)
    num_left = 0
    for i in range(len(out)):
        begin, end = offsets[i], offsets[i + 1]
        if begin < 0 or end > len(data) or begin > end or end - begin > _MOST_BYTES:
            out[i] = -1
            num_left += 1
        else:
            out[i] = np.int64(_hashed(base + begin, end - begin, key) % num_buckets)
    return num_left
