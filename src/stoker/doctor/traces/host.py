"""What the thread that launches the work was doing, at any time.

    main thread    │ waits for data │ copies │ launches ··· │ (backward: nothing of its own)  │ synchronises │
    other threads                                           │ launches ······················ │
    taken together │ waiting        │ copying│ launching    │ launching                       │ synchronising│

The main thread speaks first. Only where it has nothing to say, another thread that launches work (autograd's) does, and
never about data: a loader's thread that waits is no reason why the device does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stoker.doctor.traces.events import Events, ProfilerTrace
from stoker.doctor.traces.names import EventKind, Is, step_number, what_is
from stoker.doctor.traces.spans import EMPTY, Intervals, union

Mask = npt.NDArray[np.bool_]

WHYS = ("collating", "copying_pageable", "waiting_for_data", "synchronising", "launching")
"""What a thread can be doing. Where it does several at once (a copy inside a wait), the first of them counts."""


@dataclass(frozen=True, kw_only=True)
class ProfiledStep:
    """A step that was profiled.

    Attributes:
        number: The N of "ProfilerStep#N".
        start: Nanoseconds.
        stop: Nanoseconds.
    """

    number: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class HostWork:
    """What the host did.

    Attributes:
        doing: For each of `WHYS`, when the launching threads were doing it; disjoint.
        wants_data: When the main thread waited for data or collated, whatever else went on.
        steps: In order of time.
        main_track: Number of the main thread's track, -1 where no host event was found.
        launched_at: When each device event's launch began on the host; the event's own start where that is not
            known. Nanoseconds, in the order of the device events. int64 [D].
        pageable: Which device events are copies from pageable memory. bool [D].
    """

    doing: dict[str, Intervals]
    wants_data: Intervals
    steps: tuple[ProfiledStep, ...]
    main_track: int
    launched_at: npt.NDArray[np.int64]
    pageable: Mask


def host_of(trace: ProfilerTrace) -> HostWork:
    """Find the launching threads, and what they did."""
    on_host, on_device = trace.host, trace.device
    host_says, device_says = _flags(trace, on_host), _flags(trace, on_device)
    pageable = (device_says & Is.PAGEABLE) != 0
    launches, launched_at = _links(on_host, on_device)
    is_step = (host_says & Is.STEP) != 0
    main = _main_track(trace, on_host, host_says, launches)
    masks = _masks(on_host, on_device, host_says, pageable, (device_says & Is.TO_HOST) != 0)
    mine = on_host.track == main
    threads = np.unique(on_host.track[launches])
    others = np.isin(on_host.track, threads[threads != main])
    left = {why: _spans(on_host, masks[why] & mine) for why in WHYS}
    explained = EMPTY
    doing: dict[str, Intervals] = {}
    for why in WHYS:
        doing[why] = left[why] - explained
        explained |= left[why]
    for why in ("copying_pageable", "synchronising", "launching"):
        theirs = _spans(on_host, masks[why] & others)
        doing[why] |= theirs - explained
        explained |= theirs
    return HostWork(
        doing=doing,
        wants_data=left["waiting_for_data"] | left["collating"],
        steps=_steps(trace, on_host.where(is_step & mine)),
        main_track=main,
        launched_at=launched_at,
        pageable=pageable,
    )


def _flags(trace: ProfilerTrace, events: Events) -> npt.NDArray[np.uint8]:
    """Return what each event's name says about it. [N]."""
    found = np.zeros(len(events), np.uint8)
    for kind in np.flatnonzero(np.bincount(events.kind)).tolist():
        here = events.kind == kind
        names = events.name[here]  # -1 stands for none: the last entry of the table
        table = np.zeros(len(trace.names) + 1, np.uint8)
        used = np.flatnonzero(np.bincount(names[names >= 0], minlength=1)) if len(trace.names) else np.empty(0, int)
        table[used] = [int(what_is(trace.names[name], EventKind(kind))) for name in used.tolist()]
        found[here] = table[names]
    return found


def _links(on_host: Events, on_device: Events) -> tuple[Mask, npt.NDArray[np.int64]]:
    """Return which host events launched something, and when each device event was launched."""
    calls = np.flatnonzero((on_host.kind == EventKind.RUNTIME) & (on_host.correlation > 0))
    launched_at = on_device.start.copy()
    launches = np.zeros(len(on_host), bool)
    if not calls.size or not len(on_device):
        return launches, launched_at
    order = calls[np.argsort(on_host.correlation[calls], kind="stable")]
    keys = on_host.correlation[order]
    place = np.minimum(np.searchsorted(keys, on_device.correlation), keys.size - 1)
    hit = (keys[place] == on_device.correlation) & (on_device.correlation > 0)
    launched_at[hit] = on_host.start[order[place[hit]]]
    launches[order[place[hit]]] = True
    return launches, launched_at


def _main_track(trace: ProfilerTrace, on_host: Events, says: npt.NDArray[np.uint8], launches: Mask) -> int:
    """Return the training loop's track: where the steps are; else the data; else the main thread; else the work."""
    if not len(on_host):
        return -1
    num = len(trace.tracks)

    def most(chosen: Mask) -> int | None:
        return int(np.bincount(on_host.track[chosen], minlength=num).argmax()) if chosen.any() else None

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
        found = most(chosen)
        if found is not None:
            return found
    return int(np.bincount(on_host.track, weights=on_host.stop - on_host.start, minlength=num).argmax())


def _masks(
    on_host: Events, on_device: Events, says: npt.NDArray[np.uint8], pageable: Mask, to_host: Mask
) -> dict[str, Mask]:
    """Return which host events are which of `WHYS`."""
    is_runtime = on_host.kind == EventKind.RUNTIME
    is_copy = is_runtime & ((says & Is.COPY_CALL) != 0)
    linked = is_runtime & (on_host.correlation > 0)
    copies = linked & np.isin(on_host.correlation, on_device.correlation[pageable])
    # A copy without a correlation belongs to the call during which it began.
    lone = is_copy & ~np.isin(on_host.correlation, on_device.correlation[on_device.correlation > 0])
    starts = np.sort(on_device.start[pageable & ~np.isin(on_device.correlation, on_host.correlation[linked])])
    if lone.any() and starts.size:
        first = np.searchsorted(starts, on_host.start)
        copies |= lone & (first < starts.size) & (starts[np.minimum(first, starts.size - 1)] < on_host.stop)
    fetches = linked & is_copy & np.isin(on_host.correlation, on_device.correlation[to_host])
    return {
        "collating": (says & Is.COLLATE) != 0,
        "copying_pageable": copies,
        "waiting_for_data": (says & Is.DATA_WAIT) != 0,
        "synchronising": ((says & Is.SYNC) != 0) | fetches,
        "launching": is_runtime | (on_host.kind == EventKind.HOST_OP) & ((says & Is.STEP) == 0),
    }


def _spans(events: Events, chosen: Mask) -> Intervals:
    return union(events.start[chosen], events.stop[chosen])


def _steps(trace: ProfilerTrace, events: Events) -> tuple[ProfiledStep, ...]:
    found: dict[int, ProfiledStep] = {}
    for index in np.argsort(events.start, kind="stable").tolist():
        number = step_number(trace.names[events.name[index]])
        if number is not None and events.stop[index] > events.start[index]:
            found.setdefault(
                number, ProfiledStep(number=number, start=int(events.start[index]), stop=int(events.stop[index]))
            )
    return tuple(found.values())
