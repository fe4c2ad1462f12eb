"""Lists in another order."""

from __future__ import annotations

import numpy as np

from stoker.gather.buffers import BufferPool
from stoker.gather.take import copy_lists
from stoker.offsets import offsets_of, ranges
from stoker.order.plain import Int64
from stoker.spec import Array, Ragged


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
    copy_lists(values.reshape(-1).view(np.uint8), starts * value_bytes, value_bytes, offsets, memory)
    return Ragged(memory[: total * value_bytes].view(values.dtype).reshape(values.shape), offsets)
