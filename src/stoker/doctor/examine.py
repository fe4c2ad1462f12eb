"""The examination: what can be tried is tried for a few seconds, in turns, within the budget.

open ─► one chunk, one batch, the step tried ─► a sample ─► every path in turn, again and again ─► numbers
"""

from __future__ import annotations

import contextlib
import copy
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
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
from stoker.doctor.bounds import disk_bound
from stoker.doctor.gilwatch import NOISE, GilWatch
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
from stoker.doctor.sampled import SampledDataset, spread_units
from stoker.doctor.settings import DoctorSettings
from stoker.doctor.step import FunctionStep, num_samples_of
from stoker.doctor.tap import LinkPace, Tap, probe_link
from stoker.doctor.verdict import KEEPS_UP, DoctorResult, demand_of, verdict_of
from stoker.errors import StokerError
from stoker.host.machine import cores, free_memory_bytes, machine, versions
from stoker.loader.temporary import OwnedFolder
from stoker.metrics.record import Trace
from stoker.words import some_of

# What the name of a folder that experiments write to begins with.
_SCRATCH = "stoker-doctor-"
# Shares of the budget: of getting a sample, of exploring, of each stage alone, of all paths by then.
_SAMPLE, _LINK, _EXPLORE, _ALONE = 0.15, 0.07, 0.1, 0.05
_PATHS_END, _VERIFY = 0.92, 0.25
_NUM_UNITS, _NUM_COLD_UNITS = 16, 200
# Memory for the bytes of units and their tables, of what is free.
_KEEP_SHARE, _MAX_KEEP_BYTES = 0.1, 1 << 30
# A data set stays in the page cache when it takes no more of the free memory than this.
_STAYS = 0.6
_NUM_FROZEN = 8
# Runs are no shorter, for they would say nothing, and no longer, for more of them say more.
_LEAST_S, _MOST_S = 0.15, 4.0
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 6
# Repeats that lie as near to each other are enough.
_SETTLED = 0.025
# A step that keeps more of a core busy shares it with the loader.
_SHARES = 0.4


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
    with ExitStack() as stack:
        examination = _Examination(dataset, settings, stack)
        try:
            return examination.run()
        except KeyboardInterrupt as error:
            raise ExaminationInterrupted(examination.doing, examination.partial()) from error


@dataclass
class _Measured:
    """The runs of a way so far."""

    way: Candidate
    runs: list[PathRun] = field(default_factory=list)


class _Examination:
    """One examination, step by step."""

    def __init__(self, dataset: Dataset, settings: DoctorSettings, stack: ExitStack) -> None:
        self._settings = settings
        self._stack = stack
        self._start_s = time.perf_counter()
        self.doing = "opening the data set"
        dataset = dataset.located()
        self._dataset = copy.copy(dataset)
        self._tap: Tap | None = None
        if not dataset.is_local:
            # By the same way as a loader would, with somebody who keeps what is asked for in between.
            self._tap = Tap(dataset.find_storage())
            self._dataset.storage = self._tap
            stack.callback(self._tap.forget)
        self._notes: list[str] = []
        self._measured: dict[str, _Measured] = {}
        self._gpu = GpuWatch()
        self._numbers: Measurements | None = None
        self._disk: Disk | None = None

    def run(self) -> DoctorResult:
        settings = self._settings
        self._say(self.doing)
        catalogue = self._dataset.open(settings.cache, num_threads=settings.num_threads)
        if not int(catalogue.num_samples.sum()):
            raise ValueError(f"{self._dataset!r} has no samples: there is nothing to examine")
        opened_s = time.perf_counter() - self._start_s
        self._start_s += opened_s  # the budget is for experiments
        self._numbers = self._first_numbers(catalogue)
        scratch = self._scratch()
        batches, warm_units = self._fill(catalogue, scratch / "warm")
        self._say("what this machine can do")
        memory_s = memory_bytes_s()
        disk = self._disk = settings.disk(scratch, max(0.05, 0.02 * settings.budget_s))
        sample = self._sample(catalogue, scratch, batches, warm_units)
        link = self._link()
        ways = Candidates(sample, settings, tap=self._tap, today=self._numbers.today, scratch=scratch)
        if self._numbers.today == SOURCE:
            self._say("today's path, until its threads are as many as are worth it")
            ways.explore(self._slice_s(_EXPLORE))
            self._stages(ways, link)
        ceilings = self._ceilings(link, disk, memory_s)
        self._numbers = replace(self._numbers, ceilings=ceilings)
        self._paths(ways)
        self._verify()
        self._say("done")
        return DoctorResult(self._finished(wall_s=time.perf_counter() - self._start_s + opened_s))

    def partial(self) -> DoctorResult | None:
        """Return what is known so far; None where no path has run."""
        if self._numbers is None or not self._measured:
            return None
        wall_s = time.perf_counter() - self._start_s
        return DoctorResult(replace(self._finished(wall_s=wall_s), interrupted=self.doing))

    # ------------------------------------------------------------------ the sample

    def _scratch(self) -> Path:
        settings = self._settings
        parent = settings.scratch
        if parent is None and settings.cache is not None:
            parent = next((folder for folder in (settings.cache, *settings.cache.parents) if folder.is_dir()), None)
            parent = parent.parent if parent == settings.cache and parent is not None else parent
        where = Path(tempfile.gettempdir()) if parent is None else parent
        folder = OwnedFolder(where, prefix=_SCRATCH, family=_SCRATCH)
        self._stack.callback(folder.close)
        folder.make()
        return folder.path

    def _fill(self, catalogue: Catalogue, folder: Path) -> tuple[list[Any], list[range]]:
        """Build a sample of chunks, and return some of their batches; the step is tried on the first of them."""
        settings = self._settings
        units = spread_units(catalogue, _NUM_UNITS)
        until_s = time.perf_counter() + self._slice_s(_SAMPLE)
        most_bytes = min(_MAX_KEEP_BYTES, _KEEP_SHARE * free_memory_bytes())
        done, is_tried = 0, False
        with contextlib.nullcontext() if self._tap is None else self._tap.keeping():
            while done < len(units):
                # One first, for the step; then twice as many at a time, as long as there is time for as many.
                self._say("a sample of chunks" if done else "one chunk")
                start_s, done = time.perf_counter(), min(len(units), max(1, 2 * done))
                sampled = SampledDataset(catalogue, units[:done], is_new=False)
                with make_loader(sampled, settings, cache=folder, window=done) as loader:
                    batches = list[Any]()
                    for batch in loader:
                        if len(batches) < _NUM_FROZEN:
                            batches.append(batch)
                if not is_tried:
                    self._try_step(batches[0])
                    is_tried = True
                took_s = time.perf_counter() - start_s
                kept = 0 if self._tap is None else self._tap.kept_bytes
                if time.perf_counter() + 2 * took_s > until_s or 3 * kept > most_bytes:
                    break
        largest = max(num_samples_of(batch) for batch in batches)
        return [batch for batch in batches if num_samples_of(batch) == largest], units[:done]

    def _try_step(self, batch: Any) -> None:
        step = self._settings.step
        if isinstance(step, FunctionStep):
            self._say("trying the step")
            for _ in range(2):
                step.begin(batch)
            step.finish()

    def _sample(self, catalogue: Catalogue, scratch: Path, batches: list[Any], warm_units: list[range]) -> Sample:
        self._say("the sample's rows as Arrow files")
        tables = list(self._tables(catalogue, warm_units))
        facts = row_facts(catalogue, tables[0], warm_units[0])
        num_warm = sum(int(catalogue.num_samples[unit.start : unit.stop].sum()) for unit in warm_units)
        size_bytes = sum(path.stat().st_size for path in (scratch / "warm").rglob("*") if path.is_file())
        units = spread_units(catalogue, _NUM_COLD_UNITS)
        sizes = np.array([catalogue.num_samples[unit.start : unit.stop].sum() for unit in units], dtype=float)
        sample = Sample(
            catalogue=catalogue,
            units=units,
            warm=scratch / "warm",
            warm_units=warm_units,
            arrow=write_tables([table for table in tables if len(table)], scratch / "arrow"),
            batches=batches,
            tensor_bytes=size_bytes / max(1, num_warm),
            evenness=float(sizes.sum() ** 2 / (len(sizes) * (sizes**2).sum())),
            facts=facts,
        )
        assert self._numbers is not None
        data = replace(
            self._numbers.data,
            num_probed=sum(len(unit) for unit in warm_units),
            source_bytes=facts.source_bytes,
            arrow_bytes=facts.arrow_bytes,
            tensor_bytes=sample.tensor_bytes,
            repeated_share=facts.repeated_share,
            widest_column=facts.widest_column,
            widest_share=facts.widest_share,
            evenness=sample.evenness,
        )
        self._numbers = replace(self._numbers, data=data)
        return sample

    def _tables(self, catalogue: Catalogue, units: list[range]) -> Iterator[pa.Table]:
        """Yield the units' rows, decoded from memory, up to so many bytes."""
        most_bytes, num_bytes = _KEEP_SHARE * free_memory_bytes(), 0
        with contextlib.nullcontext() if self._tap is None else self._tap.replaying():
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

    def _stages(self, ways: Candidates, link: LinkPace | None) -> None:
        """Measure what stages of building take, the bytes in memory: by one thread, and by as many as there are."""
        assert self._numbers is not None
        settings, found = self._settings, list[StageResult]()
        if link is not None:
            sample_bytes = max(1e-9, self._numbers.data.source_bytes)
            found.append(
                StageResult(
                    key="fetch",
                    supply_s=link.bytes_s / sample_bytes,
                    by_threads=tuple((num, rate / sample_bytes) for num, rate in link.by_threads),
                )
            )
        self._say("decoding, transforming, converting: each alone")
        trace = Trace()
        with GilWatch() as watch:
            alone = ways.from_memory(self._slice_s(_ALONE), num_threads=1, trace=trace)
        most = ways.from_memory(self._slice_s(_ALONE), num_threads=settings.num_threads, trace=Trace())
        spans = [span for track in trace.spans().values() for span in track]
        whole_s = sum(alone.stages.get(key, 0.0) for key in BUILD_STAGES)
        for key in BUILD_STAGES[1:]:
            one_s, each_s = alone.stages.get(key, 0.0), most.stages.get(key, 0.0)
            if one_s <= 0 or each_s <= 0:
                continue
            share = watch.held_share([(span.start_ns, span.stop_ns) for span in spans if span.stage == key])
            held = share if share is not None and share > NOISE else 0.0
            by_threads = [(1, 1 / one_s)]
            if settings.num_threads > 1:
                by_threads.append((settings.num_threads, settings.num_threads / each_s))
            found.append(
                StageResult(
                    key=key,
                    supply_s=settings.num_threads / each_s,
                    seconds=one_s,
                    gil_share=held,
                    waits=one_s > 0.5 * whole_s and alone.cores_used < 0.5 and held < 0.3,
                    by_threads=tuple(by_threads),
                )
            )
        self._numbers = replace(self._numbers, stages=tuple(found))

    def _ceilings(self, link: LinkPace | None, disk: Disk, memory_s: float) -> tuple[Ceiling, ...]:
        where = " (memory, no disk)" if disk.is_memory else ""
        found = []
        if link is not None:
            best = max(link.by_threads, key=lambda one: one[1])[0]
            found += [
                Ceiling(key="network", name="network", value=link.bytes_s, unit="bytes/s",
                        note=f"real reads, {best} at once"),
                Ceiling(key="connection", name="one connection", value=link.connection_bytes_s, unit="bytes/s",
                        note="one real read"),
                Ceiling(key="latency", name="first byte", value=link.latency_s, unit="s", note="one byte read"),
            ]  # fmt: skip
        found += [
            Ceiling(key="disk_read", name="disk, reading", value=disk.read_bytes_s, unit="bytes/s",
                    note=f"a file of its own, past the page cache{where}"),
            Ceiling(key="disk_write", name="disk, writing", value=disk.write_bytes_s, unit="bytes/s",
                    note=f"a file of its own, until it is on the disk{where}"),
            Ceiling(key="memory", name="memory, copying", value=memory_s, unit="bytes/s", note="all cores together"),
        ]  # fmt: skip
        if self._settings.device not in (None, "cpu") and has_cuda():
            assert self._numbers is not None
            self._say("copying alone, from pinned and pageable memory")
            cost = probe_copy(int(self._numbers.data.tensor_bytes * self._settings.batch_size))
            found += [
                Ceiling(key="pcie_pinned", name="to the GPU, pinned", value=cost.pinned_bytes_s, unit="bytes/s",
                        note="one batch"),
                Ceiling(key="pcie_pageable", name="to the GPU, pageable", value=cost.pageable_bytes_s, unit="bytes/s",
                        note="one batch"),
            ]  # fmt: skip
        return tuple(found)

    # ------------------------------------------------------------------ the paths

    def _paths(self, ways: Candidates) -> None:
        """Run every path in turn: those that are always run, then what may help, then all of them again."""
        for way in ways.first():
            self._measured[way.key] = _Measured(way)
        seconds = self._seconds(len(self._measured) + 3)
        for key in list(self._measured):
            self._run(key, seconds)
        ram = self._measured.get(RAM)
        if ram is not None and ram.runs and self._shares_cores(ram.runs[0]):
            self._measured[SHARED] = _Measured(ways.shared())
            self._run(SHARED, seconds)
        if not self._is_fed():
            self._say("making what may help")
            for way in ways.more():
                if self._left_s(1.0) < 0:
                    self._notes.append(f"No time was left to try: {way.name}. A larger --budget is a longer look.")
                    continue
                self._measured[way.key] = _Measured(way)
                self._run(way.key, seconds)
        direction = -1
        while not self._is_settled() and self._num_rounds() < _MOST_ROUNDS:
            keys = [key for key, one in self._measured.items() if one.runs][::direction]
            began_s = time.perf_counter()
            seconds = self._seconds(len(keys))
            if self._num_rounds() >= _LEAST_ROUNDS and seconds <= _LEAST_S:
                return
            for key in keys:
                self._run(key, seconds)
            direction = -direction
            took_s = time.perf_counter() - began_s
            if self._left_s(_PATHS_END) < took_s:
                return

    def _run(self, key: str, seconds: float) -> None:
        measured = self._measured[key]
        self._say(measured.way.name)
        watch = self._gpu.watching() if key == RAM and not measured.runs else contextlib.nullcontext()
        step = self._settings.step
        try:
            with watch:
                if key == RAM and not measured.runs and step is not None and not step.is_given:
                    measured.way.run(seconds / 2)  # compiles, allocates, fills caches: once
                run = measured.way.run(seconds)
        except StokerError as error:
            # What works on the samples as they are may not work on them otherwise, and is no advice then.
            if key in (self._today, RAM, TENSORS, ARROW) and not measured.runs and key != ARROW:
                raise
            self._notes.append(f"{measured.way.name}: could not be tried: {error}")
            return
        if run.rate_s > 0:
            measured.runs.append(run)

    def _seconds(self, num_runs: int) -> float:
        """Return how long each of some runs may take, twice all of them and what they need beside."""
        left_s = self._left_s(_PATHS_END)
        rounds = max(1, _LEAST_ROUNDS - self._num_rounds())
        return max(_LEAST_S, min(_MOST_S, left_s / (1.8 * rounds * max(1, num_runs))))

    def _num_rounds(self) -> int:
        today = self._measured.get(self._today)
        return 0 if today is None else len(today.runs)

    def _shares_cores(self, run: PathRun) -> bool:
        step = self._settings.step
        return step is not None and not step.is_given and run.cores_used > _SHARES * (1 - run.others)

    def _is_fed(self) -> bool:
        numbers = self._finished(wall_s=0.0)
        today, demand_s = numbers.path(numbers.today), demand_of(numbers)
        return today is not None and demand_s is not None and today.rate_s >= KEEPS_UP * demand_s

    def _is_settled(self) -> bool:
        """Return whether one more round would hardly change anything."""
        if self._num_rounds() < _LEAST_ROUNDS:
            return False
        numbers = self._finished(wall_s=0.0)
        found = verdict_of(numbers)
        named = {numbers.today, RAM, *(fix.key for fix in found.fixes[:2])}
        return all(path.doubt < _SETTLED for path in numbers.paths if path.key in named)

    def _verify(self) -> None:
        """Run the best fixes once more, and today's between them."""
        if not self._settings.verify:
            return
        assert self._numbers is not None
        fixes = verdict_of(self._finished(wall_s=0.0)).fixes[: self._settings.verify]
        seconds = max(_LEAST_S, min(2 * _MOST_S, _VERIFY * self._settings.budget_s / max(1, 2 * len(fixes))))
        rates: dict[str, list[float]] = {}
        for fix in (*fixes, *reversed(fixes)):
            self._say(f"verifying: {fix.text}")
            run = self._measured[fix.key].way.run(seconds)
            if run.rate_s > 0:
                rates.setdefault(fix.key, []).append(run.rate_s)
        verified = tuple(
            Verified(fix=fix.key, promised_s=fix.rate_s, measured=Rate.of(rates[fix.key]))
            for fix in fixes
            if fix.key in rates
        )
        self._numbers = replace(self._numbers, verified=verified)

    # ------------------------------------------------------------------ the numbers

    @property
    def _today(self) -> str:
        assert self._numbers is not None
        return self._numbers.today

    def _first_numbers(self, catalogue: Catalogue) -> Measurements:
        settings = self._settings
        data = DataFacts(
            text=some_of(self._dataset.sources, 1),
            num_samples=int(catalogue.num_samples.sum()),
            num_files=len(catalogue.files),
            num_chunks=len(catalogue),
            num_probed=0,
            source_bytes=0.0,
            arrow_bytes=0.0,
            tensor_bytes=0.0,
            is_remote=self._tap is not None,
        )
        return Measurements(
            data=data,
            step=None,
            today=self._today_of(catalogue),
            paths=(),
            cores=cores(),
            num_threads=settings.num_threads,
            gpu_hour=settings.gpu_hour,
            num_gpus=settings.num_gpus,
            machine=machine(),
            versions=versions(),
            command=settings.command,
            budget_s=settings.budget_s,
            when=datetime.now(UTC).date().isoformat(),
        )

    def _today_of(self, catalogue: Catalogue) -> str:
        """Return the path that samples take now: the warm one where the cache holds nearly all chunks."""
        cache = self._settings.cache
        if cache is None or not cache.is_dir():
            return SOURCE
        with Store(cache) as store:
            filled = np.flatnonzero(catalogue.num_samples)
            looked = filled[np.linspace(0, len(filled) - 1, min(len(filled), 500)).astype(int)]
            present = sum(store.has(catalogue.key(int(i))) for i in looked)
        if present and present < len(looked):
            self._notes.append(
                f"The cache holds about {present / len(looked):.0%} of the chunks: `stoker warm` fills it."
            )
        return TENSORS if present >= 0.99 * len(looked) else SOURCE

    def _finished(self, *, wall_s: float) -> Measurements:
        """Return all numbers so far."""
        assert self._numbers is not None
        settings, numbers = self._settings, self._numbers
        paths = [self._path(one) for one in self._measured.values() if one.runs]
        paths.sort(key=lambda path: path.key != numbers.today)
        today, ram = self._measured.get(numbers.today), self._measured.get(RAM)
        step = None
        if settings.step is not None:
            step = StepFacts(
                text=settings.step.text,
                batch_size=settings.batch_size,
                is_given=settings.step.is_given,
                cores_used=ram.runs[-1].cores_used if ram is not None and ram.runs else 0.0,
            )
        rate_s = next((path.rate_s for path in paths if path.key == numbers.today), 0.0)
        return replace(
            numbers,
            step=step,
            paths=tuple(paths),
            ceilings=tuple(self._used(ceiling, rate_s) for ceiling in numbers.ceilings),
            timeline=today.runs[-1].spans if today is not None and today.runs else (),
            gpus=self._gpu.facts(),
            gpu_note=self._gpu.note,
            notes=tuple(dict.fromkeys(self._notes)),
            wall_s=wall_s,
        )

    def _path(self, measured: _Measured) -> PathResult:
        way, runs = measured.way, measured.runs
        last = runs[-1]
        # One run is as sure as its parts are near each other.
        rate = (
            Rate.of([run.rate_s for run in runs])
            if len(runs) > 1
            else Rate(samples_s=last.rate_s, low=last.low, high=last.high)
        )
        bound, assumed = None, self._disk
        assert self._numbers is not None
        if assumed is not None and way.sample_bytes and not self._stays(way.sample_bytes):
            what = "the source" if way.key != TENSORS else "tensors"
            bound = disk_bound(read_bytes_s=assumed.read_bytes_s, sample_bytes=way.sample_bytes, what=what)
        kept = {TENSORS: self._numbers.data.tensor_bytes, ARROW: self._numbers.data.arrow_bytes}
        return PathResult(
            key=way.key,
            name=way.name,
            how=way.how,
            rate=rate,
            batch_size=way.batch_size,
            has_step=way.has_step and self._settings.step is not None,
            limit=max((run.limit for run in runs), key=[run.limit for run in runs].count),
            stages=last.stages,
            stall=last.stall,
            cores_used=sum(run.cores_used for run in runs) / len(runs),
            others=sum(run.others for run in runs) / len(runs),
            disk_bound=bound,
            disk_bytes=kept.get(way.key, 0.0) * self._numbers.data.num_samples,
        )

    def _stays(self, sample_bytes: float) -> bool:
        assert self._numbers is not None
        return sample_bytes * self._numbers.data.num_samples < _STAYS * self._settings.free_memory_bytes()

    def _used(self, ceiling: Ceiling, rate_s: float) -> Ceiling:
        assert self._numbers is not None
        data = self._numbers.data
        taken = {"network": data.source_bytes} if self._today == SOURCE else {"memory": data.tensor_bytes}
        if ceiling.key not in taken or ceiling.value <= 0:
            return ceiling
        return replace(ceiling, used=min(1.0, rate_s * taken[ceiling.key] / ceiling.value))

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
