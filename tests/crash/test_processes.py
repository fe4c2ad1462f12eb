"""Real processes on one cache: many that start at once, and some that are killed."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from contextlib import ExitStack, suppress
from multiprocessing.connection import wait
from pathlib import Path

import pytest
from tests.crash.builders import fill, fill_and_report, fill_for_ever, train_for_ever
from tests.processes import SERVED
from tests.strategies import write_files

from stoker.cli import main

SIZES = [100, 257, 64, 300]


@pytest.fixture
def data(tmp_path):
    return write_files(tmp_path / "data", SIZES, row_group_size=20)


def first_ids(marks):
    return Counter(map(int, marks.read_text().split()))


@pytest.fixture
def expected(data, tmp_path):
    """The digest of all chunks, and how many there are."""
    digest = fill(data, tmp_path / "expected", tmp_path / "expected-marks")
    return digest, len(first_ids(tmp_path / "expected-marks"))


def test_ten_processes_on_one_cold_cache_build_each_chunk_once(data, tmp_path, expected):
    digest, num_chunks = expected
    marks, go = tmp_path / "marks", SERVED.Event()
    pipes = [SERVED.Pipe(duplex=False) for _ in range(10)]
    processes = [
        SERVED.Process(target=fill_and_report, args=(theirs, data, tmp_path / "cache", marks, go))
        for _, theirs in pipes
    ]
    for process in processes:
        process.start()
    go.set()
    digests = {ours.recv_bytes().decode() for ours, _ in pipes}
    for process in processes:
        process.join()
        assert process.exitcode == 0
        process.close()
    for pipe in pipes:
        for end in pipe:
            end.close()
    assert digests == {digest}
    assert set(first_ids(marks).values()) == {1}
    assert len(first_ids(marks)) == num_chunks


def looked_after(cache, capsys):
    """Look at a cache that nobody uses by commands, and return what is in it."""
    assert main(["cache", "ls", str(cache), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not any(dataset["is_in_use"] for dataset in found["datasets"])
    assert main(["cache", "verify", str(cache), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["strays"] == []
    assert list((cache / "tmp").iterdir()) == []
    return found


@pytest.mark.parametrize("num_kills", [5, pytest.param(40, marks=pytest.mark.slow)])
def test_kills_at_any_moment_leave_a_cache_that_the_next_run_uses_without_help(
    data, tmp_path, expected, num_kills, capsys
):
    digest, num_chunks = expected
    cache, marks = tmp_path / "cache", tmp_path / "marks"
    marks.touch()
    moments = random.Random(7)
    seen = 0
    for _ in range(num_kills):
        process = SERVED.Process(target=fill_for_ever, args=(data, cache, marks))
        process.start()
        # The moment is a number of tables transformed since, plus a random spin: no clock decides.
        wanted = seen + moments.randrange(1, 2 * num_chunks)
        while len(marks.read_bytes().splitlines()) < wanted:
            assert process.is_alive()
        for _ in range(moments.randrange(20_000)):
            pass
        process.kill()
        process.join()
        process.close()
        seen = len(marks.read_bytes().splitlines())
        found = looked_after(cache, capsys)
        assert found["size_bytes"] == sum(path.stat().st_size for path in (cache / "chunks").iterdir())
    (tmp_path / "after").touch()
    assert fill(data, cache, tmp_path / "after") == digest
    assert max(first_ids(tmp_path / "after").values(), default=1) == 1
    assert sorted(path.name for path in cache.iterdir()) == [
        "checked", "chunks", "datasets", "locks", "source", "stoker-cache.json", "tmp", "usage",
    ]  # fmt: skip


def still_running(marks):
    """Return the processes that were told of a file, and those that they started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"STOKER_TEST_MARKS={marks}".encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


@pytest.mark.parametrize(
    ("num_kills", "seed"),
    [(6, 11), *[pytest.param(50, seed, marks=[pytest.mark.slow, pytest.mark.timeout(1000)]) for seed in range(20)]],
)
def test_four_that_train_from_a_small_cache_and_are_killed_leave_nothing_that_the_next_does_not_use(
    tmp_path, num_kills, seed, capsys
):
    data = write_files(tmp_path / "data", 4 * SIZES, row_group_size=20)  # more chunks than memory keeps
    digest = fill(data, tmp_path / "expected", tmp_path / "expected-marks")
    cache, marks, limit = tmp_path / "cache", tmp_path / "marks", 100_000
    marks.touch()
    moments, kinds = random.Random(seed), itertools.cycle(["threads", "threads", "processes"])
    versions = map(str, itertools.count(1))
    with ExitStack() as stack:

        def start():
            process = SERVED.Process(
                target=train_for_ever, args=(data, cache, marks, next(kinds), limit, next(versions))
            )
            process.start()
            stack.callback(end, process)
            return process

        victims = [start() for _ in range(4)]
        for _ in range(num_kills):
            wanted = marks.stat().st_size + moments.randrange(4, 40)  # some tables later
            while marks.stat().st_size < wanted:
                assert wait([victim.sentinel for victim in victims], timeout=0.01) == []  # each compares all its rows
            which = moments.randrange(4)
            end(victims[which])
            victims[which] = start()
            # No chunk is above the limit, but for what one that was just killed had begun.
            assert sum(path.stat().st_size for path in (cache / "chunks").iterdir()) <= limit
    while still_running(marks):  # those that transform find out that nobody asks them for more
        pass
    found = looked_after(cache, capsys)
    assert found["size_bytes"] == sum(path.stat().st_size for path in (cache / "chunks").iterdir()) <= limit
    assert fill(data, cache, tmp_path / "after") == digest


def end(process):
    """Kill a process, once."""
    with suppress(ValueError):  # it was closed
        process.kill()
        process.join()
        process.close()


def test_a_builder_that_is_killed_leaves_its_chunk_to_the_one_that_waits(data, tmp_path, expected):
    digest, _ = expected
    cache, marks = tmp_path / "cache", tmp_path / "marks"
    marks.touch()
    victims = [SERVED.Process(target=fill_for_ever, args=(data, cache, marks)) for _ in range(3)]
    for victim in victims:
        victim.start()
    while len(marks.read_bytes().splitlines()) < 5:
        assert all(victim.is_alive() for victim in victims)
    for victim in victims:
        victim.kill()
        victim.join()
        victim.close()
    assert fill(data, cache, marks) == digest
