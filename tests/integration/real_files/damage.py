"""Sound files with bytes flipped, zeroed, removed or cut off; the same ones at every run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from tests.integration.real_files.answers import WHOLE, Source, explore


class Variant(NamedTuple):
    """A damaged file: what was done to it, and its bytes."""

    name: str
    content: bytes


def damaged(content: bytes, *, name: str, start: int, stop: int) -> Iterator[Variant]:
    """Yield variants `start` to `stop` of a file. Half of them are hit in the footer, where every byte counts."""
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for i in range(start, stop):
        chance = random.Random(f"{name} {i}")
        how = _WAYS[i % len(_WAYS)]
        low, high = (footer, len(content)) if chance.random() < 0.5 else (4, footer)
        at = chance.randrange(low, high)
        yield Variant(f"{name} {i}: {how.__name__} at {at:,} of {len(content):,}", how(content, at, chance))


def _other_byte(content: bytes, at: int, chance: random.Random) -> bytes:
    return content[:at] + bytes([content[at] ^ chance.randrange(1, 256)]) + content[at + 1 :]


def _one_bit(content: bytes, at: int, chance: random.Random) -> bytes:
    return content[:at] + bytes([content[at] ^ (1 << chance.randrange(8))]) + content[at + 1 :]


def _zeros(content: bytes, at: int, chance: random.Random) -> bytes:
    size = min(chance.randrange(1, 64), len(content) - at)
    return content[:at] + bytes(size) + content[at + size :]


def _ones(content: bytes, at: int, chance: random.Random) -> bytes:
    size = min(chance.randrange(1, 9), len(content) - at)
    return content[:at] + b"\xff" * size + content[at + size :]


def _large_number(content: bytes, at: int, chance: random.Random) -> bytes:
    """A number of Thrift, as large as 32 bits hold, in place of whatever is there."""
    return content[:at] + b"\xfe\xff\xff\xff\x0f" + content[at + 5 :]


def _cut_off(content: bytes, at: int, chance: random.Random) -> bytes:
    return content[:at]


def _removed(content: bytes, at: int, chance: random.Random) -> bytes:
    return content[:at] + content[at + chance.randrange(1, 64) :]


def _elsewhere(content: bytes, at: int, chance: random.Random) -> bytes:
    """Bytes from another place of the file: they look right."""
    size = chance.randrange(1, 64)
    other = chance.randrange(len(content))
    piece = content[other : other + size]
    return content[:at] + piece + content[at + len(piece) :]


_WAYS: list[Callable[[bytes, int, random.Random], bytes]] = [
    _other_byte,
    _one_bit,
    _other_byte,
    _large_number,
    _other_byte,
    _zeros,
    _one_bit,
    _elsewhere,
    _other_byte,
    _ones,
    _removed,
    _cut_off,
]


def probes(sound: Path, folder: Path, *, start: int, stop: int) -> tuple[list[str], list[dict[str, Any]]]:
    """Write variants `start` to `stop` of a sound file; return their names, and the tasks that load them.

    In turn they are loaded whole, split into parts, and with a filter.
    """
    content = sound.read_bytes()
    explored = explore(Source(path=sound))
    assert explored.asked is not None
    flat = [entry.name for entry in pq.read_schema(sound) if not pa.types.is_nested(entry.type)]
    names, tasks = [], []
    for i, variant in zip(range(start, stop), damaged(content, name=sound.name, start=start, stop=stop), strict=True):
        path = folder / f"{sound.name}-{i}.parquet"
        path.write_bytes(variant.content)
        names.append(variant.name)
        tasks.append(
            {
                "kind": "probe",
                "path": str(path),
                "columns": None if explored.asked.columns is None else list(explored.asked.columns),
                "fills": {name: field.fill for name, field in explored.asked.fields.items()},
                "chunk_size": max(1, len(content) // 5) if i % 3 == 1 else WHOLE,
                "filter": flat[0] if i % 3 == 2 and flat else None,
            }
        )
    return names, tasks
