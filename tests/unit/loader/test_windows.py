"""Windows of chunks: built, opened and let go of in the order of the steps, and what a page cache or a disk loses."""

from __future__ import annotations

import sys
import threading
import traceback
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.page_cache import cached_bytes, drop_all
from tests.processes import wait_until

from stoker import Cache, Dataset, Loader, Mixture, Trace

# One batch after the other, each made when it is asked for.
ONE_BY_ONE = {"prefetch": 0, "augment": lambda batch, rng: batch, "num_threads": 1}


def dataset_of(path, num_chunks, *, rows=20, first=0):
    """Return a data set of so many row groups, each of which is a chunk; ids count through all of them."""
    ids = np.arange(first, first + num_chunks * rows)
    pq.write_table(pa.table({"id": ids, "half": ids / 2}), path, row_group_size=rows)
    return Dataset(path, chunk_size=16 * rows)


def spans_of(trace, stage):
    """Return the spans of a stage, in the order in which they began."""
    spans = [span for its in trace.spans().values() for span in its if span.stage == stage]
    return sorted(spans, key=lambda span: span.start_ns)


def mapped_chunks(cache):
    """Return the chunks of a cache that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {words[5] for words in (line.split(maxsplit=5) for line in lines) if f"{cache}/chunks/" in words[-1]}


# ---------------------------------------------------------------------- in the order of the steps


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="there is no way to ask what is mapped")
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("sizes", [[12], [12, 5, 2]], ids=["one", "mixture"])
def test_a_window_is_let_go_of_as_soon_as_no_later_step_needs_it_and_one_ahead_is_open(tmp_path, sizes, shuffle):
    sets = {str(i): dataset_of(tmp_path / f"{i}.parquet", num, first=1000 * i) for i, num in enumerate(sizes)}
    dataset = Mixture(sets) if len(sets) > 1 else sets["0"]
    # With verify="always" no chunk stays mapped.
    cache = Cache(tmp_path / "cache", verify="always")
    with Loader(dataset, batch_size=7, shuffle=shuffle, window=1, cache=cache, **ONE_BY_ONE) as loader:
        numbers = [dict[int, int]() for _ in sizes]  # of each data set: its windows, in the order of their use
        uses = []  # of each step: data set and number of each window that it needs
        for step in range(len(loader)):
            told = loader.explain(step)
            whose = np.zeros(len(told), int) if told.whose is None else told.whose
            used = list(zip(whose.tolist(), told.chunk.tolist(), strict=True))
            for which, chunk in used:
                numbers[which].setdefault(chunk, len(numbers[which]))
            uses.append({(which, numbers[which][chunk]) for which, chunk in used})
        assert [len(its) for its in numbers] == sizes
        for step, _ in zip(range(len(loader) - 1), loader, strict=False):
            expected = 0
            for which, size in enumerate(sizes):
                before, behind = (
                    {number for its in some for of, number in its if of == which}
                    for some in (uses[: step + 1], uses[step + 1 :])
                )
                if before and behind:
                    expected += min(max(before) + 1, size - 1) - min(behind) + 1
            wait_until(lambda expected=expected: len(mapped_chunks(tmp_path / "cache")) == expected)


def test_windows_are_opened_in_order_each_once_and_again_for_padding(tmp_path):
    trace = Trace()
    options = {"batch_size": 100, "window": 1, "remainder": "pad", "trace": trace}
    with Loader(dataset_of(tmp_path / "a.parquet", 12), **options, **ONE_BY_ONE) as loader:
        ids = [batch["id"].tolist() for batch in loader]
    assert ids[-1] == [*range(200, 240), *range(60)]
    assert [span.window for span in spans_of(trace, "open")][:15] == [*range(12), 0, 1, 2]


def test_chunks_are_built_window_by_window(tmp_path):
    trace = Trace()
    options = {"batch_size": 40, "window": 2, "shuffle": True, "seed": 3, "num_threads": 1, "trace": trace}
    with Loader(dataset_of(tmp_path / "a.parquet", 12), **options) as loader:
        windows = {chunk: step for step in range(6) for chunk in loader.explain(step).chunk.tolist()}
        for _ in loader:
            pass
    built = [span.chunk for span in spans_of(trace, "build")]
    assert sorted(built) == list(range(1, 12))  # but for the first one, which was built to try it
    assert [windows[chunk] for chunk in built] == sorted(windows[chunk] for chunk in built)


def num_building():
    """Return how many of the threads that build do not wait until there is something to build."""
    frames = sys._current_frames()
    builders = [frames.get(one.ident) for one in threading.enumerate() if one.name.startswith("stoker-build")]
    calls = [[frame.f_code.co_name for frame, _ in traceback.walk_stack(one)][:2] for one in builders if one]
    return len(builders) - calls.count(["wait", "_claim"])


def nothing_is_to_be_built():
    return not any(one.name == "stoker-window" for one in threading.enumerate()) and num_building() == 0


@pytest.mark.parametrize(("limit", "num_built"), [("600kB", 4), (None, 6)], ids=["tight", "roomy"])
@pytest.mark.parametrize("is_mixture", [False, True], ids=["one", "mixture"])
def test_one_that_builds_goes_on_two_windows_ahead_or_one_where_the_cache_is_tight(
    tmp_path, limit, num_built, is_mixture
):
    dataset = dataset_of(tmp_path / "a.parquet", 12, rows=2000)
    if is_mixture:  # with a small one, for which there is room enough
        dataset = Mixture({"small": dataset_of(tmp_path / "b.parquet", 1), "large": dataset})
        num_built += 1
    options = {"batch_size": 1000, "window": 2, "cache": tmp_path / "cache", "cache_limit": limit}
    with Loader(dataset, **options, **ONE_BY_ONE) as loader:
        batches = iter(loader)
        next(batches)
        wait_until(nothing_is_to_be_built)
        assert loader.stats().num_built == num_built


@pytest.mark.parametrize("limit", ["600kB", None], ids=["tight", "roomy"])
@pytest.mark.parametrize("is_mixture", [False, True], ids=["one", "mixture"])
def test_while_a_chunk_is_waited_for_few_others_are_built_where_the_cache_is_tight(tmp_path, limit, is_mixture):
    begun, go_on = [], threading.Event()

    def hold_the_second(table):
        begun.append(table["id"][0].as_py())
        assert begun[-1] != 2000 or go_on.wait(60)
        return table

    path = tmp_path / "a.parquet"
    dataset_of(path, 12, rows=2000)
    dataset = Dataset(path, chunk_size=16 * 2000, transform=hold_the_second, transform_version="1")
    if is_mixture:  # with a small one, for which there is room enough
        dataset = Mixture({"small": dataset_of(tmp_path / "b.parquet", 1), "large": dataset})
    options = {"batch_size": 1000, "window": 12, "cache": tmp_path / "cache", "cache_limit": limit}
    with Loader(dataset, **options, **ONE_BY_ONE | {"num_threads": 2}) as loader:
        loading = threading.Thread(target=next, args=(iter(loader),))
        loading.start()
        try:
            if limit is None:
                wait_until(lambda: len(begun) == 12)
            else:  # the first two, as many more as there are threads, and one that was begun meanwhile
                wait_until(lambda: len(begun) >= 4 and num_building() == 1)
                assert len(begun) <= 5
        finally:
            go_on.set()
            loading.join()


def test_no_thread_builds_where_nothing_is_missing(tmp_path):
    dataset, options = dataset_of(tmp_path / "a.parquet", 12), {"batch_size": 20, "cache": tmp_path / "cache"}
    for names in (["stoker-build-0"], []):
        with Loader(dataset, window=3, num_threads=1, **options) as loader:
            for _ in loader:
                built_by = [one.name for one in threading.enumerate() if one.name.startswith("stoker-build")]
                assert built_by == names


@pytest.mark.parametrize("rank", range(4))
def test_each_of_the_hosts_that_share_a_mirror_begins_elsewhere_in_a_window(tmp_path, rank):
    trace, cache = Trace(), Cache(tmp_path / "cache", mirror=str(tmp_path / "mirror"))
    options = {"global_batch_size": 8, "rank": rank, "world_size": 4, "window": 12, "cache": cache, "trace": trace}
    with Loader(dataset_of(tmp_path / "a.parquet", 12), **options, **ONE_BY_ONE) as loader:
        next(iter(loader))
    begins = 3 * rank
    assert [span.chunk for span in spans_of(trace, "build")] == [n for n in [*range(begins, 12), *range(begins)] if n]


# ---------------------------------------------------------------------- what is lost


def with_lists(path, num_rows=6_000, *, row_group_size=500):
    lists = [list(range(i % 7)) for i in range(num_rows)]
    table = pa.table({"id": np.arange(num_rows), "list": pa.array(lists, pa.list_(pa.int64()))})
    pq.write_table(table, path, row_group_size=row_group_size)
    return Dataset(path, chunk_size=4_000)


OPTIONS = {"batch_size": 64, "shuffle": True, "seed": 3, "window": 3, "num_threads": 2}


def chunk_files(cache):
    return sorted((cache / "chunks").glob("*"))


def tight(cache):
    """A limit that the chunks in a cache fit into once, not twice: then none stays mapped."""
    return {"cache_limit": sum(path.stat().st_size for path in chunk_files(cache)) * 3 // 2}


def content(batches):
    return [
        (batch["id"].tobytes(), batch["list"].offsets.tobytes(), batch["list"].values.tobytes()) for batch in batches
    ]


def test_the_page_cache_is_tried_with_one_window_and_all_come_back_where_it_stays(tmp_path):
    dataset, cache = with_lists(tmp_path / "data.parquet"), tmp_path / "cache"
    options = OPTIONS | {"num_threads": 1, "cache": cache}
    with Loader(dataset, **options) as loader:
        expected = [content(loader) for _ in range(8)]
    with Loader(dataset, **options, **tight(cache)) as loader:
        num_there = []
        drop_all(chunk_files(cache))
        for epoch in expected:
            assert content(loader) == epoch
            num_there.append(sum(map(cached_bytes, chunk_files(cache))))
    num_bytes = sum(path.stat().st_size for path in chunk_files(cache))
    assert 0 < num_there[0] < num_there[-1] == num_bytes


@pytest.mark.parametrize("stands", [True, False])
def test_a_chunk_that_is_removed_or_damaged_between_epochs_is_built_again(tmp_path, stands):
    dataset, cache = with_lists(tmp_path / "data.parquet"), tmp_path / "cache"
    with Loader(dataset, cache=cache, **OPTIONS) as loader:
        expected = content(loader)
    limit = {} if stands else tight(cache)
    with Loader(dataset, cache=cache, **limit, **OPTIONS) as loader:
        assert content(loader) == expected
        removed, damaged, cut, *_ = chunk_files(cache)
        removed.unlink()
        whole = bytearray(damaged.read_bytes())
        whole[8_200] ^= 1
        aside = tmp_path / "aside"
        for path, damage in ((damaged, bytes(whole)), (cut, cut.read_bytes()[:-1])):
            aside.write_bytes(damage)
            aside.replace(path)
        loader.set_epoch(0)
        assert content(loader) == expected
        assert loader.stats().num_mended == 2
