"""Applying a fix for a short run: predicted beside measured."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

from stoker.doctor.costs import Plan
from stoker.doctor.results import ARROW, SOURCE, TENSORS, Fix, Rate, Verified
from stoker.doctor.runs import Sample, run_arrow, run_in_processes, run_source, run_tensors
from stoker.doctor.settings import DoctorSettings


def verify(
    fixes: Sequence[Fix], sample: Sample, settings: DoctorSettings, today: Plan, *, seconds: float
) -> Verified | None:
    """Apply the best fix that can be applied here, and return what came out; None where none can.

    Args:
        fixes: Best first.
        sample: What to run on.
        settings: How the examination ran.
        today: The plan of the path that samples take now.
        seconds: How long.
    """
    for fix in fixes:
        rate = apply(fix, sample, settings, today, seconds=seconds)
        if rate is not None:
            return Verified(fix=fix.key, text=fix.text, predicted_s=fix.predicted_s, measured=rate)
    return None


def apply(fix: Fix, sample: Sample, settings: DoctorSettings, today: Plan, *, seconds: float) -> Rate | None:
    """Return the rate with a fix applied; None where that takes another machine, or too little came to tell."""
    run = _runs(fix, sample, settings, today, seconds=seconds).get(fix.key)
    return None if run is None else run()


def _runs(
    fix: Fix, sample: Sample, settings: DoctorSettings, today: Plan, *, seconds: float
) -> dict[str, Callable[[], Rate | None]]:
    """Return how each fix is applied."""
    rate_s = fix.predicted_s
    runs: dict[str, Callable[[], Rate | None]] = {
        TENSORS: lambda: run_tensors(sample, settings, seconds=seconds).rate,
        ARROW: lambda: run_arrow(sample, settings, seconds=seconds).rate,
    }
    if today.path == SOURCE:
        more = replace(settings, num_threads=_threads(fix, settings))
        runs |= {
            "threads": lambda: run_source(sample, more, seconds=seconds, expected_s=rate_s).rate,
            "processes": lambda: run_in_processes(sample, settings, seconds=seconds, expected_s=rate_s).rate,
        }
    if today.path == TENSORS:
        batch_size = min(settings.batch_size * 4, max(1, int(sample.mean_chunk)))
        larger = replace(settings, batch_size=batch_size)
        if settings.step is None:  # a step on other batches takes another time
            runs["batch"] = lambda: run_tensors(copy.copy(sample), larger, seconds=seconds).rate
    return runs


def _threads(fix: Fix, settings: DoctorSettings) -> int:
    digits = fix.how.rpartition("=")[2]
    return int(digits) if digits.isdigit() else settings.num_threads
