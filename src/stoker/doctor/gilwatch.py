"""Who holds the GIL: a thread that wakes at fixed times and notes whether it had to wait for it.

    work    ▓▓▓▓▓▓▓▓▓▓▓▓▓░░░░░░░░░░░░░▓▓▓▓▓▓▓          ▓ with the GIL, ░ without
    watch   !    !    !    .    .    .    !    !         ! waited for it: held

A look that finds the GIL held takes a whole switch interval, one that does not takes microseconds; time that the thread
waited for a core, which looks alike, is known from the system and subtracted. So the share of looks that waited is the
share of time in which the GIL was held, on a busy machine as on a quiet one.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

# A look every 2 ms costs the work under it less than 1 %; 100 looks tell a share to a tenth.
_EVERY_S = 2e-3
# How long whoever holds the GIL may keep it from us. Five times shorter than Python's own, so that looking is quick.
_SWITCH_S = 1e-3
# Of that: between what a free GIL takes (50 microseconds) and what a held one does.
_HELD = 0.4


class GilWatch:
    """Watches the GIL inside a with block. Sets Python's switch interval meanwhile, and back.

    Attributes:
        cpu_s: Processor seconds that watching itself took.
    """

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self._looks: list[tuple[int, bool]] = []
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
        at = np.array([at for at, _ in self._looks], dtype=np.int64)
        held = np.array([held for _, held in self._looks])
        # Spans of several threads overlap, but the one that began last before a look has not ended long before it.
        number = np.searchsorted(borders[:, 0], at, side="right") - 1
        inside = (number >= 0) & (at < np.maximum.accumulate(borders[:, 1])[np.maximum(number, 0)])
        return float(held[inside].mean()) if inside.any() else None

    def _watch(self) -> None:
        cpu_s = time.thread_time()
        with _Delays() as delay_s:
            self._has_begun.set()
            target = time.perf_counter()
            while not self._is_over.is_set():
                target = max(target + _EVERY_S, time.perf_counter() + _EVERY_S / 4)
                before = delay_s.seconds()
                time.sleep(max(0.0, target - time.perf_counter()))
                late = time.perf_counter() - target - (delay_s.seconds() - before)
                self._looks.append((int(target * 1e9), late > _HELD * _SWITCH_S))
        self.cpu_s = time.thread_time() - cpu_s


class _Delays:
    """How long this thread has waited for a core, from the system; always 0 where it does not tell."""

    def __init__(self) -> None:
        self._path = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self._fd = -1

    def __enter__(self) -> Self:
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def seconds(self) -> float:
        if self._fd < 0:
            return 0.0
        return int(os.pread(self._fd, 64, 0).split()[1]) / 1e9
