"""What was found in the traces of a run: numbers, by rank and in all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from stoker.doctor.traces.collectives import CollectiveWaits, compare_ranks
from stoker.doctor.traces.events import ProfilerTrace
from stoker.doctor.traces.ranks import join_files, number_ranks, split_processes
from stoker.doctor.traces.times import CPU_ONLY, NO_EVENTS, OK, RankTimes, Times, largest_range, measure


@dataclass(frozen=True, kw_only=True)
class TraceResult:
    """The answer about all files.

    Attributes:
        ranks: By rank.
        waits: Who waited for whom.
    """

    ranks: tuple[RankTimes, ...]
    waits: CollectiveWaits

    @cached_property
    def with_device(self) -> tuple[RankTimes, ...]:
        """Ranks whose device did anything."""
        return tuple(rank for rank in self.ranks if rank.status == OK)

    @property
    def status(self) -> str:
        """The best of the ranks' answers."""
        kinds = {rank.status for rank in self.ranks}
        return next(status for status in (OK, CPU_ONLY, NO_EVENTS) if status in kinds)

    @cached_property
    def times(self) -> Times:
        """Device time of all ranks added."""
        return sum((rank.times for rank in self.with_device), Times())

    @property
    def step_ns(self) -> float | None:
        """The slowest rank's: a job goes at its pace."""
        return max((rank.step_ns for rank in self.ranks if rank.step_ns is not None), default=None)

    @property
    def without_wait_ns(self) -> tuple[float, float] | None:
        """The slowest rank's bounds of a step that waits for no batch: what one rank gains, the others may need."""
        found = [rank.without_wait_ns for rank in self.ranks if rank.without_wait_ns is not None]
        return (max(least for least, _ in found), max(most for _, most in found)) if found else None

    @property
    def straggler(self) -> RankTimes | None:
        """The rank that makes the others wait."""
        return None if self.waits.straggler is None else self.with_device[self.waits.straggler]

    @cached_property
    def largest_range(self) -> tuple[str, int]:
        """Of all ranks: the range or function that most unattributed time was spent in, and that time."""
        ranges: dict[str, tuple[int, int]] = {}
        for rank in self.with_device:
            for name, (idle, total) in rank.ranges.items():
                before = ranges.get(name, (0, 0))
                ranges[name] = (before[0] + idle, before[1] + total)
        name, idle = largest_range(ranges)
        return name, min(idle, self.times.unattributed)

    @property
    def device_word(self) -> str:
        """What its devices are: "GPU", "NPU", ..."""
        return (self.with_device or self.ranks)[0].traces[0].device_word


def analyse(traces: Iterable[ProfilerTrace]) -> TraceResult:
    """Return what some traces of one run say.

    Files of one process that follow each other are cycles of its profiler's schedule, and one rank; processes that
    train beside each other in one file are several.

    Args:
        traces: In any order. Each is let go of before the next is asked for, so that an iterator which reads them needs
            the memory of one.

    Raises:
        ValueError: There are none.
    """
    measured = join_files(measure(one) for trace in traces for one in split_processes(trace))
    if not measured:
        raise ValueError("there are no traces to look at")
    in_order = sorted(zip(number_ranks(measured), measured, strict=True), key=lambda pair: pair[0])
    ranks = tuple(replace(one, rank=number) for number, one in in_order)
    working = [rank for rank in ranks if rank.status == OK]
    wall = sorted(one.wall for one in working)
    waits = compare_ranks([one.collectives for one in working], wall=float(wall[len(wall) // 2]) if wall else 0.0)
    return TraceResult(ranks=ranks, waits=waits)
