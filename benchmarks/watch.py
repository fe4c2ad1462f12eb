"""`stoker.watch` at 1,000 steps a second: how near to the same loop unwatched?"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import stoker
from benchmarks.measure import Answer, compare, sized
from stoker.demo.data import DemoData

STEP_S = 1e-3
NUM_STEPS = sized(200, small=5)
NUM_BLOCKS = sized(8, small=2)
NUM_EMPTY_STEPS = sized(200_000, small=500)


class Batches:
    """A loader that costs nothing."""

    def __init__(self, num: int) -> None:
        self.num = num

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.num))


def run(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:  # noqa: ARG001  every question takes them
    """Ask it."""
    work = bytes(_bytes_for(STEP_S))
    empty = Batches(NUM_EMPTY_STEPS)
    alone_s = min(_epoch_s(stoker.watch(empty), b"") - _epoch_s(empty, b"") for _ in range(3))
    return compare(
        "a loop of 1 ms steps, watched / not watched",
        ours=lambda: _rate(stoker.watch(Batches(NUM_STEPS)), work),
        ceiling=lambda: _rate(Batches(NUM_STEPS), work),
        unit="steps/s of processor time",
        num_rounds=num_rounds,
        promise=0.99,
        remarks=lambda: (
            f"watching costs {alone_s / NUM_EMPTY_STEPS * 1e9:,.0f} ns a step by itself, of {STEP_S * 1e6:,.0f} µs",
        ),
    )


def _rate(batches: Iterable[int], work: bytes) -> float:
    """Return the steps a second of the best of some blocks: other processes only ever make one slower."""
    return NUM_STEPS / min(_epoch_s(batches, work) for _ in range(NUM_BLOCKS))


def _epoch_s(batches: Iterable[int], work: bytes) -> float:
    start = time.thread_time()
    for _ in batches:
        if work:
            zlib.crc32(work)
    return time.thread_time() - start


def _bytes_for(seconds: float) -> int:
    """Return how many bytes take so long to check."""
    probe = bytes(1 << 20)
    best = min(_epoch_s(Batches(1), probe) for _ in range(20))
    return max(1, round(len(probe) * seconds / best))
