"""What a loader takes of the interpreter's lock: how fast does Python go beside it?

    main thread      counts ····························· counts ·······························
    beside it        a thread takes batches               threads copy memory: no lock, as many cores
    loader threads   gather

A loop that does nothing but count is slowed by whoever holds the lock, and by whoever takes its core. The ceiling is
slowed by the latter alone: the same loop beside threads that copy as much as they can, and never ask for the lock. So
the ratio says what the lock costs on any number of cores; the remark says what both cost together.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Answer, compare, sized
from benchmarks.warm_gather import BATCH_SIZE, fixed_width
from stoker import Loader
from stoker.demo.data import DemoData
from stoker.host.machine import num_cores

_COUNTING_S = sized(1.0, small=0.05)
_COPY_BYTES = 64 << 20
# Operations of a step that does nothing but launch: some milliseconds of Python and torch, as an eager model's are.
_NUM_LAUNCHES, _NUM_STEPS = sized(1500, small=10), sized(100, small=5)


def run(data: DemoData, folder: Path, *, num_rounds: int, num_threads: int = 2) -> Answer:
    """A loop that counts, beside a loader whose batches another thread takes as fast as they come."""
    dataset = fixed_width(data)
    with Loader(
        dataset, batch_size=BATCH_SIZE, shuffle=True, cache=folder / "cache", num_threads=num_threads
    ) as loader:
        for _ in loader:  # or chunks would be built beside what is measured
            pass
        batches = 0

        def take(is_over: threading.Event) -> None:
            nonlocal batches
            while not is_over.is_set():
                for _ in loader:
                    batches += 1
                    if is_over.is_set():
                        break

        return compare(
            f"a loop that counts, beside {num_threads} loader threads / beside as many that copy",
            ours=lambda: _pace_beside([take]),
            ceiling=lambda: _pace_beside([_copy] * min(num_threads, num_cores())),
            unit="million counts/s",
            num_rounds=num_rounds,
            promise=0.95,
            remarks=lambda: (
                f"alone it counts {_pace():.0f} million a second",
                f"{batches / (num_rounds + 1) / _COUNTING_S:,.0f} batches of {BATCH_SIZE:,} rows a second meanwhile",
            ),
        )


run_many = partial(run, num_threads=16)


def run_launches(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Steps of many small operations with a batch each from the loader, against the same steps with one batch."""
    import torch

    from stoker.torch import TorchLoader

    small = torch.zeros(16)
    taken_s: list[float] = []

    def steps(batches: Iterable[object]) -> float:
        """Return steps a second; note what the loop's own thread works for a batch, which no other process slows."""
        iterator = iter(batches)
        start = time.perf_counter()
        for _ in range(_NUM_STEPS):
            asked_s = time.thread_time()
            next(iterator)
            taken_s.append(time.thread_time() - asked_s)
            for _ in range(_NUM_LAUNCHES):
                small.add_(1)
        return _NUM_STEPS / (time.perf_counter() - start)

    def steps_without() -> float:
        rate = steps(range(_NUM_STEPS))
        del taken_s[-_NUM_STEPS:]
        return rate

    batch_size = min(BATCH_SIZE, data.num_rows // _NUM_STEPS)
    options: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "num_threads": 2}
    with TorchLoader(fixed_width(data), cache=folder / "cache", **options) as loader:
        for _ in loader:
            pass
        return compare(
            "steps of small operations on the CPU, a batch each from the loader / without a loader",
            ours=lambda: steps(itertools.islice(loader, _NUM_STEPS)),
            ceiling=steps_without,
            unit="steps/s",
            num_rounds=num_rounds,
            promise=0.97,
            remarks=lambda: (
                f"{_NUM_LAUNCHES:,} operations a step, batches of {batch_size:,} rows",
                f"the loop's own thread works {statistics.median(taken_s) * 1e6:.0f} us to get a batch",
            ),
        )


def _copy(is_over: threading.Event) -> None:
    source = np.ones(_COPY_BYTES, dtype=np.uint8)
    target = np.empty_like(source)
    while not is_over.is_set():
        np.copyto(target, source)


def _pace_beside(works: list[Callable[[threading.Event], None]]) -> float:
    with _running(works):
        return _pace()


@contextmanager
def _running(works: list[Callable[[threading.Event], None]]) -> Iterator[None]:
    is_over = threading.Event()
    threads = [threading.Thread(target=work, args=(is_over,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def _pace() -> float:
    """Return how many million a second a loop counts."""
    count, start = 0, time.perf_counter()
    while (now := time.perf_counter()) < start + _COUNTING_S:
        for _ in range(1000):
            count += 1
    return count / (now - start) / 1e6
