"""When the devices of one process idled, and what the host did meanwhile. Pure.

    host     │ launches A │ waits for data │ launches B │
    device        ░░░░░░░AAAAA░░░░░░░░░░░░░░░░░░░BBBBB
                              └ the gap that B ends ┘

A gap ends when its next work begins, and when that was launched decides whom to ask. Launched before the gap began: not
the host, which had done its part; once the launch has had the time to arrive, the device waits for another stream, an
event or a collective. Launched later: the host, by what its threads did in the gap until they launched.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stoker.doctor.traces.events import Events, ProfilerTrace
from stoker.doctor.traces.names import ONE_DEVICE, EventKind, Is, step_number
from stoker.doctor.traces.spans import Intervals, union
from stoker.fields.offsets import Int64

Mask = npt.NDArray[np.bool_]

# Work begins 5 to 10 µs after the call that launched it has returned, on a device that has nothing else to do. A loop
# that is all launches is never further ahead than this: its gaps are launches on their way, and nothing is queued.
ARRIVES_NS = 10_000


@dataclass(frozen=True, kw_only=True)
class HostWork:
    """What the host did.

    Attributes:
        collating: When the main thread made samples into a batch.
        waiting: When it waited for data.
        copying: When it was in a call that copies from pageable memory.
        others_copying: When another thread that launches work was.
        syncing: When a thread that launches work waited for the device, or had nothing to wait for in such a call.
        launching: When one was in an operator or a call of the runtime.
        steps: Those that were profiled, in order of time: the N of "ProfilerStep#N", when it began and when it ended.
        main_track: Number of the main thread's track, -1 where no host event was found.
        launch_begins: When the call that launched each device event began, or the last that can have been it where no
            work has a correlation; the event's own start where nothing is known. In the order of the device events.
            int64 [D].
        launch_ends: When it returned. int64 [D].
        is_pageable: Which device events are copies from pageable memory. bool [D].
    """

    collating: Intervals
    waiting: Intervals
    copying: Intervals
    others_copying: Intervals
    syncing: Intervals
    launching: Intervals
    steps: tuple[tuple[int, int, int], ...]
    main_track: int
    launch_begins: Int64
    launch_ends: Int64
    is_pageable: Mask


def host_of(trace: ProfilerTrace) -> HostWork:
    """Find the launching threads, and what they did."""
    on_host, on_device = trace.host, trace.device
    says, device_says = _flags(trace, on_host), _flags(trace, on_device)
    is_pageable = (device_says & Is.PAGEABLE) != 0
    call = _calls(on_host, on_device, (says & Is.COPY_CALL) != 0, is_pageable)
    known = call >= 0

    def calls_of(chosen: Mask) -> Mask:
        """Return which host events launched some of the device's."""
        found = np.zeros(len(on_host), bool)
        found[call[known & chosen]] = True
        return found

    def when(chosen: Mask) -> Intervals:
        return union(on_host.start[chosen], on_host.stop[chosen])

    launches = calls_of(known)
    main = _main_track(trace, says, launches)
    mine = on_host.track == main
    launching = mine | np.isin(on_host.track, np.unique(on_host.track[launches]))
    copies, fetches = calls_of(is_pageable), calls_of((device_says & Is.TO_HOST) != 0)
    is_call = on_host.kind == EventKind.RUNTIME
    is_operator = (on_host.kind == EventKind.HOST_OP) & ((says & Is.STEP) == 0)
    begins = np.where(known, on_host.start[call] if len(on_host) else 0, on_device.start)
    ends = np.where(known, on_host.stop[call] if len(on_host) else 0, on_device.start)
    named = np.flatnonzero(is_call & ((says & Is.LAUNCH_CALL) != 0))
    if named.size and not (on_host.correlation > 0).any():
        # Nothing links work to its call: it was launched no later than the last call before it that can launch.
        named = named[np.argsort(on_host.start[named], kind="stable")]
        place = np.searchsorted(on_host.start[named], on_device.start, side="right") - 1
        bound = named[np.maximum(place, 0)]
        begins = np.where(place >= 0, on_host.start[bound], begins)
        ends = np.where(place >= 0, on_host.stop[bound], ends)
    return HostWork(
        collating=when(mine & ((says & Is.COLLATE) != 0)),
        waiting=when(mine & ((says & Is.DATA_WAIT) != 0)),
        copying=when(mine & copies),
        others_copying=when(launching & ~mine & copies),
        syncing=when(launching & (((says & Is.SYNC) != 0) | fetches & ((says & Is.COPY_CALL) != 0))),
        launching=when(launching & (is_call | is_operator)),
        steps=_steps(trace, on_host.where(mine & ((says & Is.STEP) != 0))),
        main_track=main,
        launch_begins=begins,
        launch_ends=ends,
        is_pageable=is_pageable,
    )


def devices_of(trace: ProfilerTrace, host: HostWork) -> dict[str, dict[str, Intervals]]:
    """Return when each device did what, over all its streams, and why it had no work: by names of `Times`.

    Devices are in the order in which the file has them. Reasons are disjoint, together all the time in which nothing
    ran.
    """
    events = trace.device
    # Some profilers give computation and communication of one device as two processes.
    of_track = ["" if track.process.strip().lower() in ONE_DEVICE else str(track.pid) for track in trace.tracks]
    names = np.array(of_track, object)[events.track] if len(events) else np.empty(0, object)
    found = {}
    for name in dict.fromkeys(names.tolist()):
        mine = np.flatnonzero((names == name) & (events.stop > events.start))
        here = events.where(mine)
        compute, communication = (
            union(here.start[here.kind == kind], here.stop[here.kind == kind])
            for kind in (EventKind.KERNEL, EventKind.COLLECTIVE)
        )
        found[name] = {
            "compute": compute,
            "communication": communication,
            "overlap": compute & communication,
            "busy": union(here.start, here.stop),
            **_explain_gaps(trace, mine, host),
        }
    return found


def _explain_gaps(trace: ProfilerTrace, mine: Int64, host: HostWork) -> dict[str, Intervals]:
    """Return all time in which a device had no work, by reason.

    Args:
        trace: Where it begins, nothing is queued; by its end, nothing is known to be launched.
        mine: Numbers of the device's events.
        host: What the host did.

    Returns:
        "queued", "collating", "copying_pageable", "waiting_for_data", "synchronising", "launching" and "unattributed".
    """
    begin, end = trace.span
    start, stop, returned = trace.device.start[mine], trace.device.stop[mine], host.launch_ends[mine]
    # Of work that begins at the same time, the one that was launched first ends the gap.
    order = np.lexsort((returned, start))
    gap_starts = np.concatenate([[begin - 1], np.maximum.accumulate(stop[order])])
    gap_stops = np.append(start[order], end)
    begun, returned = np.append(host.launch_begins[mine][order], end), np.append(returned[order], end)
    is_launched = returned <= gap_starts
    is_launched[-1] = False  # what would come after the end
    arrived = np.minimum(np.where(is_launched, returned + ARRIVES_NS, gap_stops), gap_stops)

    def gaps(chosen: Mask) -> Intervals:
        return union(gap_starts[chosen], gap_stops[chosen])

    # Work that is launched and has not begun: the last part of launching it.
    on_its_way = union(np.maximum(begun, gap_starts)[~is_launched], gap_stops[~is_launched])
    # A wait for the device during which it ran out of work made the gap; one that began in a gap has nothing to wait
    # for, and is a call like others.
    is_drained = host.syncing.hold(gap_starts, start=False, stop=True)
    # What counts where the host does several things at once: the first of them.
    explained = (
        ("collating", host.collating),
        ("copying_pageable", host.copying),
        ("waiting_for_data", host.waiting),
        ("copying_pageable", host.others_copying),
    )
    found = {
        "queued": union(np.maximum(gap_starts, arrived)[is_launched], gap_stops[is_launched]),
        "launching": union(gap_starts[is_launched], arrived[is_launched]),
    }

    def add(name: str, when: Intervals) -> None:
        found[name] = found[name] | when if name in found else when

    for rest, last, cause in (
        (gaps(~is_launched & is_drained), "synchronising", host.syncing | host.launching | on_its_way),
        (gaps(~is_launched & ~is_drained), "launching", host.launching | on_its_way),
    ):
        for name, when in (*explained, (last, cause)):
            add(name, rest & when)
            rest -= when
        add("unattributed", rest)
    return found


def _flags(trace: ProfilerTrace, events: Events) -> npt.NDArray[np.uint8]:
    """Return what each event's name says about it. [N]."""
    found = np.zeros(len(events), np.uint8)
    for kind in np.unique(events.kind).tolist():
        here = events.kind == kind
        used, inverse = np.unique(events.name[here], return_inverse=True)
        means = [int(trace.names.what_is(trace.texts[name], EventKind(kind))) if name >= 0 else 0 for name in used]
        found[here] = np.array(means, np.uint8)[inverse]
    return found


def _calls(on_host: Events, on_device: Events, is_copy: Mask, is_pageable: Mask) -> Int64:
    """Return which host event launched each device event, -1 where that is not known. [D]."""
    found = np.full(len(on_device), -1, np.int64)
    calls = np.flatnonzero(on_host.correlation > 0)
    if calls.size:
        order = calls[np.argsort(on_host.correlation[calls], kind="stable")]
        keys = on_host.correlation[order]
        place = np.minimum(np.searchsorted(keys, on_device.correlation), keys.size - 1)
        hit = (keys[place] == on_device.correlation) & (on_device.correlation > 0)
        found[hit] = order[place[hit]]
    # A copy from pageable memory without a correlation belongs to the call during which it began.
    copies = np.flatnonzero(is_copy)
    copies = copies[np.argsort(on_host.start[copies], kind="stable")]
    lone = np.flatnonzero(is_pageable & (found < 0))
    if copies.size and lone.size:
        place = np.searchsorted(on_host.start[copies], on_device.start[lone], side="right") - 1
        hit = (place >= 0) & (on_device.start[lone] < on_host.stop[copies[np.maximum(place, 0)]])
        found[lone[hit]] = copies[place[hit]]
    return found


def _main_track(trace: ProfilerTrace, says: npt.NDArray[np.uint8], launches: Mask) -> int:
    """Return the training loop's track: where the steps are; else the data; else the main thread; else the work."""
    on_host = trace.host
    if not len(on_host):
        return -1
    num = len(trace.tracks)
    if not launches.any():  # no correlations at all: go by the names of calls
        launches |= (says & Is.LAUNCH_CALL) != 0
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


def _steps(trace: ProfilerTrace, events: Events) -> tuple[tuple[int, int, int], ...]:
    found: dict[int, tuple[int, int, int]] = {}
    for index in np.argsort(events.start, kind="stable").tolist():
        number = step_number(trace.texts[events.name[index]])
        start, stop = int(events.start[index]), int(events.stop[index])
        if number is not None and stop > start:
            found.setdefault(number, (number, start, stop))
    return tuple(found.values())
