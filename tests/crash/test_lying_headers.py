"""Chunk files whose headers lie, with checksums that are right: mended from the source, or an error, and no crash."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash
from tests.strategies import write_files

import stoker

MEMORY_BYTES = 4 << 30
SPECIAL = (-1, 0, 1, 1 << 20, 1 << 40, 1 << 62)


def batches_of(folder: Path) -> list[str]:
    """Return the batches of an epoch as text."""
    with stoker.Loader(
        stoker.Dataset(folder / "data"), batch_size=16, shuffle=True, cache=folder / "cache", num_threads=1
    ) as loader:
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
            if len(text) > size - 8:
                continue
            header = chunk[:8] + text.ljust(size - 8)
            at = header.index(b'"checksum":"') + 12
            blank = header[:at] + b"0" * 16 + header[at + 16 :]
            checksum = xxhash.xxh3_64_hexdigest(blank).encode()
            yield f"{path} {number}", blank[:at] + checksum + blank[at + 16 :] + chunk[size:]


def main(folder: Path, step: int) -> None:
    """Load an epoch from each of the files that lie, and print what came of it."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    truth = batches_of(folder)
    path = min((folder / "cache" / "chunks").rglob("*.safetensors"))
    sound = path.read_bytes()
    outcomes: Counter[str] = Counter()
    for name, lie in list(lies_of(sound))[::step]:
        sys.stderr.write(f"{name}\n")  # what comes last is what ended the process
        path.write_bytes(lie)
        try:
            found = "same" if batches_of(folder) == truth else "WRONG"
        except stoker.CacheError as error:
            found = "error" if str(path) in str(error) else "NAMELESS"
        assert found in ("same", "error"), (name, found)
        outcomes[found] += 1
    sys.stdout.write(json.dumps(outcomes))


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.slow)])
def test_a_header_that_lies_never_reaches_a_batch(tmp_path, step):
    write_files(tmp_path / "data", [40, 30])
    batches_of(tmp_path)
    command = [sys.executable, "-m", "tests.crash.test_lying_headers", str(tmp_path), str(step)]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert sum(json.loads(done.stdout).values()) > 100 // step


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
