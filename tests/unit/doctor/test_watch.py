"""A watched loader is the loader: the same batches, length, attributes, ends and exceptions."""

import copy
import gc
import pickle
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.doctor.watched_loops import Clock, PlannedLoader, watched_run

import stoker


class Batches:
    """A sized loader with attributes; remembers what became of its iterators."""

    batch_size = 4

    def __init__(self, batches):
        self.batches = batches
        self.ended = []

    def __iter__(self):
        try:
            yield from self.batches
        finally:
            self.ended.append(True)

    def __len__(self):
        return len(self.batches)


@given(st.lists(st.builds(object)), st.integers(1, 3), st.integers(0, 12))
def test_every_epoch_gives_the_very_same_objects_in_the_same_order(batches, num_epochs, warmup):
    watched = stoker.watch(batches, warmup=warmup)
    for _ in range(num_epochs):
        assert [id(batch) for batch in watched] == [id(batch) for batch in batches]
    assert watched.report().num_steps == num_epochs * len(batches)


@given(
    st.lists(st.tuples(st.integers(0, 10**10), st.integers(0, 10**10)), max_size=60),
    st.integers(0, 20),
    st.integers(1, 3),
)
def test_shares_sum_to_one_no_time_is_negative_and_none_is_lost(times, warmup, num_epochs):
    loader = PlannedLoader(Clock(), len(times), lambda i: times[i][0] / 1e9)
    report = watched_run(loader, lambda i: times[i][1] / 1e9, num_epochs=num_epochs, warmup=warmup)
    assert all(seconds >= 0 for seconds in report.seconds.values())
    assert sum(report.seconds.values()) == pytest.approx(loader.clock.now_s, rel=1e-9)
    assert 0 <= report.stall_share <= 1
    if report.num_steady and report.seconds["stall"] + report.num_steady * report.step.mean_s > 0:
        assert report.stall_share + report.step_share == pytest.approx(1.0)
    counted = report.num_steady + report.num_warmup + report.num_left_out + report.num_epoch_starts
    assert counted == report.num_steps == num_epochs * len(times)
    for spread in (report.stall, report.step):
        assert 0 <= spread.p50_s <= spread.p95_s <= spread.p99_s <= spread.max_s
    assert all(0 <= part <= 1 for part in report.parts)
    assert all(0 <= finding.share <= 1 for finding in report.findings)
    assert report.verdict.gain >= 1
    assert str(report)


def test_length_attributes_and_truth_are_the_loaders():
    loader = Batches([1, 2, 3])
    watched = stoker.watch(loader)
    assert len(watched) == 3
    assert watched.batch_size == 4
    watched.batch_size = 5
    assert loader.batch_size == 5
    assert watched.loader is loader
    with pytest.raises(AttributeError, match="no_such"):
        _ = watched.no_such
    unsized = stoker.watch(i for i in range(3))
    assert not hasattr(unsized, "__len__")
    assert bool(unsized)
    assert list(unsized) == [0, 1, 2]


def test_a_list_is_indexed_and_asked_as_a_list():
    watched = stoker.watch([1, 2, 3])
    assert (watched[0], watched[1:], 3 in watched, list(reversed(watched))) == (1, [2, 3], True, [3, 2, 1])
    assert not stoker.watch([])
    with pytest.raises(TypeError):
        stoker.watch({1, 2})[0]


def test_a_copy_is_a_watch_of_its_own_and_a_pickle_leaves_functions_behind():
    watched = stoker.watch([1, 2], warmup=3, on_report=lambda report: None)
    for other in (copy.copy(watched), copy.deepcopy(watched), pickle.loads(pickle.dumps(watched))):
        assert list(other) == [1, 2]
        assert other.report().num_warmup == 2
        assert isinstance(other, stoker.Watched)
    assert watched.report().num_steps == 0


def test_a_length_that_is_not_known_is_the_loaders_own_error():
    class Endless(Batches):
        def __len__(self):
            raise TypeError("nobody knows")

    watched = stoker.watch(Endless([1, 2]))
    assert list(watched) == [1, 2]
    with pytest.raises(TypeError, match="nobody knows"):
        len(watched)


def test_a_loop_left_early_ends_the_loaders_iterator_at_once():
    loader = Batches([1, 2, 3])
    watched = stoker.watch(loader)
    for _ in watched:
        break
    assert loader.ended == [True]
    assert list(watched) == [1, 2, 3]
    assert watched.report().num_epochs == 2


def test_a_generator_given_by_itself_is_closed_when_its_loop_is_left():
    closed = []

    def batches():
        try:
            yield from range(10)
        finally:
            closed.append(True)

    gc.disable()  # the end of the last reference alone must do it
    try:
        for _ in stoker.watch(batches()):
            break
        assert closed == [True]
    finally:
        gc.enable()


def test_a_generator_goes_on_where_the_last_loop_stopped_as_it_does_unwatched():
    watched = stoker.watch(iter(range(6)))
    for batch in watched:
        if batch == 2:
            break
    assert next(watched) == 3
    assert list(watched) == [4, 5]
    assert watched.report().num_epochs == 1


def test_what_is_done_between_two_loops_over_one_generator_is_no_step():
    loader = PlannedLoader(Clock(), 40, lambda i: 0.01)
    watched = stoker.watch(iter(loader), clock=loader.clock)
    for batch in watched:
        loader.clock.pass_s(0.01)
        if batch == 20:
            break
    loader.clock.pass_s(1000)
    for _ in watched:
        loader.clock.pass_s(0.01)
    assert watched.report().step.max_s == pytest.approx(0.01)


def test_send_throw_and_close_reach_the_generator():
    def echo():
        got = yield 0
        while True:
            got = yield got

    source = echo()
    iterator = iter(stoker.watch(source))
    assert next(iterator) == 0
    assert iterator.send(7) == 7
    with pytest.raises(KeyError):
        iterator.throw(KeyError("x"))
    stoker.watch(source).close()
    assert list(source) == []


def test_an_exception_passes_unchanged_and_the_loader_may_go_on_after_it():
    error = RuntimeError("worker 3 died")

    class Fails:
        def __init__(self):
            self.count = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.count += 1
            if self.count == 2:
                raise error
            if self.count == 4:
                raise StopIteration
            return self.count

    iterator = iter(stoker.watch(Fails()))
    assert next(iterator) == 1
    with pytest.raises(RuntimeError) as raised:
        next(iterator)
    assert raised.value is error
    assert next(iterator) == 3
    assert list(iterator) == []


def test_an_exception_in_the_loop_is_not_swallowed_by_a_with_block():
    loader = Batches([1, 2])
    loader_closed = []
    loader.close = lambda: loader_closed.append(True)

    def train():
        with stoker.watch(loader) as watched:
            for _ in watched:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert loader_closed == [True]


def test_a_with_block_is_the_loaders_where_it_has_one():
    class Scoped(Batches):
        entered = False

        def __enter__(self):
            self.entered = True
            return self

        def __exit__(self, *_):
            self.entered = False

    loader = Scoped([1])
    with stoker.watch(loader) as watched:
        assert loader.entered
        assert list(watched) == [1]
    assert not loader.entered


def test_no_batch_is_kept_without_a_replay():
    class Batch:
        pass

    watched = stoker.watch(Batch() for _ in range(3))
    alive = [weakref.ref(batch) for batch in watched]
    assert [ref() for ref in alive] == [None, None, None]


def test_reports_come_when_an_epoch_ends_and_when_it_is_left():
    reports = []
    watched = stoker.watch(Batches(list(range(5))), on_report=reports.append)
    for _ in watched:
        pass
    assert [report.num_steps for report in reports] == [5]
    for batch in watched:
        if batch == 1:
            break
    assert [report.num_steps for report in reports] == [5, 7]
    iter(watched)  # no step: nothing to tell
    assert len(reports) == 2


def test_synchronize_runs_at_the_end_of_each_step_and_counts_as_step():
    loader = PlannedLoader(Clock(), 60, lambda i: 0.001)
    report = watched_run(loader, lambda i: 0.001, synchronize=lambda: loader.clock.pass_s(0.1))
    assert report.step.mean_s == pytest.approx(0.101)
    assert report.stall.mean_s == pytest.approx(0.001)
    assert not report.is_async


def test_a_report_is_json_and_says_first_what_matters():
    import json

    loader = PlannedLoader(Clock(), 300, lambda i: 0.0212)
    report = watched_run(loader, lambda i: 0.0125)
    content = json.loads(json.dumps(report.to_json()))
    assert content["verdict"]["limit"] == "data"
    assert content["verdict"]["gain"] == pytest.approx(2.7, abs=0.01)
    assert content["stall"]["mean_s"] == pytest.approx(0.0212)
    first = str(report).splitlines()[0]
    assert first == "data-bound: the step waits 63 % of the time; with batches in RAM it would run 2.7 times faster"
    assert max(len(line) for line in str(report).splitlines()) <= 112


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"warmup": -1}, ValueError, "warmup"),
        ({"warmup": 1.5}, TypeError, "warmup"),
        ({"replay": True}, TypeError, "replay"),
        ({"synchronize": 3}, TypeError, "synchronize"),
        ({"on_report": "print"}, TypeError, "on_report"),
        ({"ranks": 2.0}, TypeError, "folder"),
        ({"synchronize": print, "device": "cuda"}, ValueError, "one of them"),
    ],
)
def test_wrong_arguments_are_named_before_the_first_batch(arguments, error, message):
    with pytest.raises(error, match=message):
        stoker.watch([1, 2], **arguments)


def test_what_no_loop_can_go_over_is_refused():
    with pytest.raises(TypeError, match="int"):
        stoker.watch(3)
