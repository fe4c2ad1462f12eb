"""What the devices of a trace did: which work, on which device, when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stoker.doctor.traces.events import ProfilerTrace
from stoker.doctor.traces.names import EventKind
from stoker.doctor.traces.spans import Intervals, union

# Profilers that give computation and communication of one device as two processes.
_ONE_DEVICE = {"ascend hardware", "communication", "hccl", "cuda functions"}


@dataclass(frozen=True, kw_only=True)
class DeviceWork:
    """The work of one device, over all its streams.

    Attributes:
        name: What the file calls it.
        compute: Some kernel that is no communication ran.
        communication: Some kernel of a collective or of point-to-point traffic ran.
        copies: Some copy or fill of memory ran.
        busy: Any of the three.
    """

    name: str
    compute: Intervals
    communication: Intervals
    copies: Intervals
    busy: Intervals


def devices_of(trace: ProfilerTrace) -> tuple[DeviceWork, ...]:
    """Return the devices that did anything, in the order in which the file has them."""
    events = trace.device
    of_track = np.array([_device_name(trace, index) for index in range(len(trace.tracks))], object)
    if not len(events):
        return ()
    names = of_track[events.track]
    found = []
    for name in dict.fromkeys(names.tolist()):
        mine = events.where(names == name)
        compute, communication, copies = (
            union(mine.start[chosen], mine.stop[chosen])
            for chosen in (
                mine.kind == EventKind.KERNEL,
                mine.kind == EventKind.COLLECTIVE,
                (mine.kind == EventKind.MEMCPY) | (mine.kind == EventKind.MEMSET),
            )
        )
        found.append(
            DeviceWork(
                name=name,
                compute=compute,
                communication=communication,
                copies=copies,
                busy=compute | communication | copies,
            )
        )
    return tuple(found)


def _device_name(trace: ProfilerTrace, index: int) -> str:
    track = trace.tracks[index]
    return "" if track.process.strip().lower() in _ONE_DEVICE else str(track.pid)
