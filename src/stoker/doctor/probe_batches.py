"""The warm loader: batches from a filled cache, as fast as they can be taken, at several batch sizes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from stoker.doctor.gilwatch import GilWatch
from stoker.doctor.meter import Contention
from stoker.doctor.results import BatchPoint, Rate
from stoker.doctor.sweep import fixed_and_each
from stoker.doctor.whole import middle, num_samples_of
from stoker.host.machine import cores
from stoker.loader.loader import Loader

# Between 1 / 16 of the batch size and 8 times it: enough to tell what a batch costs from what a sample costs.
_FACTORS = (1 / 16, 1 / 4, 1, 4, 8)
_NUM_ROUNDS = 3
# Enough to have every kind of lateness among them.
_MAX_GAPS = 4_096
# Batches at an epoch's beginning that do not count.
_FIRST = 8


@dataclass(frozen=True, kw_only=True)
class WarmCost:
    """What batches from a warm cache take.

    Attributes:
        rate: Samples/s at the batch size asked for, with nobody to wait for.
        fixed_s: Seconds that a batch takes whatever its size: one at a time, as they are handed over.
        each_cpu_s: Processor seconds that each sample adds.
        each_gil_s: Of these, with the GIL held.
        points: Each batch size and its rate.
        gaps: Seconds between one batch and the next at the batch size asked for.
        frozen: Some batches, to train on again and again.
        by_size: One batch of each size, for the step.
    """

    rate: Rate
    fixed_s: float
    each_cpu_s: float
    each_gil_s: float
    points: tuple[BatchPoint, ...]
    gaps: tuple[float, ...]
    frozen: tuple[Any, ...]
    by_size: tuple[Any, ...]


def probe_warm(
    make_loader: Callable[[int], Loader], *, batch_size: int, num_samples: int, num_frozen: int, seconds: float
) -> WarmCost:
    """Return what batches from a warm cache take.

    Args:
        make_loader: Makes a loader with a batch size, on a cache that has everything.
        batch_size: The one that counts.
        num_samples: Of an epoch.
        num_frozen: Batches to keep.
        seconds: Time for all of it.
    """
    sizes = sorted({min(num_samples, max(1, round(batch_size * factor))) for factor in _FACTORS})
    # Half of the time for the size that counts, the rest for those that tell it apart.
    own_s, other_s = seconds / (2 * (_NUM_ROUNDS + 1)), seconds / (4 * max(1, len(sizes) - 1))
    gaps: list[float] = []
    walls: list[tuple[int, float]] = []
    cpus: list[tuple[int, float]] = []
    points: list[BatchPoint] = []
    rate: Rate | None = None
    frozen: tuple[Any, ...] = ()
    by_size: list[Any] = []
    gil_share = 0.0
    for size in sizes:
        is_it = size == min(num_samples, batch_size)
        with make_loader(size) as loader:
            each_s = own_s if is_it else other_s
            _drain(loader, seconds=each_s, num_batches=max(1, num_samples // size))  # maps, checks, touches: once
            noted = gaps if is_it else []
            found = [_drain(loader, seconds=each_s, gaps=noted) for _ in range(_NUM_ROUNDS if is_it else 1)]
            if is_it:
                rate = middle([num * size / wall_s for num, wall_s, _ in found])
                watch = GilWatch()
                start = time.perf_counter_ns()
                with watch:
                    _, watched_s, cpu_s = _drain(loader, seconds=each_s / 2)
                held = watch.held_share([(start, time.perf_counter_ns())]) or 0.0
                gil_share = min(1.0, held * watched_s / max(cpu_s, 1e-9))
                frozen = tuple(_take(loader, num_frozen))
            by_size.append(_take(loader, 1)[0])
        # The quickest round is the one that others disturbed least.
        num, wall_s, cpu_s = min(found, key=lambda round_: round_[1] / round_[0])
        walls.append((size, wall_s / num))
        cpus.append((size, cpu_s / num))
        points.append(BatchPoint(batch_size=size, loader_s=num * size / wall_s, step_s=None))
    assert rate is not None, "the batch size is one of the sizes"
    fixed_s, _ = fixed_and_each(walls)
    fixed_cpu_s, each_cpu_s = fixed_and_each(cpus)
    # What a batch takes of the processors, whatever its size, it takes with the GIL: two threads do it no faster than
    # one, however many cores there are. The rest of it is memory.
    fixed_s = max(fixed_s, fixed_cpu_s)
    gil_s = max(0.0, gil_share * dict(cpus)[min(num_samples, batch_size)] - fixed_cpu_s) / batch_size
    return WarmCost(
        rate=rate,
        fixed_s=fixed_s,
        each_cpu_s=each_cpu_s,
        each_gil_s=min(gil_s, each_cpu_s),
        points=tuple(points),
        gaps=tuple(gaps[-_MAX_GAPS:]),
        frozen=frozen,
        by_size=tuple(by_size),
    )


def _drain(
    loader: Loader, *, seconds: float, num_batches: int | None = None, gaps: list[float] | None = None
) -> tuple[int, float, float]:
    """Take batches for some time, or so many, and return how many, the seconds and the processor seconds.

    Seconds between one batch and the next are added to `gaps`.

    The beginning of each epoch, where the first window is opened, is left out: real epochs are long.
    """
    total = 0
    wall_s = total_cpu_s = 0.0
    contention = Contention(cores())
    begun = time.perf_counter()
    while True:
        num_steps = len(loader)
        skipped = min(_FIRST, num_steps // 4)
        start, cpu_s, num, left = time.perf_counter(), time.process_time(), 0, cores()
        contention.begin()
        is_over = False
        last = start
        for i, _ in enumerate(loader, 1):
            now = time.perf_counter()
            if i == skipped:
                contention.begin()
                start, cpu_s = time.perf_counter(), time.process_time()
            elif i > skipped and gaps is not None:
                gaps.append(now - last)
            last = now
            num = max(0, i - skipped)
            is_over = (now - begun >= seconds and num >= _FIRST) or (num_batches is not None and i >= num_batches)
            if i == num_steps or (is_over and num):
                took_s, took_cpu_s = time.perf_counter() - start, time.process_time() - cpu_s
                left = contention.cores_left()
            if is_over and num:
                break
        total += num
        total_cpu_s += took_cpu_s
        # As it would be on a machine of one's own: no faster than its cores, but without others in the way.
        wall_s += max(took_s * min(1.0, left / cores()), took_cpu_s / cores())
        if is_over and total:
            return total, wall_s, total_cpu_s


def _take(loader: Loader, num_batches: int) -> Sequence[Any]:
    """Return some batches; they stay valid as long as someone holds them."""
    batches = []
    for batch in chain(loader, loader):
        batches.append(batch)
        if len(batches) >= num_batches:
            break
    whole = max(num_samples_of(batch) for batch in batches)
    return [batch for batch in batches if num_samples_of(batch) == whole]
