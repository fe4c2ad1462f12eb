"""Fixes that are tried for a while, because no experiment with anything else tells what they give."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from stoker.cache.threads import WORTH
from stoker.cache.workers import can_be_sent
from stoker.doctor.builders import with_fewer
from stoker.doctor.clock import PLANNED, Clock
from stoker.doctor.costs import Plan
from stoker.doctor.flow import rate_of
from stoker.doctor.probe_fetch import FetchCost
from stoker.doctor.results import SOURCE, TENSORS
from stoker.doctor.runs import Sample, run_in_processes, run_source, run_tensors, without_widest
from stoker.doctor.settings import DoctorSettings
from stoker.doctor.tap import Tap
from stoker.doctor.together import settled
from stoker.doctor.whatif import (
    FASTER,
    MORE_THREADS,
    MUCH,
    faster_network,
    fewer_columns,
    in_processes,
    more_threads,
    shared_features,
)
from stoker.doctor.whole import Listener, Whole, build_cpu_s
from stoker.doctor.whole_paths import WholePaths
from stoker.errors import StokerError
from stoker.storage.storage import Storage
from stoker.testing import SlowStorage

# Share of the budget for each.
_SHARE = 0.12
# A run for less says nothing of itself.
_LEAST_S = 0.5
# Windows that a rate is taken of, and those in which processes have long begun and have not come to their end.
_NUM_WINDOWS, _NUM_WINDOWS_APART = 3, 8
# What stages alone promise for uneven units is not believed beyond so many times what they give now.
_FASTER_AT_MOST = 1.5
# A few kept units stand for a data set whose units are this even.
_EVEN = 0.9


@dataclass(kw_only=True)
class TryFixes:
    """What is needed to try fixes of today's path.

    Attributes:
        sample: What to run on.
        settings: How the examination runs.
        clock: The budget.
        paths: The whole paths, run.
        today: Key of the one that samples take now.
        may_open_again: Whether the data set is opened quickly enough to do so for a trial.
        widest_share: Share that the widest column has of the bytes at the source.
        widest_cpu_share: Share that it has of what decoding and converting cost.
        tap: What the source is read through; None where it is local.
        fetched: Units whose bytes the tap has kept.
        fetch: What fetching costs.
    """

    sample: Sample
    settings: DoctorSettings
    clock: Clock
    paths: WholePaths
    today: str
    may_open_again: bool
    widest_share: float
    widest_cpu_share: float
    tap: Tap | None
    fetched: Sequence[range]
    fetch: FetchCost

    def __post_init__(self) -> None:
        self._num_left = 1

    def all(self) -> dict[str, Plan]:
        """Return the plan that each fix makes as a run of it has shown it, by its key.

        Those are left out that are no fixes of this path, for which no time is left, or that did not run.
        """
        if self.paths.is_fed():
            return {}
        trials: Mapping[str, Callable[[], Plan | None]] = {
            SOURCE: {
                "threads": self._threads,
                "processes": self._processes,
                "columns": self._columns,
                "network": self._network,
            },
            TENSORS: {"share": self._share},
        }[self.today]
        found: dict[str, Plan] = {}
        for i, (key, trial) in enumerate(trials.items()):
            self._num_left = len(trials) - i
            # What works on the samples as they are may not work on them otherwise, and is no advice then.
            with contextlib.suppress(StokerError):
                if (plan := trial()) is not None:
                    found[key] = plan
        return found

    def _threads(self) -> Plan | None:
        """What threads lose by each other, fewer of them do not tell."""
        num_threads = MORE_THREADS * self.settings.num_threads
        plan = more_threads(self.paths.alone(SOURCE), num_more=num_threads - self.settings.num_threads)
        if (seconds := self._seconds(plan)) is None:
            return None
        self.clock.say(f"the whole path, with {num_threads} threads")
        return self._from_source(plan, self.sample, replace(self.settings, num_threads=num_threads), seconds=seconds)

    def _columns(self) -> Plan | None:
        """A column of lists costs other work than one of numbers that has as many bytes."""
        if not self.may_open_again or self.widest_share < MUCH or len(self.sample.catalogue.schema) < 2:
            return None
        plan = self.paths.alone(SOURCE)
        plan = fewer_columns(plan, share=self.widest_share, cpu_share=self.widest_cpu_share)
        seconds, sample = self._seconds(plan), without_widest(self.sample)
        if seconds is None or sample is None:
            return None
        self.clock.say(f"the whole path, without {self.sample.widest_column}")
        return self._from_source(plan, sample, self.settings, seconds=seconds, is_less=True)

    def _processes(self) -> Plan | None:
        """Each process opens the data set for itself, and all of it: the sample cannot be sent there."""
        sample, settings = self.sample, self.settings
        catalogue = sample.catalogue
        transform = catalogue.dataset.transform
        has_transform = transform is not None and settings.transform_in == "threads"
        if not has_transform or not self.may_open_again or catalogue.is_remote or not can_be_sent(transform):
            return None
        plan = in_processes(self.paths.settled()[SOURCE], num_processes=settings.num_threads)
        seconds = self._seconds(plan, num_windows=_NUM_WINDOWS_APART)
        if seconds is None or len(catalogue) < _NUM_WINDOWS_APART * sample.window:
            return None
        self.clock.say("the whole path, the transform in processes")
        whole = run_in_processes(sample, settings, seconds=seconds)
        # What others used and what processes of our own did cannot be told apart from here.
        return self._settled(plan, replace(whole, cores_left=plan.machine.cores))

    def _network(self) -> Plan | None:
        """Behind a faster link something else limits, of which a run behind the slow one showed little."""
        plan = faster_network(self.paths.alone(SOURCE), times=FASTER)
        fewer = with_fewer(plan)
        if fewer is not None:
            self._num_left += 1
        found = self._behind_faster_link(plan)
        if found is None or fewer is None or rate_of(found) >= WORTH * rate_of(fewer):
            return found
        # As a loader does that has tried so many: they are not worth their memory.
        return self._behind_faster_link(fewer) or found

    def _behind_faster_link(self, plan: Plan) -> Plan | None:
        sample = replace(self.sample, units=self.fetched)
        seconds = self._seconds(plan)
        if self.tap is None or seconds is None or sample.evenness < _EVEN:
            return None
        self.clock.say("the whole path, behind a link twice as fast")
        with self.tap.replaying(self._faster_link):
            return self._from_source(plan, sample, self.settings, seconds=seconds, is_less=True)

    def _faster_link(self, kept: Storage) -> Storage:
        """Return what was kept, behind a link like the one there is, with more bandwidth."""
        fetch = self.fetch
        return SlowStorage(
            kept,
            latency_s=fetch.wait_s / 2,  # of a read and of a look at the object
            bandwidth_bytes_s=FASTER * fetch.bytes_s,
            connection_bytes_s=FASTER * fetch.connection_bytes_s,
        )

    def _share(self) -> Plan | None:
        """What is read less is read faster, what is spread out again is written as before: which counts is open."""
        seconds = self.clock.slice_s(_SHARE)
        if self.sample.shared is None or seconds < _LEAST_S:
            return None
        self.clock.say("a warm cache of shared features")
        whole = run_tensors(self.sample.shared, self.settings, seconds=seconds)
        if whole.rate is None:
            return None
        times = whole.rate.samples_s / self.paths.measured[TENSORS].samples_s
        return self._settled(shared_features(self.paths.settled()[TENSORS], times=times), whole)

    def _seconds(self, plan: Plan, *, num_windows: int = _NUM_WINDOWS) -> float | None:
        """Return how long to run a plan, None where that is longer than there is time."""
        window_s = plan.window * self.sample.mean_chunk / rate_of(plan)
        left_s = self.clock.left_s
        # Behind one that only fills the pipe; and what was begun when the time is over has to end.
        beside_s = 2 * window_s
        least_s = num_windows * window_s
        if self.sample.evenness < _EVEN:
            # Which of the units came says more than how fast they came: all of them, once.
            now = self.paths.measured[self.today].samples_s
            rate_s = min(rate_of(plan), _FASTER_AT_MOST * now)
            least_s = max(least_s, self.sample.mean_unit * len(self.sample.units) / rate_s / self.sample.longer)
        if least_s + beside_s > left_s:
            return None
        # No more than its part: trials that come later tell what no other does, too. But all that was kept back for
        # experiments that end late: the last trials come when the plan's time is over.
        part_s = (left_s / self._num_left - beside_s) / self.sample.longer
        return max(_LEAST_S, least_s, min(_SHARE * PLANNED * self.settings.budget_s, part_s))

    def _from_source(
        self, plan: Plan, sample: Sample, settings: DoctorSettings, *, seconds: float, is_less: bool = False
    ) -> Plan | None:
        """Return the plan as a run of it from the source has shown it.

        Args:
            plan: As each stage alone says.
            sample: What to run on.
            settings: How.
            seconds: How long.
            is_less: Whether it is today's path with less to do, or to wait for. That is never slower: where a short run
                was, the machine was, and nothing is promised.
        """
        listener = Listener()
        whole = run_source(sample, settings, plan, seconds=seconds, listener=listener)
        least_s = self.paths.measured[self.today].samples_s if is_less else 0.0
        return self._settled(plan, whole, cpu_s=build_cpu_s(listener), least_s=least_s)

    @staticmethod
    def _settled(plan: Plan, whole: Whole, *, cpu_s: float | None = None, least_s: float = 0.0) -> Plan | None:
        if whole.rate is None:
            return None
        measured_s = max(whole.rate.samples_s, least_s)
        return settled(plan, build_cpu_s=cpu_s, measured_s=measured_s, cores_left=whole.cores_left)
