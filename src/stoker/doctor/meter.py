"""Processor time by stage: what the walls of a busy machine do not tell."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self


@dataclass
class StageTimes:
    """What one stage took, added up.

    Attributes:
        cpu_s: Processor seconds of the threads that did it.
        wall_s: Seconds from beginning to end.
        num_bytes: Bytes that it gave.
        spans: Start and stop of each piece, in ns of `time.perf_counter_ns`.
    """

    cpu_s: float = 0.0
    wall_s: float = 0.0
    num_bytes: int = 0
    spans: list[tuple[int, int]] = field(default_factory=list)


class CpuMeter:
    """An `OnStage` that gives each stage the processor time since its thread was last told of one.

    Stages of a thread follow each other without a gap, each told at its end: what the thread's clock has gone on by
    then is what the stage took. Fetching is told in the middle of decoding; it waits and takes next to nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = threading.local()
        self.times: dict[str, StageTimes] = {}

    def begin(self) -> None:
        """Say that this thread begins now."""
        self._last.cpu_s = time.thread_time()

    def __call__(self, stage: str, start_ns: int, stop_ns: int, num_bytes: int) -> None:
        """Add one piece of work."""
        now = time.thread_time()
        took_s = now - getattr(self._last, "cpu_s", now)
        self._last.cpu_s = now
        with self._lock:
            # Told twice of one reading: the waits inside it, then decoding, which took all of the processor.
            times = self.times.setdefault(stage, StageTimes())
            if stage == "fetch":
                self.times.setdefault("decode", StageTimes()).cpu_s += took_s
            else:
                times.cpu_s += took_s
            times.wall_s += (stop_ns - start_ns) / 1e9
            times.num_bytes += num_bytes
            times.spans.append((start_ns, stop_ns))


class Contention:
    """How many processors this process could have had in a stretch of time in which others wanted them too.

    The system counts for every thread how long it ran and how long it wanted to and could not:

        ran / (ran + waited) of the cores are ours     while no more of our threads want to run than there are cores
        ran / seconds                                  otherwise: they took all there was

    Args:
        cores: Processors of the machine.
    """

    def __init__(self, cores: float) -> None:
        self._cores = cores
        self.begin()

    def begin(self) -> Self:
        """Begin anew."""
        self._at_s, self._cpu_s, self._before = time.perf_counter(), time.process_time(), _run_and_waited()
        return self

    def cores_left(self) -> float:
        """Return the processors that were to be had since the beginning; all of them where the system does not tell."""
        wall_s, ran_s = time.perf_counter() - self._at_s, time.process_time() - self._cpu_s
        after = _run_and_waited()
        known = [(after[thread], self._before.get(thread, (0, 0))) for thread in after]
        known_ran = sum(now[0] - then[0] for now, then in known)
        known_waited = sum(now[1] - then[1] for now, then in known)
        if known_ran <= 0 or wall_s <= 0 or ran_s <= 0:
            return self._cores
        # Threads that have ended took their waits along: they waited like those that live.
        wanted = ran_s * (1 + known_waited / known_ran) / wall_s
        return min(self._cores, ran_s / wall_s * max(1.0, self._cores / wanted))


def _run_and_waited() -> dict[str, tuple[int, int]]:
    """Return of each thread the ns it ran and those it waited for a processor; empty where the system says nothing."""
    found: dict[str, tuple[int, int]] = {}
    tasks = Path("/proc/self/task")
    try:
        names = os.listdir(tasks)  # noqa: PTH208  names alone
    except OSError:
        return found
    for name in names:
        try:
            ran, waited, _ = (tasks / name / "schedstat").read_text().split()
        except (OSError, ValueError):  # it has just ended, or the system has no such file
            continue
        found[name] = (int(ran), int(waited))
    return found


def in_threads(num_threads: int, work: Callable[[int], None]) -> float:
    """Run `work(0)`, `work(1)`, … each in a thread of its own, and return the seconds until all are done.

    Raises:
        BaseException: What one of them raised, once all have ended.
    """
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # it belongs to the caller's thread
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(i,), name=f"stoker-doctor-{i}", daemon=True) for i in range(num_threads)
    ]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return time.perf_counter() - start
