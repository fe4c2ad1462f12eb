"""From places in mapped windows to a batch: one gather into one buffer, and views of it as fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stoker.feed import gather
from stoker.feed.buffers import BufferPool
from stoker.feed.window import Window
from stoker.spec import Array, Arrays, Entry, Ragged, Spec

Index = npt.NDArray[np.int64]


class Part(NamedTuple):
    """Samples of a batch that lie in one window.

    Attributes:
        window: Where they lie.
        slot: Chunk of each, as its place in the window. Shape [b].
        row: Row of each, counted through the window: `window.first_row[slot]` and its row in the chunk. Shape [b].
    """

    window: Window
    slot: Index
    row: Index


@dataclass(frozen=True)
class Assembled:
    """A batch before it has names.

    Attributes:
        spec: Spec of the samples.
        num_samples: B.
        records: uint8, shape [B, record_bytes]: all fixed-width fields.
        ragged: Each ragged field's values and offsets.
    """

    spec: Spec
    num_samples: int
    records: Array
    ragged: dict[str, Ragged]

    def views(self) -> Arrays:
        """Return the fields by name, in the spec's order; fixed-width ones are views of `records`, not copies."""
        # The fields of one structured array cost 0.1 microseconds each, arrays made one by one 2.5.
        if self.num_samples == 0 or self.spec.record_bytes == 0:
            return {
                entry.name: self.ragged[entry.name]
                if entry.is_ragged
                else np.empty((self.num_samples, *entry.shape), dtype=entry.dtype)
                for entry in self.spec
            }
        dtype, ragged = self.spec.record_dtype, self.ragged
        records: Array = np.ndarray(self.num_samples, dtype, buffer=self.records)
        if not ragged:
            return {name: records[name] for name in dtype.names or ()}
        return {entry.name: ragged.get(entry.name) or records[entry.name] for entry in self.spec}

    @property
    def size_bytes(self) -> int:
        """Bytes gathered."""
        return self.records.nbytes + sum(_ragged_bytes(ragged) for ragged in self.ragged.values())


def _ragged_bytes(ragged: Ragged) -> int:
    values = _ragged_bytes(ragged.values) if isinstance(ragged.values, Ragged) else ragged.values.nbytes
    return int(values) + int(ragged.offsets.nbytes)


def assemble(spec: Spec, parts: Sequence[Part], pool: BufferPool) -> Assembled:
    """Gather the samples of `parts`, in their order, into buffers of the pool.

        parts      window 3: rows 7 1 4      window 4: rows 0 9
        records  ┆ 7 ┆ 1 ┆ 4 ┆ 0 ┆ 9 ┆       one take a window
        values   ┆ 7 7 ┆ 4 4 4 ┆ 9 ┆         ragged: borders first, then one copy a list

    Args:
        spec: Spec of the samples.
        parts: Where they lie; all parts together are the batch.
        pool: Gives the memory.
    """
    num_samples = sum(len(part.row) for part in parts)
    width = spec.record_bytes
    records = pool.take(num_samples * width)[: num_samples * width].reshape(num_samples, width)
    if width:
        at = 0
        for window, _, row in parts:
            gather.take_records(window.records, row, records[at : at + len(row)])
            at += len(row)
    return Assembled(
        spec=spec,
        num_samples=num_samples,
        records=records,
        ragged={entry.name: _assemble_lists(entry, parts, pool) for entry in spec.ragged},
    )


def _assemble_lists(entry: Entry, parts: Sequence[Part], pool: BufferPool, level: int = 0) -> Ragged:
    name = entry.name
    borders = [
        gather.extents(window.words, window.levels[name].offsets[level], slot, row) for window, slot, row in parts
    ]
    if level + 1 < entry.num_levels:
        inner = [
            Part(part.window, *gather.expand(part.slot, starts, offsets))
            for part, (starts, offsets) in zip(parts, borders, strict=True)
        ]
        return Ragged(_assemble_lists(entry, inner, pool, level + 1), _join([offsets for _, offsets in borders]))

    value_bytes = entry.value_bytes
    total = sum(int(offsets[-1]) for _, offsets in borders)
    memory = pool.take(total * value_bytes + gather.SLACK_BYTES)
    at = 0
    for (window, slot, _), (starts, offsets) in zip(parts, borders, strict=True):
        values = window.levels[name].values
        gather.copy_lists(window.bytes, values, value_bytes, slot, starts, offsets, memory[at:])
        at += int(offsets[-1]) * value_bytes
    values = memory[: total * value_bytes].view(entry.dtype).reshape(total, *entry.shape)
    return Ragged(values, _join([offsets for _, offsets in borders]))


def _join(offsets: Sequence[Index]) -> Index:
    """Return the offsets of several runs of lists, one run behind the other."""
    if len(offsets) == 1:
        return offsets[0]
    joined = [np.zeros(1, dtype=np.int64)]
    end = 0
    for run in offsets:
        joined.append(run[1:] + end)
        end += int(run[-1])
    return np.concatenate(joined)
