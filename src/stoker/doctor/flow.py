"""The rate a plan gives: its bounds, less what threads lose by waiting for each other. Pure.

Bounds are reached only where work is always at hand for the tightest resource. A few threads that each fetch, then
decode, then publish come near them and not to them, and least where two bounds are close to each other. So chunks are
sent through the plan one by one, by arithmetic: at every moment each resource is shared equally between those who are
at it, and the moment at which the next of them is done is the next one looked at.

    builder 0   ··latency··|▓ network ▓▓▓|█ cores ██|          ▓ shared by all that fetch
    builder 1      ··latency··|▓▓▓▓▓▓▓|··|███|                  █ shared by as many as may compute, one with the GIL
    assembler                             |gather|              when all chunks of its window are there
    step                                       |step|
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from stoker.doctor.bounds import bounds_of, demand_of, residence_s, supply_of, takes_a_place
from stoker.doctor.costs import Plan, StageCost
from stoker.doctor.results import MODEL
from stoker.loader.windows.in_use import num_windows_ahead
from stoker.storage.fetch import requests_at_once

# Chunks that are sent through: first those that only fill the pipe, then those that are counted, at least.
_NUM_FIRST = 40
_NUM_COUNTED = 80
# Windows that were waited for while threads had nothing to do: so many that no more of them change anything.
_MANY = 100
# No two chunks take quite the same time. This much apart, threads that began together still fetch together and compute
# together for many turns, each resource idle while all are at the other: so do real ones, whose links, cores and GIL
# give all that are at them their equal share. Multiples of the golden ratio spread as evenly as any.
_JITTER = 0.01
_GOLDEN = 0.6180339887498949
# Phases that take nothing: a place among those that compute, and giving it back.
_TAKE, _GIVE = "take", "give"
_Phase: TypeAlias = tuple[str, int, float]
"""A resource, how many of it one may use at once, and how much of it is taken."""
# Less than this is nothing: rates and sizes are floats.
_NOTHING = 1e-12


@functools.lru_cache(maxsize=512)
def rate_of(plan: Plan) -> float:
    """Return the samples/s that the plan gives in the long run.

    Raises:
        ValueError: The plan's stages take nothing of anything.
    """
    bounds = bounds_of(plan)
    if not bounds:
        raise ValueError("a plan whose stages cost nothing has no rate")
    if any(stage.place == "build" for stage in plan.stages):
        rate = min(bounds[0].samples_s, _Flow(plan).run())
    else:
        rate = _uneven(plan, bounds[0].samples_s)
    if plan.reach == 1:
        return rate
    if plan.reach > 1:
        return min(plan.reach * rate, demand_of(plan) or math.inf)
    # It is the loader that gives less, not the step that takes less.
    loader = replace(plan.without(MODEL), reach=1.0)
    return min(rate, plan.reach * rate_of(loader)) if bounds_of(loader) else rate


def num_short_of(plan: Plan) -> int:
    """Return how often threads that build stand idle beside a wait until windows are asked for far enough ahead."""
    flow = _Flow(plan)
    flow.run()
    return flow.num_short


def _uneven(plan: Plan, bound: float) -> float:
    """Return the rate where batches come as unevenly as the plan says, and as many wait as may."""
    demand = demand_of(plan)
    if not plan.gaps or demand is None:
        return bound
    made_s, step_s = plan.batch_size / supply_of(plan), plan.batch_size / demand
    mean = sum(plan.gaps) / len(plan.gaps)
    if not made_s or not mean:
        return bound
    taken: deque[float] = deque(maxlen=max(1, plan.prefetch))
    ready = free = began = 0.0
    num_first = min(plan.prefetch, len(plan.gaps) // 4)
    for i, gap in enumerate(plan.gaps):
        # A batch is begun when there is room for it: when the one so many before it has been taken.
        room = taken[0] if len(taken) == taken.maxlen else 0.0
        ready = max(ready, room) + gap / mean * made_s
        begin = max(ready, free)
        taken.append(begin)
        free = begin + step_s
        if i < num_first:
            began = free
    return min(bound, (len(plan.gaps) - num_first) * plan.batch_size / (free - began))


@dataclass(eq=False)
class _Job:
    """Something that goes through phases: those that are left of it."""

    phases: deque[_Phase]
    kind: str
    chunk: int


class _Shared:
    """Those who are at one resource, each as fast as the others: what is left of the next of them is all that counts.

    done by each since the beginning   ───────────────●  now
    A was here from there, for so much     ├──────┤      is done
    B                                          ├─────────┤      next
    """

    def __init__(self) -> None:
        self.rate = 0.0
        self._done = 0.0
        self._numbers = itertools.count()
        self._ends: list[tuple[float, int, _Job]] = []

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, job: _Job, amount: float) -> None:
        heapq.heappush(self._ends, (self._done + amount, next(self._numbers), job))

    def next_s(self) -> float:
        return max(0.0, self._ends[0][0] - self._done) / self.rate

    def pass_by(self, seconds: float) -> None:
        self._done += self.rate * seconds

    def pop(self) -> _Job:
        return heapq.heappop(self._ends)[2]


class _Flow:
    """One run of chunks through a plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        sizes = plan.chunk_samples
        # Chunks of as many windows as may be built at once can come together, and none for a while: only as many
        # windows later is the same moment.
        self._num_ahead = num_windows_ahead(plan.num_builders, plan.window)
        self.num_short = 0  # windows for which all waited while some that build had nothing to do
        self._short_at = -1  # the last of them
        is_even = len(set(sizes)) == 1
        most_ahead = self._num_ahead if is_even else num_windows_ahead(plan.num_builders, plan.window, num_short=_MANY)
        at_once = (most_ahead + 1) * plan.window
        self._first = _round_up(_NUM_FIRST, at_once)
        # As many of the large ones as there are.
        num_counted = _NUM_COUNTED if is_even else _round_up(_NUM_COUNTED, len(sizes))
        num_counted = _round_up(num_counted, at_once)
        self._sizes = [sizes[i % len(sizes)] for i in range(self._first + num_counted)]
        self._ends = [0, *itertools.accumulate(self._sizes)]
        self._jitter = [1 + _JITTER * (2 * (i * _GOLDEN % 1) - 1) for i in range(len(self._sizes))]
        self._build = [stage for stage in plan.stages if stage.place == "build"]
        self._assemble = [stage for stage in plan.stages if stage.place == "assemble"]
        self._last = [stage for stage in plan.stages if stage.place in ("loop", "device")]
        self._at: dict[tuple[str, int], _Shared] = {}
        self._next_build = 0
        self._is_built = [False] * len(self._sizes)
        self._num_assembled = 0
        self._num_trained = 0
        self._is_assembling = False
        self._is_training = False
        self._num_building = 0
        self._num_places = plan.num_builders if plan.num_computing is None else plan.num_computing
        self._waiting: deque[_Job] = deque()

    def run(self) -> float:
        now = 0.0
        began = 0.0
        self._start_what_can()
        while self._num_trained < len(self._sizes):
            busy = [shared for shared in self._at.values() if shared]
            self._set_rates()
            first = min(busy, key=_Shared.next_s)
            step_s = first.next_s()
            now += step_s
            for shared in busy:
                shared.pass_by(step_s)
            self._begin(first.pop())
            if not began and self._num_trained >= self._first:
                began = now
            self._start_what_can()
        # All that is left may take less than numbers of this size tell from nothing: then a bound is what there is.
        return sum(self._sizes[self._first :]) / (now - began) if now > began else math.inf

    # ------------------------------------------------------------------ who may begin

    def _start_what_can(self) -> None:
        # What takes nothing is finished where it begins, and lets others begin: until nothing more can.
        while self._start_one() or self._ask_further():
            pass

    def _ask_further(self) -> bool:
        """Ask for one window more where one is waited for while some that build have nothing to do; False elsewhere."""
        at = self._num_assembled // self._plan.window
        is_short = self._num_building < self._plan.num_builders and self._next_build < len(self._sizes)
        if not is_short or self._is_assembling or self._is_training or at <= self._short_at:
            return False
        self._short_at = at
        self.num_short += 1
        before = self._num_ahead
        self._num_ahead = num_windows_ahead(self._plan.num_builders, self._plan.window, num_short=self.num_short)
        return self._num_ahead > before

    def _start_one(self) -> bool:
        """Begin one thing that may begin; False where nothing may."""
        plan = self._plan
        if self._num_building < plan.num_builders and self._may_build():
            chunk = self._next_build
            self._next_build += 1
            self._num_building += 1
            size = self._sizes[chunk] * self._jitter[chunk]
            self._begin(_Job(deque(self._build_phases(size)), "build", chunk))
        elif not self._is_assembling and self._may_assemble():
            self._is_assembling = True
            chunk = self._num_assembled
            at_once = min(plan.num_assemblers, max(1, plan.prefetch))
            phases = [p for stage in self._assemble for p in self._phases(stage, self._sizes[chunk], at_once=at_once)]
            self._begin(_Job(deque(phases), "assemble", chunk))
        elif not self._is_training and self._num_trained < self._num_assembled:
            self._is_training = True
            chunk = self._num_trained
            self._begin(_Job(deque(self._last_phases(self._sizes[chunk])), "train", chunk))
        else:
            return False
        return True

    def _begin(self, job: _Job) -> None:
        """Let a job go on with the next phase that takes something, or finish."""
        while job.phases:
            resource, at_once, amount = job.phases.popleft()
            if resource == _TAKE:
                if not self._num_places:
                    self._waiting.append(job)
                    return
                self._num_places -= 1
            elif resource == _GIVE:
                self._num_places += 1
                if self._waiting:  # whoever came first
                    self._num_places -= 1
                    self._begin(self._waiting.popleft())
            elif amount > _NOTHING:
                self._at.setdefault((resource, at_once), _Shared()).add(job, amount)
                return
        self._finish(job)

    def _finish(self, job: _Job) -> None:
        if job.kind == "build":
            self._is_built[job.chunk] = True
            self._num_building -= 1
        elif job.kind == "assemble":
            self._num_assembled += 1
            self._is_assembling = False
        else:
            self._num_trained += 1
            self._is_training = False

    def _may_build(self) -> bool:
        if self._next_build >= len(self._sizes):
            return False
        window = self._plan.window
        return self._next_build // window <= self._num_assembled // window + self._num_ahead

    def _may_assemble(self) -> bool:
        at = self._num_assembled
        if at >= len(self._sizes):
            return False
        # Batches are handed over one by one: assembling is ahead of training by as many as may wait, or by a chunk.
        ahead = self._ends[at] - self._ends[self._num_trained]
        if at > self._num_trained + 1 and ahead > self._plan.prefetch * self._plan.batch_size:
            return False
        first = at // self._plan.window * self._plan.window
        return all(self._is_built[first : min(first + self._plan.window, len(self._sizes))])

    # ------------------------------------------------------------------ what they take

    def _build_phases(self, size: float) -> list[_Phase]:
        """Return what a chunk takes until it is published; for some of it, one of the places of those that compute."""
        phases: list[_Phase] = []
        has_place = False
        for stage in self._build:
            if takes_a_place(stage) != has_place:
                has_place = not has_place
                phases.append((_TAKE if has_place else _GIVE, 1, 0.0))
            phases += self._phases(stage, size)
        return [*phases, (_GIVE, 1, 0.0)] if has_place else phases

    @staticmethod
    def _phases(stage: StageCost, size: float, *, at_once: int = 1) -> list[_Phase]:
        """Return what a chunk takes of each resource in turn, by one of `at_once` threads that share it."""
        return [
            ("delay", 1, stage.wait_s * size / at_once),
            ("network", requests_at_once(stage.net_bytes * size), stage.net_bytes * size),
            ("read", 1, stage.read_bytes * size),
            ("gil", 1, stage.gil_s * size),
            ("cores", at_once, (stage.cpu_s - stage.gil_s) * size),
            ("write", 1, stage.write_bytes * size),
        ]

    def _last_phases(self, size: int) -> Sequence[_Phase]:
        """Return what the loop and the device take: both work at the same time, so the longer one of them counts."""
        loop_s = sum(residence_s(stage, self._plan) for stage in self._last)
        device_s = sum(stage.device_s for stage in self._last)
        pcie_s = sum(stage.pcie_bytes for stage in self._last) / self._plan.machine.pcie_bytes_s
        cpu_s = sum(stage.cpu_s for stage in self._last)
        gil_s = sum(stage.gil_s for stage in self._last)
        wall_s = max(loop_s, device_s, pcie_s)
        # A step on the processor may use several at once.
        at_once = max(1, math.ceil(cpu_s / wall_s)) if wall_s else 1
        rest_s = max(0.0, wall_s - gil_s - (cpu_s - gil_s) / at_once)
        return [("gil", 1, gil_s * size), ("cores", at_once, (cpu_s - gil_s) * size), ("delay", 1, rest_s * size)]

    def _set_rates(self) -> None:
        """Set the rate at which each of those at a resource goes on."""
        machine = self._plan.machine
        num: dict[str, int] = {}
        wanted = 0
        for (resource, at_once), shared in self._at.items():
            num[resource] = num.get(resource, 0) + len(shared)
            wanted += at_once * len(shared) if resource == "cores" else (resource == "gil" and bool(shared))
        each = min(1.0, machine.cores / wanted) if wanted else 1.0
        for (resource, at_once), shared in self._at.items():
            if not shared:
                continue
            if resource == "delay":
                shared.rate = 1.0
            elif resource == "cores":
                shared.rate = machine.together * each * at_once
            elif resource == "gil":
                shared.rate = machine.together * each / num[resource]
            elif resource == "network":
                shared.rate = min(at_once * machine.connection_bytes_s, machine.network_bytes_s / num[resource])
            elif resource == "read":
                shared.rate = machine.read_bytes_s / num[resource]
            else:
                shared.rate = machine.write_bytes_s / num[resource]


def _round_up(num: int, step: int) -> int:
    return -(-num // step) * step
