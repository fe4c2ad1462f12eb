"""The arithmetic of the order in machine code: the same integers as `plain.py`, some ten times as fast."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from stoker import loops
from stoker.order.plain import Int64, Tables, UInt64

LOOPS = "stoker.order.kernels"
# So many positions take 30 microseconds, and to get the interpreter's lock back from threads that make batches takes
# as long: it is kept.
_FEW = 4096


def _kernels() -> ModuleType:
    kernels = loops.find(LOOPS)
    assert kernels is not None, "whoever calls this has found them there"
    return kernels


def permute(index: Int64, size: int, key: int) -> Int64:
    """Return where each index goes; see `plain.permute`."""
    kernels = _kernels()
    out = np.empty_like(index)
    permute_into = kernels.permute_few_into if len(index) <= _FEW else kernels.permute_into
    permute_into(index, 0, np.uint64(size), np.uint64(key), out)
    return out


def unpermute(index: Int64, size: int, key: int) -> Int64:
    """Return the index that goes to each value; see `plain.unpermute`."""
    kernels = _kernels()
    out = np.empty_like(index)
    kernels.unpermute_into(index, np.uint64(size), np.uint64(key), out)
    return out


def locate(position: Int64, tables: Tables) -> tuple[Int64, Int64]:
    """Return slot and row of positions within a window; see `plain.locate`."""
    kernels = _kernels()
    slot, row = np.empty_like(position), np.empty_like(position)
    kernels.locate_into(position, *tables, slot, row)
    return slot, row


def locate_range(first: int, last: int, tables: Tables) -> tuple[Int64, Int64]:
    """Return slot and row of consecutive positions within a window; see `plain.locate_range`."""
    kernels = _kernels()
    slot, row = np.empty(last - first, dtype=np.int64), np.empty(last - first, dtype=np.int64)
    locate_into = kernels.locate_few_into if last - first <= _FEW else kernels.locate_range_into
    locate_into(first, *tables, slot, row)
    return slot, row


def arrange(counts: Int64, keys: UInt64, first: int, num: int) -> Int64:
    """Return whose some places of blocks side by side are; see `plain.arrange`."""
    kernels = _kernels()
    out = np.empty(num, dtype=np.int64)
    arrange_into = kernels.arrange_few_into if num <= _FEW else kernels.arrange_into
    arrange_into(counts, keys, first, out)
    return out


def grouped(whose: Int64, num_components: int) -> Int64:
    """Return the places of each component, one component behind the other; see `plain.grouped`."""
    kernels = _kernels()
    out = np.empty_like(whose)
    kernels.grouped_into(whose, np.zeros(num_components + 1, dtype=np.int64), out)
    return out
