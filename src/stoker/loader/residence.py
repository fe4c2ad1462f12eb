"""Rows that lie on a device already: neither gathered here again nor copied.

    rows of a batch    7 1 4 0 9
    lie there          7   4   9      their places in the batch, and their rows on the device
    gathered here        1   0        their places in the batch, and their records

A chunk goes there when its window opens, as long as there is room, and stays. Every epoch uses every chunk once, so any
one of them is worth its room as much as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from stoker.fields.offsets import Int64
from stoker.fields.spec import Array, Spec
from stoker.loader.gather.assemble import Assembled, Part, Residence, assemble_beside
from stoker.loader.gather.buffers import BufferPool
from stoker.loader.units.make import UnitPart
from stoker.loader.windows.window import Window


class Resident(Protocol):
    """Records of chunks that stay on a device. Safe to use from several threads."""

    first_row: Int64
    """Where each chunk's records begin there; -1 where it does not lie there. Shape [N]."""

    def open(self, num_samples: Int64, record_bytes: int) -> None:
        """Say what there is, before anything else is asked.

        Args:
            num_samples: Of each chunk. Shape [N].
            record_bytes: Of a sample.

        Raises:
            ValueError: Not one record fits.
        """

    def offer(self, chunk: int, records: Array) -> bool:
        """Take a chunk, if there is room for it, and return whether it lies there now.

        Args:
            chunk: Its number.
            records: uint8, shape [rows of the chunk, record_bytes]; may be gone once this returns.
        """


def offer_window(resident: Resident, window: Window, chunks: Int64, num_samples: Int64) -> None:
    """Offer every chunk of an open window that does not lie on the device yet.

    Args:
        resident: What lies there.
        window: Where the chunks are.
        chunks: Number of each of its slots. Shape [K].
        num_samples: Of each chunk. Shape [N].
    """
    for slot in np.flatnonzero((resident.first_row[chunks] < 0) & (num_samples[chunks] > 0)).tolist():
        chunk = int(chunks[slot])
        records = np.frombuffer(window.records(slot), dtype=np.uint8)
        resident.offer(chunk, records.reshape(int(num_samples[chunk]), -1))


def assemble_resident(spec: Spec, parts: Sequence[UnitPart], first_row: Int64, pool: BufferPool) -> Assembled:
    """Gather what of a batch does not lie on the device: records of the other samples, and everybody's lists.

    Args:
        spec: Of the samples.
        parts: Where they lie; all together are the batch.
        first_row: Of the chunks on the device; see `Resident`.
        pool: Gives the memory.
    """
    every = [Part(part.window, part.where) for part in parts]
    if (lying := _all_there(parts, first_row, pool)) is not None:
        return assemble_beside(spec, every, (), pool, Residence(_NONE, lying, _NONE))
    there, rows, here, others = [_NONE], [_NONE], [_NONE], []
    begin = 0
    for part in parts:
        # Looked at once: a chunk may arrive there while this goes on.
        first = first_row[part.chunks[part.slot]]
        lies = first >= 0
        places = np.arange(begin, begin + len(lies))
        there.append(places[lies])
        rows.append((first + part.unit)[lies])
        if not lies.all():
            here.append(places[~lies])
            others.append(Part.at(part.window, part.slot[~lies], part.unit[~lies]))
        begin += len(lies)
    residence = Residence(*(np.concatenate(places) for places in (there, rows, here)))
    return assemble_beside(spec, every, others, pool, residence)


def _all_there(parts: Sequence[UnitPart], first_row: Int64, pool: BufferPool) -> Int64 | None:
    """Return the row on the device of each sample, shape [B]; None where not all chunks of their windows lie there.

    Then a chunk is looked up once, and not a sample.
    """
    firsts = [first_row[part.chunks] for part in parts]
    if not parts or any((first < 0).any() for first in firsts):
        return None
    num = sum(part.where.num for part in parts)
    rows = pool.take(8 * num)[: 8 * num].view(np.int64)  # they cross to the device
    begin = 0
    for part, first in zip(parts, firsts, strict=True):
        out = rows[begin : begin + part.where.num]
        np.add(part.unit, first[part.slot], out=out)
        begin += len(out)
    return rows


_NONE: Int64 = np.empty(0, dtype=np.int64)
