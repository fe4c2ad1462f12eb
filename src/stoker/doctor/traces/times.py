"""Where the time of one rank went: exact sums, by step and in all."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from stoker.doctor.traces.collectives import Collectives, collectives_of
from stoker.doctor.traces.device import DeviceWork, devices_of
from stoker.doctor.traces.events import ProfilerTrace
from stoker.doctor.traces.host import WHYS, HostWork, host_of
from stoker.doctor.traces.spans import Intervals, between
from stoker.fields.offsets import Int64


@dataclass(frozen=True, kw_only=True)
class Times:
    """Nanoseconds of device time, added over the devices of a rank.

        wall = busy + idle
        busy = compute + exposed_comm + exposed_copy
        idle = collating + copying_pageable + waiting_for_data + synchronising + launching + pipeline_bubble
               + unattributed

    Attributes:
        wall: The time looked at, once for each device.
        busy: A kernel, copy or fill ran, on any stream.
        idle: None ran.
        compute: A kernel that is no communication ran.
        communication: A kernel that communicates ran.
        overlap: Both ran.
        exposed_comm: Communication ran, and no computation.
        exposed_copy: A copy or fill ran, and neither of the two.
        collating: Idle, while the launching thread made samples into a batch.
        copying_pageable: Idle, while it copied from pageable memory.
        waiting_for_data: Idle, while it waited for a batch.
        synchronising: Idle, while it waited for the device.
        launching: Idle, while it was in an operator or a call of the runtime.
        pipeline_bubble: Idle, and explained by the pipeline's schedule, where one was given.
        unattributed: Idle, and no event says why.
    """

    wall: int = 0
    busy: int = 0
    idle: int = 0
    compute: int = 0
    communication: int = 0
    overlap: int = 0
    exposed_comm: int = 0
    exposed_copy: int = 0
    collating: int = 0
    copying_pageable: int = 0
    waiting_for_data: int = 0
    synchronising: int = 0
    launching: int = 0
    pipeline_bubble: int = 0
    unattributed: int = 0

    def __add__(self, other: Times) -> Times:
        return Times(**{part.name: getattr(self, part.name) + getattr(other, part.name) for part in fields(self)})

    def share(self, part: str) -> float | None:
        """Return a part of the wall time, None where there is none."""
        return getattr(self, part) / self.wall if self.wall else None


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """One profiled step.

    Attributes:
        number: Its number.
        start: Nanoseconds.
        length: Nanoseconds.
        wants_data: Nanoseconds in which the main thread waited for data or collated, the device idle or not.
        least: The least nanoseconds the step could take if no batch were ever waited for.
        times: Where the devices' time went.
    """

    number: int
    start: int
    length: int
    wants_data: int
    least: int
    times: Times


@dataclass(frozen=True, kw_only=True)
class RankTimes:
    """One file.

    Attributes:
        trace: What was read, without its events.
        has_events: Whether there were any.
        devices: What its devices did.
        collectives: When each of its collectives went on.
        start: Where the time looked at begins. Nanoseconds.
        stop: Where it ends.
        times: Where the devices' time went, in all of it.
        host_times: Where the launching thread's time went, whatever the devices did; `wall` is once the time.
        wants_data: Nanoseconds in which the main thread waited for data or collated.
        steps: Its profiled steps.
        num_pageable: Copies from pageable memory to a device.
        pageable_bytes: Their bytes, as far as the file has them.
    """

    trace: ProfilerTrace
    has_events: bool
    devices: tuple[DeviceWork, ...]
    collectives: Collectives
    start: int
    stop: int
    times: Times
    host_times: Times
    wants_data: int
    steps: tuple[StepTimes, ...]
    num_pageable: int
    pageable_bytes: int

    @property
    def middle(self) -> tuple[StepTimes, ...]:
        """The steps without the first and the last, where three or more were profiled: those carry the profiler."""
        return self.steps[1:-1] if len(self.steps) > 2 else self.steps


def measure(trace: ProfilerTrace) -> RankTimes:
    """Add up one file.

    The time looked at begins with the first profiled step and ends with the last one, or with the work that it left on
    a device; without steps it is from the first event to the last.
    """
    host, devices = host_of(trace), devices_of(trace)
    start, stop = _window(trace, host, devices)
    steps = host.steps
    borders = np.array([start, stop, *(step.start for step in steps), *(step.stop for step in steps)], np.int64)
    found = [_device_times(device, host, borders) for device in devices]
    wants_data = host.wants_data.until(borders)
    host_parts = _idle_parts(between(start, stop), host, borders)

    def sums(first: int, second: int) -> Times:
        length = int(borders[second] - borders[first])
        total = Times()
        for parts in found:
            total += _between(parts, first, second, length)
        return total

    num = len(steps)
    step_times = []
    for index, step in enumerate(steps):
        first, second = 2 + index, 2 + num + index
        length = step.stop - step.start
        wants = int(wants_data[second] - wants_data[first])
        work = [_between(parts, first, second, length) for parts in found]
        needed = max((times.compute + times.exposed_comm for times in work), default=0)
        step_times.append(
            StepTimes(
                number=step.number,
                start=step.start,
                length=length,
                wants_data=wants,
                least=max(length - wants, needed),
                times=sums(first, second),
            )
        )
    copies = _pageable(trace, host, start, stop)
    return RankTimes(
        trace=trace.without_events(),
        has_events=bool(len(trace.host) or len(trace.device)),
        devices=devices,
        collectives=collectives_of(trace, host),
        start=start,
        stop=stop,
        times=sums(0, 1),
        host_times=replace(
            Times(**{name: int(part[1] - part[0]) for name, part in host_parts.items()}), wall=stop - start, idle=0
        ),
        wants_data=int(wants_data[1] - wants_data[0]),
        steps=tuple(step_times),
        num_pageable=copies[0],
        pageable_bytes=copies[1],
    )


def _window(trace: ProfilerTrace, host: HostWork, devices: tuple[DeviceWork, ...]) -> tuple[int, int]:
    if host.steps:
        ends = [int(device.busy.stop[-1]) for device in devices if len(device.busy)]
        return host.steps[0].start, max([*(step.stop for step in host.steps), *ends])
    there = [events for events in (trace.host, trace.device) if len(events)]
    starts, stops = [int(events.start.min()) for events in there], [int(events.stop.max()) for events in there]
    return min(starts, default=0), max(stops, default=0)


def _device_times(device: DeviceWork, host: HostWork, borders: Int64) -> dict[str, Int64]:
    """Return how much of each part of `Times` lies before each border."""
    looked_at = between(int(borders[0]), int(borders[1]))
    idle = looked_at - device.busy
    return {
        "busy": device.busy.until(borders),
        "compute": device.compute.until(borders),
        "communication": device.communication.until(borders),
        "overlap": (device.communication & device.compute).until(borders),
        "exposed_comm": (device.communication - device.compute).until(borders),
        "exposed_copy": (device.copies - device.compute - device.communication).until(borders),
        **_idle_parts(idle, host, borders),
    }


def _idle_parts(idle: Intervals, host: HostWork, borders: Int64) -> dict[str, Int64]:
    """Split some time by what the host was doing, into parts that add up to it."""
    parts = {"idle": idle.until(borders)}
    rest = parts["idle"].copy()
    for why in WHYS:
        parts[why] = (idle & host.doing[why]).until(borders)
        rest -= parts[why]
    return {**parts, "unattributed": rest}


def _between(parts: dict[str, Int64], first: int, second: int, length: int) -> Times:
    return Times(wall=length, **{name: int(part[second] - part[first]) for name, part in parts.items()})


def _pageable(trace: ProfilerTrace, host: HostWork, start: int, stop: int) -> tuple[int, int]:
    on_device = trace.device
    chosen = host.pageable & (on_device.stop >= start) & (on_device.start < max(stop, start + 1))
    return int(chosen.sum()), int(np.maximum(on_device.extra[chosen], 0).sum())
