"""Work on many numbers, each once, by several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


def map_each(items: Sequence[_Item], work: Callable[[_Item], _Made], *, num_threads: int) -> list[_Made]:
    """Return what `work` gives for each item, in their order; done here and in threads, as `for_each` does."""
    made: dict[int, _Made] = {}
    for_each(len(items), lambda i: made.update({i: work(items[i])}), num_threads=num_threads)
    return [made[i] for i in range(len(items))]


def for_each(num_items: int, work: Callable[[int], None], *, num_threads: int, name: str = "stoker-open") -> None:
    """Call `work` with every number below `num_items`, here and in threads, as `share` does."""
    num_others = min(num_threads, num_items) - 1
    pool = ThreadPoolExecutor(max(1, num_others), thread_name_prefix=name)
    try:
        share(num_items, work, begin=pool.submit, num_others=num_others)
    except BaseException:  # an error comes when all is done, and Ctrl-C waits for nothing
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def share(
    num_items: int,
    work: Callable[[int], None],
    *,
    begin: Callable[[Callable[[], None]], Future[None]],
    num_others: int,
) -> None:
    """Call `work` with every number below `num_items`, here and in others, which `begin` starts.

    Blocks: until all that was begun is done. After an error nothing more is begun, so that a wrong URL among thousands
    shows at once; the one of the lowest number is raised.
    """
    numbers, lock = iter(range(num_items)), threading.Lock()
    errors: list[tuple[int, BaseException]] = []

    def run() -> None:
        i: int | None = None
        try:
            while not errors:
                with lock:
                    i = next(numbers, None)
                if i is None:
                    return
                work(i)
        except BaseException as error:
            # Ctrl-C counts more than what else failed.
            errors.append((i or 0 if isinstance(error, Exception) else -1, error))

    others = [begin(run) for _ in range(num_others)]
    run()
    for other in others:
        if not other.cancel():  # else all was done before it came to it
            other.result()
    if errors:
        raise min(errors, key=lambda pair: pair[0])[1]
