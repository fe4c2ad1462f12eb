"""What a real loader records, and what it says of itself meanwhile."""

import shutil
from collections import Counter

import pytest
from tests.processes import wait_until
from tests.strategies import sample_table, write_files
from tests.unit.metrics.importer import read

from stoker import Dataset, Loader, Trace
from stoker.testing import MemoryStorage, SlowStorage, write_parquet


@pytest.fixture
def data(tmp_path):
    return str(write_files(tmp_path / "data", [300, 200]))


def imported(trace, tmp_path):
    trace.write(tmp_path / "trace.json")
    found = read((tmp_path / "trace.json").read_bytes())
    assert found.errors == []
    return found


def named(found, name):
    return [s for s in found.slices if s.name == name]


@pytest.mark.parametrize(("prefetch", "augment"), [(0, None), (0, lambda batch, rng: batch), (1, None), (4, None)])
def test_every_stage_of_every_step_is_there_with_its_number(data, tmp_path, prefetch, augment):
    # Without threads small batches are gathered some at a time, where nothing of the user's is called.
    together = 1 if prefetch or augment else 16
    trace = Trace()
    options = {"prefetch": prefetch, "augment": augment, "trace": trace, "num_threads": 2}
    with Loader(Dataset(data, chunk_size=5000), batch_size=64, shuffle=True, **options) as loader:
        for epoch in (0, 2):  # not one behind the other: nothing of a third is made ahead
            loader.set_epoch(epoch)
            for _ in loader:
                pass
        stats, num_steps = loader.stats(), len(loader)
    found = imported(trace, tmp_path)
    steps = [(epoch, step) for epoch in (0, 2) for step in range(num_steps)]
    for stage in ("batch", "wait", "step"):
        assert sorted((s.args["epoch"], s.args["step"]) for s in named(found, stage)) == steps, stage
    gathers = [(s.args["epoch"], s.args["step"]) for s in named(found, "gather")]
    if together == 1:
        assert sorted(gathers) == steps
    else:
        assert len(set(gathers)) == len(gathers) < len(steps)
        assert {(epoch, 0) for epoch, _ in steps} <= set(gathers) <= set(steps)
    assert {"list", "footers", "fetch", "decode", "convert", "publish", "build", "open"} <= {
        s.name for s in found.slices
    }
    assert {s.parent.name for s in named(found, "gather")} == {"batch"}
    for s in named(found, "build"):
        assert s.args["chunk"] >= 0
        assert s.args["step"] < num_steps
    # An arrow for each step, from the making of its batch to it.
    arrows = [(source.args["step"], source.name, target.args["step"], target.name) for source, target in found.flows]
    assert sorted(arrows) == sorted((step, "batch", step, "step") for _, step in steps)
    levels = [level for _, level in found.counters["queue batches ready"]]
    assert max(levels) <= max(prefetch, together)
    assert levels[-1] == 0
    # The totals are the sums of the spans.
    for stage, total in stats.stages.items():
        spans = [s for some in trace.spans().values() for s in some if s.stage == stage]
        assert (total.num_calls, total.num_bytes) == (len(spans), sum(s.num_bytes for s in spans)), stage
        assert total.busy_s == sum(s.stop_ns - s.start_ns for s in spans) / 1e9


@pytest.mark.parametrize("prefetch", [0, 1, 24])
@pytest.mark.parametrize("augment", [None, lambda batch, rng: batch])
def test_steps_count_alike_whether_each_is_shown_or_not(data, prefetch, augment):
    num_calls = []
    for trace in (None, Trace()):
        options = {"prefetch": prefetch, "trace": trace, "augment": augment, "num_threads": 2}
        with Loader(Dataset(data, chunk_size=5000), batch_size=16, shuffle=True, **options) as loader:
            for epoch in (0, 2):  # not one behind the other: nothing of a third is made ahead
                loader.set_epoch(epoch)
                for _ in loader:
                    pass
            assert loader.stats().num_dropped_spans == 0  # without a trace none is kept
            stages, num_steps = loader.stats().stages, 2 * len(loader)
        num_calls.append([stages[stage].num_calls for stage in ("batch", "wait", "step")])
    assert num_calls == [[num_steps] * 3] * 2


def test_a_trace_does_not_change_how_many_batches_are_made_at_a_time(data, tmp_path):
    trace = Trace()
    with Loader(Dataset(data), batch_size=10, shuffle=True, prefetch=12, trace=trace, num_threads=1) as loader:
        batches = iter(loader)
        next(batches)
        # A loop that takes its time: 1, 1, 2 and 4 are made, and there is no room for 8 more.
        wait_until(lambda: loader.stats().stages["batch"].num_calls >= 8)
        num_steps = 1 + sum(1 for _ in batches)
    found = imported(trace, tmp_path)
    made = sorted(s.args["step"] for s in named(found, "batch") if s.args["epoch"] == 0)
    gathered = sorted(s.args["step"] for s in named(found, "gather") if s.args["epoch"] == 0)
    assert made == list(range(num_steps))
    assert len(gathered) < num_steps
    assert set(gathered) <= set(made)


def test_work_is_for_the_first_step_that_needs_it(data, tmp_path):
    trace = Trace()
    with Loader(Dataset(data, chunk_size=5000), batch_size=25, shuffle=True, window=2, trace=trace) as loader:
        steps_of = {}
        for step in range(len(loader)):
            for sample in loader.explain(step):
                steps_of.setdefault((sample.url, sample.row_group), step)
        for _ in loader:
            pass
    fragments = Dataset(data, chunk_size=5000).open().fragments
    found = imported(trace, tmp_path)
    opened = {s.args["window"]: s.args["step"] for s in named(found, "open")}
    first_use: dict[int, int] = {}
    for s in named(found, "build"):
        assert s.args["step"] == opened[s.args["window"]]
        fragment = fragments[s.args["chunk"]]
        first = min(steps_of[fragment.url, group] for group in fragment.row_groups)
        assert s.args["step"] <= first
        first_use[s.args["window"]] = min(first, first_use.get(s.args["window"], first))
    assert len(first_use) > 1
    # All chunks of these windows but the one that was built when the data set was opened are among them.
    assert all(opened[window] <= first for window, first in first_use.items())
    assert any(opened[window] == first for window, first in first_use.items())


def test_steps_keep_their_numbers_after_a_resume(data, tmp_path):
    with Loader(Dataset(data), batch_size=50, shuffle=True) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        saved = loader.state_dict()
    trace = Trace()
    with Loader(Dataset(data), batch_size=50, shuffle=True, trace=trace) as loader:
        loader.load_state_dict(saved)
        assert (loader.stats().epoch_step, loader.stats().epoch_steps) == (3, 10)
        for _ in loader:
            pass
    assert sorted(s.args["step"] for s in named(imported(trace, tmp_path), "step")) == list(range(3, 10))


def test_a_slow_source_shows_in_who_waits_for_whom(tmp_path):
    storage = MemoryStorage()
    write_parquet(storage, sample_table(400), url="lake/a.parquet", row_group_size=100)
    dataset = Dataset("lake", storage=SlowStorage(storage, latency_s=0.05), chunk_size=4000)
    with Loader(dataset, batch_size=100, window=1, cache=tmp_path) as loader:
        before = loader.stats()
        for _ in loader:
            pass
        waits = loader.stats().since(before).waits
        for _ in loader:
            pass
        warm = loader.stats().since(before)
    assert waits.loop_for_batch_s > 0
    assert waits.batch_for_window_s > 0
    assert waits.window_for_chunk_s > 0
    assert warm.waits.build_for_bytes_s == waits.build_for_bytes_s > 0
    assert warm.num_steps == 8


def test_a_trace_may_hold_several_loaders_and_outlives_them(data, tmp_path):
    trace = Trace()
    for batch_size in (100, 250):
        with Loader(Dataset(data), batch_size=batch_size, trace=trace) as loader:
            for _ in loader:
                pass
    assert Counter(s.args["step"] for s in named(imported(trace, tmp_path), "step")) == {0: 2, 1: 2, 2: 1, 3: 1, 4: 1}


def test_a_loop_that_was_left_and_begun_again_is_told_right(data, tmp_path):
    trace = Trace()
    with Loader(Dataset(data), batch_size=100, trace=trace) as loader:
        for _ in loader:
            break
        for _ in loader:
            pass
    found = imported(trace, tmp_path)
    assert sorted(s.args["step"] for s in named(found, "step")) == [0, 1, 2, 3, 4]
    assert sorted(s.args["step"] for s in named(found, "wait")) == [0, 0, 1, 2, 3, 4]


def test_an_augment_and_two_loops_at_once_nest(data, tmp_path):
    trace = Trace()
    with Loader(Dataset(data), batch_size=100, trace=trace, augment=lambda batch, rng: batch) as loader:
        for _ in zip(loader, loader, strict=True):
            pass
    found = imported(trace, tmp_path)
    assert len(named(found, "augment")) == 10


def test_a_trace_of_something_else_is_refused_at_once(data):
    with pytest.raises(TypeError, match=r"stoker\.Trace"):
        Loader(Dataset(data), batch_size=4, trace="trace.json")


@pytest.mark.skipif(shutil.which("trace_processor_shell") is None, reason="no trace_processor_shell of Perfetto's")
def test_perfettos_own_trace_processor_reads_it(data, tmp_path):
    perfetto = pytest.importorskip("perfetto.trace_processor", reason="no package perfetto")
    trace = Trace()
    with Loader(Dataset(data), batch_size=100, trace=trace) as loader:
        for _ in loader:
            pass
    found = imported(trace, tmp_path)
    config = perfetto.TraceProcessorConfig(bin_path=shutil.which("trace_processor_shell"))
    with perfetto.TraceProcessor(trace=str(tmp_path / "trace.json"), config=config) as processor:
        rows = list(processor.query("select name, ts, dur from slice"))
        assert sorted((r.name, r.ts, r.dur) for r in rows) == sorted((s.name, s.ts, s.dur) for s in found.slices)
        assert next(iter(processor.query("select count(*) as n from flow"))).n == len(found.flows)
        bad = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
        assert [(r.name, r.value) for r in processor.query(bad)] == []
