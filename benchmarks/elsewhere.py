"""Fixes that the doctor cannot apply by itself: another link, another machine, another data set."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from benchmarks.planted import Case
from stoker import Dataset
from stoker.doctor.results import DoctorResult, Verified
from stoker.doctor.runs import Sample, run_source, run_tensors
from stoker.doctor.sampled import spread_units
from stoker.doctor.settings import DoctorSettings
from stoker.doctor.whole import Whole
from stoker.feed.chunks import open_chunks
from stoker.trace.stages import ignore_stage

Result = TypeVar("Result")

_SECONDS = 5.0
_MIN_WINDOW = 4


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
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_pin, initargs=(num_cores,)) as pool:
        return pool.submit(work, *arguments).result()


def _pin(num_cores: int) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:num_cores])


def _run(dataset: Dataset, settings: DoctorSettings, folder: Path, *, is_warm: bool, expected_s: float) -> Whole:
    """Return a run of a data set, from its source or from a cache that is warm."""
    chunks = open_chunks(
        dataset,
        cache=folder,
        limit_bytes=None,
        num_threads=settings.num_threads,
        transform_in="threads",
        on_stage=ignore_stage,
    )
    try:
        num_builders = chunks.num_builders(settings.num_threads)
        if is_warm:
            chunks.warm(num_threads=settings.num_threads)
    finally:
        chunks.close()
    catalogue = dataset.open()
    units = spread_units(catalogue, 64)
    sample = Sample(
        catalogue=catalogue,
        units=units,
        warm=folder,
        warm_units=units,
        arrow=(),
        tensor_bytes=0.0,
        window=max(_MIN_WINDOW, num_builders),
        num_threads=settings.num_threads,
        num_builders=num_builders,
    )
    if is_warm:
        return run_tensors(sample, settings, seconds=_SECONDS)
    return run_source(sample, settings, seconds=_SECONDS, expected_s=expected_s)
