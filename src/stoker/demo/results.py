"""What the demo found, as numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stoker.words import bytes_text

PLAIN, THREADS, ARROW, STOKER, RAM = "plain", "threads", "arrow", "stoker", "ram"
"""The keys of the ways, in the order they are shown."""

# Stoker has done its work when the accelerator is this busy, measured against batches in RAM.
GOAL = 0.95
BIN_S = 0.25


@dataclass(frozen=True, kw_only=True)
class EpochResult:
    """What one epoch of one way gave.

    Attributes:
        num_rows: Rows trained.
        checksum: `checksum_of` those rows.
        wall_s: From asking for the first batch to the end of the last step.
        busy_s: Time in which the accelerator computed.
        waited_s: Time in which it had nothing to do because the loop was waiting for a batch.
        cpu_s: Processor time of all threads, Stoker's and the loop's.
        remote_bytes: Bytes that came over the link.
        busy_over_time: Share of each `BIN_S` seconds in which the accelerator computed.
    """

    num_rows: int
    checksum: int
    wall_s: float
    busy_s: float
    waited_s: float
    cpu_s: float
    remote_bytes: int
    busy_over_time: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class TimeShares:
    """Several epochs taken together, as shares of their time.

    Attributes:
        busy: The accelerator computed.
        waited: It had nothing to do, for want of a batch.
        other: It had nothing to do for another reason: the loop's own work.
        rows_per_s: Rows trained a second.
        cores: Processor cores that worked on average.
        remote_bytes: Bytes an epoch that came over the link.
    """

    busy: float
    waited: float
    other: float
    rows_per_s: float
    cores: float
    remote_bytes: float

    @classmethod
    def of(cls, epochs: Sequence[EpochResult]) -> TimeShares:
        """Return epochs as shares of the time they took together."""

        def each(name: str, by: float = sum(epoch.wall_s for epoch in epochs)) -> float:
            return float(sum(getattr(epoch, name) for epoch in epochs)) / by

        busy, waited = each("busy_s"), each("waited_s")
        return cls(
            busy=busy,
            waited=waited,
            other=max(0.0, 1 - busy - waited),
            rows_per_s=each("num_rows"),
            cores=each("cpu_s"),
            remote_bytes=each("remote_bytes", len(epochs)),
        )


@dataclass(frozen=True, kw_only=True)
class WayResult:
    """One way's epochs, all of them whole.

    Attributes:
        key: Which way.
        name: What it is called on the screen.
        how: What it does, in a sentence.
        epochs: Its epochs, in order.
        has_all_rows: Whether it was given all rows; only the ceiling may lack some, for want of memory.
    """

    key: str
    name: str
    how: str
    epochs: tuple[EpochResult, ...]
    has_all_rows: bool = True

    @property
    def first(self) -> TimeShares:
        """The first epoch."""
        return TimeShares.of(self.epochs[:1])

    @property
    def later(self) -> TimeShares:
        """The epochs behind the first; the first itself where there is no other."""
        return TimeShares.of(self.epochs[1:] or self.epochs)

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
    """All that the demo found.

    Attributes:
        ways: The ways, in the order they are shown.
        checks: What was checked, and whether it holds.
        num_rows: Rows of the data set.
        num_epochs: Epochs of each way, but for slow ones on a slow machine.
        setting: What all ways were given, by name: data set, remote store, accelerator, length of a step.
        machine: What it ran on, by name; the versions of what did the work, too.
        wall_s: Seconds of everything.
        when: Date of the run.
        notes: What a reader should know beside the numbers.
    """

    ways: tuple[WayResult, ...]
    checks: tuple[Check, ...]
    num_rows: int
    num_epochs: int
    setting: dict[str, str]
    machine: dict[str, str]
    wall_s: float
    when: str
    notes: tuple[str, ...]

    def later(self, key: str) -> TimeShares:
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
        data: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        for way, described in zip(self.ways, data["ways"], strict=True):
            described |= {"first": asdict(way.first), "later": asdict(way.later)}
        return data | {name: getattr(self, name) for name in ("of_ceiling", "times_plain", "checks_hold")}

    @property
    def conclusion(self) -> str:
        """Two lines: how busy Stoker keeps the accelerator, and the cores that Stoker and the Arrow cache use."""
        stoker, arrow = self.later(STOKER), self.later(ARROW)
        says = (
            f"Stoker's later epochs keep the accelerator {stoker.busy:.0%} busy: {self.of_ceiling:.0%} "
            f"of what batches in RAM do, and {self.times_plain:.1f} times the rows of plain Parquet reads."
        )
        if self.of_ceiling < GOAL:
            says += f" That is below the {GOAL:.0%} it should be; was the machine busy with something else?"
        return (
            f"{says}\nFor that it used {stoker.cores:.1f} cores on average. The cache of Arrow tables used "
            f"{arrow.cores:.1f} to keep the accelerator {arrow.busy:.0%} busy."
        )

    def figures(self, way: WayResult) -> dict[str, str]:
        """Return a way's line of the table, by the heads of its columns."""
        later = way.later
        return {
            # What lies in RAM has no first epoch: it was loaded before.
            "busy,\nfirst": "" if way.key == RAM else f"{way.first.busy:.0%}",
            "busy,\nlater epochs": f"{later.busy:.1%}",
            "\nwaits": f"{later.waited:.0%}",
            "other\nidle": f"{later.other:.0%}",
            "\nrows/s": f"{later.rows_per_s:,.0f}",
            "times\nplain": f"{later.rows_per_s / self.later(PLAIN).rows_per_s:.1f}",
            "cores\nused": f"{later.cores:.1f}",
            "from remote,\nan epoch": bytes_text(later.remote_bytes) if later.remote_bytes else "none",
        }
