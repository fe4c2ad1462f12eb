"""What gathering gives, row by row in plain Python: what the native code is compared with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from stoker import Entry, Ragged, Spec
from stoker._native import ChunkMap, TableLayout, WindowChunks
from stoker.cache.tables import make_strips
from stoker.fields.offsets import offsets_of


@dataclass
class Chunk:
    """Rows as arrays: records, uint8 [N, record_bytes], and lists, by field."""

    records: Any
    lists: dict[str, Ragged]


def spec_of(kinds: Sequence[tuple[str, tuple[int, ...]]]) -> Spec:
    """Return the spec of some ragged fields f0, f1, ... of these dtypes and shapes."""
    fields = (
        Entry(name=f"f{i}", dtype=np.dtype(dtype), shape=shape, num_levels=1) for i, (dtype, shape) in enumerate(kinds)
    )
    return Spec(tuple(fields))


def lists_of(entry: Entry, lengths: Any, rng: np.random.Generator) -> Ragged:
    """Return lists of these lengths with any content."""
    offsets = offsets_of(np.asarray(lengths, dtype=np.int64))
    content = rng.integers(0, 256, int(offsets[-1]) * entry.value_bytes, dtype=np.uint8)
    return Ragged(content.view(entry.dtype).reshape(-1, *entry.shape), offsets)


def in_memory(arrays: Sequence[Any]) -> tuple[ChunkMap, list[tuple[int, int]]]:
    """Return arrays as a chunk's file, which ends with the last one, and where each lies: first byte, and bytes."""
    places, end = [], 0
    with TemporaryFile() as file:
        for array in arrays:
            end += -end % 64
            os.pwrite(file.fileno(), array.tobytes(), end)
            places.append((end, array.nbytes))
            end += array.nbytes
        if not end:
            os.pwrite(file.fileno(), b"0", 0)
        return ChunkMap(file.fileno(), max(end, 1)), places


def window_of(chunks: Sequence[Sequence[Any]], layout: TableLayout) -> WindowChunks:
    """Return a window of one table; of each chunk, its arrays."""
    found = [in_memory(arrays) for arrays in chunks]
    places = np.array([one for _, one in found], dtype=np.int64).reshape(len(found), -1, 2)
    return WindowChunks([one for one, _ in found], places, [layout])


def laid_out(spec: Spec, chunks: Sequence[Chunk]) -> tuple[WindowChunks, list[tuple[Entry, ...]]]:
    """Return chunks as a window, as chunk files have them, and its groups of fields."""
    groups = [spec.strip] if spec.strip else [(entry,) for entry in spec]
    contents = []
    for chunk in chunks:
        arrays = [chunk.records] if chunk.records.shape[1] else []
        if (strips := make_strips(spec, chunk.lists)) is not None:
            places, begins, lay = strips
            content = np.empty(int(begins[-1]), np.uint8)
            lay(content, 0, len(places))
            arrays += [places, content]
        else:
            arrays += [array for lists in chunk.lists.values() for array in (lists.offsets, lists.values)]
        contents.append(arrays)
    layout = TableLayout(chunks[0].records.shape[1])
    for group in groups:
        if group is spec.strip:
            layout.add_strips([entry.value_bytes for entry in group])
        else:
            layout.add_field(group[0].value_bytes, is_nested=False)
    return window_of(contents, layout), groups


def taken(chunks: Sequence[Chunk], slot: Any, row: Any) -> list[tuple[bytes, dict[str, bytes]]]:
    """Return record and lists of each row, as bytes."""
    found = []
    for s, r in zip(slot.tolist(), row.tolist(), strict=True):
        lists = {name: field.values[field.offsets[r] : field.offsets[r + 1]] for name, field in chunks[s].lists.items()}
        found.append((chunks[s].records[r].tobytes(), {name: one.tobytes() for name, one in lists.items()}))
    return found
