"""Where idle time goes, against an oracle that looks at every microsecond on its own, and what must not matter."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.doctor.traces.made import times_of, traced

END = 60
ARRIVES = 10  # microseconds that a launch may take to arrive
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
ON_DEVICE = ("compute", "communication", "copy")
WHYS = ("collating", "copying_pageable", "waiting_for_data", "synchronising", "launching", "queued", "unattributed")
MOMENT = st.integers(0, END)
# What it is, when, how long, on which stream; for work of a device also how long before it was launched, if known.
EVENT = st.tuples(
    st.sampled_from(sorted(KINDS)), MOMENT, st.integers(0, 20), st.integers(0, 3), st.none() | st.integers(0, 30)
)
EVENTS = st.lists(EVENT, max_size=25)
STEPS = st.lists(st.integers(1, 20), max_size=5)


def made(events, steps, *, shift=0, rename=str):
    """Return the events of a trace; the call that launches work takes a microsecond."""
    found = []
    for number, (name, start, duration, stream, before) in enumerate(events, 1):
        cat, text, pid = KINDS[name]
        tid = stream if pid == 0 else 9
        event = {"ph": "X", "cat": cat, "name": text, "pid": pid, "tid": tid, "ts": start + shift, "dur": duration}
        if name == "nothing":
            event["name"] = rename(text)
        if pid == 0 and before is not None:
            event["args"] = {"correlation": number}
            call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "dur": 1}
            found.append({**call, "ts": start - before - 1 + shift, "args": {"correlation": number}})
        found.append(event)
    at = shift
    for number, length in enumerate(steps):
        step = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 9, "tid": 9, "ts": at}
        found.append(step | {"dur": length})
        at += length
    return found


def read(folder, events, steps, **options):
    path = folder / "t.json"
    path.write_text(json.dumps({"traceEvents": made(events, steps, **options)}))
    return traced(path)


def hands_batches_on(event, events):
    """Say whether an event is a collective that a wait for data launches."""
    name, start, _, _, before = event
    return (name == "communication" and before is not None) and any(
        other == "waiting_for_data" and at <= start - before - 1 < at + length for other, at, length, *_ in events
    )


def expected(events, low, high, begin, end):
    """Return the times of a window, microsecond by microsecond, as the sentences of the how-to have them."""
    length, first = 400, 100
    on = {kind: np.zeros(length, bool) for kind in KINDS}
    calls, work = np.zeros(length, bool), []
    for event in events:
        name, start, duration, _, before = event
        launch = start - before - 1 if before is not None else start
        if name in ON_DEVICE and before is not None:
            calls[first + launch : first + launch + 1] = True
        if hands_batches_on(event, events):
            continue
        on[name][first + start : first + start + duration] = True
        if name in ON_DEVICE and duration:
            work.append((start, launch + (before is not None), launch))
    busy = on["compute"] | on["communication"] | on["copy"]
    found = dict.fromkeys((*WHYS, "busy", "idle", "wall"), 0)
    work.sort()
    for at in range(low, high):
        found["wall"] += 1
        if busy[first + at]:
            found["busy"] += 1
            continue
        found["idle"] += 1
        gap = at  # when it began
        while gap > begin and not busy[first + gap - 1]:
            gap -= 1
        starts_with_work = gap > begin
        after = next((one for one in work if one[0] > at), None)
        is_on_its_way = after is not None and after[2] <= at and after[2] < after[0]
        if after is not None and starts_with_work and after[1] <= gap and after[1] < after[0] + (after[1] != after[2]):
            found["queued" if at >= after[1] + ARRIVES else "launching"] += 1
            continue
        is_drained = starts_with_work and any(
            name == "synchronising" and start < gap <= start + duration for name, start, duration, *_ in merged(events)
        )
        is_host = on["launching"][first + at] or calls[first + at] or on["synchronising"][first + at] or is_on_its_way
        if on["collating"][first + at]:
            found["collating"] += 1
        elif on["waiting_for_data"][first + at]:
            found["waiting_for_data"] += 1
        elif is_host:
            found["synchronising" if is_drained else "launching"] += 1
        else:
            found["unattributed"] += 1
    return {name: value for name, value in found.items() if value}


def merged(events):
    """Return the waits for the device, those that touch as one."""
    found = []
    for start, stop in sorted((at, at + length) for name, at, length, *_ in events if name == "synchronising"):
        if found and start <= found[-1][1]:
            found[-1][1] = max(stop, found[-1][1])
        elif start < stop:
            found.append([start, stop])
    return [("synchronising", start, stop - start) for start, stop in found]


@given(events=EVENTS, steps=STEPS)
def test_times_are_those_of_every_microsecond_counted(tmp_path_factory, events, steps):
    found = read(tmp_path_factory.mktemp("law"), events, steps)
    if found["status"] != "ok":
        assert not any(name in ON_DEVICE for name, *_ in events)
        return
    spans = [(event["ts"], event["ts"] + event["dur"]) for event in made(events, steps)]
    begin, end = min(start for start, _ in spans), max(stop for _, stop in spans)
    borders = np.concatenate([[0], np.cumsum(steps)]).astype(int).tolist()
    for index, step in enumerate(found["ranks"][0]["steps"]):
        low, high = borders[index], borders[index + 1]
        times = {name: us for name, us in times_of(step).items() if name in (*WHYS, "busy", "idle", "wall")}
        assert times == expected(events, low, high, begin, end)
        least, most = step["step_without_data_wait_us"]
        assert sum(step["time_us"][name] for name in ("compute", "exposed_comm", "queued")) <= least
        assert least <= most <= step["step_us"] == high - low
    counted = [step["time_us"] for step in found["ranks"][0]["steps"] if step["is_counted"]]
    assert len(counted) == (len(steps) - 2 if len(steps) > 2 else len(steps))
    if steps:
        assert found["time_us"] == {name: sum(times[name] for times in counted) for name in counted[0]}


@given(events=EVENTS, steps=STEPS)
def test_parts_add_up_and_none_is_negative(tmp_path_factory, events, steps):
    found = read(tmp_path_factory.mktemp("law"), events, steps)
    for times in (found["time_us"], *(step["time_us"] for step in found["ranks"][0]["steps"])):
        if times is None:
            continue
        assert min(times.values()) >= 0
        assert times["busy"] + times["idle"] == times["wall"]
        assert sum(times[why] for why in WHYS) == times["idle"]
        assert times["compute"] + times["exposed_comm"] + times["exposed_copy"] == times["busy"]
        assert times["overlap"] + times["exposed_comm"] == times["communication"]


@given(events=EVENTS, start=st.integers(61, 80), before=st.integers(1, 60))
def test_the_host_is_never_blamed_for_a_gap_whose_next_work_was_launched_before_it(
    tmp_path_factory, events, start, before
):
    """Whatever the host does from then on: the device waited for the launch to arrive, and then for a device."""
    work = [event for event in events if event[0] in ON_DEVICE and not hands_batches_on(event, events)]
    ends = [at + length for _, at, length, *_ in work if length]
    fell_idle = max(ends, default=0)
    if not 1 <= fell_idle < start or start - before > fell_idle:
        return
    found = read(
        tmp_path_factory.mktemp("law"),
        [*events, ("compute", start, 5, 7, before)],
        [fell_idle, start - fell_idle],  # the second step is the gap
    )
    times = found["ranks"][0]["steps"][1]["time_us"]
    assert times["launching"] == min(start, max(fell_idle, start - before + ARRIVES)) - fell_idle
    assert times["queued"] == times["idle"] - times["launching"]
    assert times["idle"] == times["wall"] == start - fell_idle


@given(events=EVENTS, steps=STEPS, shift=st.integers(-(10**9), 10**12))
def test_a_clock_that_is_shifted_changes_no_verdict(tmp_path_factory, events, steps, shift):
    folder = tmp_path_factory.mktemp("law")
    plain, shifted = read(folder, events, steps), read(folder, events, steps, shift=shift)
    assert (plain["verdict"], plain["time_us"]) == (shifted["verdict"], shifted["time_us"])


@given(events=EVENTS, steps=STEPS)
def test_ranges_that_are_renamed_change_nothing_but_names(tmp_path_factory, events, steps):
    folder = tmp_path_factory.mktemp("law")
    plain, renamed = read(folder, events, steps), read(folder, events, steps, rename=lambda _: "my own words")
    assert plain["verdict"].replace("forward", "my own words") == renamed["verdict"]
    assert plain["time_us"] == renamed["time_us"]
    assert (plain["largest_range"] or {}).get("share") == (renamed["largest_range"] or {}).get("share")


@given(
    lengths=st.lists(st.lists(st.integers(1, 300), min_size=3, max_size=3), min_size=3, max_size=8),
    clocks=st.lists(st.integers(-(10**7), 10**7), min_size=3, max_size=3),
)
def test_clocks_of_hosts_that_differ_change_no_straggler(tmp_path_factory, lengths, clocks):
    def run(clocks):
        folder = tmp_path_factory.mktemp("law")
        paths = []
        for rank, clock in enumerate(clocks):
            events = []
            for step, of_ranks in enumerate(lengths):
                at = 1000 * step + clock
                name = f"ProfilerStep#{step}"
                events.append(
                    {"ph": "X", "cat": "user_annotation", "name": name, "pid": 9, "tid": 9, "ts": at, "dur": 1000}
                )
                kernel = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 7}
                events.append(kernel | {"ts": at + 900 - of_ranks[rank], "dur": of_ranks[rank]})
            paths.append(folder / f"rank{rank}.json")
            paths[-1].write_text(json.dumps(events))
        found = traced(*paths)
        waits = [(rank["collective_wait_us"], rank["imposed_wait_us"]) for rank in found["ranks"]]
        return found["verdict"], found["num_matched_collectives"], found["straggler"], waits

    assert run([0, 0, 0]) == run(clocks)
