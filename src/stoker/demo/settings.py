"""What the demo may be asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from stoker.demo.data import NUM_ROWS, SEED
from stoker.demo.link import BANDWIDTH_BYTES_S, LATENCY_S
from stoker.host.machine import num_cores


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """How to run the demo.

    Args:
        folder: Where the data set is kept from run to run, and the caches while it runs.
        num_rows: Rows of the data set.
        num_epochs: Epochs that each way trains.
        num_threads: Threads of every way but the one with four times as many.
        latency_s: Latency of the simulated remote store.
        bandwidth_bytes_s: Its bandwidth.
        html: Where the page is written; None writes none.
        seed: Seed of the data and of every order.
        command: How a reader runs the same again.

    Raises:
        ValueError: A number is out of range.
    """

    folder: Path
    num_rows: int = NUM_ROWS
    num_epochs: int = 3
    num_threads: int = field(default_factory=num_cores)
    latency_s: float = LATENCY_S
    bandwidth_bytes_s: float = BANDWIDTH_BYTES_S
    html: Path | None = None
    seed: int = SEED
    command: str = "stoker demo"

    def __post_init__(self) -> None:
        if self.num_epochs < 2:
            raise ValueError(f"the demo compares first and later epochs: it needs 2 at least, not {self.num_epochs}")
        if self.num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, not {self.num_threads}")
        if self.bandwidth_bytes_s <= 0 or self.latency_s < 0:
            raise ValueError("the link needs a bandwidth above 0 and a latency of at least 0")
