"""What was found in the traces of a run: numbers, by rank and in all.

Which rank is which: a file may be one of a rank's several, or hold several ranks.

tensorboard_trace_handler("logs")    one file for each rank and each cycle of the profiler's schedule
ranks merged into one file           several processes with steps, each with devices of its own
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import median, median_high

import numpy as np

from stoker.doctor.traces.collectives import waits_between
from stoker.doctor.traces.events import ProfilerTrace
from stoker.doctor.traces.names import EventKind, Is, step_number
from stoker.doctor.traces.timeline import calls_of, measure
from stoker.doctor.traces.times import CPU_ONLY, NO_EVENTS, OK, RankTimes, Times, add_tables, join_cycles
from stoker.fields.offsets import Int64

# A track of a device whose launches come from one process so often belongs to it as a whole.
_MOST = 0.9


@dataclass(frozen=True, kw_only=True)
class TraceResult:
    """The answer about all files.

    Attributes:
        num_matched: Collectives that two ranks or more have in common.
        straggler: The rank that makes the others wait; None where it is nobody, or no one in particular.
    """

    ranks: tuple[RankTimes, ...]
    num_matched: int
    straggler: RankTimes | None

    @property
    def with_device(self) -> tuple[RankTimes, ...]:
        """Ranks whose device did anything."""
        return tuple(rank for rank in self.ranks if rank.devices)

    @property
    def status(self) -> str:
        """The best of the ranks' answers: OK, CPU_ONLY or NO_EVENTS."""
        return min((rank.status for rank in self.ranks), key=(OK, CPU_ONLY, NO_EVENTS).index)

    @cached_property
    def times(self) -> Times:
        """Where the time of all devices went."""
        return sum((rank.times for rank in self.ranks), Times())

    @property
    def step_ns(self) -> float | None:
        """The median step of the slowest rank: a job goes at its pace."""
        return max((rank.step_ns for rank in self.ranks if rank.step_ns is not None), default=None)

    @property
    def without_wait_ns(self) -> tuple[float, float] | None:
        """The least and the most a step would take that waits for no batch, of the slowest rank; None without devices.

        What one rank gains, the others may need.
        """
        known = [rank.steps for rank in self.with_device if rank.steps]
        if not known:
            return None
        return (
            max(median(step.least for step in steps) for steps in known),
            max(median(step.most for step in steps) for steps in known),
        )

    @cached_property
    def largest_range(self) -> tuple[str, int]:
        """The range or function that most unattributed time was spent in, and that time; ("", 0) without any.

        Of those around each other, the innermost that still has half of the time of the largest one.
        """
        ranges = add_tables(rank.ranges for rank in self.with_device)
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
        return tuple(map(sum, zip(*(rank.copies for rank in self.ranks), strict=True)))

    @property
    def host_data_wait_share(self) -> float | None:
        """The largest share of a rank's time in which its main thread waited for data or collated."""
        return max((rank.wants_data / rank.wall for rank in self.ranks if rank.wall), default=None)

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
    measured = _join_files(measure(one) for trace in traces for one in _split_processes(trace))
    if not measured:
        raise ValueError("there are no traces to look at")
    in_order = sorted(zip(_number_ranks(measured), measured, strict=True), key=lambda pair: pair[0])
    working = [one for _, one in in_order if one.devices]
    wall = float(median_high([one.wall for one in working])) if working else 0.0
    num_matched, waited, imposed, last = waits_between([one.collectives for one in working], wall=wall)
    between = {id(one): pair for one, *pair in zip(working, waited, imposed, strict=True)}
    ranks = tuple(
        replace(one, rank=number, collective_waits=tuple(between.get(id(one), ()))) for number, one in in_order
    )
    straggler = None if last is None else [rank for rank in ranks if rank.devices][last]
    return TraceResult(ranks=ranks, num_matched=num_matched, straggler=straggler)


def _split_processes(trace: ProfilerTrace) -> list[ProfilerTrace]:
    """Return one trace for each process that trains, where a file holds several; else the file as it is."""
    pids = [track.pid for track in trace.tracks]
    numbers = {pid: number for number, pid in enumerate(dict.fromkeys(pids))}
    of_track = np.array([numbers[pid] for pid in pids], np.int64)
    host, device = trace.host, trace.device
    is_step = np.array([step_number(text) is not None for text in trace.texts] + [False], bool)
    process = of_track[host.track] if len(host) else np.empty(0, np.int64)
    training = np.unique(process[is_step[host.name]])
    if training.size < 2:
        training = np.unique(process[(host.kind == EventKind.RUNTIME) & (host.correlation > 0)])
    if training.size < 2 or not len(device):
        return [trace]
    owner = _owners(trace, process, training)
    texts = list(numbers)
    found = []
    for number in training.tolist():
        tracks = np.flatnonzero(of_track == number)
        label = next((track.process for track in trace.tracks if track.pid == texts[number] and track.process), "")
        found.append(
            replace(
                trace,
                host=host.where(np.isin(host.track, tracks)),
                device=device.where(owner == number),
                process=f"{label} {texts[number]}",
                header={key: value for key, value in trace.header.items() if key != "distributedInfo"},
            )
        )
    return found


def _owners(trace: ProfilerTrace, process: Int64, training: Int64) -> Int64:
    """Return the process that launched each device event. [D]."""
    host, device = trace.host, trace.device
    owner = np.full(len(device), -1, np.int64)
    calls = np.flatnonzero(np.isin(process, training) & (host.kind == EventKind.RUNTIME) & (host.correlation > 0))
    says = [bool(trace.names.what_is(text, EventKind.RUNTIME) & Is.LAUNCH_CALL) for text in trace.texts]
    launches = calls[np.array([*says, False])[host.name[calls]]]  # others wait, and launch nothing
    call = calls_of(host, launches if launches.size else calls, device)
    is_known = (call >= 0) & (np.append(host.start, 0)[call] <= device.start)
    owner[is_known] = process[call[is_known]]
    # Where ids collide, a track's events agree; where there are none, devices come in the order of their processes.
    tracks = np.unique(device.track).tolist()
    for order, track in enumerate(tracks):
        mine = device.track == track
        known = owner[mine & (owner >= 0)]
        votes = np.bincount(known, minlength=1)
        if not known.size:
            owner[mine] = training[order * training.size // len(tracks)]
        elif votes.max() >= _MOST * known.size:
            owner[mine] = votes.argmax()
    return owner


def _join_files(measured: Iterable[RankTimes]) -> list[RankTimes]:
    """Return one entry a rank: files of one process that follow each other in time are cycles of its profiler."""
    of_process: dict[tuple[object, ...], list[RankTimes]] = defaultdict(list)
    for one in measured:
        of_process[one.process].append(one)
    found = []
    for files in of_process.values():
        in_time = sorted(files, key=lambda one: one.span)
        numbers = [step.number for one in in_time for step in one.all_steps]
        # Cycles go on counting: of files that do not name their host, two with the same steps are two ranks, however
        # far apart their clocks are. A profiler that is made anew (each epoch) counts anew.
        is_one = bool(files[0].process[-1]) or len(set(numbers)) == len(numbers)
        is_one &= all(before.span[1] <= after.span[0] for before, after in pairwise(in_time))
        found += [join_cycles(in_time)] if is_one and len(files) > 1 else files
    return found


def _number_ranks(ranks: Sequence[RankTimes]) -> list[int]:
    """Return each rank's number: what its files say, where they are all different; else its place."""
    known = [number for rank in ranks if (number := rank.traces[0].rank) is not None]
    if len(known) == len(ranks) and len(set(known)) == len(known):
        return known
    return list(range(len(ranks)))
