"""Applying a fix for a short run: predicted beside measured."""

from __future__ import annotations

import contextlib
import copy
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from stoker.doctor import probe_machine
from stoker.doctor.costs import Plan
from stoker.doctor.flow import rate_of
from stoker.doctor.results import ARROW, SOURCE, TENSORS, Fix, Verified
from stoker.doctor.runs import Sample, run_arrow, run_in_processes, run_source, run_tensors, without_widest
from stoker.doctor.settings import DoctorSettings
from stoker.doctor.whatif import Change, at_speed, with_cores
from stoker.doctor.whole import Whole, mean_rate
from stoker.errors import TransformError

# Windows of a data set in which processes have long begun, and have not come to its end.
_MANY_WINDOWS = 8
TODAY = "today"
"""Key of no fix at all: today's path, measured like the others."""


def verify(
    fixes: Sequence[Fix],
    changes: Sequence[Change],
    sample: Sample,
    settings: DoctorSettings,
    *,
    today: str,
    seconds: float,
    speeds: Sequence[float],
) -> Verified | None:
    """Apply the best fix that can be applied here, and return what came out; None where none can.

    What is predicted is for the cores that others leave while it runs, and for the speed that these have then, as what
    is measured is, where that is another one.

    Args:
        fixes: Best first.
        changes: The plans behind them.
        sample: What to run on.
        settings: How the examination ran.
        today: Key of the path that samples take now.
        seconds: How long.
        speeds: Of the processors while the plans were measured, look by look; see `Pace`.
    """
    plans = {change.key: change.plan for change in changes}
    attempt = partial(_tried, speeds=speeds, looks=[], today=today, seconds=seconds)
    tried = (attempt(fix, plans[fix.key], sample, settings) for fix in fixes)
    return next((verified for verified in tried if verified is not None), None)


def verify_all(
    fixes: Sequence[Fix],
    changes: Sequence[Change],
    sample: Sample,
    settings: DoctorSettings,
    *,
    today: str,
    seconds: float,
    speeds: Sequence[float],
) -> tuple[Verified, ...]:
    """Apply every fix that can be applied here, and return what came out; arguments as for `verify`.

    Each is applied twice, the second time in the other order: what else a machine does, it does
    for some seconds.
    """
    plans = {change.key: change.plan for change in changes}
    attempt = partial(_tried, speeds=speeds, looks=[], today=today, seconds=seconds)
    rounds: dict[str, list[Verified]] = {}
    for fix in (*fixes, *reversed(fixes)):
        if (verified := attempt(fix, plans[fix.key], sample, settings)) is not None:
            rounds.setdefault(fix.key, []).append(verified)
    return tuple(_together(each) for each in rounds.values())


def _together(rounds: Sequence[Verified]) -> Verified:
    """Return several applications of one fix as one."""
    return replace(
        rounds[0],
        predicted_s=statistics.fmean(each.predicted_s for each in rounds),
        measured=mean_rate([each.measured for each in rounds]),
    )


def faster_by(then: Sequence[float], now: Sequence[float]) -> float:
    """Return how many times as fast the processors are now; near 1.0 where their looks hardly tell them apart.

    Looks are short, and neighbours on the same host come and go: on some machines two in a row are half as far apart
    again. So a difference is believed for the share of it that chance does not explain.

    Args:
        then: Speeds of some looks, two at least; see `Pace`.
        now: Of others.

    Source:
        James and Stein, "Estimation with Quadratic Loss", 1961: an estimate shrunk by what of its square is doubt.
    """
    difference = math.log(statistics.fmean(now) / statistics.fmean(then))
    if not difference:
        return 1.0
    doubt = sum(statistics.variance([math.log(speed) for speed in looks]) / len(looks) for looks in (then, now))
    return math.exp(difference * max(0.0, 1 - doubt / difference**2))


def _tried(
    fix: Fix,
    plan: Plan,
    sample: Sample,
    settings: DoctorSettings,
    *,
    speeds: Sequence[float],
    looks: list[float],
    today: str,
    seconds: float,
) -> Verified | None:
    """Return what came of a fix; adds to the looks at the processors' speed."""
    before = probe_machine.pace()
    whole = apply(fix, plan, sample, settings, today=today, seconds=seconds)
    if whole is None or whole.rate is None:
        return None
    after = probe_machine.pace()
    looks += [before.speed, after.speed]
    # What processes of their own used is not in our clock.
    cores_left = (before.cores + after.cores) / 2 if fix.key == "processes" else whole.cores_left
    then = at_speed(with_cores(plan, cores_left), faster_by(speeds, looks))
    return Verified(fix=fix.key, text=fix.text, predicted_s=rate_of(then), measured=whole.rate)


def apply(
    fix: Fix, plan: Plan, sample: Sample, settings: DoctorSettings, *, today: str, seconds: float
) -> Whole | None:
    """Return a run with a fix applied; None where that takes another machine."""
    run = _runs(fix, plan, sample, settings, today=today, seconds=seconds).get(fix.key)
    return None if run is None else run()


def _runs(
    fix: Fix, plan: Plan, sample: Sample, settings: DoctorSettings, *, today: str, seconds: float
) -> dict[str, Callable[[], Whole | None]]:
    """Return how each fix is applied."""
    runs: dict[str, Callable[[], Whole | None]] = {
        TODAY: lambda: (
            run_source(sample, settings, plan, seconds=seconds)
            if today == SOURCE
            else run_tensors(sample, settings, seconds=seconds)
        ),
        TENSORS: lambda: run_tensors(sample, settings, seconds=seconds),
        ARROW: lambda: run_arrow(sample, settings, seconds=seconds),
    }
    if today == SOURCE:
        more = replace(settings, num_threads=_threads(fix, settings))
        runs["threads"] = lambda: run_source(sample, more, plan, seconds=seconds)
        runs["columns"] = lambda: _without_widest(sample, settings, plan, seconds=seconds)
        if not sample.catalogue.is_remote and len(sample.catalogue) >= _MANY_WINDOWS * sample.window:
            # Each process opens the data set itself, so it cannot be given some of its chunks again and again.
            runs["processes"] = lambda: run_in_processes(sample, settings, seconds=seconds)
    if today == TENSORS and (shared := sample.shared) is not None:
        runs["share"] = lambda: run_tensors(shared, settings, seconds=seconds)
    if today == TENSORS:
        batch_size = min(settings.batch_size * 4, max(1, int(sample.mean_chunk)))
        larger = replace(settings, batch_size=batch_size)
        if settings.step is None:  # a step on other batches takes another time
            runs["batch"] = lambda: run_tensors(copy.copy(sample), larger, seconds=seconds)
    return runs


def _without_widest(sample: Sample, settings: DoctorSettings, plan: Plan, *, seconds: float) -> Whole | None:
    less = without_widest(sample)
    if less is None:
        return None
    with contextlib.suppress(TransformError):  # it is the transform that needs the column
        return run_source(less, settings, plan, seconds=seconds)
    return None


def _threads(fix: Fix, settings: DoctorSettings) -> int:
    digits = fix.how.rpartition("=")[2]
    return int(digits) if digits.isdigit() else settings.num_threads
