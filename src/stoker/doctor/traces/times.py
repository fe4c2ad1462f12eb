"""Where the time of one rank went: exact sums, by step, by device and in all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, reduce
from operator import or_
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from stoker.doctor.traces.collectives import Collectives, collectives_of
from stoker.doctor.traces.events import ProfilerTrace
from stoker.doctor.traces.names import EventKind, Is
from stoker.doctor.traces.spans import Intervals, between
from stoker.doctor.traces.timeline import HostWork, devices_of, host_of

# In public runs, a step with workers took 4 to 7 % longer than one without workers minus its wait; this leaves room.
_UNSURE = 0.15

# "host_1234.1700000000.pt.trace.json": what comes before the time is the same for all cycles of a process.
_HANDLER = re.compile(r"\.\d+\.pt\.trace\.json")
_BOUNDS = ("least", "most")
Devices = dict[str, dict[str, Intervals]]

OK, CPU_ONLY, NO_EVENTS = "ok", "cpu_only", "no_events"
"""What the answer covers: everything, the host only, nothing."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """Nanoseconds of device time, added over the devices of a rank.

        wall = busy + idle
        busy = compute + exposed_comm + exposed_copy
        idle = collating + copying_pageable + waiting_for_data + synchronising + launching + queued + unattributed

    Attributes:
        wall: The time looked at, once for each device.
        busy: A kernel, copy or fill ran, on any stream.
        compute: A kernel that is no communication ran.
        communication: A kernel that communicates ran.
        overlap: Both ran.
        collating: Idle, while the main thread made samples into a batch.
        copying_pageable: Idle, while a launching thread copied from pageable memory.
        waiting_for_data: Idle, while the main thread waited for a batch.
        synchronising: Idle, for the host had waited until the device had no work left.
        launching: Idle, while a launching thread was in an operator or a call of the runtime, or a launch on its way.
        queued: Idle, though the next work had been launched: the device waited for something on a device.
        unattributed: Idle, and the host was in no operator, no call, and in nothing known to be about data.
    """

    wall: int = 0
    busy: int = 0
    compute: int = 0
    communication: int = 0
    overlap: int = 0
    collating: int = 0
    copying_pageable: int = 0
    waiting_for_data: int = 0
    synchronising: int = 0
    launching: int = 0
    queued: int = 0
    unattributed: int = 0

    def __add__(self, other: Times) -> Times:
        return Times(**{part.name: getattr(self, part.name) + getattr(other, part.name) for part in fields(self)})

    def share(self, part: str) -> float | None:
        """Return a part of the wall time, None where there is none."""
        return getattr(self, part) / self.wall if self.wall else None

    @property
    def idle(self) -> int:
        """Nothing ran."""
        return self.wall - self.busy

    @property
    def exposed_comm(self) -> int:
        """Communication ran, and no computation."""
        return self.communication - self.overlap

    @property
    def exposed_copy(self) -> int:
        """A copy or fill ran, and neither of the two."""
        return self.busy - self.compute - self.exposed_comm

    @property
    def data(self) -> int:
        """Idle for data: waited for, or collated."""
        return self.waiting_for_data + self.collating


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """One profiled step, in nanoseconds.

    Attributes:
        number: Its number.
        start: When it began.
        length: What it took.
        wants_data: Of it, when the main thread waited for data or collated, the device idle or not.
        least: The least it could take if no batch were ever waited for.
        most: As much as it would take then.
        times: Where the devices' time went.
    """

    number: int
    start: int
    length: int
    wants_data: int
    least: int
    most: int
    times: Times


class Figures:
    """What one rank, or all of them together, come to."""

    @property
    def parts(self) -> tuple[RankTimes, ...]:
        """The ranks."""
        raise NotImplementedError

    @property
    def status(self) -> str:
        """The best of the ranks' answers: OK, CPU_ONLY or NO_EVENTS."""
        if any(rank.devices for rank in self.parts):
            return OK
        return CPU_ONLY if any(rank.has_events for rank in self.parts) else NO_EVENTS

    @cached_property
    def times(self) -> Times:
        """Where the time of all devices went."""
        return sum((times for rank in self.parts for times in rank.devices.values()), Times())

    @property
    def step_ns(self) -> float | None:
        """The median step of the slowest rank: a job goes at its pace."""
        return max((median(step.length for step in rank.steps) for rank in self.parts if rank.steps), default=None)

    @property
    def without_wait_ns(self) -> tuple[float, float] | None:
        """The least and the most a step would take that waits for no batch, of the slowest rank; None without devices.

        What one rank gains, the others may need.
        """
        known = [rank.steps for rank in self.parts if rank.steps and rank.devices]
        if not known:
            return None
        least, most = (max(median(getattr(step, name) for step in steps) for steps in known) for name in _BOUNDS)
        return least, most

    @property
    def largest_range(self) -> tuple[str, int]:
        """The range or function that most unattributed time was spent in, and that time; ("", 0) without any.

        Of those around each other, the innermost that still has half of the time of the largest one.
        """
        ranges = add_tables(rank.ranges for rank in self.parts if rank.devices)
        most = max((times.unattributed for times in ranges.values()), default=0)
        if not most:
            return "", 0
        large = [name for name, times in ranges.items() if 2 * times.unattributed > most]
        name = min(large, key=lambda name: (ranges[name].wall, -ranges[name].unattributed))
        return name, min(ranges[name].unattributed, self.times.unattributed)

    @property
    def copies(self) -> tuple[int, ...]:
        """Copies from pageable memory to a device, their bytes as far as the files have them, and the time they took.

        Nanoseconds of the calls that made them.
        """
        return tuple(map(sum, zip(*(rank.pageable for rank in self.parts), strict=True)))

    @property
    def host_data_wait_share(self) -> float | None:
        """The largest share of a rank's time in which its main thread waited for data or collated."""
        return max((rank.wants_data / rank.wall for rank in self.parts if rank.wall), default=None)


@dataclass(frozen=True, kw_only=True, eq=False)
class RankTimes(Figures):
    """One rank, or one cycle of its profiler's schedule.

    Attributes:
        traces: What was read, without its events; one a cycle.
        rank: Its number: from the file, else from its name, else its place.
        process: What tells it from other ranks: a number that its file says, and its process.
        span: From its first to its last event, in nanoseconds of the time of day.
        has_events: Whether there were any.
        devices: What each of its devices did, in the window.
        collectives: How long each of its collectives took, in the window.
        collective_waits: Nanoseconds that it waited for the last rank in those that ranks have in common, and that the
            others waited for it, added over them; empty before ranks are compared, and without a device.
        wall: Nanoseconds looked at: all profiled steps but the first and the last of each cycle, which carry the
            profiler's start and stop (all of them, where a cycle has no three); without steps, from the first work
            of a device to the last event.
        wants_data: Nanoseconds of it in which the main thread waited for data or collated.
        ranges: Names of ranges and Python functions on the main thread -> unattributed time in them, and any (`wall`).
        all_steps: Its profiled steps.
        steps: Those that are looked at.
        pageable: Copies from pageable memory to a device, their bytes, and nanoseconds of the calls that made them.
    """

    traces: tuple[ProfilerTrace, ...]
    rank: int = 0
    process: tuple[object, ...]
    span: tuple[int, int]
    has_events: bool
    devices: dict[str, Times]
    collectives: Collectives
    collective_waits: tuple[int, ...] = ()
    wall: int
    wants_data: int
    ranges: dict[str, Times]
    all_steps: tuple[StepTimes, ...]
    steps: tuple[StepTimes, ...]
    pageable: tuple[int, int, int]

    @property
    def parts(self) -> tuple[RankTimes, ...]:
        """Itself."""
        return (self,)

    @property
    def device_names(self) -> dict[str, str]:
        """What devices are called, by the name that events have."""
        listed = self.traces[0].header.get("deviceProperties")
        entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        names = {str(entry.get("id")): str(entry.get("name", "")) for entry in entries}
        return {device: names.get(device, device) for device in self.devices}

    @property
    def notes(self) -> list[tuple[str, str]]:
        """What to know about its files: name, and one sentence."""
        found = []
        for trace in self.traces:
            notes = list(trace.notes)
            if trace.is_cut and trace.num_events:
                notes.append("the file is cut off: the events before the cut were counted")
            elif trace.is_cut and not trace.notes:
                notes.append("the file ends before its first event")
            if trace.num_damaged:
                notes.append(f"{trace.num_damaged:,} events made no sense and were left out")
            if trace.num_without_length:
                notes.append(f"{trace.num_without_length:,} events of devices have no duration and were left out")
            found += [(Path(trace.path).name, note) for note in notes]
        name = Path(self.traces[0].path).name
        if self.has_events and not self.all_steps:
            found.append((name, "no profiled steps (ProfilerStep#N): call `prof.step()` to have step times"))
        elif self.all_steps and len(self.all_steps) < 3 * len(self.traces):
            found.append((name, "fewer than three profiled steps: the first and the last are counted too"))
        return found


def measure(trace: ProfilerTrace) -> RankTimes:
    """Add up one file, or what one process did in it."""
    host = host_of(trace)
    devices = devices_of(trace, host)
    wants = host.waiting | host.collating
    windows = [between(start, stop) for _, start, stop in host.steps]
    all_steps = tuple(
        _step(number, window, devices, wants) for (number, *_), window in zip(host.steps, windows, strict=True)
    )
    inner = slice(1, -1) if len(all_steps) > 2 else slice(None)
    steps = all_steps[inner]
    begin, end = trace.span
    # Without steps: what comes before the first work on a device is the program's start.
    window = reduce(or_, windows[inner]) if steps else between(int(trace.device.start.min()) if devices else begin, end)
    main = trace.tracks[host.main_track] if host.main_track >= 0 else None
    is_copy = host.is_pageable & (trace.device.start < window.stop.max(initial=begin))
    is_copy &= trace.device.stop >= window.start.min(initial=end)
    return RankTimes(
        traces=(trace.without_events(),),
        # Processes of two hosts may have one number: the profiler's handler puts the host into the file's name.
        process=(trace.rank, None if main is None else main.pid, _worker(trace.path)),
        span=(begin + trace.base_ns, end + trace.base_ns),
        has_events=bool(len(trace.host) or len(trace.device)) or trace.num_without_length > 0,
        devices={name: _times(device, window) for name, device in devices.items()},
        collectives=collectives_of(trace, host, [step.number for step in steps]),
        wall=int((window.stop - window.start).sum()),
        wants_data=wants.within(window),
        ranges=_ranges(trace, host, devices, window),
        all_steps=all_steps,
        steps=steps,
        pageable=(
            int(is_copy.sum()),
            int(np.maximum(trace.device.extra[is_copy], 0).sum()),
            (host.copying | host.others_copying).within(window),
        ),
    )


def _worker(path: str) -> str:
    name = Path(path).name
    return _HANDLER.split(name)[0] if _HANDLER.search(name) else ""


def join_cycles(cycles: Sequence[RankTimes]) -> RankTimes:
    """Return one rank of several cycles of its profiler, in the order of time."""
    joined: dict[str, Any] = {
        name: sum((getattr(cycle, name) for cycle in cycles[1:]), getattr(cycles[0], name))
        for name in ("traces", "all_steps", "steps", "wall", "wants_data")
    }
    num, num_bytes, ns = (sum(values) for values in zip(*(cycle.pageable for cycle in cycles), strict=True))
    return RankTimes(
        process=cycles[0].process,
        span=(cycles[0].span[0], cycles[-1].span[1]),
        has_events=any(cycle.has_events for cycle in cycles),
        devices=add_tables(cycle.devices for cycle in cycles),
        ranges=add_tables(cycle.ranges for cycle in cycles),
        collectives={key: length for cycle in cycles for key, length in cycle.collectives.items()},
        pageable=(num, num_bytes, ns),
        **joined,
    )


def add_tables(tables: Iterable[dict[str, Times]]) -> dict[str, Times]:
    """Return one table with the times of several, those of one name added."""
    found: dict[str, Times] = {}
    for table in tables:
        for name, times in table.items():
            found[name] = found[name] + times if name in found else times
    return found


def _step(number: int, window: Intervals, devices: Devices, wants: Intervals) -> StepTimes:
    start, stop = int(window.start[0]), int(window.stop[0])
    length, waited = stop - start, wants.within(window)
    work = [_times(device, window) for device in devices.values()]
    # What the device has to do, and to wait for, whatever the data do.
    needed = max((times.compute + times.exposed_comm + times.queued for times in work), default=0)
    idle_for_data = min((times.data for times in work), default=0)
    return StepTimes(
        number=number,
        start=start,
        length=length,
        wants_data=waited,
        least=max(length - waited, needed),
        most=min(length, round((1 + _UNSURE) * (length - idle_for_data))),
        times=sum(work, Times()),
    )


def _times(device: dict[str, Intervals], window: Intervals) -> Times:
    parts = {name: when.within(window) for name, when in device.items()}
    return Times(wall=int((window.stop - window.start).sum()), **parts)


def _ranges(trace: ProfilerTrace, host: HostWork, devices: Devices, window: Intervals) -> dict[str, Times]:
    """Return the names of ranges and functions of the main thread, and how much time was spent in them."""
    events = trace.host
    is_named = (events.kind == EventKind.ANNOTATION) | (events.kind == EventKind.PYTHON)
    mine = events.where((events.track == host.main_track) & is_named & (events.name >= 0))
    idle: Counter[str] = Counter()
    total: Counter[str] = Counter()
    used, inverse = np.unique(mine.name, return_inverse=True)
    spent = np.bincount(inverse, weights=window.until(mine.stop) - window.until(mine.start), minlength=len(used))
    for device in devices.values():
        rest = device["unattributed"] & window
        of_names = np.bincount(inverse, weights=rest.until(mine.stop) - rest.until(mine.start), minlength=len(used))
        most = rest.within(window)
        for name, idle_ns, ns in zip(used.tolist(), of_names.tolist(), spent.tolist(), strict=True):
            text = trace.texts[name]
            if idle_ns and not trace.names.what_is(text, EventKind.ANNOTATION) & Is.STEP:
                idle[text] += min(int(idle_ns), most)  # a function that calls itself is in itself
                total[text] += int(ns)
    return {name: Times(wall=total[name], unattributed=ns) for name, ns in idle.most_common(1000)}
