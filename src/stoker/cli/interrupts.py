"""Ctrl-C, and SIGTERM, with which schedulers end a job: both are answered in the same way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

_Handler = Callable[..., object]


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that what was begun is put away; a second one ends it at once."""

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise KeyboardInterrupt

    # Whoever ignores it, or answers it, has a reason.
    is_ours = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with _answering(end, *([signal.SIGTERM] if is_ours else [])):
        yield


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


@contextmanager
def _answering(handler: _Handler, *signals: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only that one may
        yield
        return
    before = {one: signal.signal(one, handler) for one in signals}
    try:
        yield
    finally:
        for one, was in before.items():
            signal.signal(one, signal.SIG_DFL if was is None else was)
