"""Ctrl-C, and SIGTERM, with which schedulers end a job: both are answered in the same way."""

from __future__ import annotations

import _weakrefset
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console

# What Python runs when it finds that an object is gone: an exception raised from there is printed and lost.
_FINALIZERS = frozenset((weakref.__file__, _weakrefset.__file__))
# What pyarrow imports when it first makes an array NumPy's: it takes any exception for a sign that there is none.
_IMPORTED_BY_ARROW = "pandas"
_AGAIN_S = 0.01


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that what was begun is put away; a second one ends it at once.

    Neither is lost where it comes while Python finalizes an object, or pyarrow imports pandas: it is raised as soon as
    that is over.
    """

    def end(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if _loses_exceptions(frame):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        else:
            raise KeyboardInterrupt

    # Whoever ignores one of them, or answers it, has a reason.
    unanswered = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    ours = [one for one, handler in unanswered.items() if signal.getsignal(one) is handler]
    with _answering(end, signal.SIGALRM, *ours):
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def stoppable(messages: Console) -> Iterator[threading.Event]:
    """Give an event that the first Ctrl-C or SIGTERM sets; the second one interrupts."""
    stop_event = threading.Event()

    def stop(*_: object) -> None:
        if stop_event.is_set():
            raise KeyboardInterrupt
        stop_event.set()
        messages.print("stopping: the chunks in the making are finished first (Ctrl-C again leaves them)")

    with _answering(stop, signal.SIGINT, signal.SIGTERM):
        yield stop_event


def _loses_exceptions(frame: FrameType | None) -> bool:
    """Return whether a signal interrupted what finalizes an object, or the import of pandas."""
    while frame is not None:
        name = frame.f_code.co_name
        if name == "__del__" or frame.f_code.co_filename in _FINALIZERS:
            return True
        if name == "<module>" and frame.f_globals.get("__name__") == _IMPORTED_BY_ARROW:
            return True
        frame = frame.f_back
    return False


@contextmanager
def _answering(handler: Callable[..., object], *signals: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only that one may
        yield
        return
    before = {one: signal.signal(one, handler) for one in signals}
    try:
        yield
    finally:
        for one, was in before.items():
            signal.signal(one, signal.SIG_DFL if was is None else was)
