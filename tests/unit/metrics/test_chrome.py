"""The file of a trace, as Perfetto would read it."""

import gzip
import json
import os
import pickle
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.metrics.importer import read

from stoker import Trace


class Told(NamedTuple):
    stage: str
    start: int
    stop: int
    num_bytes: int
    subject: tuple[int, int, int, int]


def span(stage, start, stop, *, step=-1, num_bytes=0, window=-1, chunk=-1, epoch=0):
    return Told(stage, start, stop, num_bytes, (epoch, step, window, chunk))


def trace_of(*recordings, max_spans=1000):
    """A trace to which threads of loaders have told what is listed of each: (name, [(thread, spans)])."""
    trace, now = Trace(max_spans=max_spans), time.perf_counter_ns()
    for name, tracks in recordings:
        stages = trace.stages(name)
        for thread_name, spans in tracks:
            thread = threading.Thread(target=tell, args=(stages, spans, now), name=thread_name)
            thread.start()
            thread.join()
    return trace


def tell(stages, spans, now):
    for stage, start, stop, num_bytes, subject in spans:
        stages(stage, now + start, now + stop, num_bytes, subject)


def written(*recordings, **options):
    """What an importer finds in such a trace, by the time of its first span rather than its own beginning."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        trace_of(*recordings, **options).write(path)
        found = read(path.read_bytes())
    told = [one.start for _, tracks in recordings for _, spans in tracks for one in spans]
    shift = min(told, default=0) - min((one.ts for one in found.slices), default=0)
    for one in found.slices:
        one.ts += shift
    found.counters = {name: [(at + shift, n) for at, n in levels] for name, levels in found.counters.items()}
    return found


def recording(name="data", **tracks):
    names = {"loop": "MainThread", "batch": "stoker-batch-0", "window": "stoker-window", "build": "stoker-build-0"}
    return name, [(names[key], spans) for key, spans in tracks.items()]


ONE = recording(
    batch=[span("gather", 110, 150, step=0, num_bytes=64), span("batch", 100, 160, step=0)],
    loop=[span("wait", 90, 165, step=0), span("step", 166, 300, step=0), span("wait", 300, 301, step=1)],
    window=[span("wait_chunk", 20, 80, step=0, window=0, chunk=5), span("open", 10, 95, step=0, window=0)],
    build=[
        span("fetch", 22, 40, step=0, chunk=5, num_bytes=1000),
        span("decode", 40, 60, step=0, chunk=5),
        span("fetch", 60, 61, step=0, chunk=5, num_bytes=10),
        span("build", 21, 79, step=0, chunk=5),
    ],
)


def test_loop_producers_and_queue_are_tracks_of_their_own_and_nothing_is_dropped():
    found = written(ONE)
    assert found.errors == []
    assert list(found.threads.values()) == ["loop (MainThread)", "batches 0", "windows", "builds 0"]
    assert list(found.processes) == [os.getpid()]
    assert [(s.name, s.ts, s.dur, s.depth) for s in found.on("builds 0")] == [
        ("build", 21, 58, 0),
        ("fetch", 22, 18, 1),
        ("decode", 40, 20, 1),
        ("fetch", 60, 1, 1),
    ]
    assert found.counters == {
        "queue batches ready": [(160, 1), (165, 0)],
    }


def test_every_slice_carries_its_step_and_what_it_is_about():
    found = written(ONE)
    assert {s.name: s.args for s in found.slices} == {
        "wait": {"step": 1, "epoch": 0},
        "step": {"step": 0, "epoch": 0},
        "batch": {"step": 0, "epoch": 0},
        "gather": {"step": 0, "epoch": 0, "bytes": 64},
        "open": {"step": 0, "epoch": 0, "window": 0},
        "wait_chunk": {"step": 0, "epoch": 0, "window": 0, "chunk": 5},
        "build": {"step": 0, "epoch": 0, "chunk": 5},
        "fetch": {"step": 0, "epoch": 0, "chunk": 5, "bytes": 10},
        "decode": {"step": 0, "epoch": 0, "chunk": 5},
    }


def test_an_arrow_leads_from_the_making_of_a_batch_to_its_step():
    ((source, target),) = written(ONE).flows
    assert (source.name, source.ts, target.name, target.ts) == ("batch", 100, "step", 166)


def test_an_arrow_binds_to_the_batch_not_to_what_begins_with_it():
    tight = recording(
        batch=[span("gather", 100, 150, step=0), span("batch", 100, 150, step=0)],
        loop=[span("wait", 100, 150, step=0), span("step", 150, 150, step=0)],
    )
    found = written(tight)
    assert found.errors == []
    assert [(source.name, target.name) for source, target in found.flows] == [("batch", "step")]


def test_steps_of_the_same_number_in_different_epochs_are_told_apart():
    spans = [span("batch", 10 * e, 10 * e + 1, step=0, epoch=e) for e in range(3)]
    steps = [span("step", 10 * e + 5, 10 * e + 6, step=0, epoch=e) for e in range(3)]
    found = written(recording(batch=spans, loop=steps))
    assert [(source.args["epoch"], target.args["epoch"]) for source, target in found.flows] == [(0, 0), (1, 1), (2, 2)]


def test_a_loop_that_was_left_and_begun_again_uses_its_own_batches():
    again = recording(
        batch=[span("batch", 0, 10, step=0), span("batch", 100, 110, step=0)],
        loop=[
            span("wait", 0, 11, step=0),
            span("step", 11, 20, step=0),
            span("wait", 90, 120, step=0),
            span("step", 120, 130, step=0),
        ],
    )
    found = written(again)
    assert found.errors == []
    assert [(source.ts, target.ts) for source, target in found.flows] == [(0, 11), (100, 120)]
    assert found.counters["queue batches ready"] == [(10, 1), (11, 0), (110, 1), (120, 0)]


def test_batches_whose_other_end_was_dropped_do_not_distort_the_queue():
    only_made = [span("batch", 0, 10, step=0), span("batch", 10, 20, step=1)]
    only_taken = [span("wait", 0, 25, step=1), span("wait", 25, 30, step=2)]
    assert written(recording(batch=only_made, loop=only_taken)).counters["queue batches ready"] == [(20, 1), (25, 0)]


def test_dropped_spans_are_said_on_their_track_and_in_the_head():
    found = written(recording(loop=[span("step", 10 * i, 10 * i + 5, step=i) for i in range(9)]), max_spans=2)
    assert found.errors == []
    assert found.other["num_dropped_spans"] == 7
    assert [s.name for s in found.slices if "dropped" in s.name] == [
        "7 earlier spans were dropped: max_spans is too small for them"
    ]


def test_threads_of_two_loaders_are_told_apart():
    found = written(
        recording(name="train", loop=[span("step", 0, 10)]), recording(name="test", loop=[span("step", 2, 12)])
    )
    assert found.errors == []
    assert list(found.threads.values()) == ["train: loop (MainThread)", "test: loop (MainThread)"]


def test_two_loops_at_once_in_one_thread_get_a_track_each():
    found = written(recording(loop=[span("step", 0, 10), span("step", 5, 15), span("wait", 10, 11)]))
    assert found.errors == []
    assert list(found.threads.values()) == ["loop (MainThread)", "loop (MainThread) (2)"]


def test_times_are_exact_to_the_nanosecond_after_a_day_of_recording():
    late = 123_456_789_012_345
    found = written(recording(loop=[span("step", 0, 1), span("step", late, late + 1)]))
    assert [(s.ts, s.dur) for s in found.slices] == [(0, 1), (late, 1)]


def test_an_empty_trace_is_a_trace(tmp_path):
    Trace().write(tmp_path / "trace.json")
    found = read((tmp_path / "trace.json").read_bytes())
    assert (found.slices, found.errors) == ([], [])


SPANS = st.lists(
    st.builds(
        lambda start, length, stage, step: span(stage, start, start + length, step=step),
        st.integers(0, 60),
        st.integers(0, 20),
        st.sampled_from(["batch", "step", "wait", "gather", "build"]),
        st.integers(-1, 4),
    ),
    max_size=25,
)


@given(SPANS, SPANS)
def test_whatever_overlaps_is_shown_and_nothing_is_dropped(some, others):
    found = written(recording(loop=some, batch=others))
    assert found.errors == []
    shown = sorted((s.name, s.ts, s.dur) for s in found.slices)
    assert shown == sorted((s.stage, s.start, s.stop - s.start) for s in (*some, *others))


@given(SPANS, SPANS)
def test_levels_never_go_below_zero_and_end_where_they_began(some, others):
    levels = written(recording(loop=some, batch=others)).counters.get("queue batches ready", [])
    assert all(level >= 0 for _, level in levels)
    assert not levels or levels[-1][1] == 0
    assert [at for at, _ in levels] == sorted(at for at, _ in levels)


# ---------------------------------------------------------------------- Trace


def test_a_trace_is_written_compressed_where_its_name_says_so(tmp_path):
    trace = Trace()
    with trace.stages("data").span("gather", subject=(0, 1, -1, -1)):
        pass
    trace.write(tmp_path / "trace.json")
    trace.write(tmp_path / "trace.json.gz")
    plain = (tmp_path / "trace.json").read_bytes()
    assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()) == plain
    assert [s.args["step"] for s in read(plain).slices] == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace.json", "trace.json.gz"]


def test_a_trace_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "trace.json").mkdir()
    with pytest.raises(OSError, match=r"trace\.json"):
        Trace().write(tmp_path / "trace.json")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_spans_can_be_had_by_thread():
    trace = Trace(max_spans=2)
    stages = trace.stages("train")
    for i in range(3):
        stages("gather", i, i + 1, 0)
    assert {thread: [s.start_ns for s in spans] for thread, spans in trace.spans().items()} == {"MainThread": [1, 2]}
    assert trace.num_dropped == 1
    trace.stages("test")("gather", 0, 1, 0)
    assert list(trace.spans()) == ["train: MainThread", "test: MainThread"]


def test_a_trace_stays_in_its_process():
    with pytest.raises(TypeError, match="one process"):
        pickle.dumps(Trace())


@pytest.mark.parametrize(("wrong", "error"), [(0, ValueError), ("many", TypeError), (True, TypeError)])
def test_a_wrong_number_of_spans_is_refused(wrong, error):
    with pytest.raises(error, match="max_spans"):
        Trace(max_spans=wrong)


def test_the_file_is_json_of_the_trace_event_format(tmp_path):
    trace_of(ONE).write(tmp_path / "trace.json")
    content = json.loads((tmp_path / "trace.json").read_bytes())
    assert set(content) == {"displayTimeUnit", "otherData", "traceEvents"}
    for event in content["traceEvents"]:
        assert {"name", "ph", "pid"} <= set(event)
        assert event["ph"] in "XiCsfM"
        assert event["ph"] == "C" or event["tid"] > 0
