"""One whole epoch of one way, measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from stoker.demo.accelerator import Accelerator
from stoker.demo.data import CHECKED_COLUMN, checksum_of
from stoker.demo.link import MeteredLink
from stoker.demo.timeline import TimeRange, busy_over_time, busy_s, waited_s
from stoker.demo.ways.arrays import STACKED, num_rows_of
from stoker.demo.ways.way import Way
from stoker.fields.spec import Arrays, Ragged

BIN_S = 0.25


@dataclass(frozen=True, kw_only=True)
class EpochResult:
    """What one epoch of one way gave.

    Attributes:
        epoch: Number of the epoch.
        num_steps: Steps trained.
        num_rows: Rows in them.
        checksum: `checksum_of` those rows.
        wall_s: From asking for the first batch to the end of the last step.
        busy_s: Time in which the accelerator computed.
        waited_s: Time in which it had nothing to do because the loop was waiting for a batch.
        cpu_s: Processor time of all threads, Stoker's and the loop's.
        remote_bytes: Bytes that came over the link.
        busy_over_time: Share of each `BIN_S` in which the accelerator computed.
    """

    epoch: int
    num_steps: int
    num_rows: int
    checksum: int
    wall_s: float
    busy_s: float
    waited_s: float
    cpu_s: float
    remote_bytes: int
    busy_over_time: tuple[float, ...]


def measure_epoch(
    way: Way,
    *,
    epoch: int,
    accelerator: Accelerator,
    link: MeteredLink,
    on_batch: Callable[[Arrays], None] = lambda _: None,
) -> EpochResult:
    """Train one epoch and return what it gave.

    Args:
        way: Where the batches come from.
        epoch: Number of the epoch.
        accelerator: What trains.
        link: What the way reads through, for its meter.
        on_batch: Told of each batch, in the time that counts.
    """
    fetches: list[TimeRange] = []
    num_rows = checksum = 0
    remote_before = link.bytes_read
    cpu_before = time.process_time()
    start = asked = time.perf_counter()
    with closing(way.epoch(epoch)) as batches:
        for batch in batches:
            fetches.append(TimeRange(asked, time.perf_counter()))
            accelerator.step(batch)
            num_rows += num_rows_of(batch)
            checksum += _checksum(batch)
            on_batch(batch)
            asked = time.perf_counter()
        steps = accelerator.finish()
        stop = max(step.stop for step in steps) if steps else time.perf_counter()
        cpu_s = time.process_time() - cpu_before
    return EpochResult(
        epoch=epoch,
        num_steps=len(steps),
        num_rows=num_rows,
        checksum=checksum % 2**64,
        wall_s=stop - start,
        busy_s=busy_s(steps),
        waited_s=waited_s(fetches, steps, start=start),
        cpu_s=cpu_s,
        remote_bytes=link.bytes_read - remote_before,
        busy_over_time=tuple(busy_over_time(steps, start=start, stop=stop, bin_s=BIN_S)),
    )


def _checksum(batch: Arrays) -> int:
    for field, (columns, _) in STACKED.items():
        if CHECKED_COLUMN in columns:
            stacked = batch[field]
            assert not isinstance(stacked, Ragged)
            return checksum_of(stacked[:, columns.index(CHECKED_COLUMN)])
    raise AssertionError(f"no field holds {CHECKED_COLUMN}")
