"""What was found in the traces of a run: numbers, and one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

from stoker.doctor.traces.events import ProfilerTrace
from stoker.doctor.traces.pipeline import Bubble, Schedule, take_bubble
from stoker.doctor.traces.ranks import CollectiveWaits, compare_traces
from stoker.doctor.traces.times import RankTimes, StepTimes, Times, measure

OK, CPU_ONLY, NO_EVENTS = "ok", "cpu_only", "no_events"
"""What kind of answer there is: a whole one, one about the host only, none."""

_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """One file's answer.

    Attributes:
        rank: Its number: from the file, else from its name, else its place among the files.
        measured: What was added up.
        times: Where the devices' time went, the pipeline's bubble set apart where a schedule was given.
        bubble: The bubble, None without a schedule.
    """

    rank: int
    measured: RankTimes
    times: Times
    bubble: Bubble | None

    @property
    def status(self) -> str:
        """OK, CPU_ONLY or NO_EVENTS."""
        if self.measured.devices:
            return OK
        return CPU_ONLY if self.measured.has_events else NO_EVENTS

    @property
    def path(self) -> str:
        """The file."""
        return self.measured.trace.path

    @property
    def middle(self) -> tuple[StepTimes, ...]:
        """The steps that medians are taken over."""
        return self.measured.middle

    @property
    def step_ns(self) -> float | None:
        """The median step."""
        return median(step.length for step in self.middle) if self.middle else None

    @property
    def best_case_step_ns(self) -> float | None:
        """The median of the least that each step could take without waiting for data; None without a device."""
        return median(step.least for step in self.middle) if self.middle and self.status == OK else None

    @property
    def host_data_wait_share(self) -> float | None:
        """The share of the time in which the main thread waited for data or collated, the device idle or not."""
        length = self.measured.stop - self.measured.start
        return self.measured.wants_data / length if length else None

    @property
    def info(self) -> dict[str, object]:
        """What the file says of its place among the ranks."""
        found = self.measured.trace.header.get("distributedInfo")
        return found if isinstance(found, dict) else {}

    @property
    def device_names(self) -> list[str]:
        """Names of the devices that worked, as far as the file has them."""
        listed = self.measured.trace.header.get("deviceProperties")
        names = {
            str(entry.get("id")): str(entry.get("name", ""))
            for entry in (listed if isinstance(listed, list) else [])
            if isinstance(entry, dict)
        }
        return [names.get(device.name, device.name) for device in self.measured.devices]

    @property
    def notes(self) -> list[str]:
        """What to know about the file."""
        trace = self.measured.trace
        notes = list(trace.notes)
        if trace.is_cut and trace.num_events:
            notes.append("the file ends before its end: what came before it was counted")
        elif trace.is_cut and not trace.notes:
            notes.append("the file ends before its first event")
        if trace.num_damaged:
            notes.append(f"{trace.num_damaged:,} events made no sense and were left out")
        if self.measured.has_events and not self.measured.steps:
            notes.append("no profiled steps (ProfilerStep#N): call `prof.step()` in the loop to have step times")
        elif 0 < len(self.measured.steps) < 3:
            notes.append("fewer than three profiled steps: the first and the last are counted too")
        return notes


@dataclass(frozen=True, kw_only=True)
class TraceResult:
    """The answer about all files.

    Attributes:
        ranks: By rank.
        waits: Who waited for whom.
        schedule: The pipeline's, where one was given.
    """

    ranks: tuple[RankResult, ...]
    waits: CollectiveWaits
    schedule: Schedule | None = None

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
        return sum((rank.times for rank in self.with_device), Times())

    @property
    def step_ns(self) -> float | None:
        """The slowest rank's: a job goes at its pace."""
        return max((rank.step_ns for rank in self.ranks if rank.step_ns is not None), default=None)

    @property
    def best_case_step_ns(self) -> float | None:
        """The slowest rank's: what one rank gains, the others may still need."""
        found = [rank.best_case_step_ns for rank in self.ranks if rank.best_case_step_ns is not None]
        return max(found, default=None)

    @property
    def straggler(self) -> RankResult | None:
        """The rank that makes the others wait."""
        return None if self.waits.straggler is None else self.with_device[self.waits.straggler]


def analyse(traces: Iterable[ProfilerTrace], *, schedule: Schedule | None = None) -> TraceResult:
    """Return what some traces of one run say: one a rank.

    Args:
        traces: In any order. Each is let go of before the next is asked for, so that an iterator which reads them needs
            the memory of one.
        schedule: The pipeline's schedule, so that its bubble can be set apart.

    Raises:
        ValueError: There are none.
    """
    measured = [measure(trace) for trace in traces]
    if not measured:
        raise ValueError("there are no traces to look at")
    numbers = _rank_numbers([one.trace for one in measured])
    ranks = []
    for number, one in sorted(zip(numbers, measured, strict=True), key=lambda pair: pair[0]):
        times, bubble = one.times, None
        if schedule is not None and one.devices:
            times, bubble = take_bubble(times, schedule)
        ranks.append(RankResult(rank=number, measured=one, times=times, bubble=bubble))
    working = [rank.measured for rank in ranks if rank.status == OK]
    return TraceResult(ranks=tuple(ranks), waits=compare_traces(working), schedule=schedule)


def _rank_numbers(traces: Sequence[ProfilerTrace]) -> list[int]:
    """Return each file's rank; where two have the same, their places."""
    found: list[int | None] = []
    for trace in traces:
        info = trace.header.get("distributedInfo")
        said = info.get("rank") if isinstance(info, dict) else None
        in_name = _RANK_IN_NAME.search(Path(trace.path).name)
        if isinstance(said, (int, str)) and str(said).lstrip("-").isdigit():
            found.append(int(said))
        else:
            found.append(int(in_name[1]) if in_name else None)
    known = [number for number in found if number is not None]
    if len(known) == len(traces) and len(set(known)) == len(known):
        return known
    return list(range(len(traces)))
