"""The arithmetic of traces against an oracle that looks at every microsecond on its own."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stoker.doctor.traces import analyse, as_json, read_trace
from stoker.doctor.traces.spans import union

END = 60
KINDS = {
    "compute": ("kernel", "gemm", 0),
    "communication": ("kernel", "ncclDevKernel_AllReduce", 0),
    "copy": ("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 0),
    "collating": ("user_annotation", "collate_fn", 9),
    "waiting_for_data": ("user_annotation", "enumerate(DataLoader)#x.__next__", 9),
    "synchronising": ("cuda_runtime", "cudaStreamSynchronize", 9),
    "launching": ("cpu_op", "aten::mm", 9),
    "nothing": ("user_annotation", "forward", 9),
}
WHYS = ("collating", "waiting_for_data", "synchronising", "launching")
MOMENT = st.integers(0, END)
EVENT = st.tuples(st.sampled_from(sorted(KINDS)), MOMENT, st.integers(0, 20), st.integers(0, 3))
STEPS = st.lists(st.integers(1, 20), max_size=5)


def covered(events, kind, length):
    """Return at which microseconds an event of a kind goes on."""
    found = np.zeros(length, bool)
    for name, start, duration, _ in events:
        if name == kind:
            found[start : start + duration] = True
    return found


def write(path, events, steps):
    made = []
    for name, start, duration, stream in events:
        cat, text, pid = KINDS[name]
        tid = stream if pid == 0 else 9
        made.append({"ph": "X", "cat": cat, "name": text, "pid": pid, "tid": tid, "ts": start, "dur": duration})
    at = 0
    for number, length in enumerate(steps):
        made.append(
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 9, "tid": 9, "ts": at}
            | {"dur": length}
        )
        at += length
    path.write_text(json.dumps({"traceEvents": made}))
    return path


def expected(events, low, high):
    """Return the times of a window, counted microsecond by microsecond."""
    length = 2 * END + 200
    on = {kind: covered(events, kind, length)[low:high] for kind in KINDS}
    busy = on["compute"] | on["communication"] | on["copy"]
    found = {
        "wall": high - low,
        "busy": busy.sum(),
        "idle": (~busy).sum(),
        "compute": on["compute"].sum(),
        "communication": on["communication"].sum(),
        "overlap": (on["compute"] & on["communication"]).sum(),
        "exposed_comm": (on["communication"] & ~on["compute"]).sum(),
        "exposed_copy": (on["copy"] & ~on["compute"] & ~on["communication"]).sum(),
    }
    rest = ~busy
    for why in WHYS:
        found[why] = (rest & on[why]).sum()
        rest &= ~on[why]
    found["unattributed"] = rest.sum()
    return {name: int(value) for name, value in found.items() if value}


def device_end(events):
    return max((start + duration for name, start, duration, _ in events if KINDS[name][2] == 0 and duration), default=0)


@given(events=st.lists(EVENT, max_size=25), steps=STEPS)
def test_times_are_those_of_every_microsecond_counted(tmp_path_factory, events, steps):
    path = write(tmp_path_factory.mktemp("law") / "t.json", events, steps)
    measured = analyse([read_trace(path)]).ranks[0].measured
    if not measured.devices:
        assert not any(KINDS[name][2] == 0 for name, *_ in events)
        return
    if steps:
        low, high = 0, max(sum(steps), device_end(events))
    else:
        low = min(start for _, start, _, _ in events)
        high = max(start + duration for _, start, duration, _ in events)
    times = {name: ns / 1000 for name, ns in vars(measured.times).items() if ns}
    assert times == expected(events, low, high)
    at = 0
    for step, length in zip(measured.steps, steps, strict=True):
        assert {name: ns / 1000 for name, ns in vars(step.times).items() if ns} == expected(events, at, at + length)
        wants = covered(events, "waiting_for_data", 300) | covered(events, "collating", 300)
        assert step.wants_data == 1000 * wants[at : at + length].sum()
        assert step.times.compute + step.times.exposed_comm <= step.least <= step.length
        at += length


@given(events=st.lists(EVENT, max_size=25), steps=STEPS)
def test_parts_add_up_and_none_is_negative(tmp_path_factory, events, steps):
    path = write(tmp_path_factory.mktemp("law") / "t.json", events, steps)
    found = as_json(analyse([read_trace(path)]))
    for times in (found["time_us"], *(step["time_us"] for step in found["ranks"][0]["steps"])):
        if times is None:
            continue
        assert min(times.values()) >= 0
        assert times["busy"] + times["idle"] == times["wall"]
        whys = (*WHYS, "copying_pageable", "pipeline_bubble", "unattributed")
        assert sum(times[why] for why in whys) == times["idle"]
        assert times["compute"] + times["exposed_comm"] + times["exposed_copy"] == times["busy"]
        assert times["overlap"] + times["exposed_comm"] == times["communication"]


SPANS = st.lists(st.tuples(st.integers(-5, 40), st.integers(-5, 40)), max_size=12)


@given(first=SPANS, second=SPANS, times=st.lists(st.integers(-10, 50), max_size=8))
def test_sets_of_instants_are_sets(first, second, times):
    def instants(pairs):
        return {at for start, stop in pairs for at in range(start, stop)}

    def spans(pairs):
        array = np.array(pairs, np.int64).reshape(-1, 2)
        return union(array[:, 0], array[:, 1])

    def members(found):
        assert np.all(found.start < found.stop)
        assert np.all(found.start[1:] > found.stop[:-1])
        return instants(list(zip(found.start.tolist(), found.stop.tolist(), strict=True)))

    one, other = spans(first), spans(second)
    assert members(one) == instants(first)
    assert members(one | other) == instants(first) | instants(second)
    assert members(one & other) == instants(first) & instants(second)
    assert members(one - other) == instants(first) - instants(second)
    assert one.until(np.array(times, np.int64)).tolist() == [sum(at < time for at in instants(first)) for time in times]
