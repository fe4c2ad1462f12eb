"""The collectives of one rank, each under a name that it has on the other ranks too."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from stoker.doctor.traces.events import ProfilerTrace
from stoker.doctor.traces.host import HostWork
from stoker.doctor.traces.names import EventKind

# Between two ranks, not among all: who waits for whom is the program's order, not somebody's slowness. The kernel of an
# all-to-all has the same name: only what newer profilers say beside it tells the two apart.
_POINT_TO_POINT = re.compile(r"^(i?send|i?recv|coalesced|batch_isend_irecv)", re.IGNORECASE)
_SEND_RECV = re.compile(r"send_?recv", re.IGNORECASE)
UNTOLD = "send or all-to-all: "
"""Begins the name of what may be either."""

Key = tuple[str, str, str, int]
"""Process group, name, step, place in it; or the group's own number of the collective instead of the last two."""

Collectives = dict[Key, tuple[int, int]]


def collectives_of(trace: ProfilerTrace, host: HostWork) -> Collectives:
    """Return when each collective began and ended, in nanoseconds of the time of day."""
    chosen = np.flatnonzero(trace.device.kind == EventKind.COLLECTIVE)
    mine = trace.device.where(chosen)
    borders = np.array([step.start for step in host.steps], np.int64)
    # By the launch, not by the work: a device runs behind its host, and not on every rank equally far.
    place = np.searchsorted(borders, host.launched_at[chosen], side="right") - 1
    counts: Counter[tuple[str, str, str]] = Counter()
    found: Collectives = {}
    for index in np.argsort(mine.start, kind="stable").tolist():
        name, group, label = (
            trace.names[column[index]] if column[index] >= 0 else "" for column in (mine.name, mine.group, mine.label)
        )
        name = name.split("(")[0]
        if _POINT_TO_POINT.search(label):
            continue
        if not label and _SEND_RECV.search(name):
            name = UNTOLD + name
        if mine.extra[index] >= 0 and group:
            key: Key = (group, name, "sequence", int(mine.extra[index]))
        else:
            step = str(host.steps[place[index]].number) if host.steps and place[index] >= 0 else "before"
            counts[group, name, step] += 1
            key = (group, name, step, counts[group, name, step])
        found[key] = (int(mine.start[index]) + trace.base_ns, int(mine.stop[index]) + trace.base_ns)
    return found
