"""Processor time by stage: what the walls of a busy machine do not tell."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

# Shorter stretches say nothing of who had the processors.
_LEAST_S = 0.1
_LEAST_CORES = 0.05
# What the system itself takes of an idle machine, at most: nobody else is there.
_SYSTEMS_SHARE = 0.04


@dataclass
class StageTimes:
    """What one stage took, added up.

    Attributes:
        cpu_s: Processor seconds of the threads that did it.
        wait_s: Seconds in which they neither had a processor nor wanted one: they waited for something else.
        wall_s: Seconds from beginning to end.
        num_bytes: Bytes that it gave.
        spans: Start and stop of each piece, in ns of `time.perf_counter_ns`.
    """

    cpu_s: float = 0.0
    wait_s: float = 0.0
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
        self._last.delay_s = _delay_s()

    def __call__(self, stage: str, start_ns: int, stop_ns: int, num_bytes: int) -> None:
        """Add one piece of work."""
        now = time.thread_time()
        took_s = now - getattr(self._last, "cpu_s", now)
        self._last.cpu_s = now
        delay_s = _delay_s()
        delayed_s, self._last.delay_s = delay_s - getattr(self._last, "delay_s", delay_s), delay_s
        with self._lock:
            # Told twice of one reading: the waits inside it, then decoding, which took all of the processor.
            times = self.times.setdefault(stage, StageTimes())
            if stage == "fetch":
                self.times.setdefault("decode", StageTimes()).cpu_s += took_s
            else:
                times.cpu_s += took_s
            times.wait_s += max(0.0, (stop_ns - start_ns) / 1e9 - took_s - delayed_s)
            times.wall_s += (stop_ns - start_ns) / 1e9
            times.num_bytes += num_bytes
            times.spans.append((start_ns, stop_ns))


class Contention:
    """How many processors this process could have had in a stretch of time: those it used, and those that stood idle.

    What others used in that time was not to be had, whether they came first or took their turn.

    Args:
        cores: Processors of the machine.
    """

    def __init__(self, cores: float) -> None:
        self._cores = cores
        self.begin()

    def begin(self) -> Self:
        """Begin anew."""
        self._at_s, self._cpu_s, self._idle_s = time.perf_counter(), time.process_time(), _idle_s()
        return self

    def cores_left(self) -> float:
        """Return the processors that were to be had since the beginning; all of them where the system does not tell."""
        wall_s, idle_s = time.perf_counter() - self._at_s, _idle_s()
        # The system counts idling in hundredths of a second.
        if idle_s is None or self._idle_s is None or wall_s < _LEAST_S:
            return self._cores
        left = (time.process_time() - self._cpu_s + idle_s - self._idle_s) / wall_s
        return self._cores if left >= (1 - _SYSTEMS_SHARE) * self._cores else max(_LEAST_CORES, left)


def _idle_s() -> float | None:
    """Return how long the processors this process may use have been idle; None where the system does not tell."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        fields = [line.split() for line in lines if line.split(" ", 1)[0] in ours]
        return sum(int(idle) + int(waiting) for _, _, _, _, idle, waiting, *_ in fields) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None


def _delay_s() -> float:
    """Return how long this thread has waited for a processor so far; 0 where the system does not tell."""
    try:
        return int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


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
