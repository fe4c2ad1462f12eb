"""How long decoding took beside the waits for bytes in it."""

from __future__ import annotations

import threading
import time

from stoker.metrics.stages import Stages


class Stopwatch(threading.local):
    """Tells a stage from the waits inside it: what is not waiting for bytes is decoding. Each thread has its own.

    part    |··········decode··········|
    waits       |fetch|      |fetch|
    spans   |dec|fetch|decode|fetch|dec|
    """

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin a part."""
        self._waits: list[tuple[int, int, bool]] = []
        self._start = time.perf_counter_ns()

    def wait(self, start_ns: int, stop_ns: int, *, is_fetch: bool = True) -> None:
        """Note a wait for bytes inside the part, or a time in it that belongs to no stage."""
        self._waits.append((start_ns, stop_ns, is_fetch))

    def stop(self, on_stage: Stages, *, fetched_bytes: int, decoded_bytes: int) -> None:
        """Report the spans of the part: the first fetch has all bytes fetched, the last decode those decoded."""
        at = self._start
        for start, stop, is_fetch in self._waits:
            on_stage("decode", at, start, 0)
            if is_fetch:
                on_stage("fetch", start, stop, fetched_bytes)
                fetched_bytes = 0
            at = stop
        if fetched_bytes:
            on_stage("fetch", at, at, fetched_bytes)
        on_stage("decode", at, time.perf_counter_ns(), decoded_bytes)
