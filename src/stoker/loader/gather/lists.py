"""What was gathered already, in another order."""

from __future__ import annotations

import numpy as np

from stoker._native import copy_lists
from stoker.fields.offsets import Int64, offsets_of, ranges
from stoker.fields.spec import Array, Ragged
from stoker.loader.gather.buffers import BufferPool


def reordered_records(records: Array, order: Int64, pool: BufferPool) -> Array:
    """Return records of which record i is `records[order[i]]`, in memory of their own.

    Args:
        records: uint8, contiguous, shape [N, record_bytes].
        order: Which of them. Shape [B].
        pool: Gives the memory.
    """
    num, width = len(order), records.shape[1]
    out = pool.take(num * width)[: num * width].reshape(num, width)
    np.take(records, order, axis=0, out=out, mode="clip")  # which is what lets it write without a copy of its own
    return out


def reordered_lists(lists: Ragged, order: Int64, pool: BufferPool) -> Ragged:
    """Return lists of which list i is `lists[order[i]]`, side by side in memory of their own.

    Args:
        lists: The lists.
        order: Which of them, and in which order. Shape [B].
        pool: Gives the memory.
    """
    offsets = offsets_of(np.diff(lists.offsets)[order])
    starts: Int64 = lists.offsets[order]
    if isinstance(lists.values, Ragged):
        return Ragged(reordered_lists(lists.values, ranges(starts, offsets), pool), offsets)
    values: Array = lists.values
    value_bytes = values.dtype.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))
    if not (values.flags.c_contiguous and value_bytes and len(values)):
        return Ragged(values[ranges(starts, offsets)], offsets)
    total = int(offsets[-1])
    memory = pool.take(total * value_bytes)
    copy_lists(values.reshape(-1).view(np.uint8), starts, value_bytes, offsets, memory)
    return Ragged(memory[: total * value_bytes].view(values.dtype).reshape(values.shape), offsets)
