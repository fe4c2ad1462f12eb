"""Who holds the GIL: a thread that sleeps again and again, and notes whether it got the GIL at once when it woke.

    work    ▓▓▓▓▓▓▓▓▓▓▓▓▓░░░░░░░░▓░▓░░░░▓▓▓▓▓▓▓          ▓ with the GIL, ░ without
    watch   ! !  !    !   ! .  . !  . . !    !           ! blocked a second time: held

The system counts how often a thread blocks: once to sleep, and once more where the GIL was held when it woke, for
however short a time. So the share of looks that blocked twice is the share of time in which the GIL was held, and
neither a busy processor nor a slow wake-up changes it.
"""

from __future__ import annotations

import random
import resource
import sys
import threading
import time
from collections.abc import Sequence
from typing import Self

import numpy as np

# A look every 2 ms costs the work under it about 1 %; 100 looks tell a share to a tenth. Never in step with the work.
_LEAST_S, _MOST_S = 1e-3, 3e-3
# How long whoever holds the GIL may keep it from us. Five times shorter than Python's own, so that looking is quick.
_SWITCH_S = 1e-3
# Where the system does not count: a look that is this much of a switch interval late has waited for the GIL, or a core.
_LATE = 0.4
NOISE = 0.01
"""What the share of time in which the GIL is held may be off: less says nothing."""


class GilWatch:
    """Watches the GIL inside a with block. Sets Python's switch interval meanwhile, and back.

    Attributes:
        cpu_s: Processor seconds that watching itself took.
    """

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self._looks: list[tuple[int, float, bool]] = []  # when, how long it stands for, whether it was held
        self._is_over = threading.Event()
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stoker-doctor-gil", daemon=True)
        self._switch_s = 0.0

    def __enter__(self) -> Self:
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        self._thread.start()
        self._has_begun.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        sys.setswitchinterval(self._switch_s)

    def held_share(self, spans: Sequence[tuple[int, int]]) -> float | None:
        """Return the share of time in which somebody else held the GIL; None where nobody looked.

        Args:
            spans: Start and stop in ns of `time.perf_counter_ns`: only looks inside them count.
        """
        if not self._looks or not spans:
            return None
        borders = np.array(sorted(spans), dtype=np.int64)
        at, seconds, held = (np.array(column) for column in zip(*self._looks, strict=True))
        # Spans of several threads overlap, but the one that began last before a look has not ended long before it.
        number = np.searchsorted(borders[:, 0], at, side="right") - 1
        inside = (number >= 0) & (at < np.maximum.accumulate(borders[:, 1])[np.maximum(number, 0)])
        return float(np.average(held[inside], weights=seconds[inside])) if inside.any() else None

    def _watch(self) -> None:
        cpu_s = time.thread_time()
        chance = random.Random(0)
        self._has_begun.set()
        last = time.perf_counter()
        while not self._is_over.is_set():
            before = _num_blocked()
            target = time.perf_counter() + chance.uniform(_LEAST_S, _MOST_S)
            time.sleep(max(0.0, target - time.perf_counter()))
            after, now = _num_blocked(), time.perf_counter()
            is_held = now - target > _LATE * _SWITCH_S if before is None or after is None else after > before + 1
            # A look stands for the time since the one before it, its own wait included: else times in which the GIL is
            # held, where looks take longer, would have fewer of them. Woken late on a busy machine, it looks later.
            self._looks.append((int((target if is_held else now) * 1e9), now - last, is_held))
            last = now
        self.cpu_s = time.thread_time() - cpu_s


def _num_blocked() -> int | None:
    """Return how often this thread has given up its processor to wait; None where the system does not tell."""
    who = getattr(resource, "RUSAGE_THREAD", None)  # Linux has it
    return None if who is None else resource.getrusage(who).ru_nvcsw
