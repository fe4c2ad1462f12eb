"""Compiled loops for packing; `packing.py` has the same in NumPy, and the two are held equal by a test.

Imported where loops are compiled; see `machine_code`. Large batches are written past the caches
(docs/decisions/0011). Rows of 2,048 tokens, one thread of an EPYC (Zen 4), GB/s: places 5 to 8 -> 11 to 26, tokens of
documents of 300 on average 1.4 -> 6.1, of 4,000 2.5 -> 10.3.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import numpy as np
from numba import types

from stoker.gather.kernels import copy_exactly
from stoker.gather.moves import (
    BYTES,
    INT64,
    LINE_BYTES,
    MAX_ASKED_BYTES,
    OUT_BYTES,
    STREAMED_BYTES,
    compiled,
    copy_lines,
    fence,
    prefetch,
    stream_lines,
)

# Numbers of 4 bytes that are written to L1 before they go out.
_STAGED = 1024
# Ranges of so many bytes go past the caches by themselves, but for what shares a line with their neighbours.
_LONG_BYTES = 512
# Unsigned, because numba asks of each other index whether it counts from the end.
_0, _STAGED_UNSIGNED = np.uint64(0), np.uint64(_STAGED)


@compiled(OUT_BYTES, types.int64, BYTES, types.int64, types.boolean)
def _send(out, at, stage, num_bytes, streams):
    """Write the beginning of a stage to its place, a whole line."""
    num_lines = num_bytes // LINE_BYTES
    if streams:
        stream_lines(out, at, stage, 0, num_lines)
    else:
        copy_lines(out, at, stage, 0, num_lines)
    done = num_lines * LINE_BYTES
    copy_exactly(out, at + done, stage, done, num_bytes - done)


@compiled(INT64, INT64, INT64, INT64, types.int64, OUT_BYTES, OUT_BYTES)
def fill_places(first, num, at, offsets, length, ids, positions):
    """Write documents and positions of each token. See `packing.fill_places`."""
    streams = len(ids) >= STREAMED_BYTES and (ids.ctypes.data | positions.ctypes.data) % LINE_BYTES == 0
    memory = np.empty((2, _STAGED + LINE_BYTES // 4), dtype=np.int32)
    head = (-types.int64(memory.ctypes.data) % LINE_BYTES) // 4
    staged_ids, staged_positions = memory[0, head:], memory[1, head:]
    filled, begin = _0, 0  # numbers in the stages; bytes that are out
    for row in range(len(offsets) - 1):
        end = 0
        for s in range(offsets[row], offsets[row + 1] + 1):
            is_padding = s == offsets[row + 1]
            left = types.uint64(length - end if is_padding else num[s])
            number = types.int32(0 if is_padding else s - offsets[row] + 1)
            position = types.int32(0 if is_padding else first[s])
            step = types.int32(0 if is_padding else 1)
            end = 0 if is_padding else at[s] + num[s]
            while left:
                some = min(left, _STAGED_UNSIGNED - filled)
                for i in range(_0, some):
                    staged_ids[filled + i] = number
                    staged_positions[filled + i] = position + step * types.int32(i)
                filled, left, position = filled + some, left - some, position + step * types.int32(some)
                if filled == _STAGED_UNSIGNED:
                    _send(ids, begin, staged_ids.view(np.uint8), 4 * _STAGED, streams)
                    _send(positions, begin, staged_positions.view(np.uint8), 4 * _STAGED, streams)
                    filled, begin = _0, begin + 4 * _STAGED
    num_bytes = types.int64(filled) * 4
    _send(ids, begin, staged_ids.view(np.uint8), num_bytes, streams)
    _send(positions, begin, staged_positions.view(np.uint8), num_bytes, streams)
    if streams:
        fence()


@compiled(BYTES, INT64, INT64, INT64, OUT_BYTES)
def copy_ranges(memory, source, num_bytes, target, out):
    """Copy byte ranges. See `packing.copy_ranges`."""
    streams = len(out) >= STREAMED_BYTES and out.ctypes.data % LINE_BYTES == 0
    for s in range(len(source)):
        if s + 1 < len(source):
            for byte in range(source[s + 1], source[s + 1] + min(num_bytes[s + 1], MAX_ASKED_BYTES), LINE_BYTES):
                prefetch(memory, byte)
        begin, at, num = source[s], target[s], num_bytes[s]
        if streams and num >= _LONG_BYTES:
            head = -at % LINE_BYTES
            copy_exactly(out, at, memory, begin, head)
            num_lines = (num - head) // LINE_BYTES
            stream_lines(out, at + head, memory, begin + head, num_lines)
            done = head + num_lines * LINE_BYTES
            copy_exactly(out, at + done, memory, begin + done, num - done)
        else:
            copy_exactly(out, at, memory, begin, num)
    if streams:
        fence()
