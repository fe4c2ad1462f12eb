"""The whole paths, each as a run of its own: what today's gives, and what a fix really gives."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stoker.dataset.catalogue import Catalogue
from stoker.dataset.dataset import dataset_of
from stoker.doctor.arrow import ArrowBatches, converter
from stoker.doctor.costs import Plan
from stoker.doctor.flow import num_short_of, rate_of
from stoker.doctor.sampled import SampledDataset, spread_units
from stoker.doctor.settings import DoctorSettings
from stoker.doctor.whole import Listener, Whole, as_one, built_rate, run_whole, stall_share, steady_rate
from stoker.errors import FieldError
from stoker.host.machine import free_memory_bytes
from stoker.loader.loader import Loader
from stoker.loader.windows.in_use import num_windows_ahead

# Of the free memory that a cold run may fill with chunks.
_MEMORY_SHARE = 0.2
# Windows that a cold run should come to, at least.
_NUM_WINDOWS = 5
# An epoch of warm chunks is so many times as long as the sample, or has so many chunks.
_MOST_TIMES = 200
_MOST_CHUNKS = 4_096
# So many times as long a run of very uneven units is.
_MOST_LONGER = 2
# Beside its time, a run of Arrow goes on for this share of it before it counts.
_UNCOUNTED = 0.3
# A loop that waited less than this was not limited by its batches.
_HARDLY = 0.05


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What the runs run on.

    Attributes:
        catalogue: The data set.
        units: Units for cold runs, from the source.
        warm: Folder of a cache that holds `warm_units`.
        warm_units: Units for warm runs.
        arrow: Arrow files of some of them.
        tensor_bytes: Bytes a sample as a finished record.
        window: Chunks that are mixed together.
        num_threads: Threads that the loader was told.
        widest_column: The column with most bytes at the source; "" where that is not known.
        shared: The same with repeated features kept once; None where nothing repeats.
    """

    catalogue: Catalogue
    units: Sequence[range]
    warm: Path
    warm_units: Sequence[range]
    arrow: Sequence[Path]
    tensor_bytes: float
    window: int
    num_threads: int
    widest_column: str = ""
    shared: Sample | None = None

    @property
    def mean_unit(self) -> float:
        """Samples of a unit."""
        return sum(int(self.catalogue.num_samples[u.start : u.stop].sum()) for u in self.units) / len(self.units)

    @property
    def evenness(self) -> float:
        """So many of the units, all of one size, would say as much as these do together: a share; 1 of even ones."""
        sizes = [int(self.catalogue.num_samples[u.start : u.stop].sum()) for u in self.units]
        return sum(sizes) ** 2 / (len(sizes) * sum(size**2 for size in sizes))

    @property
    def longer(self) -> float:
        """So many times as long as of even units a run of them takes."""
        return min(1 / self.evenness, _MOST_LONGER)

    @property
    def mean_chunk(self) -> float:
        """Samples of a chunk."""
        numbers = [i for unit in self.units for i in unit]
        return float(self.catalogue.num_samples[numbers].mean())


def warm_up(sample: Sample, settings: DoctorSettings, plan: Plan, *, seconds: float) -> None:
    """Load from the source for a while and leave it: what comes then finds memory that this machine has at hand.

    A loop without a cache goes on in memory that it has used before. What a first run takes is new, and a virtual
    machine that gives free memory back has to get every page of it from its host: chunks of 5 MB that take 26 ms of a
    processor to make took 12 ms more, in the first run alone.
    """
    num_times = _num_times(sample, rate_of(plan) * seconds + _NUM_WINDOWS * plan.window * sample.mean_chunk)
    dataset = SampledDataset(sample.catalogue, sample.units, num_times=num_times, num_builders=plan.num_builders)
    end = time.perf_counter() + seconds
    with _loader(dataset, settings, window=plan.window, cache=None) as loader, closing(_once(loader)) as batches:
        for _ in batches:
            if time.perf_counter() > end:
                break


def run_source(
    sample: Sample, settings: DoctorSettings, plan: Plan, *, seconds: float, listener: Listener | None = None
) -> Whole:
    """Train from the source, with nothing in any cache.

    Args:
        sample: What to run on.
        settings: How.
        plan: What is expected of it: as many chunks are made ready, and as many threads build from the beginning as
            would in a long epoch.
        seconds: How long, from the first batch on.
        listener: Told what builds.
    """
    expected_s, window, num_builders = rate_of(plan), plan.window, plan.num_builders
    window_s = window * sample.mean_chunk / expected_s
    # A few whole windows: less says nothing where batches come window by window.
    windows_s = min((_NUM_WINDOWS - 1) * window_s, 3 * seconds)
    # And longer where a few huge units say it all: how they fall in the order is half of what a short run shows.
    seconds = max(seconds, windows_s, sample.longer * seconds)
    # And as far ahead as it would come to ask: what a huge unit takes is more than a run of even ones.
    num_short = num_short_of(plan) if sample.evenness < 1 else 0
    num_windows = _NUM_WINDOWS + num_windows_ahead(num_builders, window, num_short=num_short)
    num_times = _num_times(sample, expected_s * seconds * 1.5 + num_windows * window * sample.mean_chunk)
    listener = listener if listener is not None else Listener()
    dataset = SampledDataset(
        sample.catalogue,
        sample.units,
        num_times=num_times,
        on_stage=listener,
        num_builders=num_builders,
        num_short=num_short,
    )
    with _loader(dataset, settings, window=window, cache=None) as loader, closing(_once(loader)) as batches:
        window_batches = window * sample.mean_chunk / settings.batch_size
        whole = run_whole(batches, step=settings.step, seconds=seconds, window_batches=window_batches)
    if stall_share(whole) < _HARDLY:
        # The loop had what it wanted: batches came one by one, at the step's pace, and building in bursts ahead of it.
        return replace(whole, rate=steady_rate(whole.begun, whole.sizes))
    window_samples = window * sample.mean_chunk / sample.evenness
    rate = built_rate(listener.built, num_first=num_builders, whole=whole, window_samples=window_samples)
    return whole if rate is None else replace(whole, rate=rate)


def _num_times(sample: Sample, num_samples: float) -> int:
    """Return how often the units come, to make so many samples, or as many as fit into memory."""
    most = _MEMORY_SHARE * free_memory_bytes() / max(1.0, sample.tensor_bytes)
    return max(1, round(min(num_samples, most) / (sample.mean_unit * len(sample.units)) + 0.5))


def without_widest(sample: Sample) -> Sample | None:
    """Return what runs on the data set without its widest column; None where that column is needed."""
    dataset = copy.copy(dataset_of(sample.catalogue))
    dataset.columns = tuple(name for name in sample.catalogue.schema.names if name != sample.widest_column)
    try:
        catalogue = dataset.open()
    except (FieldError, ValueError):
        return None
    return replace(sample, catalogue=catalogue, units=spread_units(catalogue, len(sample.units)))


def run_tensors(sample: Sample, settings: DoctorSettings, *, seconds: float) -> Whole:
    """Train from a warm cache."""
    with _loader(_warm_dataset(sample), settings, window=sample.window, cache=sample.warm) as loader:
        num_once = -(-sum(len(unit) for unit in sample.warm_units) * sample.mean_chunk // settings.batch_size)
        end = time.perf_counter() + seconds
        for i, _ in enumerate(loader):  # maps, checks, touches: once
            if i >= num_once or time.perf_counter() > end:
                break
        runs: list[Whole] = []
        end = time.perf_counter() + seconds
        while not runs or time.perf_counter() < end:
            with closing(_once(loader)) as batches:
                runs.append(run_whole(batches, step=settings.step, seconds=end - time.perf_counter()))
        return runs[0] if len(runs) == 1 else as_one(runs)


def run_arrow(sample: Sample, settings: DoctorSettings, *, seconds: float) -> Whole:
    """Train from Arrow on SSD."""
    source = ArrowBatches(
        sample.arrow,
        convert=converter(dataset_of(sample.catalogue)),
        batch_size=settings.batch_size,
        window=min(sample.window, len(sample.arrow)),
        num_threads=settings.num_threads,
    )
    with closing(source):
        batches = iter(source)
        end = time.perf_counter() + seconds * _UNCOUNTED
        while time.perf_counter() < end:  # memory that is new to the allocator is so once
            next(batches)
        return run_whole(batches, step=settings.step, seconds=seconds)


def run_in_processes(sample: Sample, settings: DoctorSettings, *, seconds: float) -> Whole:
    """Train from the source, the transform in processes: each opens the data set itself, so all of it is there."""
    dataset = sample.catalogue.dataset
    options = replace(settings, transform_in="processes")
    window = sample.window
    with _loader(dataset, options, window=window, cache=None) as loader, closing(_once(loader)) as batches:
        window_batches = window * sample.mean_chunk / settings.batch_size
        return run_whole(batches, step=settings.step, seconds=seconds, window_batches=window_batches)


def warm_loader(sample: Sample, settings: DoctorSettings) -> Callable[[int], Loader]:
    """Return what makes a loader with a batch size on the warm cache."""
    dataset = _warm_dataset(sample)

    def make(batch_size: int) -> Loader:
        return _loader(dataset, replace(settings, batch_size=batch_size), window=sample.window, cache=sample.warm)

    return make


def _warm_dataset(sample: Sample) -> SampledDataset:
    """Return the chunks of the warm cache again and again: epochs are long, and windows open as often as they do."""
    num_chunks = sum(len(unit) for unit in sample.warm_units)
    num_times = max(1, min(_MOST_TIMES, _MOST_CHUNKS // num_chunks))
    return SampledDataset(sample.catalogue, sample.warm_units, num_times=num_times, is_new=False)


def _loader(dataset: Any, settings: DoctorSettings, *, window: int, cache: Path | None) -> Loader:
    return settings.make_loader(
        dataset,
        batch_size=settings.batch_size,
        shuffle=True,
        window=window,
        cache=cache,
        num_threads=settings.num_threads,
        prefetch=settings.prefetch,
        transform_in=settings.transform_in,
    )


def _once(loader: Loader) -> Generator[Any, None, None]:
    yield from loader
