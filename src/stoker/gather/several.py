"""Rows of several windows, gathered into one batch: a compiled call or two for each window, and one for all lists.

Where a batch ends in the next window, is of several data sets, or of several lanes in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from stoker import loops
from stoker.gather.borders import spanned
from stoker.gather.take import Taken, Where
from stoker.maps import memory_at
from stoker.spec import CACHE_LINE_BYTES, Array
from stoker.windows.list_places import Fields
from stoker.windows.window import Rows

Index = npt.NDArray[np.int64]

_NO_RECORDS = np.empty(0, dtype=np.uint8)
_NO_LISTS = Fields(
    words=np.empty(0, dtype=np.int64),
    halves=np.empty(0, dtype=np.uint32),
    memory=np.empty(0, dtype=np.uint8),
    first_place=np.empty(0, dtype=np.int64),
    first_byte=np.empty(0, dtype=np.int64),
    value_bytes=np.empty(0, dtype=np.int64),
)


def take_several(
    parts: Sequence[tuple[Rows, Where]],
    out: Array,
    memory_for: Callable[[int], Array],
    *,
    places: Index | None = None,
    has_lists: bool = True,
) -> Taken | None:
    """Copy records and all lists of rows that lie in several windows.

    Args:
        parts: Rows of a window each, and where they lie there; one spec for all, at least one part.
        out: uint8, contiguous, shape [B, record_bytes].
        memory_for: Gives a buffer of so many bytes.
        places: Row of `out` for each row of the parts: a permutation, shape [B]; None for one after the other.
        has_lists: Whether the rows have lists; of all fields in one `Rows.lists` then.

    Returns:
        The lists; of no field where the rows have none. None where only other ways are there.
    """
    kernels = loops.find("stoker.gather.part_kernels") if out.shape[1] % CACHE_LINE_BYTES == 0 else None
    if kernels is None:
        return None
    found = [_lists(rows) if has_lists else _NO_LISTS for rows, _ in parts]
    num, num_bytes, value_bytes = len(out), out.shape[1], found[0].value_bytes
    places = np.arange(num, dtype=np.int64) if places is None else places
    address, size_bytes = spanned([(rows.address, rows.bytes.nbytes) for rows, _ in parts])
    sources = np.empty((len(value_bytes), num), dtype=np.int64)
    offsets = np.zeros((len(value_bytes), num + 1), dtype=np.int64)
    flat, end = out.reshape(-1), 0
    for (rows, where), lists in zip(parts, found, strict=True):
        start, end = end, end + where.num
        records = rows.records.reshape(-1) if num_bytes else _NO_RECORDS
        lie = (lists.words, lists.halves, lists.first_place, lists.first_byte, value_bytes, rows.address - address)
        kernels.put_rows(where.slot, where.row, records, num_bytes, places[start:end], flat, *lie, sources, offsets)
    begins = np.empty(len(value_bytes), dtype=np.int64)
    if not len(value_bytes):
        return Taken(offsets, begins, _NO_RECORDS, 0)
    memory = memory_at(address, size_bytes)
    values = memory_for(int(sum(rows.expected_bytes * where.num for rows, where in parts)))
    needed = kernels.copy_all_lists(memory, value_bytes, sources, offsets, begins, values)
    if needed > len(values):
        values = memory_for(needed)
        kernels.copy_fields(memory, value_bytes, sources, offsets, begins, values)
        for rows, _ in parts:
            rows.expect(needed, num)
    return Taken(offsets, begins, values, needed)


def _lists(rows: Rows) -> Fields:
    assert rows.lists is not None
    return rows.lists
