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
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.cache.workers import can_be_sent
from stoker.dataset.catalogue import Catalogue
from stoker.dataset.dataset import Dataset, dataset_of
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
    DataFacts,
    PathRun,
)
from stoker.doctor.runs import SETTLES, at_work, run_loader, take
from stoker.doctor.settings import DoctorSettings
from stoker.doctor.tap import Tap
from stoker.errors import FieldError, StokerError
from stoker.host.machine import free_memory_bytes, num_cores
from stoker.loader.loader import Loader
from stoker.metrics.record import Trace
from stoker.plan.savings import ShareableKey

# Shares of the free memory that a cold run may fill with chunks, and that one window may.
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
        came: Samples/s of the runs that verify it at the end.
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
    came: list[float] = field(default_factory=list)
    beyond_s: float | None = None

    def takes_s(self, seconds: float, today: Way | None = None) -> float:
        """Return about how long one more run takes; before the first run, judged by those of today's path."""
        if self.beyond_s is not None:
            return self.beyond_s + seconds
        beyond_s = (0.0 if today is None else today.beyond_s or 0.0) * self.times_today
        return max(self.least_s, beyond_s + seconds)


@dataclass(kw_only=True)
class Candidates:
    """Makes the paths that can be run, on a sample of the data set.

    Attributes:
        settings: How the examination runs.
        tap: What a remote source is read through; None where it is local.
        today: Key of the path that samples take now.
        scratch: For a cache of repeated features.
        catalogue: The data set.
        data: What is known of it.
        units: Units for cold runs, from the source.
        warm: Folder of a cache that holds `warm_units`.
        warm_units: Units for warm runs.
        arrow: Arrow files of some of them.
        batches: Finished batches, to train on from memory.
        chunk_s: Seconds that the first chunk took.
        local_s: The part of them that was spent on its rows, not on fetching it.
        sharing: Which features repeat.
        mean_chunk: Mean number of samples in a chunk.
        num_builders: Builder threads that a remote source's loader settled at; None before that is known.
        rate_s: Samples/s that a cold run is expected to give; 0 before there was one.
    """

    settings: DoctorSettings
    tap: Tap | None
    today: str
    scratch: Path
    catalogue: Catalogue
    data: DataFacts
    units: Sequence[range]
    warm: Path
    warm_units: Sequence[range]
    arrow: Sequence[Path]
    batches: Sequence[Any]
    chunk_s: float
    local_s: float
    sharing: Sequence[ShareableKey]
    num_builders: int | None = None
    rate_s: float = 0.0

    def __post_init__(self) -> None:
        num_samples = num_samples_of_units(self.catalogue, self.units).sum()
        self.mean_chunk = float(num_samples / sum(map(len, self.units)))

    def first(self) -> list[Way]:
        """Return the paths that are always run: today's, and those it is compared with."""
        step, is_cold = self.settings.step, self.today == SOURCE
        tensors = self._warm(TENSORS, "tensors on SSD", self._how(cache=True))
        found = [self._cold(SOURCE, "every epoch from the source", self._how()) if is_cold else tensors]
        if step is not None:
            found.append(self._way(RAM, "batches in RAM", functools.partial(self._run_batches, step=step)))
        if is_cold:
            found.append(tensors)
        if self.arrow:
            how = 'pyarrow.feather.write_feather(table, "rows.arrow", compression="uncompressed")'
            least_s = _LEAST_ARROW * self.chunk_s * min(1.0, self.settings.batch_size / self.mean_chunk)
            found.append(self._way(ARROW, "Arrow on SSD", self._run_arrow, how=how, least_s=least_s))
        if step is not None:
            make = self._cold if is_cold else self._warm
            found.append(make(SUPPLY, "today's path with no step behind it", has_step=False))
        return found

    def shared(self) -> Way:
        """Return batches in RAM with a loader at work beside them."""

        def run(seconds: float) -> PathRun:
            with self._warm_loader() as loader, at_work(loader) as want:
                return self._run_batches(seconds, step=self.settings.step, beside=want)

        return self._way(SHARED, "batches in RAM, a loader beside them", run)

    def more(self) -> list[Way]:
        """Return today's path with one thing changed, each where it applies."""
        is_cold = self.today == SOURCE
        made = (self._threads(), self._processes(), self._columns()) if is_cold else (self._larger(),)
        return [way for way in (*made, self._deduplicated()) if way is not None]

    def explore(self, seconds: float) -> None:
        """Run today's cold path until it has found out how many threads are worth it, and how fast it is about."""
        run = self._run_cold(seconds, has_step=False)
        if self.catalogue.is_remote:
            self.num_builders = run.num_builders
        self.rate_s = run.samples_s

    def from_memory(self, seconds: float, *, num_threads: int) -> PathRun:
        """Run today's cold path with the bytes in memory and no step behind it: what each stage takes alone."""
        same: dict[str, Any] = {"num_threads": num_threads, "num_builders": num_threads, "window": num_threads}
        with self._replaying():
            return self._run_cold(seconds, has_step=False, units=self.warm_units, **same)

    def cold_s(self, num_threads: int) -> float:
        """Return about what a run of a cold path takes before there is anything to measure: two windows of chunks."""
        num_builders = self.num_builders or num_threads
        return 2 * math.ceil(self._window(num_threads) / num_builders) * self.chunk_s

    # ------------------------------------------------------------------ each of them

    def _way(self, key: str, name: str, run: Callable[[float], PathRun], **more: Any) -> Way:
        return Way(**{"key": key, "name": name, "run": run, "batch_size": self.settings.batch_size, **more})

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
            sample_bytes=0.0 if self.tap is not None else read_share * self.data.source_bytes,
            least_s=self.cold_s(options.get("num_threads", self.settings.num_threads)),
            # More threads have more requests in flight, which a run waits for when it ends.
            times_today=_MORE_THREADS if key == THREADS and self.tap is not None else 1.0,
        )

    def _warm(
        self, key: str, name: str, how: str = "", *, has_step: bool = True, kept_share: float = 1.0, **options: Any
    ) -> Way:
        """Return a path from a warm cache with some of `_run_warm`'s options, which keeps a share of its bytes."""
        run = functools.partial(self._run_warm, has_step=has_step, **options)
        sample_bytes = kept_share * self.data.tensor_bytes
        return self._way(key, name, run, how=how, has_step=has_step, sample_bytes=sample_bytes)

    def _threads(self) -> Way:
        num = _MORE_THREADS * self.settings.num_threads
        num_builders = None if self.num_builders is None else max(self.num_builders, num)
        how = self._how(f"num_threads={num}")
        return self._cold(THREADS, f"{num} threads", how, num_threads=num, num_builders=num_builders)

    def _processes(self) -> Way | None:
        transform = dataset_of(self.catalogue).transform
        if transform is None or self.settings.transform_in == "processes" or not can_be_sent(transform):
            return None
        how = self._how('transform_in="processes"')
        return self._cold(PROCESSES, "the transform in processes", how, transform_in="processes")

    def _columns(self) -> Way | None:
        widest, share = self.data.widest_column, self.data.widest_share
        names = self.catalogue.schema.names
        if share < _MUCH or len(names) < 2:
            return None
        dataset = copy.copy(dataset_of(self.catalogue))
        dataset.columns = tuple(name for name in names if name != widest)
        try:
            catalogue = dataset.open()
        except (FieldError, ValueError):  # a field needs it
            return None
        how = f"Dataset(..., columns=[name for name in dataset.open().schema.names if name != {widest!r}])"
        units = spread_units(catalogue, len(self.units))
        return self._cold(COLUMNS, f"no column {widest}", how, read_share=1 - share, catalogue=catalogue, units=units)

    def _larger(self) -> Way | None:
        own = self.settings.batch_size
        batch_size = min(_LARGER_TIMES * own, int(self.mean_chunk))
        if batch_size < 2 * own:
            return None
        step = self.settings.step
        step = None if step is None else step.scaled(batch_size / own)
        settings = replace(self.settings, batch_size=batch_size, step=step)
        how = self._how(f"batch_size={batch_size}", cache=True)
        return replace(self._warm(LARGER, f"batches of {batch_size:,}", how, settings=settings), batch_size=batch_size)

    def _deduplicated(self) -> Way | None:
        repeated = self.data.repeated_share
        if repeated < _MUCH or not self.sharing:
            return None
        folder = self.scratch / "shared"
        share = {one.key: one.patterns or (one.key,) for one in self.sharing}
        try:
            catalogue = self.catalogue.sharing(share)
            with self._replaying(), self._warm_loader(catalogue=catalogue, folder=folder, num_times=1) as loader:
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
        return take(itertools.cycle(self.batches), seconds=seconds, **options)[0]

    def _run_arrow(self, seconds: float) -> PathRun:
        settings = self.settings
        arrays_of = converter(dataset_of(self.catalogue))
        with arrow_batches(
            self.arrow,
            convert=lambda table: settings.deliver(arrays_of(table)),
            batch_size=settings.batch_size,
            window=min(_MIN_WINDOW, len(self.arrow)),
            num_threads=settings.num_threads,
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
        settings, trace = self.settings, Trace()
        units, catalogue = units or self.units, catalogue or self.catalogue
        num_builders = num_builders or self.num_builders
        num_threads = options.get("num_threads", settings.num_threads)
        window = window or self._window(num_threads)
        turn = max(window * self.mean_chunk, _TURN_BATCHES * settings.batch_size)
        once = float(num_samples_of_units(catalogue, units).sum())
        most = _MEMORY_SHARE * free_memory_bytes() / max(1.0, self.data.tensor_bytes)
        wanted = _SPARE * (self.rate_s * seconds + 4 * turn) if self.rate_s else most
        num_times = min(round(min(wanted, most) / once + 0.5), 4 * _MOST_CHUNKS // sum(map(len, units)))
        dataset = SampledDataset(catalogue, units, num_times=max(1, num_times), num_builders=num_builders)
        with make_loader(dataset, settings, window=window, trace=trace, **options) as loader:
            step = settings.step if has_step else None
            mean_chunk = once / sum(map(len, units))
            return run_loader(loader, step=step, seconds=seconds, trace=trace, mean_chunk=mean_chunk, turn_samples=turn)

    def _run_warm(
        self, seconds: float, *, has_step: bool = True, settings: DoctorSettings | None = None, **options: Any
    ) -> PathRun:
        """Train from a warm cache: the sample's, or the one in `folder`."""
        settings = settings or self.settings
        with self._warm_loader(batch_size=settings.batch_size, **options) as loader:
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
        units = self.warm_units
        if num_times is None:
            num_times = max(1, min(_MOST_TIMES, _MOST_CHUNKS // sum(map(len, units))))
        dataset = SampledDataset(catalogue or self.catalogue, units, num_times=num_times, is_new=False)
        cache, size = folder or self.warm, batch_size or self.settings.batch_size
        return make_loader(dataset, self.settings, window=_MIN_WINDOW, cache=cache, batch_size=size)

    def _replaying(self) -> AbstractContextManager[None]:
        return nullcontext() if self.tap is None else self.tap.replaying()

    def _window(self, num_threads: int) -> int:
        """Return the chunks of a window: as many as the builders make at a time, so that turns are even."""
        num = self.num_builders or num_threads
        most = _WINDOW_SHARE * free_memory_bytes() / max(1.0, self.mean_chunk * self.data.tensor_bytes)
        # And a run must be long enough for several windows.
        chunks_s = num / max(1e-9, self.chunk_s)
        if self.rate_s:
            chunks_s = self.rate_s / self.mean_chunk * max(1.0, num_threads / self.settings.num_threads)
        in_time = _WINDOW_OF_BUDGET * self.settings.budget_s * chunks_s
        return max(1 if in_time < 1 else _MIN_WINDOW, min(int(min(most, in_time)), num))

    def _how(self, *changes: str, cache: bool = False) -> str:
        settings = self.settings
        said: dict[str, str] = {"batch_size": f"batch_size={settings.batch_size}"}
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


class SampledDataset(Dataset):
    """A data set that opens as some units of a catalogue; the options are those of `Catalogue.sampled`.

    They are there again and again, every time under another key, so that each is built anew and found in no cache: what
    a cold epoch of any length is measured on.

        data set   0 1 2 3 4 5 6 7 8 9 …              thousands of chunks
        chosen     0     3     6     9                 spread evenly
        sampled    0 3 6 9 0 3 6 9 0 3 6 9 …
    """

    def __init__(self, catalogue: Catalogue, units: Sequence[range], **options: Any) -> None:
        self.__dict__.update(catalogue.dataset.__dict__)
        self._sampled = catalogue.sampled(units, **options)

    def open(self, folder: Path | str | None = None, **_: Any) -> Catalogue:  # noqa: ARG002  nothing is kept of it
        """Return the sample."""
        return self._sampled


def spread_units(catalogue: Catalogue, num_units: int) -> list[range]:
    """Return up to `num_units` units with samples, spread evenly over the data set, in its order."""
    filled = np.flatnonzero(catalogue.num_samples)
    if not len(filled):
        return []
    chosen = filled[np.linspace(0, len(filled) - 1, min(num_units, len(filled))).astype(int)]
    units = (catalogue.unit(int(i)) for i in chosen)
    return list({unit[0]: unit for unit in units}.values())


def row_facts(catalogue: Catalogue, table: pa.Table, unit: range) -> dict[str, Any]:
    """Return what one unit's rows say, as fields of `DataFacts`: the widest column, bytes a sample.

    Args:
        catalogue: The data set.
        table: Rows of one of its units.
        unit: That unit.
    """
    fragment, sizes = catalogue.fragments[unit[0]], {name: table.column(name).nbytes for name in table.column_names}
    number = next((i for i, info in enumerate(catalogue.files) if info.url == fragment.url), None)
    at_source = dict[str, int]()
    if number is not None:  # compressed, in the unit's row groups, as the footer says
        footer = catalogue.footer(number)
        chunks = footer.numbers.chunks[fragment.row_groups.start : fragment.row_groups.stop]
        leaves = {name: footer.layout.leaves_of(name) for name in table.column_names}
        at_source = {name: int(chunks[:, own]["compressed_bytes"].sum()) for name, own in leaves.items() if own}
    at_source = at_source or sizes
    widest = max(at_source, key=lambda name: at_source[name], default="")
    return {
        "widest_column": widest,
        "widest_share": at_source.get(widest, 0) / (sum(at_source.values()) or 1),
        "source_bytes": sum(at_source.values()) / max(1, int(catalogue.num_rows[unit.start : unit.stop].sum())),
        "arrow_bytes": (sum(sizes.values()) or 1) / max(1, len(table)),
    }


def num_samples_of_units(catalogue: Catalogue, units: Sequence[range]) -> npt.NDArray[np.int64]:
    """Return the samples of each unit. [U]."""
    return np.array([catalogue.num_samples[unit.start : unit.stop].sum() for unit in units], np.int64)
