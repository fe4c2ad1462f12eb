"""Real processes on one cache: many that start at once, and some that are killed."""

from __future__ import annotations

import multiprocessing
import random
from collections import Counter

import pytest
from tests.crash.builders import fill, fill_and_report, fill_for_ever
from tests.strategies import write_files

from stoker.cache import admin
from stoker.cache.store import Store

# Processes of a server that has imported everything start in a tenth of the time.
SERVED = multiprocessing.get_context("forkserver")
SERVED.set_forkserver_preload(["tests.crash.builders"])
SIZES = [100, 257, 64, 300]


@pytest.fixture
def data(tmp_path):
    return write_files(tmp_path / "data", SIZES, row_group_size=20)


def first_ids(marks):
    return Counter(map(int, marks.read_text().split()))


@pytest.fixture
def expected(data, tmp_path):
    """The digest of all chunks, and how many there are."""
    digest = fill(data, tmp_path / "expected", tmp_path / "expected-marks", digest=True)
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


@pytest.mark.parametrize("num_kills", [5, pytest.param(40, marks=pytest.mark.slow)])
def test_kills_at_any_moment_leave_a_cache_that_the_next_run_uses_without_help(data, tmp_path, expected, num_kills):
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
        with Store(cache) as store:
            assert list((cache / "tmp").iterdir()) == []
            assert admin.verify(store).corrupt == ()
            assert all(not entry.is_in_use for entry in admin.entries(store))
    (tmp_path / "after").touch()
    assert fill(data, cache, tmp_path / "after", digest=True) == digest
    assert max(first_ids(tmp_path / "after").values(), default=1) == 1
    assert sorted(path.name for path in cache.iterdir()) == [
        "checked", "chunks", "datasets", "locks", "source", "stoker-cache.json", "tmp", "usage",
    ]  # fmt: skip


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
    assert fill(data, cache, marks, digest=True) == digest
