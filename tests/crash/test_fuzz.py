"""Readers of what lies in files, guided by the lines that they run: the error that they promise, or a sound answer.

What is read by native code has targets of its own, in `native/fuzz`.

    python -m tests.crash.test_fuzz TARGET SECONDS FOLDER
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import logging
import math
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.conftest import REPOSITORY
from tests.crash.test_hostile_files import BOUND_BYTES
from tests.strategies import write_files
from tests.unit.cache import samples
from tests.unit.cache.chunk_files import read_arrays, sealed, write_chunk
from tests.unit.cli.typed import typed
from xxhash import xxh3_64_hexdigest

import stoker
from stoker import Spec
from stoker.testing import MemoryStorage, example_table

SOURCES = str(Path(stoker.__file__).parent)
MEMORY_BYTES = 6 << 30
LONGEST_S = 60  # of one input
NUMBERS = (b"-1", b"0", b"1", b"255", b"65536", b"2147483648", b"4294967296", b"9223372036854775808", b"1e99", b"0.5")
WORDS = (
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'""',
    b"NaN",
    b"[" * 3000,
    b'{"a":' * 3000,
    b"\xff",
    b"\x00",
    b'"',
    b",",
    b"\n",
)
Read = Callable[[bytes], object]


# ------------------------------------------------------------------ what is read


def chunk(folder: Path) -> Iterator[tuple[list[bytes], Read, type[Exception]]]:
    """A chunk file, whose checksums are made to fit again: what it says is what is to be doubted."""
    spec = Spec((*samples.SPEC, samples.entry("near", "int16", num_levels=1)))
    seeds = []
    for i, (fields, num) in enumerate([(spec, 5), (samples.SPEC, 3), (Spec(spec.entries[:1]), 0)]):
        write_chunk(
            folder / str(i), samples.arrays_of(fields, num), fields, num_samples=num, page_bytes=64, about={"key": "k"}
        )
        seeds.append((folder / str(i)).read_bytes())
    before, offsets, behind = seeds[1].rpartition(b'"data_offsets":')  # of what only fills a gap
    seeds.append(before + offsets + re.sub(rb",\d+\]", lambda one: b"]" + b" " * (len(one[0]) - 1), behind, count=1))

    def read(data: bytes) -> None:
        (folder / "fuzzed").write_bytes(_with_checksums(data))
        read_arrays(folder / "fuzzed")

    yield seeds, read, stoker.ChunkCorruptError


def _with_checksums(data: bytes) -> bytes:
    size = min(8 + int.from_bytes(data[:8], "little"), len(data))
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        content = json.loads(data[8:size])
        checksums = json.loads(content["__metadata__"]["checksums"])
        for name in checksums:
            start, stop = content[name]["data_offsets"]
            checksums[name] = xxh3_64_hexdigest(data[size + start : size + stop])
        content["__metadata__"]["checksums"] = json.dumps(checksums, separators=(",", ":"))
        data = data[:8] + json.dumps(content, separators=(",", ":")).encode().ljust(size - 8) + data[size:]
    with contextlib.suppress(ValueError):
        return sealed(data[:size]) + data[size:]
    return data


def manifest(folder: Path) -> Iterator[tuple[list[bytes], Read, type[Exception]]]:
    """The small files of a cache: a data set's manifest, with a checksum that fits, the marker, and how full it is."""
    dataset = stoker.Dataset(write_files(folder / "data", [60], row_group_size=20), chunk_size=1_000)
    cache = folder / "cache"
    with stoker.Loader(dataset, batch_size=20, num_threads=1, cache=cache) as loader:
        assert sum(len(batch["id"]) for batch in loader) == 60
    names = [next((cache / "datasets").iterdir()), cache / "stoker-cache.json", cache / "usage"]
    sound = [path.read_bytes() for path in names]

    def read(data: bytes) -> None:
        which, content = data[0] % len(names) if data else 0, data[1:]
        if which == 0 and len(content) % 2:
            content = content[:-16] + xxh3_64_hexdigest(content[:-16]).encode()
        names[which].write_bytes(content)
        code, out, err = typed("cache", "ls", cache, "--json")
        names[which].write_bytes(sound[which])
        if code:
            assert (code, which) == (1, 1), err
            assert "of version" in err
            return
        found = json.loads(out)
        assert sum(one["num_present"] for one in found["datasets"]) + found["unclaimed"]["num_chunks"] == 3
        assert found["size_bytes"] > 0

    head, first, *rest = sound[0][:-16].splitlines(keepends=True)
    twice = b"".join([head, first, first, *rest])
    seeds = [bytes([i]) + content for i, content in enumerate(sound)]
    yield [*seeds, b"\0" + twice + xxh3_64_hexdigest(twice).encode()], read, stoker.CacheError


def state(folder: Path) -> Iterator[tuple[list[bytes], Read, type[Exception]]]:
    """What `state_dict` returned: of one data set, and of a mixture."""
    parts = {name: write_files(folder / name, [100, 60], row_group_size=20) for name in ("web", "code")}
    alone = stoker.Dataset(parts["web"], chunk_size=1_000)
    sets = {name: stoker.Dataset(path, chunk_size=1_000) for name, path in parts.items()}
    mixed = stoker.Mixture(sets, weights=dict.fromkeys(sets, 0.5))
    with contextlib.ExitStack() as stack:
        loaders = [
            stack.enter_context(stoker.Loader(one, batch_size=8, num_threads=1, prefetch=0, window=2))
            for one in (alone, mixed)
        ]
        seeds = []
        for loader in loaders:
            batches = iter(loader)
            seeds += [json.dumps(loader.state_dict()).encode() for _ in range(2) if next(batches)]

        def read(data: bytes) -> None:
            try:
                found = json.loads(data)
            except (ValueError, RecursionError):
                return
            for loader in loaders:
                with contextlib.suppress(stoker.ResumeError):
                    loader.load_state_dict(found)
                    json.dumps(loader.state_dict())
                    len(next(iter(loader), ()))

        yield seeds, read, stoker.ResumeError


def trace(folder: Path) -> Iterator[tuple[list[bytes], Read, type[Exception]]]:
    """A trace of torch's profiler."""
    event = {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm",
        "pid": 0,
        "tid": 7,
        "ts": 12.5,
        "dur": 3,
        "args": {"stream": 7},
    }
    host = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": "1", "ts": "11.25", "dur": 2}
    whole = {"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": [event, host, {"ph": "M"}], "x": [1]}
    seeds = [json.dumps(whole).encode(), json.dumps([event, host], indent=1).encode()]

    def read(data: bytes) -> None:
        (folder / "fuzzed").write_bytes(data)
        code, _, err = typed("trace", folder / "fuzzed", "--json")
        assert code in (0, 1), err

    yield seeds, read, stoker.StokerError


def file(folder: Path) -> Iterator[tuple[list[bytes], Read, type[Exception]]]:
    """A Parquet file: its footer, and its pages as native code and as pyarrow decode them."""
    seeds = []
    structs = pa.array([{"a": f"word {i % 3}", "b": [i] * (i % 3)} for i in range(20)])
    for options in ({}, {"use_dictionary": False, "data_page_version": "2.0"}, {"compression": "none"}):
        sink = io.BytesIO()
        pq.write_table(example_table(20).append_column("s", structs), sink, row_group_size=12, **options)
        seeds.append(sink.getvalue())

    def read(data: bytes) -> None:
        footer = data.rfind(b"PAR1")
        storage = MemoryStorage({"a.parquet": data if footer < 0 else data[: footer + 4]})
        catalogue = stoker.Dataset("a.parquet", storage=storage).open(num_threads=1)
        for i in range(len(catalogue)):
            for _, table in catalogue.read(i):
                table.validate(full=False)

    yield seeds, read, stoker.StokerError


TARGETS = {target.__name__: contextmanager(target) for target in (chunk, manifest, state, trace, file)}


# ------------------------------------------------------------------ how


def lines_of(call: Callable[[], object]) -> set[tuple[int, int, int]]:
    """Return which lines of Stoker followed which in a call, in this thread."""
    found: set[tuple[int, int, int]] = set()

    def follow(frame: FrameType, event: str, _: object) -> Any:
        if event != "call" or not frame.f_code.co_filename.startswith(SOURCES):
            return None
        code, before = id(frame.f_code), 0

        def line(frame: FrameType, event: str, _: object) -> Any:
            nonlocal before
            if event == "line":
                found.add((code, before, frame.f_lineno))
                before = frame.f_lineno
            return line

        return line

    was = sys.gettrace()
    sys.settrace(follow)
    try:
        call()
    finally:
        sys.settrace(was)
    return found


def changed(data: bytes, others: list[bytes], draw: random.Random) -> bytes:
    """Return some bytes with a few changes: flipped, drawn, left out, doubled, of another input, other numbers."""
    made = bytearray(data)
    for _ in range(draw.choice([1, 1, 1, 2, 3, 6])):
        at, num, way = draw.randrange(len(made) + 1), draw.choice([1, 1, 2, 4, 8, 40]), draw.randrange(8)
        if way == 0 and made:
            made[at % len(made)] ^= 1 << draw.randrange(8)
        elif way == 1:
            made[at : at + num] = draw.randbytes(num)
        elif way == 2:
            del made[at : at + num]
        elif way == 3:
            other = draw.choice([*others, bytes(made)])
            start = draw.randrange(len(other) + 1)
            made[at : at + draw.choice([0, num])] = other[start : start + num]
        elif way == 4:
            made[at : at + draw.choice([0, 1, num])] = draw.choice(WORDS)
        elif way == 5:
            number = draw.choice([-1, 0, 1, 127, 1 << 15, 1 << 31, 1 << 40, (1 << 63) - 1])
            made[at : at + 8] = number.to_bytes(8, draw.choice(["little", "big"]), signed=True)
        elif way == 6 and draw.randrange(4) == 0:
            del made[at:]
        elif numbers := list(re.finditer(rb"-?\d+(\.\d+)?", made)):
            one = draw.choice(numbers)
            other = draw.choice([*NUMBERS, draw.choice(numbers)[0], str(draw.randrange(300)).encode()])
            made[one.start() : one.end()] = other
    return bytes(made)


def fuzz(
    target: str, folder: Path, *, num_inputs: float = math.inf, seconds: float = math.inf, longest_s: int = 0
) -> tuple[int, int]:
    """Read changed files until there were so many, or it took so long; return how many, and how many brought new lines.

    The one that is being read is in the file `last`.

    Args:
        target: What is read.
        folder: For its files.
        num_inputs: How many inputs.
        seconds: How long at most.
        longest_s: What takes longer than this ends the process; 0 for nothing.

    Raises:
        AssertionError: One led to another error than its reader promises.
    """
    end_s, draw, num = time.monotonic() + seconds, random.Random(7), 0
    with TARGETS[target](folder) as (seeds, read, promised):
        corpus, known = list(seeds), set[tuple[int, int, int]]()

        def try_one(data: bytes) -> None:
            (folder / "last").write_bytes(data)
            if longest_s:
                signal.alarm(longest_s)
            try:
                read(data)
            except promised:
                pass
            except Exception as error:
                raise AssertionError(f"{target}: {error!r} of {folder / 'last'}: {data[:300]!r}") from error

        read(seeds[0])  # which is sound; the last ones are what was found before
        for data in seeds:
            known |= lines_of(lambda data=data: try_one(data))
        while num < num_inputs and time.monotonic() < end_s:
            # Those that brought something new last are the most worth.
            data = changed(corpus[-1 - int(len(corpus) * draw.random() ** 2)], corpus, draw)
            num += 1
            found = lines_of(lambda data=data: try_one(data)) - known
            if found and len(data) < 1 << 16:
                corpus.append(data)
                known |= found
    return num, len(corpus) - len(seeds)


@pytest.mark.parametrize("target", TARGETS)
def test_a_changed_file_gives_the_error_that_is_promised_or_a_sound_answer(tmp_path, target):
    num, _ = fuzz(target, tmp_path, num_inputs=60)
    assert num == 60


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("target", TARGETS)
def test_ten_minutes_of_changed_files_give_the_errors_that_are_promised_or_sound_answers(tmp_path, target):
    command = [sys.executable, "-m", "tests.crash.test_fuzz", target, "600", str(tmp_path)]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout.split()[0]) > 1000


def fuzz_for(target: str, seconds: float, folder: Path) -> None:
    """Fuzz one target, and say how far that got."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    faulthandler.enable()
    logging.getLogger("stoker").setLevel(logging.CRITICAL)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    num, num_new = fuzz(target, folder, seconds=seconds, longest_s=LONGEST_S)
    taken_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert taken_bytes < BOUND_BYTES, f"one took {taken_bytes:,} bytes"
    sys.stdout.write(f"{num} inputs of {target} in {seconds:.0f} s, {num_new} with new lines, {taken_bytes >> 20} MB\n")


if __name__ == "__main__":
    fuzz_for(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]))
