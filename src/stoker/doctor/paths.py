"""The ways that samples can come, each a loader that is run whole: today's, and today's with one thing changed.

source ─► fetch ─► build ─► tensors on SSD ─► gather ─► step
  │ fewer columns    │ more threads, processes   │ deduplicated, larger batches
  └ bytes in memory  └ Arrow on SSD ─► convert ──┴─► batches in RAM
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stoker.cache.workers import can_be_sent
from stoker.dataset.catalogue import Catalogue
from stoker.dataset.dataset import dataset_of
from stoker.doctor.arrow import ArrowBatches, converter
from stoker.doctor.results import (
    ARROW,
    COLUMNS,
    DEDUPLICATED,
    FREE_LINK,
    LARGER,
    PROCESSES,
    RAM,
    SHARED,
    SOURCE,
    SUPPLY,
    TENSORS,
    THREADS,
)
from stoker.doctor.rows import RowFacts
from stoker.doctor.runs import Feeder, PathRun, run_batches, run_cold, run_warm
from stoker.doctor.sampled import SampledDataset, num_samples_of_units, spread_units
from stoker.doctor.settings import DoctorSettings
from stoker.doctor.tap import Tap
from stoker.errors import FieldError, StokerError
from stoker.host.machine import free_memory_bytes, num_cores
from stoker.loader.loader import Loader
from stoker.metrics.record import Trace
from stoker.plan.savings import find_sharing

# Of the free memory that a cold run may fill with chunks, and of it that a window may.
_MEMORY_SHARE, _WINDOW_SHARE = 0.2, 0.02
_MIN_WINDOW = 4
# Of the budget, that a window of cold chunks should take.
_WINDOW_OF_BUDGET = 0.02
# An epoch of warm chunks has so many of them, and is so many times as long as the sample.
_MOST_CHUNKS, _MOST_TIMES = 4_096, 200
# A loader of a cold epoch is given so many times what it should come to.
_SPARE = 4
_MORE_THREADS, _LARGER_TIMES = 4, 4
# What is this share of the bytes is worth leaving out, or keeping once.
_MUCH = 0.25
# Batches of Arrow rows that a run of it makes at least.
_LEAST_ARROW = 6


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What the paths run on.

    Attributes:
        catalogue: The data set.
        units: Units for cold runs, from the source.
        warm: Folder of a cache that holds `warm_units`.
        warm_units: Units for warm runs.
        arrow: Arrow files of some of them.
        batches: Finished batches, to train on from memory.
        tensor_bytes: Bytes a sample as a finished record.
        chunk_s: Seconds that the first chunk took.
        facts: What its rows say.
    """

    catalogue: Catalogue
    units: Sequence[range]
    warm: Path
    warm_units: Sequence[range]
    arrow: Sequence[Path]
    batches: Sequence[Any]
    tensor_bytes: float
    chunk_s: float
    facts: RowFacts

    @property
    def mean_chunk(self) -> float:
        """Samples of a chunk."""
        return float(num_samples_of_units(self.catalogue, self.units).sum() / sum(map(len, self.units)))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A path that can be run.

    Attributes:
        key: See `results`.
        name: As people read it.
        run: Runs it for so many seconds.
        batch_size: Samples a batch.
        how: The line of code that makes it so.
        has_step: Whether the step is behind it.
        sample_bytes: Bytes a sample that it reads from a disk, where memory is too small; 0 where it reads none.
        least_s: Seconds that a run takes before there is anything to measure, about.
        times_today: How many times what a run of today's path takes beyond its seconds this one is likely to; 0 where
            it is nothing like it.
    """

    key: str
    name: str
    run: Callable[[float], PathRun]
    batch_size: int
    how: str = ""
    has_step: bool = True
    sample_bytes: float = 0.0
    least_s: float = 0.0
    times_today: float = 0.0


class Candidates:
    """Makes the paths that can be run.

    Args:
        sample: What they run on.
        settings: How the examination runs.
        tap: What a remote source is read through; None where it is local.
        today: Key of the path that samples take now.
        scratch: For a cache of repeated features.

    Attributes:
        num_builders: Threads that a remote source's loader was seen to come to; None before, and of a local one.
        rate_s: Samples/s that a cold run is expected to give; 0 before there was one.
    """

    def __init__(self, sample: Sample, settings: DoctorSettings, *, tap: Tap | None, today: str, scratch: Path) -> None:
        self._sample = sample
        self._settings = settings
        self._batch_size = settings.batch_size
        self._tap = tap
        self._today = today
        self._scratch = scratch
        self.num_builders: int | None = None
        self.rate_s = 0.0

    def first(self) -> list[Candidate]:
        """Return those that are always run: today's, and what it is compared with."""
        settings, how = self._settings, self._how(cache=self._today == TENSORS)
        today = (
            self._cold(SOURCE, "every epoch from the source", how)
            if self._today == SOURCE
            else self._warm(TENSORS, "tensors on SSD", how)
        )
        found = [today]
        if settings.step is not None:
            found.append(self._path(RAM, "batches in RAM", functools.partial(self._run_batches, step=settings.step)))
        if self._today == SOURCE:
            found.append(self._warm(TENSORS, "tensors on SSD", self._how(cache=True)))
        if self._sample.arrow:
            how = 'pyarrow.feather.write_feather(table, "rows.arrow", compression="uncompressed")'
            least_s = _LEAST_ARROW * self._sample.chunk_s * min(1.0, self._batch_size / self._sample.mean_chunk)
            found.append(self._path(ARROW, "Arrow on SSD", self._run_arrow, how=how, least_s=least_s))
        if settings.step is not None:
            make = self._cold if self._today == SOURCE else self._warm
            found.append(make(SUPPLY, "today's path with no step behind it", has_step=False))
        return found

    def shared(self) -> Candidate:
        """Return batches in RAM with a loader at work beside them."""

        def run(seconds: float) -> PathRun:
            with self._warm_loader() as loader, closing(Feeder(loader)) as feeder:
                return self._run_batches(seconds, step=self._settings.step, beside=feeder.want)

        return self._path(SHARED, "batches in RAM, a loader beside them", run)

    def more(self) -> list[Candidate]:
        """Return today's path with one thing changed, each where it applies."""
        makers = (
            (self._threads, self._processes, self._columns, self._free_link, self._deduplicated)
            if self._today == SOURCE
            else (self._larger, self._deduplicated)
        )
        return [way for make in makers if (way := make()) is not None]

    def explore(self, seconds: float) -> None:
        """Run today's cold path until it has found out how many threads are worth it, and how fast it is about."""
        run = self._run_cold(seconds, has_step=False)
        if self._sample.catalogue.is_remote:
            self.num_builders = run.num_builders
        self.rate_s = run.rate_s

    def from_memory(self, seconds: float, *, num_threads: int) -> PathRun:
        """Run today's cold path with the bytes in memory and no step behind it: what each stage takes alone."""
        with self._replaying():
            return self._run_cold(
                seconds,
                has_step=False,
                units=self._sample.warm_units,
                num_threads=num_threads,
                num_builders=num_threads,
            )

    def cold_s(self, num_threads: int) -> float:
        """Return about what a run of a cold path takes before there is anything to measure: two windows of chunks."""
        return 2 * math.ceil(self._window / num_threads) * self._sample.chunk_s

    # ------------------------------------------------------------------ each of them

    def _path(self, key: str, name: str, run: Callable[[float], PathRun], **more: Any) -> Candidate:
        return Candidate(key=key, name=name, run=run, batch_size=self._batch_size, **more)

    def _cold(
        self, key: str, name: str, how: str = "", *, has_step: bool = True, read_share: float = 1.0, **options: Any
    ) -> Candidate:
        """Return a path from the source with some of `_run_cold`'s options, which reads a share of its bytes."""
        return self._path(
            key,
            name,
            functools.partial(self._run_cold, has_step=has_step, **options),
            how=how,
            has_step=has_step,
            sample_bytes=0.0 if self._tap is not None else read_share * self._sample.facts.source_bytes,
            least_s=self.cold_s(options.get("num_threads", self._settings.num_threads)),
            # More threads have more requests in flight, which a run waits for when it ends.
            times_today=_MORE_THREADS if key == THREADS and self._tap is not None else 1.0,
        )

    def _warm(
        self, key: str, name: str, how: str = "", *, has_step: bool = True, kept_share: float = 1.0, **options: Any
    ) -> Candidate:
        """Return a path from a warm cache with some of `_run_warm`'s options, which keeps a share of its bytes."""
        return self._path(
            key,
            name,
            functools.partial(self._run_warm, has_step=has_step, **options),
            how=how,
            has_step=has_step,
            sample_bytes=kept_share * self._sample.tensor_bytes,
        )

    def _threads(self) -> Candidate:
        num = _MORE_THREADS * self._settings.num_threads
        num_builders = None if self.num_builders is None else max(self.num_builders, num)
        how = self._how(f"num_threads={num}")
        return self._cold(THREADS, f"{num} threads", how, num_threads=num, num_builders=num_builders)

    def _processes(self) -> Candidate | None:
        transform = dataset_of(self._sample.catalogue).transform
        if transform is None or self._settings.transform_in == "processes" or not can_be_sent(transform):
            return None
        how = self._how('transform_in="processes"')
        return self._cold(PROCESSES, "the transform in processes", how, transform_in="processes")

    def _columns(self) -> Candidate | None:
        sample, widest = self._sample, self._sample.facts.widest_column
        names = sample.catalogue.schema.names
        if sample.facts.widest_share < _MUCH or len(names) < 2:
            return None
        dataset = copy.copy(dataset_of(sample.catalogue))
        dataset.columns = tuple(name for name in names if name != widest)
        try:
            catalogue = dataset.open()
        except (FieldError, ValueError):  # a field needs it
            return None
        return self._cold(
            COLUMNS,
            f"no column {widest}",
            f"Dataset(..., columns=[name for name in dataset.open().schema.names if name != {widest!r}])",
            read_share=1 - sample.facts.widest_share,
            catalogue=catalogue,
            units=spread_units(catalogue, len(sample.units)),
        )

    def _free_link(self) -> Candidate | None:
        if self._tap is None:
            return None

        def run(seconds: float) -> PathRun:
            with self._replaying():
                return self._run_cold(seconds, units=self._sample.warm_units)

        least_s = self.cold_s(self._settings.num_threads)
        return self._path(FREE_LINK, "a link without limits", run, least_s=least_s)

    def _larger(self) -> Candidate | None:
        batch_size = min(_LARGER_TIMES * self._batch_size, int(self._sample.mean_chunk))
        if batch_size < 2 * self._batch_size:
            return None
        step = self._settings.step
        step = None if step is None else step.scaled(batch_size / self._batch_size)
        settings = replace(self._settings, batch_size=batch_size, step=step)
        how = self._how(f"batch_size={batch_size}", cache=True)
        return replace(self._warm(LARGER, f"batches of {batch_size:,}", how, settings=settings), batch_size=batch_size)

    def _deduplicated(self) -> Candidate | None:
        sample = self._sample
        if sample.facts.repeated_share < _MUCH or dataset_of(sample.catalogue).deduplicate:
            return None
        folder = self._scratch / "shared"
        try:
            keys = find_sharing(SampledDataset(sample.catalogue, sample.warm_units).open()).keys
            if not keys:
                return None
            share = {one.key: one.patterns or (one.key,) for one in keys}
            catalogue = sample.catalogue.sharing(share)
            with self._replaying(), self._warm_loader(catalogue=catalogue, folder=folder, num_times=1) as loader:
                for _ in loader:
                    pass
        except StokerError:  # what can be built as it is, and not so, is no advice
            return None
        said = ", ".join(f"{key!r}: {list(patterns)!r}" for key, patterns in share.items())
        return self._warm(
            DEDUPLICATED,
            "repeated features kept once, on SSD",
            f"dataset = Dataset(..., deduplicate={{{said}}}); {self._how(cache=True)}",
            kept_share=1 - sample.facts.repeated_share,
            catalogue=catalogue,
            folder=folder,
        )

    # ------------------------------------------------------------------ how they run

    def _run_batches(self, seconds: float, **options: Any) -> PathRun:
        return run_batches(itertools.cycle(self._sample.batches), seconds=seconds, **options)

    def _run_arrow(self, seconds: float) -> PathRun:
        sample, settings = self._sample, self._settings
        arrays_of = converter(dataset_of(sample.catalogue))
        source = ArrowBatches(
            sample.arrow,
            convert=lambda table: settings.deliver(arrays_of(table)),
            batch_size=self._batch_size,
            window=min(_MIN_WINDOW, len(sample.arrow)),
            num_threads=settings.num_threads,
        )
        with closing(source):
            batches = iter(source)
            run_batches(batches, step=settings.step, seconds=0.3 * seconds)  # memory that is new is so once
            drawn_s, converted_s, num = source.drawn_s, source.converted_s, source.num_samples
            run = run_batches(batches, step=settings.step, seconds=seconds)
            num = max(1, source.num_samples - num)
            stages = {"draw": (source.drawn_s - drawn_s) / num, "dequeue": (source.converted_s - converted_s) / num}
        return replace(run, stages=stages)

    def _run_cold(
        self,
        seconds: float,
        *,
        has_step: bool = True,
        catalogue: Catalogue | None = None,
        units: Sequence[range] | None = None,
        num_threads: int | None = None,
        num_builders: int | None = None,
        transform_in: str | None = None,
    ) -> PathRun:
        """Train from the source, with nothing in any cache."""
        sample, settings, trace = self._sample, self._settings, Trace()
        units, catalogue, window = units or sample.units, catalogue or sample.catalogue, self._window
        once = float(num_samples_of_units(catalogue, units).sum())
        most = _MEMORY_SHARE * free_memory_bytes() / max(1.0, sample.tensor_bytes)
        wanted = _SPARE * (self.rate_s * seconds + 3 * window * sample.mean_chunk) if self.rate_s else most
        num_times = min(round(min(wanted, most) / once + 0.5), 4 * _MOST_CHUNKS // sum(map(len, units)))
        dataset = SampledDataset(
            catalogue, units, num_times=max(1, num_times), num_builders=num_builders or self.num_builders
        )
        with make_loader(
            dataset,
            settings,
            window=window,
            trace=trace,
            num_threads=num_threads or settings.num_threads,
            transform_in=transform_in or settings.transform_in,
        ) as loader:
            step = settings.step if has_step else None
            window_samples = window * sample.mean_chunk
            return run_cold(loader, dataset.open(), trace, step=step, seconds=seconds, window_samples=window_samples)

    def _run_warm(
        self, seconds: float, *, has_step: bool = True, settings: DoctorSettings | None = None, **options: Any
    ) -> PathRun:
        """Train from a warm cache: the sample's, or another one."""
        settings = settings or self._settings
        with self._warm_loader(batch_size=settings.batch_size, **options) as loader:
            return run_warm(loader, step=settings.step if has_step else None, seconds=seconds)

    def _warm_loader(
        self,
        *,
        catalogue: Catalogue | None = None,
        folder: Path | None = None,
        num_times: int | None = None,
        batch_size: int | None = None,
    ) -> Loader:
        """Return a loader of the warm chunks again and again: epochs are long, and windows open as often as they do."""
        sample, units = self._sample, self._sample.warm_units
        if num_times is None:
            num_times = max(1, min(_MOST_TIMES, _MOST_CHUNKS // sum(map(len, units))))
        dataset = SampledDataset(catalogue or sample.catalogue, units, num_times=num_times, is_new=False)
        cache, size = folder or sample.warm, batch_size or self._batch_size
        return make_loader(dataset, self._settings, window=_MIN_WINDOW, cache=cache, batch_size=size)

    def _replaying(self) -> AbstractContextManager[None]:
        return nullcontext() if self._tap is None else self._tap.replaying()

    @property
    def _window(self) -> int:
        """Chunks of a window: what all builders make at a time comes together, so one as large comes in even turns."""
        sample, num_threads = self._sample, self.num_builders or self._settings.num_threads
        most = _WINDOW_SHARE * free_memory_bytes() / max(1.0, sample.mean_chunk * sample.tensor_bytes)
        # And some of them have to come in a run.
        chunks_s = self.rate_s / sample.mean_chunk if self.rate_s else num_threads / max(1e-9, sample.chunk_s)
        in_time = _WINDOW_OF_BUDGET * self._settings.budget_s * chunks_s
        return max(1 if in_time < 1 else _MIN_WINDOW, min(int(min(most, in_time)), num_threads))

    def _how(self, *changes: str, cache: bool = False) -> str:
        settings = self._settings
        said: dict[str, str] = {"batch_size": f"batch_size={self._batch_size}"}
        if settings.num_threads != num_cores():
            said["num_threads"] = f"num_threads={settings.num_threads}"
        if settings.transform_in == "processes":
            said["transform_in"] = 'transform_in="processes"'
        if cache:
            said["cache"] = f'cache="{settings.cache or "/path/on/ssd"}"'
        said |= {change.partition("=")[0]: change for change in changes}
        if settings.device not in (None, "cpu"):
            said["device"] = f'device="{settings.device}"'
        return f"{'Loader' if settings.device is None else 'TorchLoader'}(dataset, {', '.join(said.values())})"


def make_loader(dataset: Any, settings: DoctorSettings, **options: Any) -> Loader:
    """Return a loader as training has it, some options changed."""
    own = {name: getattr(settings, name) for name in ("batch_size", "num_threads", "transform_in")}
    return settings.make_loader(dataset, shuffle=True, **{**own, **options})
