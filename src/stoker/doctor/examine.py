"""The examination: what can be tried is tried for a few seconds, in turns, within the budget.

open ─► one chunk, one batch, the step tried ─► a sample ─► every path in turn, again and again ─► numbers

The budget holds: a path that would not come to anything in the time that is left is said to be not measured.
"""

from __future__ import annotations

import copy
import math
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from stoker.cache.store import Store
from stoker.dataset.catalogue import Catalogue
from stoker.dataset.dataset import Dataset
from stoker.doctor.machine import NO_GPU, is_memory, watching_gpus
from stoker.doctor.paths import Candidates, Way
from stoker.doctor.results import (
    BUILD_STAGES,
    LEAST_ROUNDS,
    RAM,
    SETTLED,
    SHARED,
    SOURCE,
    SUPPLY,
    TENSORS,
    Measurements,
    PathResult,
    PathRun,
    StageResult,
)
from stoker.doctor.sample import Sample
from stoker.doctor.settings import LEAST_S, Budget, DoctorSettings
from stoker.doctor.tap import Tap, probe_link
from stoker.doctor.verdict import DoctorResult
from stoker.errors import StokerError
from stoker.host.machine import cores, machine, versions
from stoker.loader.temporary import OwnedFolder
from stoker.words import time_text

# The beginning of the names of folders that experiments write to.
_SCRATCH = "stoker-doctor-"
# Shares of the budget: for the link, exploring today's path, each stage alone, each run of a path, and verifying where
# asked.
_LINK, _EXPLORE, _ALONE, _RUN, _VERIFY = 0.07, 0.05, 0.015, 0.018, 0.2
_CHECKS = 3  # of what is verified
# Settings that a result repeats.
_OWN = ("batch_size", "num_threads", "gpu_hour", "num_gpus", "command", "budget_s")
# A data set stays in the page cache when it takes no more of the free memory than this.
_STAYS = 0.6
# A path's first run may go beyond the budget by this share of it, or by two seconds if that is more, if the verdict
# needs it or it is cheap. Until there are enough rounds, cheap ones may go beyond it by half as much.
_GRACE = 0.15
# Runs are no longer, for several short ones say more than a long one: the median of three is right where one of them
# was disturbed.
_MOST_S = 4.0
_MOST_ROUNDS, _LASTS = 8, 3
# A step that keeps more of a core busy shares it with the loader.
_SHARES = 0.4
# Many threads that together give less than so many times what one gives hold each other up, unless other processes take
# a larger share of the machine than the second.
_NO_MORE, _QUIET = 1.4, 0.2
# About so many chunks, one after the other, are built from memory to tell each stage alone.
_ALONE_CHUNKS = 8


class ExaminationInterrupted(KeyboardInterrupt):
    """Somebody ended the examination.

    Attributes:
        doing: What was being measured.
        result: What is known; None where that is nothing.
    """

    def __init__(self, doing: str, result: DoctorResult | None) -> None:
        super().__init__(doing)
        self.doing = doing
        self.result = result


def examine(dataset: Dataset, settings: DoctorSettings) -> DoctorResult:
    """Examine a data set and a step, and return what was found. No file stays behind.

    Args:
        dataset: What is trained on.
        settings: How.

    Raises:
        StokerError: The data set cannot be opened, or a chunk of it cannot be built: then no loader could.
        StepError: The step raised.
        ValueError: It has no samples.
        ExaminationInterrupted: By Ctrl-C; it carries what is known.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # A process that runs the transform imports the script that started it, which would then examine again.
        raise SystemExit('examine(): a process imports this script; call it below `if __name__ == "__main__":`')
    with ExitStack() as stack:
        examination = _Examination(dataset, settings, stack)
        try:
            return examination.run()
        except KeyboardInterrupt as error:
            raise ExaminationInterrupted(examination.budget.doing, examination.partial()) from error


class _Examination:
    """One examination, step by step."""

    def __init__(self, dataset: Dataset, settings: DoctorSettings, stack: ExitStack) -> None:
        self._settings, self._stack = settings, stack
        self.budget, self._begun_s = Budget(settings), time.perf_counter()
        self._dataset = copy.copy(dataset.located())
        self._tap: Tap | None = None
        if not self._dataset.is_local:
            # Reads go the same way as a loader's, through a tap that can keep what is read.
            self._tap = self._dataset.storage = Tap(self._dataset.find_storage())
        self._notes: list[str] = []
        self._unmeasured: list[str] = []
        self._tried: dict[str, Way] = {}
        self._stages: list[StageResult] = []
        self._ceilings: dict[str, float] = {}
        self._gpu: dict[str, Any] = {"gpu_note": NO_GPU}
        self._today = SOURCE
        self._free_bytes = settings.free_memory_bytes()  # once, or paths could be judged by different answers
        self._paths_end = 0.95 - (_VERIFY if settings.verify else 0.0)
        self._seconds = max(LEAST_S, min(_MOST_S, _RUN * settings.budget_s))  # of a run

    def run(self) -> DoctorResult:
        settings, budget = self._settings, self.budget
        budget.say("opening the data set")
        catalogue = self._dataset.open(settings.cache, num_threads=settings.num_threads)
        if not int(catalogue.num_samples.sum()):
            raise ValueError(f"{self._dataset!r} has no samples: there is nothing to examine")
        budget.begun_s = time.perf_counter()  # it is for experiments
        self._today = self._find_today(catalogue)
        scratch = self._make_scratch()
        sample = Sample(catalogue, settings, budget, scratch=scratch, tap=self._tap)
        self._data, ways = sample.data, Candidates(sample, self._today)
        self._find_ceilings(scratch)
        if self._today == SOURCE and ways.cold_s(settings.num_threads) < budget.slice_s(2 * _EXPLORE):
            budget.say("today's path, until more threads bring no more")
            # A loader of what lies here begins with all the threads that it will have.
            ways.explore(budget.slice_s(_EXPLORE) if self._tap is not None else self._seconds)
        if self._today == SOURCE and _ALONE_CHUNKS * sample.local_s < budget.left_s(self._paths_end) / 3:
            self._probe_stages(ways)
        self._run_paths(ways)
        self._verify()
        budget.say("done")
        return DoctorResult(self._numbers())

    def partial(self) -> DoctorResult | None:
        """Return what is known so far; None where no path has run."""
        if not any(way.runs for way in self._tried.values()):
            return None
        return DoctorResult(replace(self._numbers(), interrupted=self.budget.doing))

    def _make_scratch(self) -> Path:
        settings = self._settings
        where = settings.scratch
        if where is None and settings.cache is not None:
            # Beside the cache, on its disk.
            where = next((folder for folder in settings.cache.parents if folder.is_dir()), None)
        folder = OwnedFolder(where or Path(tempfile.gettempdir()), prefix=_SCRATCH, family=_SCRATCH)
        self._stack.callback(folder.close)
        folder.make()
        return folder.path

    def _find_today(self, catalogue: Catalogue) -> str:
        """Return the path that samples take now: the warm one where the cache holds nearly all chunks."""
        cache = self._settings.cache
        if cache is None or not cache.is_dir():
            return SOURCE
        with Store(cache) as store:
            filled = np.flatnonzero(catalogue.num_samples)
            looked = filled[np.linspace(0, len(filled) - 1, min(len(filled), 500)).astype(int)]
            share = sum(store.has(catalogue.key(int(i))) for i in looked) / len(looked)
        if 0 < share < 1:
            self._notes.append(f"The cache holds about {share:.0%} of the chunks: `stoker warm` fills it.")
        return TENSORS if share >= 0.99 else SOURCE

    # ------------------------------------------------------------------ what explains the paths

    def _find_ceilings(self, scratch: Path) -> None:
        """Measure what this machine can do, and its link: reads alone, in more and more threads."""
        settings, found = self._settings, self._ceilings
        self.budget.say("what this machine can do")
        disk = settings.disk(scratch, max(0.05, 0.02 * settings.budget_s))
        if is_memory(scratch):
            self._notes.append("The experiments wrote to memory, not to a disk: name a folder on disk with --scratch.")
        if self._tap is not None and self._tap.reads:
            self.budget.say("the source's reads alone, in more and more threads")
            until_s = time.perf_counter() + self.budget.slice_s(_LINK)
            found |= probe_link(self._tap.inner, [*self._tap.reads], until_s=until_s)
        found |= disk

    def _probe_stages(self, ways: Candidates) -> None:
        """Measure what stages of building take, the bytes in memory: by one thread, and by as many as there are."""
        num_threads, found = self._settings.num_threads, self._stages
        self.budget.say("decoding, transforming, converting: each alone")
        alone = ways.from_memory(self.budget.slice_s(_ALONE), num_threads=1)
        most = ways.from_memory(self.budget.slice_s(_ALONE), num_threads=num_threads)
        # As many threads as cores keep only one core busy, and no other process wants the rest: they wait for a lock.
        is_locked = num_threads > 1 and most.others < _QUIET and 0.7 < most.cores_used < 1.3
        half_s = 0.5 * sum(alone.stages.get(key, 0.0) for key in BUILD_STAGES)
        has_most = any(alone.stages.get(key, 0.0) > half_s for key in BUILD_STAGES[1:])
        for key in BUILD_STAGES[1:]:
            one_s, each_s = alone.stages.get(key, 0.0), most.stages.get(key, 0.0)
            if one_s > 0 and each_s > 0:
                is_most, own_s = one_s > half_s, min(one_s, each_s)
                # Beside a stage that takes most of the time, what another takes longer in many threads is its wait for
                # the lock or the cores that the first one has.
                supply_s = num_threads / (each_s if is_most or not has_most else own_s)
                found.append(
                    StageResult(
                        key=key,
                        supply_s=supply_s,
                        seconds=own_s,
                        is_locked=is_most and is_locked and supply_s * one_s < _NO_MORE,
                        waits=is_most and alone.cores_used < 0.5,
                    )
                )

    # ------------------------------------------------------------------ the paths

    def _run_paths(self, ways: Candidates) -> None:
        """Run each path: those that are always run, then what may help, then again as often as there is time."""
        for way in ways.first():
            today = self._tried.get(self._today, way)
            if way.key == SUPPLY and today.runs and today.runs[0].stall > 0.5:
                continue  # a loop that waits most of the time has shown the whole supply
            self._try(way)
        ram = self._tried.get(RAM)
        if ram is not None and ram.runs and self._shares_cores(ram.runs[0]):
            self._try(ways.shared())
        if DoctorResult(self._numbers()).kind != "fed":
            self.budget.say("preparing what may help")
            for way in ways.more():
                self._try(way)
        for num_rounds in range(1, _MOST_ROUNDS):
            for way, seconds in self._again(num_rounds)[:: (-1) ** num_rounds]:
                self._try(way, seconds)

    def _again(self, num_rounds: int) -> list[tuple[Way, float]]:
        """Return the paths whose next run may change something, and its seconds: promised fixes first, then the cheap.

        The last of the least rounds is longer for what is promised: a pace that does not last is no promise.
        """
        judged, fixes = (self._today, RAM, SHARED), [fix.key for fix in DoctorResult(self._numbers()).fixes]

        def seconds_of(way: Way) -> float:
            return self._seconds * (_LASTS if way.key in fixes and len(way.runs) == LEAST_ROUNDS - 1 else 1)

        def order(way: Way) -> tuple[bool, bool, float]:
            return way.key not in fixes, way.key not in judged, way.takes_s(seconds_of(way))

        left_s = self.budget.left_s(self._paths_end) / max(1, LEAST_ROUNDS - num_rounds)
        if num_rounds < LEAST_ROUNDS:  # nobody should rely on what came once
            left_s = max(left_s, _GRACE / 2 * self._settings.budget_s)
        chosen = dict[str, float]()
        for way in sorted(self._tried.values(), key=order):
            is_open = 0 < len(way.runs) < LEAST_ROUNDS or (way.runs and self._path(way).doubt > SETTLED)
            if is_open and (takes_s := way.takes_s(seconds_of(way))) <= left_s:
                left_s -= takes_s
                chosen[way.key] = seconds_of(way)
        return [(way, chosen[key]) for key, way in self._tried.items() if key in chosen]

    def _try(self, way: Way, seconds: float | None = None) -> None:
        """Run a path once more, unless the time that is left is too little for it."""
        self._tried[way.key] = way
        step, seconds, is_first = self._settings.step, seconds or self._seconds, not way.runs
        is_needed = is_first and way.key in (self._today, RAM, SHARED, TENSORS)  # without which there is nothing to say
        if is_first:
            takes_s, left_s = way.takes_s(seconds, self._tried.get(self._today)), self.budget.left_s()
            if is_needed or takes_s <= 2 * seconds:
                left_s = max(left_s, 2.0, _GRACE * self._settings.budget_s)
            else:  # what is cheap is run again rather than something dear once
                cheap = [one.takes_s(seconds) for one in self._tried.values() if one.runs]
                left_s -= sum(each_s for each_s in cheap if each_s < 2 * seconds)
            if takes_s > left_s:
                self._unmeasured.append(f"{way.name} (a run takes about {time_text(takes_s)})")
                return
        self.budget.say(way.name)
        start_s = time.perf_counter()
        try:
            with watching_gpus() if way.key == RAM and is_first else nullcontext(self._gpu) as self._gpu:
                if way.key == RAM and is_first and step is not None and not step.is_given:
                    way.run(seconds / 2)  # compiles, allocates, fills caches: once
                run = way.run(seconds)
        except StokerError as error:
            # Another path may fail where today's works: then it is not advised, and nothing is compared with it.
            if is_first and way.key in (self._today, RAM):
                raise
            self._notes.append(f"{way.name}: could not be tried{' again' if way.runs else ''}: {error}")
            return
        beyond_s = max(0.0, time.perf_counter() - start_s - seconds)
        way.beyond_s = beyond_s if way.beyond_s is None else min(way.beyond_s, beyond_s)
        if run.samples_s > 0:
            way.runs.append(run)

    def _shares_cores(self, run: PathRun) -> bool:
        step = self._settings.step
        return step is not None and not step.is_given and run.cores_used > _SHARES * (1 - run.others)

    def _verify(self) -> None:
        """Run the best fixes once more, some times in turn, as far as there is time and others leave the cores."""
        budget_s = self._settings.budget_s
        ways = [self._tried[fix.key] for fix in DoctorResult(self._numbers()).fixes[: self._settings.verify]]
        seconds = max(LEAST_S, min(2 * _MOST_S, _VERIFY * budget_s / max(1, _CHECKS * len(ways))))
        for way in (way for i in range(2 * _CHECKS) for way in ways[:: (-1) ** i]):
            num, takes_s = len(way.comparable[1]), way.takes_s(seconds)
            # For the first run of each, and for cheap ones: a step that takes turns with the loader for the cores may
            # have half its pace in one of them.
            grace_s = _GRACE * budget_s if not way.came or takes_s <= 2 * seconds else 0.0
            if num == _CHECKS or takes_s > max(self.budget.left_s(), grace_s):
                continue
            self.budget.say(f"verifying: {way.name}")
            try:
                run = way.run(seconds)
            except StokerError as error:  # what was measured until now stays true
                self._notes.append(f"{way.name}: could not be verified: {error}")
                ways.remove(way)
                continue
            if run.samples_s > 0:
                way.came.append(run)
        told = f"once more (a run takes about {time_text(seconds)})"
        self._unmeasured += [f"{way.name} {told}" for way in ways if not way.came]
        self._notes += [
            f"{way.name} could not be verified: other processes took more of the processors meanwhile than before."
            for way in ways
            if way.came and not way.comparable[1]
        ]

    # ------------------------------------------------------------------ the numbers

    def _numbers(self) -> Measurements:
        """Return all that is known by now."""
        settings, notes = self._settings, [*self._notes]
        if self._unmeasured:
            names = ", ".join(self._unmeasured)
            notes.append(f"Not measured, for no time was left: {names}. A larger --budget leaves time for them.")
        return Measurements(
            data=self._data,
            step="" if settings.step is None else settings.step.text,
            is_given=settings.step is not None and settings.step.is_given,
            today=self._today,
            paths=tuple(self._path(way) for way in self._tried.values() if way.runs),
            stages=(*self._fetching(), *self._stages),
            ceilings=dict(self._ceilings),
            cores=cores(),
            machine=machine(),
            versions=versions(),
            wall_s=time.perf_counter() - self._begun_s,
            when=datetime.now(UTC).date().isoformat(),
            notes=tuple(dict.fromkeys(notes)),
            **self._gpu,
            **{name: getattr(settings, name) for name in _OWN},
        )

    def _fetching(self) -> Iterator[StageResult]:
        """Yield what the source's reads give alone: no less than came of the whole."""
        if self._today == SOURCE and "network" in self._ceilings:
            came_s = [run.samples_s for key in (SOURCE, SUPPLY) if key in self._tried for run in self._tried[key].runs]
            network_s = self._ceilings["network"] / max(1e-9, self._data.source_bytes)
            yield StageResult(key="fetch", supply_s=max([network_s, *came_s]))

    def _path(self, way: Way) -> PathResult:
        (runs, came), data, disk_s = way.comparable, self._data, None
        last = runs[-1]
        if way.sample_bytes and way.sample_bytes * data.num_samples >= _STAYS * self._free_bytes:
            disk_s = self._ceilings["disk_read"] / way.sample_bytes
        return PathResult(
            key=way.key,
            name=way.name,
            how=way.how,
            # One run is as sure as its parts are near each other.
            rates=last.rates if len(runs) == 1 else tuple(run.samples_s for run in runs),
            num_rounds=len(runs),
            batch_size=way.batch_size,
            has_step=way.has_step and self._settings.step is not None,
            # As of the rates: a run that was disturbed says nothing of what limits.
            stages={key: statistics.median(run.stages.get(key, 0.0) for run in runs) for key in last.stages},
            build_share=statistics.fmean(run.build_share for run in runs),
            num_builders=last.num_builders,
            stall=statistics.fmean(run.stall for run in runs),
            cores_used=statistics.fmean(run.cores_used for run in runs),
            others=statistics.fmean(run.others for run in runs),
            disk_s=disk_s,
            came_s=min(statistics.median(run.samples_s for run in came), disk_s or math.inf) if came else None,
        )
