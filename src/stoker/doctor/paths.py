"""The ways that samples can come, each a loader that is run whole: today's, and today's with one thing changed.

source ─► fetch ─► build ─► tensors on SSD ─► gather ─► step
  │ fewer columns    │ more threads, processes   │ deduplicated, larger batches
  └ bytes in memory  └ Arrow on SSD ─► convert ──┴─► batches in RAM
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stoker.cache.workers import can_be_sent
from stoker.dataset.catalogue import Catalogue
from stoker.dataset.dataset import dataset_of
from stoker.doctor.arrow import arrow_batches, converter
from stoker.doctor.results import (
    ARROW,
    COLUMNS,
    DEDUPLICATED,
    LARGER,
    PROCESSES,
    RAM,
    SHARED,
    SOURCE,
    SUPPLY,
    TENSORS,
    THREADS,
    PathRun,
)
from stoker.doctor.runs import SETTLES, at_work, run_loader, take
from stoker.doctor.sample import Sample, SampledDataset, make_loader, num_samples_of_units, spread_units
from stoker.doctor.settings import DoctorSettings
from stoker.errors import FieldError, StokerError
from stoker.host.machine import free_memory_bytes, num_cores
from stoker.loader.loader import Loader
from stoker.metrics.record import Trace

# Shares of the free memory that a run may fill with chunks or with rows drawn ahead, and that one window may.
_MEMORY_SHARE, _WINDOW_SHARE = 0.2, 0.02
_MIN_WINDOW = 4
# Share of the budget that building a window of cold chunks should take.
_WINDOW_OF_BUDGET = 0.02
# An epoch of warm chunks has so many of them, and is so many times as long as the sample.
_MOST_CHUNKS, _MOST_TIMES = 4_096, 200
# A cold run gets so many times the chunks that it is expected to need.
_SPARE = 4
_MORE_THREADS, _LARGER_TIMES = 4, 4
# A column, or repetition, with this share of the bytes is worth leaving out, or keeping once.
_MUCH = 0.25
# Batches of Arrow rows that a run of it makes at least.
_LEAST_ARROW = 6
# Runs in which other processes took more of the cores than this beyond what they always take are not compared.
_MORE_TAKEN = 0.1
# Batches that a cold turn has at least: what comes of fewer may be a part of what was built.
_TURN_BATCHES = 2


@dataclass(kw_only=True)
class Way:
    """A path that can be run, and its runs so far.

    Attributes:
        key: See `results`.
        name: As people read it.
        run: Runs it for so many seconds.
        batch_size: Samples a batch.
        how: The line of code that makes it so.
        has_step: Whether the step is behind it.
        sample_bytes: Bytes a sample that it reads from a disk, where memory is too small; 0 where it reads none.
        least_s: About the seconds that a run takes before there is anything to measure.
        times_today: This path's likely overhead beyond its given seconds, in multiples of that of today's path; 0 where
            the two have nothing in common.
        runs: Results of its runs.
        came: Results of the runs that verify it at the end.
        beyond_s: The least overhead of a run beyond the seconds that it was given; None before the first run.
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
    runs: list[PathRun] = field(default_factory=list)
    came: list[PathRun] = field(default_factory=list)
    beyond_s: float | None = None

    @property
    def comparable(self) -> tuple[list[PathRun], list[PathRun]]:
        """Runs in which other processes took hardly more of the cores than in the best, and such that verify these."""
        runs = [run for run in self.runs if run.others <= min(one.others for one in self.runs) + _MORE_TAKEN]
        return runs, [run for run in self.came if run.others <= max(one.others for one in runs) + _MORE_TAKEN]

    def takes_s(self, seconds: float, today: Way | None = None) -> float:
        """Return about how long one more run takes; before the first run, judged by those of today's path."""
        if self.beyond_s is not None:
            return self.beyond_s + seconds
        beyond_s = (0.0 if today is None else today.beyond_s or 0.0) * self.times_today
        return max(self.least_s, beyond_s + seconds)


class Candidates:
    """Makes the paths that can be run, on a sample of the data set.

    Attributes:
        num_builders: Builder threads that a remote source's loader settled at; None before that is known.
        rate_s: Samples/s that a cold run is expected to give; 0 before there was one.
    """

    def __init__(self, sample: Sample, today: str) -> None:
        self._sample, self._today, self._catalogue, self._data = sample, today, sample.catalogue, sample.data
        self._settings, self._free_bytes = sample.settings, free_memory_bytes()  # once: paths are compared
        self.num_builders: int | None = None
        self.rate_s = 0.0

    def first(self) -> list[Way]:
        """Return the paths that are always run: today's, and those it is compared with."""
        step, is_cold = self._settings.step, self._today == SOURCE
        tensors = self._warm(TENSORS, "tensors on SSD", self._how(cache=True))
        found = [self._cold(SOURCE, "every epoch from the source", self._how()) if is_cold else tensors]
        if step is not None:
            found.append(self._way(RAM, "batches in RAM", functools.partial(self._run_batches, step=step)))
        if is_cold:
            found.append(tensors)
        if self._sample.arrow:
            how = 'pyarrow.feather.write_feather(table, "rows.arrow", compression="uncompressed")'
            part_of_chunk = min(1.0, self._settings.batch_size / self._sample.mean_chunk)
            least_s = _LEAST_ARROW * part_of_chunk * self._sample.chunk_s
            more = {"how": how, "least_s": least_s, "sample_bytes": self._data.arrow_bytes}
            found.append(self._way(ARROW, "Arrow on SSD", self._run_arrow, **more))
        if step is not None:
            make = self._cold if is_cold else self._warm
            found.append(make(SUPPLY, "today's path with no step behind it", has_step=False))
        return found

    def shared(self) -> Way:
        """Return batches in RAM with a loader at work beside them."""

        def run(seconds: float) -> PathRun:
            with at_work(self._warm_loader()) as want:
                return self._run_batches(seconds, step=self._settings.step, beside=want)

        return self._way(SHARED, "batches in RAM, a loader beside them", run)

    def more(self) -> list[Way]:
        """Return today's path with one thing changed, each where it applies."""
        is_cold = self._today == SOURCE
        made = (self._threads(), self._processes(), self._columns()) if is_cold else (self._larger(),)
        return [way for way in (*made, self._deduplicated()) if way is not None]

    def explore(self, seconds: float) -> None:
        """Run today's cold path until it has found out how many threads are worth it, and how fast it is about."""
        run = self._run_cold(seconds, has_step=False)
        if self._catalogue.is_remote:
            self.num_builders = run.num_builders
        self.rate_s = run.samples_s

    def from_memory(self, seconds: float, *, num_threads: int) -> PathRun:
        """Run today's cold path with the bytes in memory and no step behind it: what each stage takes alone."""
        same: dict[str, Any] = {"num_threads": num_threads, "num_builders": num_threads, "window": num_threads}
        with self._sample.replaying():
            return self._run_cold(seconds, has_step=False, units=self._sample.units, **same)

    def cold_s(self, num_threads: int) -> float:
        """Return about what a run of a cold path takes before there is anything to measure: two windows of chunks."""
        num_builders = self.num_builders or num_threads
        return 2 * math.ceil(self._window(num_threads) / num_builders) * self._sample.chunk_s

    # ------------------------------------------------------------------ each of them

    def _way(self, key: str, name: str, run: Callable[[float], PathRun], **more: Any) -> Way:
        return Way(**{"key": key, "name": name, "run": run, "batch_size": self._settings.batch_size, **more})

    def _cold(
        self, key: str, name: str, how: str = "", *, has_step: bool = True, read_share: float = 1.0, **options: Any
    ) -> Way:
        """Return a path from the source with some of `_run_cold`'s options, which reads a share of its bytes."""
        return self._way(
            key,
            name,
            functools.partial(self._run_cold, has_step=has_step, **options),
            how=how,
            has_step=has_step,
            sample_bytes=0.0 if self._sample.tap is not None else read_share * self._data.source_bytes,
            least_s=self.cold_s(options.get("num_threads", self._settings.num_threads)),
            # More threads have more requests in flight, which a run waits for when it ends.
            times_today=_MORE_THREADS if key == THREADS and self._sample.tap is not None else 1.0,
        )

    def _warm(
        self, key: str, name: str, how: str = "", *, has_step: bool = True, kept_share: float = 1.0, **options: Any
    ) -> Way:
        """Return a path from a warm cache with some of `_run_warm`'s options, which keeps a share of its bytes."""
        run = functools.partial(self._run_warm, has_step=has_step, **options)
        sample_bytes = kept_share * self._data.tensor_bytes
        return self._way(key, name, run, how=how, has_step=has_step, sample_bytes=sample_bytes)

    def _threads(self) -> Way:
        num = _MORE_THREADS * self._settings.num_threads
        num_builders = None if self.num_builders is None else max(self.num_builders, num)
        how = self._how(num_threads=num)
        return self._cold(THREADS, f"{num} threads", how, num_threads=num, num_builders=num_builders)

    def _processes(self) -> Way | None:
        transform = dataset_of(self._catalogue).transform
        if transform is None or self._settings.transform_in == "processes" or not can_be_sent(transform):
            return None
        how = self._how(transform_in="processes")
        return self._cold(PROCESSES, "the transform in processes", how, transform_in="processes")

    def _columns(self) -> Way | None:
        widest, share = self._data.widest_column, self._data.widest_share
        names = self._catalogue.schema.names
        if share < _MUCH or len(names) < 2:
            return None
        dataset = copy.copy(dataset_of(self._catalogue))
        dataset.columns = tuple(name for name in names if name != widest)
        try:
            catalogue = dataset.open()
        except (FieldError, ValueError):  # a field needs it
            return None
        how = f"Dataset(..., columns=[name for name in dataset.open().schema.names if name != {widest!r}])"
        units = spread_units(catalogue, len(self._sample.cold))
        return self._cold(COLUMNS, f"no column {widest}", how, read_share=1 - share, catalogue=catalogue, units=units)

    def _larger(self) -> Way | None:
        own = self._settings.batch_size
        batch_size = min(_LARGER_TIMES * own, int(self._sample.mean_chunk))
        if batch_size < 2 * own:
            return None
        step = self._settings.step
        step = None if step is None else step.scaled(batch_size / own)
        settings = replace(self._settings, batch_size=batch_size, step=step)
        how = self._how(batch_size=batch_size, cache=True)
        return replace(self._warm(LARGER, f"batches of {batch_size:,}", how, settings=settings), batch_size=batch_size)

    def _deduplicated(self) -> Way | None:
        repeated = self._data.repeated_share
        if repeated < _MUCH or not self._sample.sharing:
            return None
        folder = self._sample.scratch / "shared"
        share = {one.key: one.patterns or (one.key,) for one in self._sample.sharing}
        try:
            catalogue = self._catalogue.sharing(share)
            with self._sample.replaying(), self._warm_loader(catalogue=catalogue, folder=folder, num_times=1) as loader:
                for _ in loader:
                    pass
        except StokerError:  # it cannot be built deduplicated, so that is not advised
            return None
        said = ", ".join(f"{key!r}: {list(patterns)!r}" for key, patterns in share.items())
        how = f"dataset = Dataset(..., deduplicate={{{said}}}); {self._how(cache=True)}"
        name = "repeated features kept once, on SSD"
        return self._warm(DEDUPLICATED, name, how, kept_share=1 - repeated, catalogue=catalogue, folder=folder)

    # ------------------------------------------------------------------ how they run

    def _run_batches(self, seconds: float, **options: Any) -> PathRun:
        return take(itertools.cycle(self._sample.batches), seconds=seconds, **options)[0]

    def _run_arrow(self, seconds: float) -> PathRun:
        settings, files = self._settings, self._sample.arrow
        arrays_of, window = converter(dataset_of(self._catalogue)), min(_MIN_WINDOW, len(files))
        # Each thread holds the rows of a window twice while it draws them.
        window_bytes = window * max(path.stat().st_size for path in files)
        with arrow_batches(
            files,
            convert=lambda table: settings.deliver(arrays_of(table)),
            batch_size=settings.batch_size,
            window=window,
            num_threads=max(1, min(settings.num_threads, int(_MEMORY_SHARE * self._free_bytes / (2 * window_bytes)))),
        ) as (batches, spent):
            take(batches, step=settings.step, seconds=SETTLES * seconds, longer=1)
            run, *_ = take(batches, step=settings.step, seconds=seconds)
        return replace(run, stages={key: spent[key] / max(1, spent["rows"]) for key in ("draw", "dequeue")})

    def _run_cold(
        self,
        seconds: float,
        *,
        has_step: bool = True,
        catalogue: Catalogue | None = None,
        units: Sequence[range] | None = None,
        num_builders: int | None = None,
        window: int | None = None,
        **options: Any,
    ) -> PathRun:
        """Train from the source, with nothing in any cache."""
        settings, trace = self._settings, Trace()
        units, catalogue = units or self._sample.cold, catalogue or self._catalogue
        num_builders = num_builders or self.num_builders
        num_threads = options.get("num_threads", settings.num_threads)
        window = window or self._window(num_threads)
        turn = max(window * self._sample.mean_chunk, _TURN_BATCHES * settings.batch_size)
        once = float(num_samples_of_units(catalogue, units).sum())
        most = _MEMORY_SHARE * self._free_bytes / max(1.0, self._data.tensor_bytes)
        wanted = _SPARE * (self.rate_s * seconds + 4 * turn) if self.rate_s else most
        num_times = min(round(min(wanted, most) / once + 0.5), 4 * _MOST_CHUNKS // sum(map(len, units)))
        dataset = SampledDataset(catalogue, units, num_times=max(1, num_times), num_builders=num_builders)
        return run_loader(
            make_loader(dataset, settings, window=window, trace=trace, **options),
            step=settings.step if has_step else None,
            seconds=seconds,
            trace=trace,
            mean_chunk=once / sum(map(len, units)),
            turn_samples=turn,
        )

    def _run_warm(
        self, seconds: float, *, has_step: bool = True, settings: DoctorSettings | None = None, **options: Any
    ) -> PathRun:
        """Train from a warm cache: the sample's, or the one in `folder`."""
        settings = settings or self._settings
        loader = self._warm_loader(batch_size=settings.batch_size, **options)
        return run_loader(loader, step=settings.step if has_step else None, seconds=seconds)

    def _warm_loader(
        self,
        *,
        catalogue: Catalogue | None = None,
        folder: Path | None = None,
        num_times: int | None = None,
        batch_size: int | None = None,
    ) -> Loader:
        """Return a loader of the warm chunks again and again: epochs are long, and windows open as often as they do."""
        units = self._sample.units
        if num_times is None:
            num_times = max(1, min(_MOST_TIMES, _MOST_CHUNKS // sum(map(len, units))))
        dataset = SampledDataset(catalogue or self._catalogue, units, num_times=num_times, is_new=False)
        cache, size = folder or self._sample.warm, batch_size or self._settings.batch_size
        return make_loader(dataset, self._settings, cache=cache, batch_size=size)

    def _window(self, num_threads: int) -> int:
        """Return the chunks of a window: as many as the builders make at a time, so that turns are even."""
        num = self.num_builders or num_threads
        most = _WINDOW_SHARE * self._free_bytes / max(1.0, self._sample.mean_chunk * self._data.tensor_bytes)
        # And a run must be long enough for several windows.
        chunks_s = num / max(1e-9, self._sample.chunk_s)
        if self.rate_s:
            chunks_s = self.rate_s / self._sample.mean_chunk * max(1.0, num_threads / self._settings.num_threads)
        in_time = _WINDOW_OF_BUDGET * self._settings.budget_s * chunks_s
        return max(1 if in_time < 1 else _MIN_WINDOW, min(int(min(most, in_time)), num))

    def _how(self, *, cache: bool = False, **changed: object) -> str:
        settings = self._settings
        said: dict[str, object] = {"batch_size": settings.batch_size}
        if settings.num_threads != num_cores():
            said["num_threads"] = settings.num_threads
        if settings.transform_in == "processes":
            said["transform_in"] = settings.transform_in
        if cache:
            said["cache"] = str(settings.cache or "/path/on/ssd")
        said |= changed
        if settings.device not in (None, "cpu"):
            said["device"] = settings.device
        options = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in said.items())
        return f"{'Loader' if settings.device is None else 'TorchLoader'}(dataset, {options})"
