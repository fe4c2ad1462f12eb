"""When the devices of one process idled, and what the host did meanwhile. Pure.

    host     │ launches A │ waits for data │ launches B │
    device        ░░░░░░░AAAAA░░░░░░░░░░░░░░░░░░░BBBBB
                              └ the gap that B ends ┘

A gap ends when its next work begins, and when that was launched decides whom to ask. Launched before the gap began: not
the host, which had done its part; once the launch has had the time to arrive, the device waits for another stream, an
event or a collective. Launched later: the host, by what its threads did in the gap until they launched.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import reduce
from operator import or_
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stoker.doctor.traces.collectives import collectives_of
from stoker.doctor.traces.events import Events, ProfilerTrace
from stoker.doctor.traces.names import ONE_DEVICE, EventKind, Is, step_number
from stoker.doctor.traces.spans import Intervals, between, union
from stoker.doctor.traces.times import RankTimes, StepTimes, Times
from stoker.fields.offsets import Int64

Mask = npt.NDArray[np.bool_]
Flags = npt.NDArray[np.uint8]
Parts = dict[str, Intervals]  # by names of `Times`

# Work begins 5 to 10 µs after the call that launched it has returned, on a device that has nothing else to do. A loop
# that is all launches is never further ahead than this: its gaps are launches on their way, and nothing is queued.
ARRIVES_NS = 10_000
# In public runs, a step with workers took 4 to 7 % longer than one without workers minus its wait; this leaves room.
_UNSURE = 0.15
# "host_1234.1700000000.pt.trace.json": what comes before the time is the same for all cycles of a process.
_HANDLER = re.compile(r"\.\d+\.pt\.trace\.json")
# Frames of Python that wait for another thread or process: what called them says for what.
_WAITS = re.compile(r"^<built-in method (acquire|poll|select) |(^|/)(threading|selectors)\.py\(")


def measure(trace: ProfilerTrace) -> RankTimes:
    """Add up one file, or what one process did in it."""
    says, device_says = _flags(trace, trace.host), _flags(trace, trace.device)
    is_pageable = (device_says & Is.PAGEABLE) != 0
    call = _calls(trace, says)
    launches = _launchers(trace, call, call >= 0)
    main = _main_track(trace, says, launches)
    host = _host_parts(trace, says, device_says, call, main, launches)
    # When the call that launched each work began, and when it returned; where that is not known, with the work itself.
    launched = [
        np.where(call >= 0, np.append(times, 0)[call], trace.device.start)
        for times in (trace.host.start, trace.host.stop)
    ]
    # A collective that a wait for data launches hands batches from rank to rank, and is part of the wait.
    hands_on = host["waiting_for_data"].hold(launched[0], start=True, stop=False) & (call >= 0)
    hands_on &= trace.device.kind == EventKind.COLLECTIVE
    devices = {
        name: _device_parts(trace, mine[~hands_on[mine]], launched, host) for name, mine in _by_device(trace).items()
    }
    wants = host["waiting_for_data"] | host["collating"]
    spans = _steps(trace, trace.host.where((trace.host.track == main) & ((says & Is.STEP) != 0)))
    (begin, end), last = trace.span, len(spans) - 1
    if trace.is_cut and devices:  # profilers write the host's events first: of later steps, only those are there
        end = int(trace.device.stop.max())
    all_steps = tuple(
        _step(number, between(start, stop), devices, wants, is_counted=stop <= end and (last < 2 or 0 < place < last))
        for place, (number, start, stop) in enumerate(spans)
    )
    steps = [step for step in all_steps if step.is_counted]
    # Without steps: what comes before the first work on a device is the program's start.
    window = between(int(trace.device.start.min()) if devices else begin, end)
    if steps:
        window = reduce(or_, (between(step.start, step.start + step.length) for step in steps))
    is_copy = is_pageable & (trace.device.start < window.stop.max(initial=begin))
    is_copy &= trace.device.stop >= window.start.min(initial=end)
    handler, *of = _HANDLER.split(Path(trace.path).name)
    return RankTimes(
        traces=(trace.without_events(),),
        # Processes of two hosts may have one number: the profiler's handler puts the host into the file's name.
        process=(trace.rank, trace.tracks[main].pid if main >= 0 else None, handler if of else ""),
        span=(begin + trace.base_ns, end + trace.base_ns),
        has_events=bool(len(trace.host) or len(trace.device)) or trace.num_without_length > 0,
        has_names=bool((trace.host.kind != EventKind.RUNTIME).any()),
        devices={name: _times(parts, window) for name, parts in devices.items()},
        num_queued=sum(len(parts["queued"] & window) for parts in devices.values()),
        collectives=collectives_of(trace, launched[0], spans, [step.number for step in steps]),
        wall=int((window.stop - window.start).sum()),
        wants_data=wants.within(window),
        ranges=_ranges(trace, main, [parts["unattributed"] & window for parts in devices.values()], window),
        all_steps=all_steps,
        copies=(
            int(is_copy.sum()),
            int(np.maximum(trace.device.extra[is_copy], 0).sum()),
            (host["copying_pageable"] | host["others_copying"]).within(window),
        ),
    )


# --------------------------------------------------------------------- the host


def _flags(trace: ProfilerTrace, events: Events) -> npt.NDArray[np.uint8]:
    """Return what each event's name says about it. [N]."""
    found = np.zeros(len(events), np.uint8)
    for kind in np.unique(events.kind).tolist():
        here = events.kind == kind
        used, inverse = np.unique(events.name[here], return_inverse=True)
        means = [int(trace.names.what_is(trace.texts[name], EventKind(kind))) if name >= 0 else 0 for name in used]
        found[here] = np.array(means, np.uint8)[inverse]
    return found


def _calls(trace: ProfilerTrace, says: Flags) -> Int64:
    """Return which host event launched each device event, -1 where that is not known. [D].

    Where nothing links work to its call, that is the last call before it that can launch.
    """
    events = trace.host
    calls = np.flatnonzero(events.correlation > 0)
    if calls.size:
        return calls_of(events, calls, trace.device)
    calls = np.flatnonzero((events.kind == EventKind.RUNTIME) & ((says & Is.LAUNCH_CALL) != 0))
    calls = calls[np.argsort(events.start[calls], kind="stable")]
    return np.append(-1, calls)[np.searchsorted(events.start[calls], trace.device.start, side="right")]


def calls_of(on_host: Events, calls: Int64, work: Events) -> Int64:
    """Return which of some calls launched each work, -1 where none has its id. [W].

    Ids are used again where one file has several ranks, or several runs of the profiler, one behind the other. Then
    work comes in the order of its calls, as much for each: in the order of the file, unless a work would begin before
    its call; else in that of time, one for each. Where that is not so either, it is the last call that began before the
    work; the first one where clocks of host and device are apart.
    """
    calls = calls[np.lexsort((on_host.start[calls], on_host.correlation[calls]))]
    ids, track, start = (column[calls] for column in (on_host.correlation, on_host.track, on_host.start))
    # A runtime's call and the driver's inside it have one id: the outer one counts.
    is_inner = (ids[1:] == ids[:-1]) & (track[1:] == track[:-1]) & (start[1:] < on_host.stop[calls[:-1]])
    calls = calls[np.append(True, ~is_inner)[: calls.size]]
    ids, start = on_host.correlation[calls], on_host.start[calls]
    first, last = np.searchsorted(ids, work.correlation), np.searchsorted(ids, work.correlation, side="right") - 1
    found = np.where(first <= last, np.append(calls, -1)[first], -1)
    mine = np.flatnonzero(first < last)
    if not mine.size:  # as in most files, where ids are unique
        return found
    low, high = first[mine], last[mine]
    while (low < high).any():
        middle = (low + high + 1) // 2
        is_before = start[middle] <= work.start[mine]
        low, high = np.where(is_before, middle, low), np.where(is_before, high, middle - 1)
    found[mine] = calls[low]
    for order_of_calls, order_of_work, is_file in ((start, work.start, False), (calls, np.arange(len(work)), True)):
        works = mine[np.lexsort((order_of_work[mine], work.correlation[mine]))]
        _, begin, at, num = np.unique(
            work.correlation[works], return_index=True, return_inverse=True, return_counts=True
        )
        num_calls = last[works] + 1 - first[works]
        each = np.maximum(num[at] // num_calls, 1)
        nth = (np.arange(works.size) - begin[at]) // each
        call = calls[np.lexsort((order_of_calls, ids))][first[works] + np.minimum(nth, num_calls - 1)]
        is_so = each * num_calls == num[at]
        if is_file:
            is_so &= np.logical_and.reduceat(on_host.start[call] <= work.start[works], begin)[at]
        else:
            is_so &= each == 1
        found[works[is_so]] = call[is_so]
    return found


def _launchers(trace: ProfilerTrace, call: Int64, chosen: Mask) -> Mask:
    """Return which host events launched some of the chosen work. [H]."""
    found = np.zeros(len(trace.host), bool)
    found[call[chosen & (call >= 0)]] = True
    return found


def _main_track(trace: ProfilerTrace, says: npt.NDArray[np.uint8], launches: Mask) -> int:
    """Return the training loop's track: where the steps are; else the data; else the main thread; else the work."""
    on_host = trace.host
    if not len(on_host):
        return -1
    num = len(trace.tracks)
    launching = np.isin(on_host.track, np.unique(on_host.track[launches]))
    for chosen in (
        (says & Is.STEP) != 0,
        ((says & Is.DATA_WAIT) != 0) & launching,
        # Linux gives a process's main thread the number of the process.
        launching & np.array([track.pid == track.tid for track in trace.tracks], bool)[on_host.track],
        launches,
    ):
        if chosen.any():
            return int(np.bincount(on_host.track[chosen], minlength=num).argmax())
    return int(np.bincount(on_host.track, weights=on_host.stop - on_host.start, minlength=num).argmax())


def _host_parts(trace: ProfilerTrace, says: Flags, device_says: Flags, call: Int64, main: int, launches: Mask) -> Parts:
    """Return when the host did what; where it does several things at once, the first of them counts."""
    events = trace.host
    mine = events.track == main
    launching = mine | np.isin(events.track, np.unique(events.track[launches]))
    copies, fetches = (_launchers(trace, call, (device_says & which) != 0) for which in (Is.PAGEABLE, Is.TO_HOST))
    is_call = events.kind == EventKind.RUNTIME
    is_operator = (events.kind == EventKind.HOST_OP) & ((says & Is.STEP) == 0)
    is_sync = ((says & Is.SYNC) != 0) | fetches & ((says & Is.COPY_CALL) != 0)
    chosen = {
        "collating": mine & ((says & Is.COLLATE) != 0),
        "copying_pageable": mine & copies,
        "waiting_for_data": mine & ((says & Is.DATA_WAIT) != 0),
        "others_copying": launching & ~mine & copies,
        "synchronising": launching & is_sync,  # or had nothing to wait for in such a call
        "launching": launching & (is_call | is_operator),
    }
    return {name: union(events.start[which], events.stop[which]) for name, which in chosen.items()}


def _steps(trace: ProfilerTrace, events: Events) -> list[tuple[int, int, int]]:
    """Return profiled steps in order of time: the N of "ProfilerStep#N", when it began and when it ended."""
    found: list[tuple[int, int, int]] = []
    for index in np.argsort(events.start, kind="stable").tolist():
        number = step_number(trace.texts[events.name[index]])
        start, stop = int(events.start[index]), int(events.stop[index])
        is_again = bool(found) and found[-1][0] == number and start < found[-1][2]
        if number is not None and stop > start and not is_again:
            found.append((number, start, stop))
    return found


# --------------------------------------------------------------------- devices


def _by_device(trace: ProfilerTrace) -> dict[str, Int64]:
    """Return the numbers of each device's events, over all its streams, devices in the order of the file."""
    events = trace.device
    # Some profilers give computation and communication of one device as two processes.
    of_track = ["" if track.process.strip().lower() in ONE_DEVICE else str(track.pid) for track in trace.tracks]
    names = np.array(of_track, object)[events.track] if len(events) else np.empty(0, object)
    return {name: np.flatnonzero((names == name) & (events.stop > events.start)) for name in dict.fromkeys(names)}


def _device_parts(trace: ProfilerTrace, mine: Int64, launches: list[Int64], host: Parts) -> Parts:
    """Return when a device did what, and why it had no work: reasons are disjoint, together all of its idle time."""
    start, stop, kinds = trace.device.start[mine], trace.device.stop[mine], trace.device.kind[mine]
    compute, communication = (
        union(start[kinds == kind], stop[kinds == kind]) for kind in (EventKind.KERNEL, EventKind.COLLECTIVE)
    )
    return {
        "compute": compute,
        "communication": communication,
        "overlap": compute & communication,
        "busy": union(start, stop),
        **_explain_gaps(start, stop, trace.span, [times[mine] for times in launches], host),
    }


def _explain_gaps(start: Int64, stop: Int64, span: tuple[int, int], launches: list[Int64], host: Parts) -> Parts:
    """Return all time in which a device had no work, by reason.

    Args:
        start: When each work began. [D].
        stop: When it ended. [D].
        span: Of the trace. Where it begins, nothing is queued; by its end, nothing is known to be launched.
        launches: When the call that launched each work began, and when it returned.
        host: What the host did.
    """
    (begin, end), (begun, returned) = span, launches
    # Of work that begins at the same time, the one that was launched first ends the gap.
    order = np.lexsort((returned, start))
    gap_starts = np.concatenate([[begin - 1], np.maximum.accumulate(stop[order])])
    gap_stops, begun, returned = (np.append(times[order], end) for times in (start, begun, returned))
    is_launched = returned <= gap_starts
    is_launched[-1] = False  # what would come after the end
    arrived = np.clip(returned + ARRIVES_NS, gap_starts, gap_stops)
    found = {
        "queued": union(arrived[is_launched], gap_stops[is_launched]),
        "launching": union(gap_starts[is_launched], arrived[is_launched]),
    }
    # Work that is launched and has not begun: the last part of launching it.
    on_its_way = union(np.maximum(begun, gap_starts)[~is_launched], gap_stops[~is_launched])
    del order, begun, returned, arrived  # as long as all work of a large trace
    # A wait for the device during which it ran out of work made the gap; one that began in a gap has nothing to wait
    # for, and is a call like others.
    is_drained = host["synchronising"].hold(gap_starts, start=False, stop=True)
    causes = [(name.replace("others_copying", "copying_pageable"), host[name]) for name in list(host)[:4]]
    launching = host["launching"] | on_its_way
    for chosen, last, cause in (
        (~is_launched & is_drained, "synchronising", host["synchronising"] | launching),
        (~is_launched & ~is_drained, "launching", launching),
    ):
        rest = union(gap_starts[chosen], gap_stops[chosen])
        for name, when in (*causes, (last, cause), ("unattributed", rest)):
            found[name] = found[name] | (rest & when) if name in found else rest & when
            rest -= when
    return found


def _times(parts: Parts, window: Intervals) -> Times:
    wall = int((window.stop - window.start).sum())
    return Times(wall=wall, **{name: when.within(window) for name, when in parts.items()})


def _step(
    number: int, window: Intervals, devices: dict[str, Parts], wants: Intervals, *, is_counted: bool
) -> StepTimes:
    start, stop = int(window.start[0]), int(window.stop[0])
    length, waited = stop - start, wants.within(window)
    work = [_times(parts, window) for parts in devices.values()]
    # What the device has to do, and to wait for, whatever the data do.
    needed = max((times.compute + times.exposed_comm + times.queued for times in work), default=0)
    idle_for_data = min((times.data for times in work), default=0)
    return StepTimes(
        number=number,
        start=start,
        length=length,
        is_counted=is_counted,
        wants_data=waited,
        least=max(length - waited, needed),
        most=min(length, round((1 + _UNSURE) * (length - idle_for_data))),
        times=sum(work, Times()),
    )


def _ranges(trace: ProfilerTrace, main: int, idle: list[Intervals], window: Intervals) -> dict[str, Times]:
    """Return the names of ranges and functions of the main thread, and how much time was spent in them.

    That is in the window, and of it while a device was `idle` for no known reason, for each device.
    """
    events = trace.host
    is_named = (events.kind == EventKind.ANNOTATION) | (events.kind == EventKind.PYTHON)
    mine = events.where((events.track == main) & is_named & (events.name >= 0))
    used, inverse = np.unique(mine.name, return_inverse=True)

    def in_names(when: Intervals) -> list[int]:
        lengths = when.until(mine.stop) - when.until(mine.start)
        total: list[int] = np.bincount(inverse, weights=lengths, minlength=len(used)).astype(np.int64).tolist()
        return total

    found: Counter[str] = Counter()
    spent = dict.fromkeys((trace.texts[name] for name in used), 0)
    of_window = in_names(window)
    for when in idle:
        most = when.within(window)
        for name, idle_ns, ns in zip(used.tolist(), in_names(when), of_window, strict=True):
            text = trace.texts[name]
            is_plain = not (_WAITS.search(text) or trace.names.what_is(text, EventKind.ANNOTATION) & Is.STEP)
            if idle_ns and is_plain:
                found[text] += min(idle_ns, most)  # a function that calls itself is in itself
                spent[text] += ns
    return {name: Times(wall=spent[name], unattributed=ns) for name, ns in found.most_common(1000)}
