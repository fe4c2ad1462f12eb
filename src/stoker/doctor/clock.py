"""The budget of an examination: who may take how long."""

from __future__ import annotations

import time
from dataclasses import dataclass

from stoker.doctor.settings import DoctorSettings

PLANNED = 0.75
"""Planned for of the budget: every experiment ends a little late, and most of all on a busy machine."""
# What is left of it when all is tried: for what was begun and ends late, and for working it all out.
_AFTER_S = 6.0


@dataclass(kw_only=True)
class Clock:
    """The budget."""

    settings: DoctorSettings
    start_s: float

    def say(self, what: str) -> None:
        """Tell what is measured now."""
        self.settings.on_progress(what, min(1.0, (time.perf_counter() - self.start_s) / self.settings.budget_s))

    @property
    def left_s(self) -> float:
        """Seconds in which something may still be tried, with what was planned for experiments that take longer."""
        return self.start_s + self.settings.budget_s - _AFTER_S - time.perf_counter()

    def slice_s(self, share: float) -> float:
        """Return the seconds of a share of the budget: less where time runs out."""
        budget_s = PLANNED * self.settings.budget_s
        left_s = max(0.0, budget_s - (time.perf_counter() - self.start_s))
        return max(0.05, min(share * budget_s, 0.8 * left_s))

    def until(self, share: float) -> float:
        """Return the end of a share that begins now, by `time.perf_counter`."""
        return time.perf_counter() + self.slice_s(share)
