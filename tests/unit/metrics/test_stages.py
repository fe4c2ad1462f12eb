"""What loaders tell of their work: totals always, and the spans that a trace keeps of each thread."""

import gc
import os
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.processes import in_threads
from tests.strategies import write_files

import stoker
from stoker import Trace


def in_thread(work, name="stoker-batch-0"):
    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()


def spans_of(trace):
    return [span for spans in trace.spans().values() for span in spans]


def test_totals_add_up_over_threads():
    stages = Trace().stages("data")
    in_threads(lambda _: [stages("read", 0, 500, 3) for _ in range(1000)], range(4))
    stages("wait", 10, 30, 0)
    found = {stage: (total.num_calls, total.busy_s, total.num_bytes) for stage, total in stages.totals().items()}
    assert found == {"read": (4000, 2e-3, 12000), "wait": (1, 2e-8, 0)}


def test_a_block_that_fails_is_counted_too():
    stages = Trace().stages("data")
    with pytest.raises(KeyError), stages.span("decode", 7):
        raise KeyError
    assert stages.totals()["decode"].num_calls == 1
    assert stages.totals()["decode"].num_bytes == 7
    assert stages.active() == {}


def test_what_happens_inside_a_span_is_about_the_same_thing():
    trace = Trace()
    stages = trace.stages("data")
    stages("list", 1, 2, 0)
    with stages.span("batch", subject=(2, 7, -1, -1)):
        stages("gather", 3, 4, 5)
        with stages.span("open", subject=(2, 9, 1, -1)) as span:
            span.num_bytes = 6
        stages("copy", 5, 6, 0)
    stages("step", 7, 8, 0, (2, 6, -1, -1))
    about = {span.stage: (span.epoch, span.step, span.window, span.chunk, span.num_bytes) for span in spans_of(trace)}
    assert about == {
        "list": (-1, -1, -1, -1, 0),
        "gather": (2, 7, -1, -1, 5),
        "open": (2, 9, 1, -1, 6),
        "copy": (2, 7, -1, -1, 0),
        "batch": (2, 7, -1, -1, 0),
        "step": (2, 6, -1, -1, 0),
    }


def test_it_is_known_who_is_in_which_stage_right_now():
    stages = Trace().stages("data")
    inside, leave = threading.Event(), threading.Event()

    def work():
        with stages.span("open"), stages.span("wait_chunk"):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(10)
    with stages.span("wait"):
        assert stages.active() == {"open": 1, "wait_chunk": 1, "wait": 1}
    leave.set()
    thread.join()
    assert stages.active() == {}


def test_a_thread_goes_on_with_what_one_of_its_name_that_has_ended_kept():
    trace = Trace(max_spans=10)
    stages = trace.stages("data")
    for i in range(50):
        in_thread(lambda i=i: stages("gather", i, i + 1, 0))
    in_thread(lambda: stages("gather", 50, 51, 0), name="stoker-batch-1")
    kept = {name: [span.start_ns for span in spans] for name, spans in trace.spans().items()}
    assert kept == {"stoker-batch-0": [*range(40, 50)], "stoker-batch-1": [50]}
    assert trace.num_dropped == 40
    assert stages.totals()["gather"].num_calls == 51


def test_threads_alive_at_once_push_out_no_span_of_each_others():
    trace = Trace(max_spans=1)
    stages = trace.stages("data")
    together = threading.Barrier(4)

    def work():
        stages("gather", 0, 1, 0)
        together.wait(10)

    threads = [threading.Thread(target=work, name="stoker-batch-0") for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(spans_of(trace)), trace.num_dropped) == (4, 0)


def test_memory_stays_what_the_rings_take_however_long_it_runs():
    stages = Trace(max_spans=1000).stages("data")

    def run(num):
        for i in range(num):
            with stages.span("batch", subject=(0, 1_000_000 + i, -1, -1)):
                stages("gather", 10**12 + i, 10**12 + i + 1, 10**6 + i)

    run(2000)  # the ring is full
    tracemalloc.start()
    try:
        run(2000)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        run(20_000)
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert after < before + 100_000
    assert before < 1000 * 500  # bytes a span, with all it refers to


# A tree of spans: a stage, bytes, and the spans inside it.
TREES = st.recursive(
    st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.just([])),
    lambda inner: st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.lists(inner, max_size=4)),
    max_leaves=12,
)


def play(stages, trees):
    for stage, num_bytes, inner in trees:
        with stages.span(stage, num_bytes):
            play(stages, inner)


@given(threads=st.lists(st.lists(TREES, max_size=4), max_size=4), max_spans=st.integers(1, 40))
def test_totals_are_the_sums_of_the_spans_and_spans_nest_on_each_thread(threads, max_spans):
    trace = Trace(max_spans=max_spans)
    stages = trace.stages("data")
    together = threading.Barrier(max(1, len(threads)))

    def work(trees):
        together.wait(10)
        play(stages, trees)
        together.wait(10)

    made = [threading.Thread(target=work, args=(some,), name=f"stoker-batch-{i}") for i, some in enumerate(threads)]
    for thread in made:
        thread.start()
    for thread in made:
        thread.join()

    totals = stages.totals()
    spans = spans_of(trace)
    assert sum(total.num_calls for total in totals.values()) == len(spans) + trace.num_dropped
    assert all(len(kept) <= max_spans for kept in trace.spans().values())
    if not trace.num_dropped:
        for stage, total in totals.items():
            mine = [span for span in spans if span.stage == stage]
            assert total.num_calls == len(mine)
            assert total.num_bytes == sum(span.num_bytes for span in mine)
            assert total.busy_s == sum(span.stop_ns - span.start_ns for span in mine) / 1e9
    for kept in trace.spans().values():
        for one in kept:
            for other in kept:
                is_apart = one.stop_ns <= other.start_ns or other.stop_ns <= one.start_ns
                is_inside = one.start_ns <= other.start_ns and other.stop_ns <= one.stop_ns
                is_around = other.start_ns <= one.start_ns and one.stop_ns <= other.stop_ns
                assert is_apart or is_inside or is_around


FORK = """
import os, signal, sys, threading
import stoker

asked, go_on = threading.Event(), threading.Event()
open_it = stoker.Dataset(sys.argv[1]).open

class Slow(threading.Thread):
    def is_alive(self):  # asked by the thread that comes next, to go on with what this one has counted
        asked.set()
        go_on.wait(60)
        return super().is_alive()

first, second = Slow(target=open_it), threading.Thread(target=open_it)
first.start()
first.join()
second.start()
asked.wait(60)
os.register_at_fork(before=go_on.set)
child = os.fork()
if not child:
    signal.alarm(60)  # ends a child that hangs
    open_it()
    os._exit(0)
second.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_made_while_a_thread_counts_its_first_work_opens_a_data_set(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(Path(stoker.__file__).parents[1])}
    script = [sys.executable, "-W", "ignore", "-c", FORK, str(write_files(tmp_path / "data", [10]))]
    assert subprocess.run(script, env=environment, check=True, capture_output=True, text=True).stdout == "0\n"
