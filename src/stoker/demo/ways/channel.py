"""A bounded queue between threads that can be closed from its reading end and carries errors."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Channel(Generic[T]):
    """Items from any number of writers, in the order they were put, to readers.

        writers   for ...: put(item)   ──►  [ at most `size` items ]  ──►  for item in channel: ...
                  a writer that returns, or fails                          ends, or raises, once all have

    A context manager: on the way out the channel is closed and its writers are waited for.

    Args:
        size: Items that wait at most; a writer blocks when they do.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._num_writers = 0
        self._error: BaseException | None = None
        self._is_closed = False
        self._threads: list[threading.Thread] = []

    def start(self, write: Callable[[], None], *, name: str, num_threads: int = 1) -> None:
        """Run `write` in threads of the channel's own: when all have returned, the channel has ended."""
        self._num_writers += num_threads
        for i in range(num_threads):
            thread = threading.Thread(target=self._run, args=(write,), name=f"stoker-demo-{name}-{i}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def put(self, item: T) -> bool:
        """Add an item, and return False if nobody wants any more.

        Blocks: while the channel is full.
        """
        with self._changed:
            while len(self._items) >= self._size and not self._is_closed:
                self._changed.wait()
            if not self._is_closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self._is_closed

    def __iter__(self) -> Iterator[T]:
        """Yield the items until all writers have returned.

        Blocks: while the channel is empty.

        Raises:
            BaseException: What a writer raised, once the items before it are read.
        """
        while True:
            with self._changed:
                while not self._items and self._num_writers and not self._is_closed:
                    self._changed.wait()
                if not self._items or self._is_closed:
                    if self._error is not None:
                        raise self._error
                    return
                item = self._items.popleft()
                self._changed.notify_all()
            yield item

    def close(self) -> None:
        """Tell the writers that nobody reads any more, and wait for them."""
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
        finally:
            with self._changed:
                self._num_writers -= 1
                self._changed.notify_all()
