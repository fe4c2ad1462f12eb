"""Work on many numbers, each once, by several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class Each:
    """Numbers that are worked on by every thread that calls `run`.

    After an error no new work is begun, so that a wrong URL among thousands shows at once.
    """

    def __init__(self, num_items: int, work: Callable[[int], None]) -> None:
        self._numbers = iter(range(num_items))
        self._work = work
        self._lock = threading.Lock()
        self._errors: list[tuple[int, BaseException]] = []

    def run(self) -> None:
        """Work until no number is left, or one failed."""
        i: int | None = None
        try:
            while not self._errors:
                with self._lock:
                    i = next(self._numbers, None)
                if i is None:
                    return
                self._work(i)
        except BaseException as error:
            # Ctrl-C counts more than what else failed.
            self._errors.append((i or 0 if isinstance(error, Exception) else -1, error))

    def check(self) -> None:
        """Raise the error of the lowest number that failed."""
        if self._errors:
            raise min(self._errors, key=lambda pair: pair[0])[1]


def map_each(items: Sequence[_Item], work: Callable[[_Item], _Made], *, num_threads: int) -> list[_Made]:
    """Return what `work` gives for each item, in their order; done here and in threads, as `for_each` does."""
    made: dict[int, _Made] = {}
    for_each(len(items), lambda i: made.update({i: work(items[i])}), num_threads=num_threads)
    return [made[i] for i in range(len(items))]


def for_each(num_items: int, work: Callable[[int], None], *, num_threads: int, name: str = "stoker-open") -> None:
    """Call `work` with every number below `num_items`, here and in threads; the error of the lowest one is raised."""
    each, num_others = Each(num_items, work), min(num_threads, num_items) - 1
    with ThreadPoolExecutor(max(1, num_others), thread_name_prefix=name) as pool:
        for _ in range(num_others):
            pool.submit(each.run)
        each.run()
    each.check()
