"""What a fork of a process must not touch: threads, locks of files and folders are its parent's alone."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Self, TypeVar, overload

_T = TypeVar("_T")


class Home:
    """A process, for what is made in it: there is one of these in each, and a fork finds that of its parent not here.

    A fork has a copy of its parent's memory but none of its threads: whoever waits for one of them there waits for
    ever, and what it gave back or removed its parent would still use.

    Attributes:
        is_here: Whether this is that process.
    """

    __slots__ = ("_pid", "is_here")

    def __init__(self, pid: int, *, is_here: bool = True) -> None:
        self._pid, self.is_here = pid, is_here

    def __reduce__(self) -> tuple[object, ...]:
        return partial(Home, is_here=False), (self._pid,)  # pickled for another process

    def check(self, what: str) -> None:
        """Raise a `RuntimeError` in any other process, which names what was made."""
        if not self.is_here:
            raise RuntimeError(
                f"{what} belongs to process {self._pid}, and this is {os.getpid()}, a fork of it, which has none of "
                "its threads: make a loader of your own in each process that needs one; for the workers of a torch "
                "DataLoader, stoker.torch.TorchDataset does"
            )


_here = Home(os.getpid())


def this_process() -> Home:
    """Return what stands for this process, another one in each fork: numbers of processes are given again."""
    return _here


_of_parents: set[int] = set()


def closed_in_forks(fd: int) -> int:
    """Return a descriptor that a fork of this process closes at once; `close_here` closes it.

    The system drops a lock with the last descriptor of the opening that has it. A fork that lives on would keep the
    locks of a parent that was killed, and whoever wants them would wait for a process that knows nothing of them.
    """
    _of_parents.add(fd)
    return fd


def close_here(fd: int) -> None:
    """Close a descriptor that forks do not have."""
    _of_parents.discard(fd)
    os.close(fd)


def _begin_anew() -> None:
    global _here
    _here.is_here = False
    _here = Home(os.getpid())
    while _of_parents:
        with contextlib.suppress(OSError):  # one that somebody else has closed: the others must go all the same
            os.close(_of_parents.pop())


os.register_at_fork(after_in_child=_begin_anew)


def open_in_forks(lock: threading.Lock) -> threading.Lock:
    """Return a lock of the whole process, which no fork will find closed by a thread that it does not have."""
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


class cached_property(Generic[_T]):  # noqa: N801  named as the one of functools
    """A property that is worked out once for each instance; no lock is held meanwhile.

    Until Python 3.12, `functools.cached_property` holds one lock for all instances: what a thread works out while
    another one forks, the child would wait for in every instance, for ever. Without a lock, threads that ask at the
    same time may each work it out, and all get the value that came first.
    """

    def __init__(self, work_out: Callable[[Any], _T]) -> None:
        self._work_out, self._name, self.__doc__ = work_out, work_out.__name__, work_out.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> _T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | _T:
        if instance is None:
            return self
        value: _T = instance.__dict__.setdefault(self._name, self._work_out(instance))
        return value
