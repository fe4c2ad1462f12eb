"""Work on many numbers, each once, by several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class Each:
    """Numbers that are worked on by every thread that calls `run`.

    After an error no new work is begun, so that a wrong URL among thousands shows at once.

    Args:
        num_items: How many there are.
        work: Is called with each of them.
    """

    def __init__(self, num_items: int, work: Callable[[int], None]) -> None:
        self._numbers = iter(range(num_items))
        self._work = work
        self._lock = threading.Lock()
        self._errors: list[tuple[int, BaseException]] = []

    def run(self) -> None:
        """Work until no number is left, or one failed."""
        while not self._errors:
            with self._lock:
                i = next(self._numbers, None)
            if i is None:
                return
            try:
                self._work(i)
            except BaseException as error:
                self._errors.append((i, error))

    def check(self) -> None:
        """Raise the error of the lowest number that failed."""
        if self._errors:
            raise min(self._errors, key=lambda pair: pair[0])[1]


def for_each(num_items: int, work: Callable[[int], None], *, num_threads: int) -> None:
    """Call `work` with every number below `num_items`, in threads of its own; the error of the lowest one is raised."""
    each = Each(num_items, work)
    with ThreadPoolExecutor(max(1, min(num_threads, num_items) - 1), thread_name_prefix="stoker-open") as pool:
        for _ in range(min(num_threads, num_items) - 1):
            pool.submit(each.run)
        each.run()
    each.check()
