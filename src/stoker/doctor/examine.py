"""The examination: what can be tried is tried for a few seconds, in turns, within the budget.

open ─► one chunk, one batch, the step tried ─► a sample ─► every path in turn, again and again ─► numbers

The budget holds: a path that would not come to anything in the time that is left is said to be not measured.
"""

from __future__ import annotations

import copy
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.cache.store import Store
from stoker.dataset.catalogue import Catalogue
from stoker.dataset.dataset import Dataset
from stoker.doctor.arrow import write_tables
from stoker.doctor.gpu import GpuWatch, has_cuda, probe_copy
from stoker.doctor.machine import Disk, memory_bytes_s
from stoker.doctor.paths import Candidate, Candidates, Sample, make_loader
from stoker.doctor.results import (
    ARROW,
    BUILD_STAGES,
    RAM,
    SHARED,
    SOURCE,
    TENSORS,
    Ceiling,
    DataFacts,
    Measurements,
    PathResult,
    Rate,
    StageResult,
    StepFacts,
    Verified,
)
from stoker.doctor.rows import row_facts
from stoker.doctor.runs import PathRun
from stoker.doctor.sampled import SampledDataset, num_samples_of_units, spread_units
from stoker.doctor.settings import DoctorSettings
from stoker.doctor.step import FunctionStep, num_samples_of
from stoker.doctor.tap import LinkPace, Tap, probe_link
from stoker.doctor.verdict import DoctorResult, conclude
from stoker.doctor.words import time_text
from stoker.errors import StokerError
from stoker.host.machine import cores, free_memory_bytes, machine, versions
from stoker.loader.temporary import OwnedFolder
from stoker.words import some_of

# What the name of a folder that experiments write to begins with.
_SCRATCH = "stoker-doctor-"
# Shares of the budget: of getting a sample, of the link, of exploring, of each stage alone; of verifying, where asked.
_SAMPLE, _LINK, _EXPLORE, _ALONE, _VERIFY = 0.15, 0.07, 0.1, 0.05, 0.25
_NUM_UNITS, _NUM_COLD_UNITS = 16, 200
# Memory for the bytes of units and their tables, of what is free.
_KEEP_SHARE, _MAX_KEEP_BYTES = 0.1, 1 << 30
# A data set stays in the page cache when it takes no more of the free memory than this.
_STAYS = 0.6
_NUM_FROZEN = 8
# Of the budget, and a second at least, that each first run of what a verdict needs may go beyond it.
_GRACE = 0.15
# Runs are no shorter, for they would say nothing, and no longer, for more of them say more.
_LEAST_S, _MOST_S = 0.15, 4.0
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 6
# Repeats that lie as near to each other are enough.
_SETTLED = 0.025
# A step that keeps more of a core busy shares it with the loader.
_SHARES = 0.4
# Threads that give less than so many times what one gives hold each other up, unless others take more than this.
_NO_MORE, _QUIET = 1.4, 0.2


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
    """Examine a data set and a step, and return what was found. Leaves nothing behind.

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
        # A process for the transform begins by importing the script that made it, which would examine in turn.
        raise SystemExit('examine(): a process imports this script; call it below `if __name__ == "__main__":`')
    with ExitStack() as stack:
        examination = _Examination(dataset, settings, stack)
        try:
            return examination.run()
        except KeyboardInterrupt as error:
            raise ExaminationInterrupted(examination.doing, examination.partial()) from error


@dataclass
class _Measured:
    """The runs of a way so far, and what the last one took beyond the seconds it was given."""

    way: Candidate
    runs: list[PathRun] = field(default_factory=list)
    beyond_s: float | None = None

    def takes_s(self, seconds: float, today: _Measured | None = None) -> float:
        """Return about how long one more run takes; the first one, seen what those of today's path do."""
        if self.beyond_s is not None:
            return self.beyond_s + seconds
        beyond_s = (0.0 if today is None else today.beyond_s or 0.0) * self.way.times_today
        return max(self.way.least_s, beyond_s + seconds)


class _Examination:
    """One examination, step by step."""

    def __init__(self, dataset: Dataset, settings: DoctorSettings, stack: ExitStack) -> None:
        self._settings = settings
        self._stack = stack
        self._start_s = time.perf_counter()
        self._opened_s = 0.0
        self.doing = "opening the data set"
        self._dataset = copy.copy(dataset.located())
        self._tap: Tap | None = None
        if not self._dataset.is_local:
            # By the same way as a loader would, with somebody who keeps what is asked for in between.
            self._tap = self._dataset.storage = Tap(self._dataset.find_storage())
            stack.callback(self._tap.forget)
        self._notes: list[str] = []
        self._unmeasured: list[str] = []
        self._measured: dict[str, _Measured] = {}
        self._stages: tuple[StageResult, ...] = ()
        self._ceilings: tuple[Ceiling, ...] = ()
        self._verified: tuple[Verified, ...] = ()
        self._gpu = GpuWatch()
        self._data: DataFacts | None = None
        self._today = SOURCE
        self._disk: Disk | None = None
        self._paths_end = 0.95 - (_VERIFY if settings.verify else 0.0)

    def run(self) -> DoctorResult:
        settings = self._settings
        self._say(self.doing)
        catalogue = self._dataset.open(settings.cache, num_threads=settings.num_threads)
        if not int(catalogue.num_samples.sum()):
            raise ValueError(f"{self._dataset!r} has no samples: there is nothing to examine")
        self._opened_s = time.perf_counter() - self._start_s
        self._start_s += self._opened_s  # the budget is for experiments
        self._data = DataFacts(
            text=some_of(self._dataset.sources, 1),
            num_samples=int(catalogue.num_samples.sum()),
            num_files=len(catalogue.files),
            num_chunks=len(catalogue),
            is_remote=self._tap is not None,
        )
        self._today = self._find_today(catalogue)
        scratch = self._make_scratch()
        sample = self._sample(catalogue, scratch)
        self._say("what this machine can do")
        memory_s = memory_bytes_s()
        self._disk = settings.disk(scratch, max(0.05, 0.02 * settings.budget_s))
        link = self._link()
        self._ceilings = self._find_ceilings(link, self._disk, memory_s)
        ways = Candidates(sample, settings, tap=self._tap, today=self._today, scratch=scratch)
        if self._today == SOURCE and ways.cold_s(settings.num_threads) < self._slice_s(_EXPLORE):
            self._say("today's path, until its threads are as many as are worth it")
            ways.explore(self._slice_s(_EXPLORE))
        self._run_paths(ways, link)
        self._verify()
        self._say("done")
        return DoctorResult(self._numbers())

    def partial(self) -> DoctorResult | None:
        """Return what is known so far; None where no path has run."""
        if not any(one.runs for one in self._measured.values()):
            return None
        return DoctorResult(replace(self._numbers(), interrupted=self.doing))

    # ------------------------------------------------------------------ the sample

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

    def _sample(self, catalogue: Catalogue, scratch: Path) -> Sample:
        """Build some chunks, try the step on a batch of them, and write their rows as Arrow files."""
        warm = scratch / "warm"
        batches, units, chunk_s = self._fill(catalogue, warm)
        self._say("the sample's rows as Arrow files")
        tables = list(self._tables(catalogue, units))
        facts = row_facts(catalogue, tables[0], units[0])
        cold = spread_units(catalogue, _NUM_COLD_UNITS)
        sizes = num_samples_of_units(catalogue, cold).astype(float)
        num_bytes = sum(path.stat().st_size for path in warm.rglob("*") if path.is_file())
        sample = Sample(
            catalogue=catalogue,
            units=cold,
            warm=warm,
            warm_units=units,
            arrow=write_tables([table for table in tables if len(table)], scratch / "arrow"),
            batches=batches,
            tensor_bytes=num_bytes / max(1, int(num_samples_of_units(catalogue, units).sum())),
            chunk_s=chunk_s,
            facts=facts,
        )
        assert self._data is not None
        self._data = replace(
            self._data,
            num_probed=sum(map(len, units)),
            source_bytes=facts.source_bytes,
            arrow_bytes=facts.arrow_bytes,
            tensor_bytes=sample.tensor_bytes,
            repeated_share=facts.repeated_share,
            widest_column=facts.widest_column,
            widest_share=facts.widest_share,
            evenness=float(sizes.sum() ** 2 / (len(sizes) * (sizes**2).sum())),
        )
        return sample

    def _fill(self, catalogue: Catalogue, folder: Path) -> tuple[list[Any], list[range], float]:
        """Build a sample of chunks; return some of their batches, the units, and the seconds of the first one."""
        units = spread_units(catalogue, _NUM_UNITS)
        until_s = time.perf_counter() + self._slice_s(_SAMPLE)
        most_bytes = min(_MAX_KEEP_BYTES, _KEEP_SHARE * free_memory_bytes())
        done, first_s = 0, 0.0
        with nullcontext() if self._tap is None else self._tap.keeping():
            while done < len(units):
                # One first, for the step; then twice as many at a time, as long as there is time for as many.
                self._say("a sample of chunks" if done else "one chunk")
                start_s, is_first, done = time.perf_counter(), not done, min(len(units), max(1, 2 * done))
                sampled = SampledDataset(catalogue, units[:done], is_new=False)
                with make_loader(sampled, self._settings, cache=folder, window=done) as loader:
                    batches = [batch for _, batch in zip(range(_NUM_FROZEN), loader, strict=False)]
                took_s = time.perf_counter() - start_s
                if is_first:
                    first_s = took_s / len(units[0])
                    self._try_step(batches[0])
                kept = 0 if self._tap is None else self._tap.kept_bytes
                if time.perf_counter() + 2 * took_s > until_s or 3 * kept > most_bytes:
                    break
        largest = max(num_samples_of(batch) for batch in batches)
        return [batch for batch in batches if num_samples_of(batch) == largest], units[:done], first_s

    def _try_step(self, batch: Any) -> None:
        step = self._settings.step
        if isinstance(step, FunctionStep):
            self._say("trying the step")
            for _ in range(2):
                step.begin(batch)
            step.finish()

    def _tables(self, catalogue: Catalogue, units: list[range]) -> Iterator[pa.Table]:
        """Yield the units' rows, decoded from memory, up to so many bytes."""
        most_bytes, num_bytes = _KEEP_SHARE * free_memory_bytes(), 0
        with nullcontext() if self._tap is None else self._tap.replaying():
            for unit in units:
                for _, table in catalogue.read(unit[0]):
                    num_bytes += table.nbytes
                    yield table
                    if num_bytes > most_bytes:
                        return

    # ------------------------------------------------------------------ what explains the paths

    def _link(self) -> LinkPace | None:
        if self._tap is None or not self._tap.reads:
            return None
        self._say("the source's reads alone, in more and more threads")
        return probe_link(self._tap.inner, self._tap.reads, until_s=time.perf_counter() + self._slice_s(_LINK))

    def _probe_stages(self, ways: Candidates, link: LinkPace | None) -> None:
        """Measure what stages of building take, the bytes in memory: by one thread, and by as many as there are."""
        num_threads, found = self._settings.num_threads, list[StageResult]()
        assert self._data is not None
        if link is not None:
            num_bytes = max(1e-9, self._data.source_bytes)
            by_threads = tuple((num, rate / num_bytes) for num, rate in link.by_threads)
            found.append(StageResult(key="fetch", supply_s=link.bytes_s / num_bytes, by_threads=by_threads))
        if ways.cold_s(1) + ways.cold_s(num_threads) < self._left_s(self._paths_end) / 4:
            self._say("decoding, transforming, converting: each alone")
            alone = ways.from_memory(self._slice_s(_ALONE), num_threads=1)
            most = ways.from_memory(self._slice_s(_ALONE), num_threads=num_threads)
            # As many threads as there are cores keep one of them busy, which nobody else wanted: they wait for a lock.
            is_locked = num_threads > 1 and most.others < _QUIET and 0.7 < most.cores_used < 1.3
            whole_s = sum(alone.stages.get(key, 0.0) for key in BUILD_STAGES)
            for key in BUILD_STAGES[1:]:
                one_s, each_s = alone.stages.get(key, 0.0), most.stages.get(key, 0.0)
                if one_s <= 0 or each_s <= 0:
                    continue
                supply_s, is_most = num_threads / each_s, one_s > 0.5 * whole_s
                found.append(
                    StageResult(
                        key=key,
                        supply_s=supply_s,
                        seconds=one_s,
                        is_locked=is_most and is_locked and supply_s * one_s < _NO_MORE,
                        waits=is_most and alone.cores_used < 0.5,
                        by_threads=((1, 1 / one_s), *([(num_threads, supply_s)] if num_threads > 1 else [])),
                    )
                )
        self._stages = tuple(found)

    def _find_ceilings(self, link: LinkPace | None, disk: Disk, memory_s: float) -> tuple[Ceiling, ...]:
        where = " (memory, no disk)" if disk.is_memory else ""
        found = []
        if link is not None:
            best = max(link.by_threads, key=lambda one: one[1])[0]
            found += [
                ("network", "network", link.bytes_s, f"real reads, {best} at once"),
                ("connection", "one connection", link.connection_bytes_s, "one real read"),
                ("latency", "first byte", link.latency_s, "one byte read"),
            ]
        found += [
            ("disk_read", "disk, reading", disk.read_bytes_s, f"a file of its own, past the page cache{where}"),
            ("disk_write", "disk, writing", disk.write_bytes_s, f"a file of its own, until it is on the disk{where}"),
            ("memory", "memory, copying", memory_s, "all cores together"),
        ]
        if self._settings.device not in (None, "cpu") and has_cuda():
            assert self._data is not None
            self._say("copying alone, from pinned and pageable memory")
            pinned_s, pageable_s = probe_copy(int(self._data.tensor_bytes * self._settings.batch_size))
            found += [
                ("pcie_pinned", "to the GPU, pinned", pinned_s, "one batch"),
                ("pcie_pageable", "to the GPU, pageable", pageable_s, "one batch"),
            ]
        return tuple(
            Ceiling(key=key, name=name, value=value, unit="s" if key == "latency" else "bytes/s", note=note)
            for key, name, value, note in found
        )

    # ------------------------------------------------------------------ the paths

    def _run_paths(self, ways: Candidates, link: LinkPace | None) -> None:
        """Run every path in turn: those that are always run, then what may help, then all of them again."""
        first = ways.first()
        seconds = self._seconds(len(first) + 3)
        for way in first:
            self._run(way, seconds)
        ram = self._measured.get(RAM)
        if ram is not None and ram.runs and self._shares_cores(ram.runs[0]):
            self._run(ways.shared(), seconds)
        if self._today == SOURCE:
            self._probe_stages(ways, link)
        if conclude(self._numbers()).kind != "fed":
            self._say("making what may help")
            for way in ways.more():
                self._run(way, seconds)
        direction = -1
        while not self._is_settled() and self._num_rounds < _MOST_ROUNDS:
            left_s, ran = self._left_s(self._paths_end), [one for one in self._measured.values() if one.runs]
            seconds = self._seconds(len(ran))
            if sum(one.takes_s(seconds) for one in ran) > left_s:
                if self._num_rounds >= _LEAST_ROUNDS or not ran:
                    return
                # What the verdict rests on, as far as that goes.
                ran = [one for one in ran if one.way.key in self._judged()]
            if sum(one.takes_s(seconds) for one in ran) > left_s:
                return
            for one in ran[::direction]:
                self._run(one.way, seconds)
            direction = -direction

    def _run(self, way: Candidate, seconds: float) -> None:
        """Run a path once more, unless the time that is left is too little for it."""
        measured = self._measured.setdefault(way.key, _Measured(way))
        takes_s = measured.takes_s(seconds, self._measured.get(self._today))
        left_s, step = self._left_s(1.0), self._settings.step
        is_first = not measured.runs
        if is_first and way.key in (self._today, RAM, TENSORS):  # without which there is nothing to say
            left_s = max(left_s, 1.0, _GRACE * self._settings.budget_s)
        if takes_s > left_s:
            if is_first:
                self._unmeasured.append(f"{way.name} (a run takes about {time_text(takes_s)})")
            return
        self._say(way.name)
        start_s = time.perf_counter()
        try:
            with self._gpu.watching() if way.key == RAM and is_first else nullcontext():
                if way.key == RAM and is_first and step is not None and not step.is_given:
                    way.run(seconds / 2)  # compiles, allocates, fills caches: once
                run = way.run(seconds)
        except StokerError as error:
            # What works on the samples as they are may not work on them otherwise, and is no advice then.
            if way.key in (self._today, RAM, TENSORS) and is_first:
                raise
            self._notes.append(f"{way.name}: could not be tried: {error}")
            return
        measured.beyond_s = max(0.0, time.perf_counter() - start_s - seconds)
        if run.rate_s > 0:
            measured.runs.append(run)

    def _seconds(self, num_runs: int) -> float:
        """Return how long each of some runs may take, twice all of them and what they need beside."""
        rounds = max(1, _LEAST_ROUNDS - self._num_rounds)
        return max(_LEAST_S, min(_MOST_S, self._left_s(self._paths_end) / (1.8 * rounds * max(1, num_runs))))

    @property
    def _num_rounds(self) -> int:
        today = self._measured.get(self._today)
        return 0 if today is None else len(today.runs)

    def _shares_cores(self, run: PathRun) -> bool:
        step = self._settings.step
        return step is not None and not step.is_given and run.cores_used > _SHARES * (1 - run.others)

    def _judged(self) -> set[str]:
        """Return the paths that the verdict rests on."""
        return {self._today, RAM, SHARED, *(fix.key for fix in conclude(self._numbers()).fixes[:2])}

    def _is_settled(self) -> bool:
        """Return whether one more round would hardly change anything."""
        if self._num_rounds < _LEAST_ROUNDS:
            return False
        judged = self._judged()
        return all(path.doubt < _SETTLED for path in self._numbers().paths if path.key in judged)

    def _verify(self) -> None:
        """Run the best fixes once more, twice in turn, as far as there is time."""
        fixes = conclude(self._numbers()).fixes[: self._settings.verify]
        seconds = max(_LEAST_S, min(2 * _MOST_S, _VERIFY * self._settings.budget_s / max(1, 2 * len(fixes))))
        rates: dict[str, list[float]] = {}
        for fix in (*fixes, *reversed(fixes)):
            measured = self._measured[fix.key]
            grace_s = 0.0 if fix.key in rates else _GRACE * self._settings.budget_s
            if measured.takes_s(seconds) > max(self._left_s(1.0), grace_s):
                continue
            self._say(f"verifying: {fix.text}")
            run = measured.way.run(seconds)
            if run.rate_s > 0:
                rates.setdefault(fix.key, []).append(run.rate_s)
        self._verified = tuple(
            Verified(fix=fix.key, promised_s=fix.rate_s, measured=Rate.of(rates[fix.key]))
            for fix in fixes
            if fix.key in rates
        )

    # ------------------------------------------------------------------ the numbers

    def _numbers(self) -> Measurements:
        """Return all that is known by now."""
        settings, data = self._settings, self._data
        assert data is not None
        paths = tuple(self._path(one) for one in self._measured.values() if one.runs)
        ram = next((path for path in paths if path.key == RAM), None)
        step = None
        if settings.step is not None:
            step = StepFacts(
                text=settings.step.text,
                batch_size=settings.batch_size,
                is_given=settings.step.is_given,
                cores_used=0.0 if ram is None else ram.cores_used,
            )
        notes = [*self._notes]
        if self._unmeasured:
            names = ", ".join(self._unmeasured)
            notes.append(f"Not measured, for no time was left: {names}. A larger --budget is a longer look.")
        rate_s = next((path.rate_s for path in paths if path.key == self._today), 0.0)
        key, num_bytes = ("network", data.source_bytes) if self._today == SOURCE else ("memory", data.tensor_bytes)
        ceilings = tuple(
            replace(one, used=min(1.0, rate_s * num_bytes / one.value)) if one.key == key and one.value > 0 else one
            for one in self._ceilings
        )
        return Measurements(
            data=data,
            step=step,
            today=self._today,
            paths=paths,
            stages=self._stages,
            ceilings=ceilings,
            cores=cores(),
            num_threads=settings.num_threads,
            gpus=self._gpu.facts(),
            gpu_note=self._gpu.note,
            verified=self._verified,
            gpu_hour=settings.gpu_hour,
            num_gpus=settings.num_gpus,
            machine=machine(),
            versions=versions(),
            command=settings.command,
            budget_s=settings.budget_s,
            wall_s=time.perf_counter() - self._start_s + self._opened_s,
            when=datetime.now(UTC).date().isoformat(),
            notes=tuple(dict.fromkeys(notes)),
        )

    def _path(self, measured: _Measured) -> PathResult:
        way, runs, data = measured.way, measured.runs, self._data
        last, num = runs[-1], len(runs)
        assert data is not None
        # One run is as sure as its parts are near each other.
        rate = (
            Rate.of([run.rate_s for run in runs])
            if num > 1
            else Rate(samples_s=last.rate_s, low=last.low, high=last.high)
        )
        disk_s = None
        if self._disk is not None and way.sample_bytes:
            is_kept = way.sample_bytes * data.num_samples < _STAYS * self._settings.free_memory_bytes()
            disk_s = None if is_kept else self._disk.read_bytes_s / way.sample_bytes
        kept_bytes = {TENSORS: data.tensor_bytes, ARROW: data.arrow_bytes}.get(way.key, 0.0)
        return PathResult(
            key=way.key,
            name=way.name,
            how=way.how,
            rate=rate,
            batch_size=way.batch_size,
            has_step=way.has_step and self._settings.step is not None,
            stages=last.stages,
            build_share=last.build_share,
            stall=sum(run.stall for run in runs) / num,
            cores_used=sum(run.cores_used for run in runs) / num,
            others=sum(run.others for run in runs) / num,
            disk_s=disk_s,
            disk_bytes=kept_bytes * data.num_samples,
        )

    # ------------------------------------------------------------------ the budget

    def _say(self, what: str) -> None:
        self.doing = what
        gone = (time.perf_counter() - self._start_s) / self._settings.budget_s
        self._settings.on_progress(what, min(1.0, max(0.0, gone)))

    def _left_s(self, share: float) -> float:
        return self._start_s + share * self._settings.budget_s - time.perf_counter()

    def _slice_s(self, share: float) -> float:
        """Return the seconds of a share of the budget: less where time runs out."""
        return max(_LEAST_S, min(share * self._settings.budget_s, 0.5 * self._left_s(1.0)))
