"""Fixes that the doctor cannot apply by itself: another link, another machine, another data set."""

from __future__ import annotations

import math
import os
from bisect import bisect
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.measure import Result, in_a_new_process
from benchmarks.planted import Case
from stoker import Dataset, Loader
from stoker.dataset.catalogue import Catalogue
from stoker.doctor.fill import fill_cache
from stoker.doctor.results import DoctorResult, Verified
from stoker.doctor.runs import Sample, run_tensors
from stoker.doctor.sampled import SampledDataset, spread_units
from stoker.doctor.settings import DoctorSettings
from stoker.doctor.whole import Listener, Whole, built_rate, run_whole, stall_share, steady_rate
from stoker.loader.windows.in_use import num_windows_ahead

_SECONDS, _BEGIN_S, _CLIMB_S = 6.0, 1.0, 12.0
_NUM_UNITS, _WINDOW, _SPARE = 64, 64, 1.2
_MOST_BUILDERS = 64
# A loop that waited less was not limited by its batches.
_HARDLY = 0.05


def applied(case: Case, settings: DoctorSettings, result: DoctorResult, folder: Path) -> tuple[Verified, ...]:
    """Return what came of the fixes that were advised and that the case, but no run of the doctor, can apply."""
    found = []
    for fix in result.fixes:
        asked = settings
        if fix.key in case.instead:
            dataset = case.instead[fix.key](folder)
        elif fix.key == "cores" and case.num_cores is not None:
            dataset = case.dataset(folder)
            asked = replace(settings, num_threads=2 * case.num_cores)
        else:
            continue
        whole = _run(dataset, asked, folder / f"with-{fix.key}", is_warm=case.is_warm, expected_s=fix.predicted_s)
        if whole.rate is not None:
            found.append(Verified(fix=fix.key, text=fix.text, predicted_s=fix.predicted_s, measured=whole.rate))
    return tuple(found)


def on_cores(num_cores: int, work: Callable[..., Result], *arguments: object) -> Result:
    """Return `work(*arguments)` as a process of its own gives it, which may use so many processors."""
    result: Result = in_a_new_process(_pinned, num_cores, work, *arguments)
    return result


def _pinned(num_cores: int, work: Callable[..., Result], *arguments: object) -> Result:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:num_cores])
    return work(*arguments)


def _run(dataset: Dataset, settings: DoctorSettings, folder: Path, *, is_warm: bool, expected_s: float) -> Whole:
    """Return a run of a data set, from its source or from a cache that is warm."""
    catalogue = dataset.open()
    units = spread_units(catalogue, _NUM_UNITS)
    if not is_warm:
        whole = _from_source(catalogue, units, settings, expected_s=expected_s)
        # Again, in memory that this machine now has at hand: as the doctor looks at such a path.
        return whole if catalogue.is_remote else _from_source(catalogue, units, settings, expected_s=expected_s)
    fill_cache(dataset, folder, num_threads=settings.num_threads)
    sample = Sample(
        catalogue=catalogue,
        units=units,
        warm=folder,
        warm_units=units,
        arrow=(),
        tensor_bytes=0.0,
        window=4,
        num_threads=settings.num_threads,
    )
    return run_tensors(sample, settings, seconds=_SECONDS)


def _from_source(catalogue: Catalogue, units: Sequence[range], settings: DoctorSettings, *, expected_s: float) -> Whole:
    """Return the end of a run: in the beginning the loader finds out how many threads are worth it."""
    listener = Listener()
    # A local source is read by as many threads all along, and what is built meanwhile only fills memory.
    climb_s = _CLIMB_S if catalogue.is_remote else _BEGIN_S
    # No more than the run takes: where a cache in memory may become too small, few chunks are built ahead.
    num_samples = sum(int(catalogue.num_samples[unit.start : unit.stop].sum()) for unit in units)
    num_run = _SPARE * expected_s * (climb_s + _SECONDS)
    # In the end as many windows as may be are built ahead of those that were used.
    num_ahead = num_windows_ahead(_MOST_BUILDERS, _WINDOW) * _WINDOW * float(catalogue.num_samples.mean())
    num_times = math.ceil((num_run + num_ahead) / num_samples)
    dataset = SampledDataset(catalogue, units, num_times=num_times, on_stage=listener)
    options: dict[str, Any] = {"batch_size": settings.batch_size, "num_threads": settings.num_threads}
    with Loader(dataset, shuffle=True, window=_WINDOW, **options) as loader, closing(_once(loader)) as batches:
        whole = run_whole(batches, step=settings.step, seconds=climb_s + _SECONDS)
    from_s = whole.begun[-1] - _SECONDS
    at = bisect(whole.begun, from_s)
    if stall_share(whole) < _HARDLY:
        return replace(whole, rate=steady_rate(whole.begun[at:], whole.sizes[at:]))
    late = [unit for unit in listener.built if unit[1] > from_s]
    window_samples = _WINDOW * float(catalogue.num_samples.mean())
    return replace(whole, rate=built_rate(late, num_first=1, whole=whole, window_samples=window_samples))


def _once(loader: Loader) -> Generator[Any, None, None]:
    yield from loader
