"""Collectives of ranks: who comes last to them, and so makes the others wait.

    rank 0   ██████████████   it came first, and waited inside its kernel
    rank 1         ████████
    rank 2             ████   the last: its kernel is the shortest
                          │ all end together

A collective ends on all of its ranks at once, so its length says who waited, and for how long. No clock of one host is
compared with that of another.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from stoker.doctor.traces.events import ProfilerTrace
from stoker.doctor.traces.names import EventKind
from stoker.fields.offsets import Int64

# Between two ranks, not among all: who waits for whom is the program's order, not somebody's slowness. From one rank to
# all, or the other way: they need not end together.
_NOT_AMONG_ALL = re.compile(r"^_?(i?send|i?recv|coalesced|batch_isend_irecv|broadcast|reduce$|gather|scatter)", re.I)
_SEND_RECV = re.compile(r"send_?recv", re.IGNORECASE)
_ROOTED = re.compile(r"ccl\w*?_(Broadcast|Reduce)(_|$)")
# Below this share of the time, the wait is jitter.
_MIN_WAIT_SHARE = 0.01

SEQUENCE = "sequence"
Key = tuple[str, str, str, int]
"""Process group, name, step, place in it; or `SEQUENCE` and the group's own number of the collective."""

Collectives = dict[Key, int]
"""Nanoseconds that each took."""


def collectives_of(
    trace: ProfilerTrace, launched: Int64, steps: Sequence[tuple[int, int, int]], counted: Sequence[int]
) -> Collectives:
    """Return how long each collective among all ranks took.

    Args:
        trace: Has them.
        launched: When the launch of each device event began. [D].
        steps: Number, begin and end of profiled steps.
        counted: Numbers of those whose collectives count; all collectives do without any.
    """
    chosen = np.flatnonzero(trace.device.kind == EventKind.COLLECTIVE)
    mine = trace.device.where(chosen)
    # By the launch, not by the work: a device runs behind its host, and not on every rank equally far.
    place = np.searchsorted(np.array([start for _, start, _ in steps]), launched[chosen], side="right") - 1
    counts: Counter[tuple[str, str, str]] = Counter()
    found: Collectives = {}
    for index in np.argsort(mine.start, kind="stable").tolist():
        step = steps[place[index]][0] if place[index] >= 0 else -1
        name, group, members, label = (
            trace.texts[column[index]] if column[index] >= 0 else ""
            for column in (mine.name, mine.group, mine.members, mine.label)
        )
        group += members  # groups that shard a model may share a name, and not one rank
        name = name.split("(")[0]
        is_among_all = not _NOT_AMONG_ALL.search(label) if label else not _ROOTED.search(name)
        if not is_among_all or (counted and step not in counted):
            continue
        if mine.extra[index] >= 0 and group:
            key: Key = (group, name, SEQUENCE, int(mine.extra[index]))
        else:
            counts[group, name, str(step)] += 1
            key = (group, name, str(step), counts[group, name, str(step)])
        found[key] = int(mine.stop[index] - mine.start[index])
    return found


def waits_between(ranks: Sequence[Collectives], *, wall: float) -> tuple[int, list[int], list[int], int | None]:
    """Find the rank that comes last to its collectives, in so many nanoseconds.

    Returns:
        How many collectives two ranks or more have in common. Nanoseconds that each rank waited for the last one. [R].
        Those that the others waited for each rank, added over them. [R]. Index of the rank that makes the others wait;
        None where it is nobody, or no one in particular.
    """
    num = len(ranks)
    keys = _common(ranks)
    lengths = np.array([[rank.get(key, -1) for rank in ranks] for key in keys], np.int64).reshape(len(keys), num)
    there = lengths >= 0
    shortest = np.where(there, lengths, np.iinfo(np.int64).max)
    waits = np.where(there, lengths - shortest.min(axis=1, initial=np.iinfo(np.int64).max)[:, None], 0)
    last = shortest.argmin(axis=1) if num else np.empty(0, np.int64)
    imposed = np.bincount(last, weights=waits.sum(axis=1), minlength=num).astype(np.int64)
    straggler = None
    if num > 1:
        worst = int(imposed.argmax())
        # With two ranks, chance gives each a half: one that stands out has more.
        is_one = imposed[worst] >= (0.75 if num == 2 else 0.5) * imposed.sum()
        straggler = worst if is_one and imposed[worst] / (num - 1) >= _MIN_WAIT_SHARE * wall > 0 else None
    return len(keys), waits.sum(axis=0).tolist(), imposed.tolist(), straggler


def _common(ranks: Sequence[Collectives]) -> list[Key]:
    """Return what ranks have in common and is surely the same.

    Places in a step name the same collective only where all ranks have equally many. A kernel that may be a send or an
    all-to-all is one of the latter where every rank has it.
    """
    seen = Counter(key for rank in ranks for key in rank)
    counts = [Counter(key[:3] for key in rank) for rank in ranks]

    def is_same(key: Key) -> bool:
        if _SEND_RECV.search(key[1]) and seen[key] < len(ranks):
            return False
        return key[2] == SEQUENCE or len({count[key[:3]] for count in counts if key[:3] in count}) == 1

    return [key for key, num in seen.items() if num > 1 and is_same(key)]
