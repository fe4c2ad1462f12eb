"""What was found in the traces of a run: numbers, by rank and in all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from stoker.doctor.traces.collectives import CollectiveWaits, compare_ranks
from stoker.doctor.traces.events import ProfilerTrace
from stoker.doctor.traces.ranks import join_files, number_ranks, split_processes
from stoker.doctor.traces.times import RankTimes, Times, largest_range, measure

OK, CPU_ONLY, NO_EVENTS = "ok", "cpu_only", "no_events"
"""What kind of answer there is: a whole one, one about the host only, none."""


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """One rank's answer.

    Attributes:
        rank: Its number: from the file, else from its name, else its place.
        measured: What was added up.
    """

    rank: int
    measured: RankTimes

    @property
    def status(self) -> str:
        """OK, CPU_ONLY or NO_EVENTS."""
        if self.measured.devices:
            return OK
        return CPU_ONLY if self.measured.has_events else NO_EVENTS

    @property
    def paths(self) -> list[str]:
        """Its files."""
        return [trace.path for trace in self.measured.traces]

    @property
    def host_data_wait_share(self) -> float | None:
        """The share of the time in which the main thread waited for data or collated, the device idle or not."""
        return self.measured.wants_data / self.measured.wall if self.measured.wall else None

    @property
    def largest_range(self) -> tuple[str, int]:
        """The range or function that most unattributed time was spent in, and that time; ("", 0) without any."""
        name, idle = largest_range(self.measured.ranges)
        return name, min(idle, self.measured.times.unattributed)

    @property
    def device_names(self) -> dict[str, str]:
        """What devices are called, by the name that events have."""
        listed = self.measured.traces[0].header.get("deviceProperties")
        names = {
            str(entry.get("id")): str(entry.get("name", ""))
            for entry in (listed if isinstance(listed, list) else [])
            if isinstance(entry, dict)
        }
        return {device: names.get(device, device) for device in self.measured.devices}

    @property
    def notes(self) -> list[tuple[str, str]]:
        """What to know about its files: name, and one sentence."""
        found = []
        for trace in self.measured.traces:
            notes = list(trace.notes)
            if trace.is_cut and trace.num_events:
                notes.append("the file ends before its end: what came before it was counted")
            elif trace.is_cut and not trace.notes:
                notes.append("the file ends before its first event")
            if trace.num_damaged:
                notes.append(f"{trace.num_damaged:,} events made no sense and were left out")
            if trace.num_without_length:
                notes.append(f"{trace.num_without_length:,} events of devices have no duration and were left out")
            found += [(Path(trace.path).name, note) for note in notes]
        name = Path(self.paths[0]).name
        num_cycles = len(self.measured.traces)
        if self.measured.has_events and not self.measured.all_steps:
            found.append((name, "no profiled steps (ProfilerStep#N): call `prof.step()` to have step times"))
        elif self.measured.all_steps and len(self.measured.all_steps) < 3 * num_cycles:
            found.append((name, "fewer than three profiled steps: the first and the last are counted too"))
        return found


@dataclass(frozen=True, kw_only=True)
class TraceResult:
    """The answer about all files.

    Attributes:
        ranks: By rank.
        waits: Who waited for whom.
    """

    ranks: tuple[RankResult, ...]
    waits: CollectiveWaits

    @cached_property
    def with_device(self) -> tuple[RankResult, ...]:
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
        return sum((rank.measured.times for rank in self.with_device), Times())

    @property
    def step_ns(self) -> float | None:
        """The slowest rank's: a job goes at its pace."""
        return max((rank.measured.step_ns for rank in self.ranks if rank.measured.step_ns is not None), default=None)

    @property
    def without_wait_ns(self) -> tuple[float, float] | None:
        """The slowest rank's bounds of a step that waits for no batch: what one rank gains, the others may need."""
        found = [rank.measured.without_wait_ns for rank in self.ranks if rank.measured.without_wait_ns is not None]
        return (max(least for least, _ in found), max(most for _, most in found)) if found else None

    @property
    def straggler(self) -> RankResult | None:
        """The rank that makes the others wait."""
        return None if self.waits.straggler is None else self.with_device[self.waits.straggler]

    @cached_property
    def largest_range(self) -> tuple[str, int]:
        """Of all ranks: the range or function that most unattributed time was spent in, and that time."""
        ranges: dict[str, tuple[int, int]] = {}
        for rank in self.with_device:
            for name, (idle, total) in rank.measured.ranges.items():
                before = ranges.get(name, (0, 0))
                ranges[name] = (before[0] + idle, before[1] + total)
        name, idle = largest_range(ranges)
        return name, min(idle, self.times.unattributed)

    @property
    def device_word(self) -> str:
        """What its devices are: "GPU", "NPU", ..."""
        return (self.with_device or self.ranks)[0].measured.traces[0].device_word


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
    ranks = tuple(RankResult(rank=number, measured=one) for number, one in in_order)
    working = [rank.measured for rank in ranks if rank.status == OK]
    wall = sorted(one.wall for one in working)
    waits = compare_ranks([one.collectives for one in working], wall=float(wall[len(wall) // 2]) if wall else 0.0)
    return TraceResult(ranks=ranks, waits=waits)
