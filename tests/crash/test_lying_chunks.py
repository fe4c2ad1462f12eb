"""Chunk files that lie, with checksums that are right: mended from the source, or an error, and no crash."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from tests.unit.cache.chunk_files import header_of, sealed, write_chunk
from tests.unit.cache.samples import arrays_of

import stoker
from stoker import Spec

NUM_ROWS = 60
MEMORY_BYTES = 4 << 30
SPECIAL = (-1, 0, 1, 1 << 20, 1 << 40, 1 << 62)


def write_data(folder: Path) -> None:
    """Write lists of all kinds: side by side, alone and of lists, for each sample and once for several."""
    folder.mkdir()
    row = np.arange(NUM_ROWS)
    query = row // 7
    columns = {
        "id": row,
        "near": pa.array([[int(i)] * (i % 4) for i in row], pa.list_(pa.int16())),
        "far": pa.array([[int(i), 1] * (i % 3) for i in row], pa.list_(pa.int64())),
        "deep": pa.array([[[1] * (i % 3), [2]] * (i % 2) for i in row], pa.list_(pa.list_(pa.int8()))),
        "query": query,
        "price": query / 4,
        "words": pa.array([[int(q)] * (q % 5) for q in query], pa.list_(pa.int32())),
    }
    pq.write_table(pa.table(columns), folder / "a.parquet")


def batches_of(folder: Path) -> list[str]:
    """Return the batches of an epoch as text."""
    dataset = stoker.Dataset(folder / "data", deduplicate={"query": ["price", "words"]})
    with stoker.Loader(dataset, batch_size=16, shuffle=True, cache=folder / "cache", num_threads=1) as loader:
        return [str({name: field.tolist() for name, field in batch.items()}) for batch in loader]


def numbers_in(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where the numbers are in JSON, and in the JSON that it holds as text."""
    if isinstance(content, str) and content[:1] in ("{", "["):
        yield from numbers_in(json.loads(content), (*path, None))
    elif isinstance(content, dict | list):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from numbers_in(value, (*path, key))
    elif isinstance(content, int) or (isinstance(content, str) and content.isdigit()):
        yield path


def changed(content: Any, path: tuple[Any, ...], number: int) -> tuple[Any, int]:
    """Return JSON with another number at a place, and the one that was there."""
    if not path:
        return (str(number) if isinstance(content, str) else number), int(content)
    key, *rest = path
    if key is None:
        inner, was = changed(json.loads(content), tuple(rest), number)
        return json.dumps(inner, separators=(",", ":")), was
    content = content.copy()
    content[key], was = changed(content[key], tuple(rest), number)
    return content, was


def lies_of(chunk: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield chunk files with another number in the header, and their names."""
    size = 8 + int.from_bytes(chunk[:8], "little")
    content = json.loads(chunk[8:size])
    for path in numbers_in(content):
        _, was = changed(content, path, 0)
        for number in sorted({*SPECIAL, was - 1, was + 1, was * 2} - {was}):
            text = json.dumps(changed(content, path, number)[0], separators=(",", ":")).encode()
            if len(text) <= size - 8:
                yield f"{path} {number}", sealed(chunk[:8] + text.ljust(size - 8)) + chunk[size:]


def forged_contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield chunk files in whose arrays another number says where a list or a run is, and their names."""
    chunk, header, draw = path.read_bytes(), header_of(path), random.Random(7)
    size = 8 + int.from_bytes(chunk[:8], "little")
    for name, place in header.arrays.items():
        for number in (*SPECIAL, 1 << 31, (1 << 32) - 1):
            array = np.frombuffer(chunk, place.dtype, int(np.prod(place.shape)), place.offset_bytes).copy()
            if name == "records":
                at = header.spec.tables[0].record_offsets["query.run"]
                numbers = array.reshape(place.shape)[:, at : at + 4].view(np.uint32)[:, 0]
            elif name.endswith((".offsets", ".places")):
                numbers = array
            else:
                continue
            if np.iinfo(numbers.dtype).min <= number <= np.iinfo(numbers.dtype).max:
                numbers[draw.randrange(numbers.size)] = number
                data = array.tobytes()
                text = chunk[:size].replace(place.checksum.encode(), xxhash.xxh3_64_hexdigest(data).encode())
                whole = sealed(text) + chunk[size:]
                kind = "astray" if not 0 <= number < 1 << 20 else "within"
                yield (
                    f"{kind} {name} {number}",
                    whole[: place.offset_bytes] + data + whole[place.offset_bytes + len(data) :],
                )


def other_chunks(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield sound chunk files of the same key, but with fewer samples, other fields, or lists in other arrays."""
    spec, forged = header_of(path).spec, path.with_name("forged")
    for fields, num in ((spec, NUM_ROWS - 1), (spec, 0), (Spec(spec.entries[:1]), NUM_ROWS)):
        write_chunk(forged, arrays_of(fields, num), fields, num_samples=num, about={"key": path.stem})
        content = forged.read_bytes()
        forged.unlink()
        yield f"astray {num} samples of {fields}", content
    chunk = path.read_bytes()
    size = 8 + int.from_bytes(chunk[:8], "little")
    for name in (b'"strips.places"', b'"far.offsets"'):
        if name in chunk[:size]:
            other = name[:-2] + b'z"'
            header = chunk[:size].replace(name, other).replace(name.replace(b'"', b'\\"'), other.replace(b'"', b'\\"'))
            yield "astray array under another name", sealed(header) + chunk[size:]


def main(folder: Path, step: int) -> None:
    """Load an epoch from each of the files that lie, and print what came of it."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    truth = batches_of(folder)
    path = min((folder / "cache" / "chunks").rglob("*.safetensors"))
    outcomes: Counter[str] = Counter()
    for name, lie in [*list(lies_of(path.read_bytes()))[::step], *forged_contents(path), *other_chunks(path)]:
        sys.stderr.write(f"{name}\n")  # what comes last is what ended the process
        path.write_bytes(lie)
        try:
            found = "same" if batches_of(folder) == truth else "WRONG"
        except stoker.CacheError as error:
            found = "error" if str(path) in str(error) else "NAMELESS"
        # Who writes other values that could be right is believed; but not who leads to what is not there.
        may_be = (
            ("same", "WRONG") if name.startswith("within") else ("same",) if "astray" in name else ("same", "error")
        )
        assert found in may_be, (name, found)
        outcomes[name.split()[0] if "astray" in name else found] += 1
    sys.stdout.write(json.dumps(outcomes))


@pytest.mark.parametrize("step", [47, pytest.param(1, marks=pytest.mark.slow)])
def test_a_chunk_that_lies_never_leads_to_what_is_not_there(tmp_path, step):
    write_data(tmp_path / "data")
    batches_of(tmp_path)
    command = [sys.executable, "-m", "tests.crash.test_lying_chunks", str(tmp_path), str(step)]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes = json.loads(done.stdout)
    assert sum(outcomes.values()) > 100 // step
    assert outcomes["astray"] > 20


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
