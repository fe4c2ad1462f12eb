"""Whole paths, each run for a while: what today's gives, and what the others do."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Mapping

from stoker.doctor import probe_machine
from stoker.doctor.bounds import demand_of
from stoker.doctor.causes import KEEPS_UP
from stoker.doctor.clock import Clock
from stoker.doctor.costs import Plan
from stoker.doctor.flow import rate_of
from stoker.doctor.results import ARROW, SOURCE, TENSORS, Rate, RunSpan
from stoker.doctor.runs import Sample, run_arrow, run_source, run_tensors, warm_up
from stoker.doctor.settings import DoctorSettings
from stoker.doctor.together import computes, settled
from stoker.doctor.whole import Listener, Whole, build_cpu_s, mean_rate, spans_of
from stoker.errors import SourceError

# Shares of the budget for today's path, for what it does before it counts, and for each run of another one.
_TODAY, _WARM_UP, _OTHERS = 0.12, 0.08, 0.035
# A path that runs for less says nothing of itself.
_LEAST_S = 0.5
# One of which three windows take more of the budget is not run.
_LONGEST = 0.6
# Of what is left when everything else is done: runs take longer than they count.
_AGAIN = 0.6


class WholePaths:
    """The runs of whole paths, in turn, within the budget.

    Args:
        sample: What they run on.
        settings: How.
        clock: The budget.
        plans: The paths as each stage alone says, by key.
        today: Key of the one that samples take now.
        step_s: Seconds of a step on the device; 0.0 without one.

    Attributes:
        measured: Rates of those that ran.
        timeline: A stretch of today's.
        notes: What a reader should know.
    """

    def __init__(
        self,
        sample: Sample,
        settings: DoctorSettings,
        clock: Clock,
        plans: Mapping[str, Plan],
        *,
        today: str,
        step_s: float,
    ) -> None:
        self.measured: dict[str, Rate] = {}
        self.timeline: tuple[RunSpan, ...] = ()
        self.notes: list[str] = []
        self._sample = sample
        self._settings = settings
        self._clock = clock
        self._plans = plans
        self._today = today
        self._step_s = step_s
        self._rates: dict[str, list[Rate]] = {}
        self._seconds: dict[str, list[float]] = {}
        self._cores_left: dict[str, list[float]] = {}
        self._speeds: list[float] = []
        self._listener = Listener()

    def run(self) -> None:
        """Run each: today's in the middle, the others before and behind it.

        A machine's pace changes from one second to the next where others work on it: what is short is looked at twice.
        """
        others = sorted({ARROW, TENSORS} & self._plans.keys() - {self._today})
        for key in (*others, self._today, *reversed(others)):
            self._run(key)

    def run_again(self) -> None:
        """Look at the other paths once more, each for its part of the time that is left.

        Where neighbours on the same host come and go, a core's pace changes by a third from one second to the next: the
        longer is looked, the less a moment counts. What the step holds back gives the same at any pace.
        """
        keys = [key for key in (ARROW, TENSORS) if key in self.measured and key != self._today]
        keys = [key for key in keys if not self._feeds(key)]
        left_s = self._clock.left_s
        for key in keys:
            seconds = min(_AGAIN * left_s / len(keys), _TODAY * self._settings.budget_s)
            if seconds >= _LEAST_S:
                self._run(key, seconds=seconds)

    @property
    def speeds(self) -> tuple[float, ...]:
        """Of the processors behind each of the runs; see `Pace`."""
        return tuple(self._speeds)

    @property
    def cores_left(self) -> float | None:
        """Processors that others left to today's; None where it did not run."""
        left = self._cores_left.get(self._today)
        return None if left is None else statistics.fmean(left)

    def alone(self, key: str) -> Plan:
        """Return a plan as each stage alone says."""
        return self._plans[key]

    def settled(self) -> dict[str, Plan]:
        """Return the plans with what the runs have shown."""
        plans = dict(self._plans)
        for key, rate in self.measured.items():
            plans[key] = settled(
                plans[key],
                build_cpu_s=build_cpu_s(self._listener) if key == SOURCE else None,
                measured_s=rate.samples_s,
                cores_left=statistics.fmean(self._cores_left[key], self._seconds[key]),
            )
        return plans

    def is_fed(self) -> bool:
        """Return whether today's path gives what the step takes; True where it did not run, for nothing is known."""
        return self._today not in self.measured or self._feeds(self._today)

    def _feeds(self, key: str) -> bool:
        demand = demand_of(self._plans[key])
        return demand is not None and self.measured[key].samples_s >= KEEPS_UP * demand

    def _run(self, key: str, *, seconds: float | None = None) -> None:
        """Run a path: today's for longer, unless told."""
        settings, clock, sample, plan = self._settings, self._clock, self._sample, self._plans[key]
        if seconds is None:
            seconds = clock.slice_s(_TODAY if key == self._today else _OTHERS)
        if seconds < _LEAST_S and key != self._today:
            return
        if key == SOURCE:
            seconds /= sample.longer  # trials of it, which take longer, too, need time as well
        window_s = plan.window * sample.mean_chunk / rate_of(plan)
        if key == SOURCE and 3 * window_s > _LONGEST * settings.budget_s:
            self.notes.append("One window takes too long to be measured whole: today's rate is the model's.")
            return
        clock.say(f"the whole path: {key}" if key != SOURCE else "the whole path, from the source")
        with contextlib.suppress(SourceError):
            whole: Whole
            if key == SOURCE:
                if computes(plan):
                    warm_up(sample, settings, plan, seconds=clock.slice_s(_WARM_UP))
                whole = run_source(sample, settings, plan, seconds=seconds, listener=self._listener)
            elif key == ARROW:
                whole = run_arrow(sample, settings, seconds=seconds)
            else:
                whole = run_tensors(sample, settings, seconds=seconds)
            # What is verified later is compared with these runs: so is the speed of the processors.
            self._speeds.append(probe_machine.pace().speed)
            if whole.rate is not None:
                self._cores_left.setdefault(key, []).append(whole.cores_left)
                self._rates.setdefault(key, []).append(whole.rate)
                self._seconds.setdefault(key, []).append(seconds)
                self.measured[key] = mean_rate(self._rates[key], self._seconds[key])
            if key == self._today and whole.got:
                at = min(len(whole.got) - 1, len(whole.got) // 2)
                self.timeline = spans_of(
                    whole,
                    self._listener,
                    step_s=self._step_s,
                    from_s=whole.asked[at],
                    length_s=min(max(window_s, 10 * _period_s(plan)), whole.wall_s / 2),
                )


def _period_s(plan: Plan) -> float:
    return plan.batch_size / min(rate_of(plan), demand_of(plan) or math.inf)
