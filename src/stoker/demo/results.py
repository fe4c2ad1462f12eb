"""What the demo found, as numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

PLAIN, THREADS, ARROW, STOKER, RAM = "plain", "threads", "arrow", "stoker", "ram"
"""The keys of the ways, in the order they are shown."""

# Stoker has done its work when the accelerator is this busy, measured against batches in RAM.
GOAL = 0.95
_SHARES = ("busy", "waited", "other", "rows_per_s", "cores", "remote_bytes")


@dataclass(frozen=True, kw_only=True)
class EpochResult:
    """What one epoch of one way gave, or some on average."""

    num_rows: float
    checksum: int
    wall_s: float  # from asking for the first batch to the end of the last step
    busy_s: float  # in which the accelerator computed
    waited_s: float  # in which it had nothing to do because the loop was waiting for a batch
    cpu_s: float  # of all threads, Stoker's and the loop's
    remote_bytes: float  # that came over the link

    @property
    def busy(self) -> float:
        """Share of the time in which the accelerator computed."""
        return self.busy_s / self.wall_s

    @property
    def waited(self) -> float:
        """Share of the time in which it had nothing to do, for want of a batch."""
        return self.waited_s / self.wall_s

    @property
    def other(self) -> float:
        """Share of the time in which it had nothing to do for another reason: the loop's own work."""
        return max(0.0, 1 - self.busy - self.waited)

    @property
    def rows_per_s(self) -> float:
        """Rows trained a second."""
        return self.num_rows / self.wall_s

    @property
    def cores(self) -> float:
        """Processor cores that worked on average."""
        return self.cpu_s / self.wall_s


@dataclass(frozen=True, kw_only=True)
class WayResult:
    """One way's epochs, all of them whole: what it is called, and how it works in a sentence."""

    key: str
    name: str
    how: str
    epochs: tuple[EpochResult, ...]
    has_all_rows: bool = True  # only the ceiling may lack some, for want of memory

    @property
    def later(self) -> EpochResult:
        """The epochs behind the first, on average; the first itself where there is no other."""
        later = self.epochs[1:] or self.epochs
        names = (one.name for one in fields(EpochResult) if one.name != "checksum")
        return replace(later[0], **{name: sum(getattr(one, name) for one in later) / len(later) for name in names})

    @property
    def wall_s(self) -> float:
        """Seconds of all epochs."""
        return sum(epoch.wall_s for epoch in self.epochs)


@dataclass(frozen=True, kw_only=True)
class Check:
    """Something the demo made sure of: a statement, whether it is so, and on which evidence."""

    text: str
    holds: bool
    detail: str


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """All that the demo found; ways, setting and machine in the order in which they are shown."""

    ways: tuple[WayResult, ...]
    checks: tuple[Check, ...]
    num_rows: int
    num_epochs: int  # of each way, but for slow ones on a slow machine
    setting: dict[str, str]  # what all ways were given, by name
    machine: dict[str, str]
    wall_s: float
    when: str
    notes: tuple[str, ...]  # what a reader should know beside the numbers

    def later(self, key: str) -> EpochResult:
        """Return the later epochs of one way."""
        return next(way.later for way in self.ways if way.key == key)

    @property
    def of_ceiling(self) -> float:
        """How busy Stoker's later epochs keep the accelerator, as a share of what batches in RAM do."""
        return self.later(STOKER).busy / self.later(RAM).busy

    @property
    def times_plain(self) -> float:
        """Rows a second of Stoker's later epochs over those of plain reads."""
        return self.later(STOKER).rows_per_s / self.later(PLAIN).rows_per_s

    @property
    def checks_hold(self) -> bool:
        """Whether all checks hold."""
        return all(check.holds for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON can write it, the figures that are worked out included."""
        data = asdict(self)
        for way, described in zip(self.ways, data["ways"], strict=True):
            for name, one in (("first", way.epochs[0]), ("later", way.later)):
                described[name] = {share: getattr(one, share) for share in _SHARES}
        return data | {name: getattr(self, name) for name in ("of_ceiling", "times_plain", "checks_hold")}
