"""Filling a cache counts each chunk once, when it is there."""

import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import CacheFullError, Dataset
from stoker.cache.builder import Builder
from stoker.cache.store import Store
from stoker.cache.threads import AdaptivePool
from stoker.loader.fill import warm


@pytest.fixture
def opened(tmp_path):
    """One huge row group, which is read in one go, between two small ones."""
    for name, num_rows in (("a", 10), ("b", 20_000), ("c", 10)):
        pq.write_table(pa.table({"x": range(num_rows)}), tmp_path / f"{name}.parquet", row_group_size=num_rows)
    catalogue = Dataset([tmp_path / f"{name}.parquet" for name in "abc"], chunk_size="16kB").open()
    assert len(catalogue) > 8
    with Store(tmp_path / "cache") as store:
        yield catalogue, store


@pytest.mark.parametrize("num_threads", [1, 4])
def test_every_chunk_is_counted_once_parts_of_a_row_group_too(opened, num_threads):
    catalogue, store = opened
    told = []
    found = warm(Builder(catalogue, store), pool=AdaptivePool(num_threads), on_progress=told.append)
    assert [progress.num_done for progress in told] == list(range(len(catalogue) + 1))
    assert (found.num_found, found.is_complete, found.num_samples) == (0, True, 20_020)
    assert found.size_bytes == store.disk.folder.count_bytes()
    again = warm(Builder(catalogue, store), pool=AdaptivePool(num_threads))
    assert (again.num_found, again.num_samples, again.found_bytes) == (len(catalogue), 0, found.size_bytes)


def test_parts_are_counted_while_the_others_are_still_to_come(opened):
    catalogue, store = opened
    seen = threading.Event()

    class Slow(Builder):
        """Does not finish a row group before some of its parts have been counted."""

        def build(self, i, **options):
            is_built = super().build(i, **options)
            if len(catalogue.unit(i)) > 1:
                assert seen.wait(60)
            return is_built

    def on_progress(progress):
        if progress.num_done > 3:
            seen.set()

    assert warm(Slow(catalogue, store), pool=AdaptivePool(1), on_progress=on_progress).is_complete


def test_when_it_is_stopped_what_is_begun_is_finished_and_counted(opened):
    catalogue, store = opened
    stop_event = threading.Event()
    found = warm(
        Builder(catalogue, store),
        pool=AdaptivePool(1),
        stop_event=stop_event,
        on_progress=lambda p: p.num_done and stop_event.set(),
    )
    assert (found.num_done, found.is_complete) == (1, False)
    assert warm(Builder(catalogue, store), pool=AdaptivePool(1)).num_found == 1


def test_threads_of_a_part_that_all_find_no_room_come_to_an_end():
    tries, stop_event, tried_again = Counter(), threading.Event(), threading.Event()

    class Two:
        fingerprint, key = "", str

        def __len__(self):
            return 2

        def unit(self, i):
            return [i]

    class Full:
        """What it builds never fits, nothing can be removed; the first try of chunk 1 ends behind two of chunk 0."""

        catalogue = Two()
        store = SimpleNamespace(
            mirror=SimpleNamespace(sizes=dict, drain=lambda stop_event: 0, take_uploaded=set),
            discard_unless_used=lambda fingerprint, keys: 0,
        )

        def size_of(self, i):
            return None

        def build(self, i, **options):
            tries[i] += 1
            if tries.total() > 40:
                stop_event.set()
            if (i, tries[i]) == (0, 2):
                tried_again.set()
            elif (i, tries[i]) == (1, 1):
                assert tried_again.wait(60)
            raise CacheFullError("no room", path=Path("cache"))

    with pytest.raises(CacheFullError):
        warm(Full(), pool=AdaptivePool(2), part=(0, 1), stop_event=stop_event)
    assert tries.total() < 20
