"""Each way delivers the rows that pyarrow reads, whatever their number; and how long an accelerator waits for them."""

import threading
from contextlib import closing
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.strategies import arrays_in

from stoker import Ragged, SourceError
from stoker.demo.accelerator import SimulatedAccelerator, waited_s
from stoker.demo.data import make_data, ranking_dataset
from stoker.demo.ranking import COUNTRIES
from stoker.demo.run import digest_of
from stoker.demo.ways import (
    BATCH_SIZE,
    ArrowCache,
    PlainReads,
    arrays_of,
    batches_in_ram,
    in_ram,
    stoker_loader,
    take,
)
from stoker.testing import FlakyStorage

NUM_ROWS = 13_000  # neither files nor row groups are a multiple of a batch


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("demo") / "data", num_rows=NUM_ROWS)


@pytest.fixture(scope="module")
def table(data):
    return pa.concat_tables([pq.read_table(path) for path in data.paths])


@pytest.fixture
def dataset(data):
    return ranking_dataset(data.paths)


@pytest.fixture(params=["plain", "threads", "arrow", "ram", "stoker"])
def way(request, dataset, tmp_path):
    """What gives the batches of an epoch."""
    with stoker_loader(dataset, folder=tmp_path / "cache", num_threads=2) as stoker:
        yield {
            "plain": lambda: PlainReads(dataset, num_threads=2).epoch,
            "threads": lambda: PlainReads(dataset, num_threads=8).epoch,
            "arrow": lambda: ArrowCache(dataset, folder=tmp_path / "arrow", num_threads=2).epoch,
            "ram": lambda: partial(in_ram, batches_in_ram(dataset, num_threads=2, limit_bytes=1 << 30)[0]),
            "stoker": lambda: stoker,
        }[request.param]()


def _by_row(arrays):
    """Return the arrays with rows in an order that their content decides."""
    order = np.lexsort([arrays["dense"][:, 0], arrays["dense"][:, 4], arrays["query_id"]])
    return take(arrays, order)


def _batches(way, epoch):
    with closing(way(epoch)) as batches:
        return list(batches)


def _together(batches):
    """Return all rows of some batches as one."""

    def joined(fields):
        if not isinstance(fields[0], Ragged):
            return np.concatenate(fields)
        lengths = np.concatenate([np.diff(field.offsets) for field in fields])
        return Ragged(np.concatenate([field.values for field in fields]), np.cumsum([0, *lengths]))

    return {name: joined([batch[name] for batch in batches]) for name in batches[0]}


def test_every_epoch_of_every_way_delivers_each_row_exactly_once(way, table):
    expected = _by_row(arrays_of(table))
    for epoch in range(2):
        batches = _batches(way, epoch)
        sizes = [len(batch["label"]) for batch in batches]
        whole = [BATCH_SIZE] * (NUM_ROWS // BATCH_SIZE)
        assert whole in (sizes[:-1], sorted(sizes, reverse=True)[:-1])  # in RAM the small batch may stand anywhere
        found = _by_row(_together(batches))
        for name, array in expected.items():
            parts = list(zip(*map(arrays_in, (array, found[name])), strict=True))
            assert all(np.array_equal(a, b) for a, b in parts), name
            assert all(a.dtype == b.dtype for a, b in parts), name


def test_epochs_differ_in_their_order(way):
    first, second = (_batches(way, epoch) for epoch in range(2))
    assert [digest_of(batch) for batch in first] != [digest_of(batch) for batch in second]


def test_an_epoch_can_be_left_early_and_leaves_no_thread(way):
    before = {thread.ident for thread in threading.enumerate()}
    with closing(way(0)) as batches:
        next(batches)
    names = [t.name for t in threading.enumerate() if t.ident not in before and t.name.startswith("stoker-demo")]
    assert names == []


@pytest.mark.parametrize("make", [PlainReads, lambda s, num_threads: None], ids=["plain", "arrow"])
def test_a_failed_read_reaches_the_loop(make, dataset, tmp_path):
    flaky = FlakyStorage(dataset.find_storage(), every=20)
    broken = ranking_dataset(dataset.sources, storage=flaky)
    way = make(broken, num_threads=2) or ArrowCache(broken, folder=tmp_path / "arrow", num_threads=2)
    with closing(way.epoch(0)) as batches, pytest.raises((OSError, SourceError)):
        list(batches)


def test_what_does_not_fit_into_memory_is_left_out(dataset):
    whole, is_all = batches_in_ram(dataset, num_threads=2, limit_bytes=1 << 30)
    batch_bytes = sum(array.nbytes for array in whole[0].values())
    part, is_whole = batches_in_ram(dataset, num_threads=2, limit_bytes=3 * batch_bytes)
    assert (is_all, is_whole) == (True, False)
    assert 1 <= len(part) <= 4


def test_arrays_hold_what_the_table_holds(table):
    part = table.slice(777, 100)
    arrays = arrays_of(part)
    assert np.array_equal(arrays["dense"][:, 7], part["dense_07"])
    assert np.array_equal(arrays["ids"][:, 13], part["id_13"])
    assert arrays["ids"].dtype == np.int64
    assert [COUNTRIES[code] for code in arrays["country"]] == part["country"].to_pylist()
    assert arrays["query_embedding"].tolist() == part["query_embedding"].to_pylist()
    assert arrays["clicked_items"].tolist() == part["clicked_items"].to_pylist()


def test_a_digest_sees_every_byte_name_and_shape(table):
    arrays = arrays_of(table.slice(0, 50))
    again = take(arrays, np.arange(50))
    assert digest_of(again) == digest_of(arrays)
    again["viewed_categories"].values[-1] += 1
    assert digest_of(again) != digest_of(arrays)
    assert digest_of({"a": arrays["label"]}) != digest_of({"b": arrays["label"]})
    assert digest_of({"a": arrays["dense"]}) != digest_of({"a": arrays["dense"].reshape(40, 50)})


# ---------------------------------------------------------------------- the accelerator


class Clock:
    """Seconds that pass only when somebody waits, each time so much longer than asked for."""

    def __init__(self, late_s):
        self.now, self.late_s = 0.0, late_s

    def wait(self, seconds):
        self.now += seconds + self.late_s


@pytest.mark.parametrize(
    ("fetches", "late_s", "steps"),
    [
        ([0, 0, 0], 0.0, [(0, 1), (1, 2), (2, 3)]),  # without a gap when the loop is fast
        ([0, 0], 0.25, [(0, 1), (1, 2)]),  # a wait that returns late does not delay a step that was queued
        ([0, 5], 0.0, [(0, 1), (5, 6)]),  # a step begins when its batch comes
        ([0.75, 0.75, 0.75], 0.0, [(0.75, 1.75), (1.75, 2.75), (2.75, 3.75)]),  # the loop may fetch while one runs
    ],
)
def test_a_step_begins_when_its_batch_is_there_and_the_step_before_is_over(fetches, late_s, steps):
    clock = Clock(late_s)
    accelerator = SimulatedAccelerator(1.0, clock=lambda: clock.now, wait=clock.wait)
    for seconds in fetches:
        clock.now += seconds
        accelerator.step({})
    assert accelerator.finish() == steps
    assert accelerator.finish() == []


def test_only_fetching_while_no_step_runs_is_waiting():
    steps = [(2, 5), (7, 8)]
    assert waited_s([(0, 2), (2, 4)], steps, start=0) == 2
    assert waited_s([(0, 2), (2, 6)], steps, start=0) == 3
    assert waited_s([(0, 1), (6, 7)], steps, start=0) == 2
