"""Where the time of one rank went: exact sums, by step, by device and in all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from statistics import median

from stoker.doctor.traces.collectives import SEQUENCE, Collectives
from stoker.doctor.traces.events import ProfilerTrace

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
        is_counted: Whether it is looked at: the first and the last of a cycle carry the profiler's start and stop.
        wants_data: Of it, when the main thread waited for data or collated, the device idle or not.
        least: The least it could take if no batch were ever waited for; `most`: as much as it would take then.
        times: Where the devices' time went.
    """

    number: int
    start: int
    length: int
    is_counted: bool
    wants_data: int
    least: int
    most: int
    times: Times


@dataclass(frozen=True, kw_only=True, eq=False)
class RankTimes:
    """One rank, or one cycle of its profiler's schedule, in nanoseconds of its window.

    The window is all steps that count; without steps, it is from the first work of a device to the last event.

    Attributes:
        traces: What was read, without its events; one a cycle.
        process: What tells it from other ranks: a number that its file says, its process, and its host.
        span: From its first to its last event, by the time of day.
        has_names: Whether the host's operators, ranges or functions are there, and not just its calls of a runtime.
        num_queued: Gaps in which a device's next work was launched already.
        collective_waits: What it waited for the last rank in those collectives that ranks have in common, and what the
            others waited for it, added over them; empty before ranks are compared, and without a device.
        wants_data: When the main thread waited for data or collated.
        ranges: Names of ranges and Python functions on the main thread -> unattributed time in them, and any (`wall`).
        copies: Copies from pageable memory to a device, their bytes as far as the files have them, and the time of the
            calls that made them.
    """

    traces: tuple[ProfilerTrace, ...]
    rank: int = 0
    process: tuple[object, ...]
    span: tuple[int, int]
    has_events: bool
    has_names: bool
    devices: dict[str, Times]
    num_queued: int
    collectives: Collectives
    collective_waits: tuple[int, ...] = ()
    wall: int
    wants_data: int
    ranges: dict[str, Times]
    all_steps: tuple[StepTimes, ...]
    copies: tuple[int, int, int]

    @property
    def status(self) -> str:
        """What its answer covers: OK, CPU_ONLY or NO_EVENTS."""
        return OK if self.devices else CPU_ONLY if self.has_events else NO_EVENTS

    @cached_property
    def steps(self) -> tuple[StepTimes, ...]:
        """Those of its steps that are looked at."""
        return tuple(step for step in self.all_steps if step.is_counted)

    @cached_property
    def times(self) -> Times:
        """Where the time of its devices went."""
        return sum(self.devices.values(), Times())

    @cached_property
    def step_ns(self) -> float | None:
        """Its median step."""
        return median(step.length for step in self.steps) if self.steps else None

    @property
    def device_names(self) -> dict[str, str]:
        """What devices are called, by the name that events have."""
        return {device: self.traces[0].device_names.get(device, device) for device in self.devices}

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


def join_cycles(cycles: Sequence[RankTimes]) -> RankTimes:
    """Return one rank of several cycles of its profiler, in the order of time."""
    num, num_bytes, ns = (sum(values) for values in zip(*(cycle.copies for cycle in cycles), strict=True))
    collectives: Collectives = {}
    for place, cycle in enumerate(cycles):
        # A profiler that is made anew counts its steps anew; a group goes on numbering its collectives.
        before = {(key if key[2] == SEQUENCE else key[2]) for key in collectives}
        for key, length in cycle.collectives.items():
            group, name, step, at = key
            is_again = (key if step == SEQUENCE else step) in before
            collectives[group, name, f"{step} of {place}" if is_again else step, at] = length
    return replace(
        cycles[0],
        traces=tuple(trace for cycle in cycles for trace in cycle.traces),
        span=(cycles[0].span[0], cycles[-1].span[1]),
        has_events=any(cycle.has_events for cycle in cycles),
        has_names=all(cycle.has_names for cycle in cycles),
        devices=add_tables(cycle.devices for cycle in cycles),
        num_queued=sum(cycle.num_queued for cycle in cycles),
        collectives=collectives,
        wall=sum(cycle.wall for cycle in cycles),
        wants_data=sum(cycle.wants_data for cycle in cycles),
        ranges=add_tables(cycle.ranges for cycle in cycles),
        all_steps=tuple(step for cycle in cycles for step in cycle.all_steps),
        copies=(num, num_bytes, ns),
    )


def add_tables(tables: Iterable[dict[str, Times]]) -> dict[str, Times]:
    """Return one table with the times of several, those of one name added."""
    found: dict[str, Times] = {}
    for table in tables:
        for name, times in table.items():
            found[name] = found.get(name, Times()) + times
    return found
