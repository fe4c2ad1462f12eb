"""The examination: every experiment in turn, within its budget, and the result."""

from __future__ import annotations

import contextlib
import copy
import math
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from stoker.cache.store import Store
from stoker.cache.workers import can_be_sent
from stoker.dataset.catalogue import Catalogue
from stoker.dataset.dataset import Dataset, dataset_of
from stoker.doctor import probe_machine
from stoker.doctor.arrow import ArrowCost, converter, probe_arrow, write_tables
from stoker.doctor.clock import PLANNED, Clock
from stoker.doctor.costs import Machine
from stoker.doctor.facts import RowFacts, row_facts
from stoker.doctor.fill import fill_cache
from stoker.doctor.gpu import GpuWatch
from stoker.doctor.outcome import Examined, options_of, result_of
from stoker.doctor.plans import Findings, plans_of
from stoker.doctor.probe_batches import WarmCost, probe_warm
from stoker.doctor.probe_build import Built, Fetched, build_units, fetch_units, tables_of
from stoker.doctor.probe_copy import CopyCost, has_cuda, probe_copy
from stoker.doctor.probe_fetch import FetchCost, probe_local, probe_remote
from stoker.doctor.probe_sharing import RepeatedFields, keep_shared
from stoker.doctor.probe_step import StepCost, probe_step, rate_in_ram
from stoker.doctor.results import SOURCE, TENSORS, DoctorResult, Rate, StepFacts, Verified
from stoker.doctor.runs import Sample, warm_loader
from stoker.doctor.sampled import SampledDataset, spread_units
from stoker.doctor.settings import DoctorSettings
from stoker.doctor.tap import Tap
from stoker.doctor.try_fixes import TryFixes
from stoker.doctor.verify import TODAY, verify, verify_all
from stoker.doctor.whatif import MUCH, Change, changes_for, fixes_of
from stoker.doctor.whole_paths import WholePaths
from stoker.host.machine import cores, free_memory_bytes, num_cores
from stoker.loader.temporary import OwnedFolder, TemporaryFolder
from stoker.words import some_of

# What the name of a folder that experiments write to begins with.
_SCRATCH = "stoker-doctor-"
# Shares of what is planned; what is left over is for what takes longer than it should.
_FETCH, _THREADS, _BUILD, _FILL, _WARM, _ARROW, _STEP, _RAM = 0.10, 0.10, 0.10, 0.05, 0.13, 0.08, 0.05, 0.03
_VERIFY = 0.1
_NUM_UNITS = 16
# Uneven units are few large ones among many small ones: what runs on less would run on another mean.
_NUM_COLD_UNITS = 200
# Memory for the bytes of units, their tables and their chunks, of what is free.
_KEEP_SHARE = 0.1
_MAX_KEEP_BYTES = 1 << 30
# A data set stays in the page cache when it takes no more of the free memory than this.
_STAYS = 0.6
_MIN_WINDOW = 4
_NUM_FROZEN = 8
# A data set that opens in less can be opened again for a trial.
_QUICKLY_S = 2.0


def examine(dataset: Dataset, settings: DoctorSettings) -> DoctorResult:
    """Examine a data set and a step, and return what was found. Leaves nothing behind.

    Args:
        dataset: What is trained on.
        settings: How.

    Raises:
        StokerError: The data set cannot be opened, or a chunk of it cannot be built: then no loader could.
        ValueError: It has no samples.
    """
    with ExitStack() as stack:
        return _Examination(dataset, settings, stack).run()


class _Examination:
    """One examination, step by step."""

    def __init__(self, dataset: Dataset, settings: DoctorSettings, stack: ExitStack) -> None:
        self._settings = settings
        self._stack = stack
        self._clock = Clock(settings=settings, start_s=time.perf_counter())
        dataset = dataset.located()
        self._is_local = dataset.is_local
        self._asked = dataset
        self._dataset = copy.copy(dataset)
        self._tap: Tap | None = None
        if not self._is_local:
            # By the same way as a loader would, with somebody who notes what is asked for in between.
            self._tap = Tap(dataset.find_storage())
            self._dataset.storage = self._tap
        self._notes: list[str] = []

    def run(self) -> DoctorResult:
        settings, clock = self._settings, self._clock
        clock.say("opening the data set")
        catalogue = self._dataset.open(settings.cache, num_threads=settings.num_threads)
        if not int(catalogue.num_samples.sum()):
            raise ValueError(f"{self._dataset!r} has no samples: there is nothing to examine")
        # The budget is for experiments: listing and footers take what they take, and are kept for the next start.
        opened_s = time.perf_counter() - clock.start_s
        clock.start_s = time.perf_counter()
        scratch = self._scratch()

        clock.say("what this machine can do")
        paces = [probe_machine.pace()]
        memory_bytes_s = probe_machine.memory_bytes_s()
        disk = settings.disk(scratch, clock.slice_s(0.02))

        fetched = self._fetch(catalogue)
        fetch = self._fetch_threads(fetched)
        built = self._build(catalogue, fetched)
        paces.append(probe_machine.pace())
        kept = fetched.units
        fetched = _first(fetched, num_samples=max(rate for _, rate in built.rates) * clock.slice_s(_FILL))
        sample, window, facts, arrow_bytes, tensor_bytes = self._samples(catalogue, fetched, scratch)
        warm = self._warm(sample, fetched)
        arrow = self._arrow(sample)
        gpu = GpuWatch()
        with gpu.watching():
            step, facts_of_step, ram, step_rates = self._step(warm)
        copied = self._copy(tensor_bytes)
        paces.append(probe_machine.pace())

        num_samples = int(catalogue.num_samples.sum())
        free = _STAYS * settings.free_memory_bytes()
        source_bytes = sum(fetched.num_bytes) / sum(fetched.num_samples)
        machine = Machine(
            cores=cores(),
            network_bytes_s=fetch.bytes_s if not self._is_local else math.inf,
            connection_bytes_s=fetch.connection_bytes_s if not self._is_local else math.inf,
            read_bytes_s=disk.read_bytes_s,
            write_bytes_s=disk.write_bytes_s,
            # What was gathered a second was there to be had, however busy memory was when it was looked at.
            memory_bytes_s=max(memory_bytes_s, warm.rate.samples_s * tensor_bytes),
            pcie_bytes_s=copied.pinned_bytes_s if copied is not None else math.inf,
        )
        found = Findings(
            machine=machine,
            batch_size=settings.batch_size,
            num_builders=self._num_builders,
            most_builders=self._most_builders,
            least_builders=self._least_builders,
            builders_worth=self._builders_worth,
            num_computing=settings.num_threads if settings.transform_in == "threads" else None,
            num_threads=settings.num_threads,
            prefetch=settings.prefetch,
            window=window,
            unit_samples=_unit_samples(sample),
            source_bytes=source_bytes,
            arrow_bytes=arrow_bytes,
            tensor_bytes=tensor_bytes,
            is_remote=not self._is_local,
            source_stays=num_samples * source_bytes < free,
            arrow_stays=num_samples * arrow_bytes < free,
            tensors_stay=num_samples * tensor_bytes < free,
            fetch=fetch,
            fetch_cpu_s=max(0.0, fetched.cpu_s) / sum(fetched.num_samples),
            built=built,
            warm=warm,
            arrow=arrow,
            copy=copied,
            step=step,
            step_rates=step_rates,
            cores_left=statistics.median(pace.cores for pace in paces),
        )
        today = self._today(catalogue)
        step_s = 0.0 if step is None else step.step_s
        paths = WholePaths(sample, settings, clock, plans_of(found), today=today, step_s=step_s)
        paths.run()
        sharing = self._sharing(sample, facts, scratch) if today == TENSORS and not paths.is_fed() else None
        if sharing is not None:
            sample = replace(sample, shared=sharing.sample)
        fixes = TryFixes(
            sample=sample,
            settings=settings,
            clock=clock,
            paths=paths,
            today=today,
            may_open_again=opened_s < _QUICKLY_S,
            widest_share=facts.widest_share,
            widest_cpu_share=facts.widest_cpu_share,
            tap=self._tap,
            fetched=kept,
            fetch=fetch,
        ).all()
        paths.run_again()
        plans = paths.settled()
        self._notes += paths.notes
        speeds = (*(pace.speed for pace in paces), *paths.speeds)
        if paths.cores_left is not None:
            found = replace(found, cores_left=paths.cores_left)
        examined = Examined(
            settings=settings,
            catalogue=catalogue,
            text=_text(self._dataset),
            num_probed=sum(len(unit) for unit in fetched.units),
            found=found,
            plans=plans,
            today=today,
            tried=fixes,
            shared_how="" if sharing is None else sharing.how,
            can_be_sent=can_be_sent(self._asked.transform),
            measured=paths.measured,
            facts=facts,
            step=facts_of_step,
            ram=ram,
            disk=disk,
            memory_bytes_s=memory_bytes_s,
            gpus=gpu.facts(),
            gpu_note=gpu.note,
            timeline=paths.timeline,
            opened_s=opened_s,
            speeds=speeds,
            notes=tuple(self._notes),
        )
        clock.say("working it out")
        result = result_of(examined, wall_s=0.0, when=datetime.now(UTC).date().isoformat())
        changes = changes_for(plans, today=today, options=options_of(examined))
        seconds = _VERIFY * PLANNED * settings.budget_s
        verified: Verified | None = None
        tried: tuple[Verified, ...] = ()
        if settings.verify_all:
            clock.say("verifying every fix")
            nothing = Change(key=TODAY, text="today's path as it is", how="", plan=plans[today])
            applied = fixes_of([nothing, *changes], today=plans[today])
            tried = verify_all(
                applied, [nothing, *changes], sample, settings, today=today, seconds=seconds, speeds=speeds
            )
        elif settings.verify and result.fixes:
            clock.say(f"verifying: {result.fixes[0].text}")
            verified = verify(result.fixes, changes, sample, settings, today=today, seconds=seconds, speeds=speeds)
        wall_s = time.perf_counter() - clock.start_s + opened_s
        return replace(result, verified=verified, tried=tried, wall_s=wall_s)

    # ------------------------------------------------------------------ the experiments, in turn

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

    def _fetch(self, catalogue: Catalogue) -> Fetched:
        self._clock.say("fetching alone" if not self._is_local else "reading alone")
        units = spread_units(catalogue, _NUM_UNITS)
        fetched = fetch_units(
            catalogue,
            units,
            tap=self._tap,
            until=self._clock.until(_FETCH),
            max_bytes=int(min(_MAX_KEEP_BYTES, _KEEP_SHARE * free_memory_bytes())),
        )
        if self._tap is not None:
            self._stack.callback(self._tap.forget)
        return fetched

    def _fetch_threads(self, fetched: Fetched) -> FetchCost:
        if self._tap is None or not any(fetched.reads):
            return probe_local(fetched)
        self._clock.say("fetching with more threads")
        return probe_remote(self._tap.inner, fetched, until=self._clock.until(_THREADS))

    def _build(self, catalogue: Catalogue, fetched: Fetched) -> Built:
        self._clock.say("decoding, transforming, converting, publishing: each alone")
        most = num_cores()
        more = [num for num in (2, 4, 8, 16, 32, 64) if num < most]
        threads = [1, *more, most] if most > 1 else [1]
        # In memory, as a loader without a cache folder: the disk is looked at by itself.
        with contextlib.closing(TemporaryFolder()) as folder:
            folder.make()
            return build_units(
                catalogue,
                fetched,
                tap=self._tap,
                scratch=folder.cache,
                threads=threads * 2,
                until=self._clock.until(_BUILD),
            )

    def _samples(
        self, catalogue: Catalogue, fetched: Fetched, scratch: Path
    ) -> tuple[Sample, int, RowFacts, float, float]:
        self._clock.say("filling a cache, and Arrow files beside it")
        settings = self._settings
        replaying = self._tap.replaying() if self._tap is not None else contextlib.nullcontext()
        dataset = SampledDataset(catalogue, fetched.units)
        with replaying:
            filled = fill_cache(dataset, scratch / "warm", num_threads=settings.num_threads)
        in_processes = settings.transform_in == "processes"
        self._num_builders = settings.num_threads if in_processes else filled.pool.size
        self._most_builders = 0 if in_processes else filled.pool.most
        self._least_builders = self._num_builders if in_processes else filled.pool.least
        self._builders_worth = None if in_processes else filled.builders_worth
        tables = tables_of(catalogue, fetched, tap=self._tap, max_bytes=int(_KEEP_SHARE * free_memory_bytes()))
        arrow_bytes = sum(table.nbytes for table in tables) / max(1, sum(table.num_rows for table in tables))
        # What all builders make at a time comes together: a window that is as large comes in even turns.
        window = max(_MIN_WINDOW, self._num_builders)
        facts = row_facts(catalogue, tables[0], fetched.units[0])
        sample = Sample(
            catalogue=catalogue,
            units=spread_units(catalogue, _NUM_COLD_UNITS),
            warm=scratch / "warm",
            warm_units=fetched.units,
            arrow=write_tables(tables, scratch / "arrow"),
            tensor_bytes=filled.tensor_bytes,
            window=window,
            num_threads=settings.num_threads,
            widest_column=facts.widest_column,
        )
        return sample, window, facts, arrow_bytes, filled.tensor_bytes

    def _warm(self, sample: Sample, fetched: Fetched) -> WarmCost:
        self._clock.say("a warm cache, at several batch sizes")
        return probe_warm(
            warm_loader(sample, self._settings),
            batch_size=self._settings.batch_size,
            num_samples=sum(fetched.num_samples[: len(fetched.units)]),
            num_frozen=_NUM_FROZEN,
            seconds=self._clock.slice_s(_WARM),
        )

    def _arrow(self, sample: Sample) -> ArrowCost:
        self._clock.say("Arrow on SSD")
        return probe_arrow(
            sample.arrow,
            convert=converter(dataset_of(sample.catalogue)),
            batch_size=self._settings.batch_size,
            window=min(sample.window, len(sample.arrow)),
            num_threads=self._settings.num_threads,
            seconds=self._clock.slice_s(_ARROW),
        )

    def _step(self, warm: WarmCost) -> tuple[StepCost | None, StepFacts | None, Rate | None, dict[int, float]]:
        step, batch_size = self._settings.step, self._settings.batch_size
        if step is None:
            return None, None, None, {}
        self._clock.say("the step on one frozen batch")
        cost = probe_step(step, warm.frozen[0], seconds=self._clock.slice_s(_STEP))
        self._clock.say("the step on batches in RAM")
        ram = rate_in_ram(step, warm.frozen, batch_size=batch_size, seconds=self._clock.slice_s(_RAM))
        demand = Rate(
            samples_s=batch_size / cost.step_s,
            low=batch_size / cost.high_s,
            high=batch_size / cost.low_s,
            num_rounds=cost.num_rounds,
        )
        facts = StepFacts(
            text=step.text,
            batch_size=batch_size,
            step_s=cost.step_s,
            demand=demand,
            is_given=step.given_s is not None,
            host_s=cost.host_s,
            cpu_s=cost.cpu_s,
        )
        rates: dict[int, float] = {}
        if step.given_s is None:
            self._clock.say("the step at several batch sizes")
            each_s = self._clock.slice_s(_STEP) / len(warm.points)
            for point, batch in zip(warm.points, warm.by_size, strict=True):
                rates[point.batch_size] = point.batch_size / probe_step(step, batch, seconds=each_s).step_s
        return cost, facts, ram, rates

    def _copy(self, tensor_bytes: float) -> CopyCost | None:
        if not self._settings.is_on_device or not has_cuda():
            return None
        self._clock.say("copying alone, from pinned and pageable memory")
        return probe_copy(int(tensor_bytes * self._settings.batch_size))

    def _sharing(self, sample: Sample, facts: RowFacts, scratch: Path) -> RepeatedFields | None:
        if facts.repeated_share < MUCH:
            return None
        self._clock.say("filling a cache of shared features")
        replaying = self._tap.replaying() if self._tap is not None else contextlib.nullcontext()
        with replaying:
            return keep_shared(sample, scratch / "shared", num_threads=self._settings.num_threads)

    def _today(self, catalogue: Catalogue) -> str:
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


def _text(dataset: Dataset) -> str:
    """Return a data set as people read it, on one line."""
    return some_of(dataset.sources, 1)


def _first(fetched: Fetched, *, num_samples: float) -> Fetched:
    """Return the first units, two at least, up to so many samples; what was measured of all of them stays."""
    num = next((n for n in range(2, len(fetched.units)) if sum(fetched.num_samples[:n]) >= num_samples), None)
    return fetched if num is None else replace(fetched, units=fetched.units[:num])


def _unit_samples(sample: Sample) -> tuple[int, ...]:
    """Return the samples of the units that runs from the source take, in some order, as a shuffled epoch does."""
    catalogue = sample.catalogue
    sizes = [int(catalogue.num_samples[unit.start : unit.stop].sum()) for unit in sample.units]
    order = np.random.default_rng(0).permutation(len(sizes))
    return tuple(sizes[i] for i in order if sizes[i]) or (1,)
