"""Waiting for a store: trying again, asking twice, giving up."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

from stoker.errors import without_secrets
from stoker.storage.failures import is_transient, retry_after_s, translated
from stoker.storage.storage import Around, BytesLike, Storage

T = TypeVar("T")

# Waits for some seconds; returns True to say "give up now". `threading.Event().wait` is one; so is `time.sleep`.
Wait: TypeAlias = Callable[[float], object]

NUM_TRIES = 4
# About 0.2, 0.8, 3.2 s: stores ask for a pause of about a second when they throttle, and a dead store is given up in
# 4 s. Of hosts that were refused together, each comes back at a time of its own.
_FIRST_WAIT_S = 0.2
_WAIT_FACTOR = 4.0
_JITTER = (0.6, 1.4)
# A store that asks for a longer pause gets this one.
_MOST_WAIT_S = 30.0


class RetryingStorage(Around):
    """`inner`, with every failure as `SourceError`, after 4 tries where trying again may help.

    Args:
        inner: Where the objects are.
        wait: Waits between two tries, by the seconds it is given; if it returns True the failure is raised at once.
    """

    def __init__(self, inner: Storage, *, wait: Wait = time.sleep) -> None:
        super().__init__(inner)
        self._wait = wait

    def write(self, url: str, data: BytesLike) -> None:
        """Make the object `url` of an `inner` that can be written to."""
        inner: Any = self.inner
        self._ask(lambda: inner.write(url, data), url=url, doing="writing")

    def _ask(self, call: Callable[[], T], *, url: str, doing: str) -> T:
        for attempt in itertools.count(1):
            try:
                with translated(url, doing=doing):
                    return call()
            except Exception as error:
                if not is_transient(error):
                    _forget_secrets(error)
                    raise
                wait_s = _FIRST_WAIT_S * _WAIT_FACTOR ** (attempt - 1) * random.uniform(*_JITTER)
                pause_s = max(wait_s, min(retry_after_s(error), _MOST_WAIT_S))
                if attempt == NUM_TRIES or self._wait(pause_s) is True:
                    error.add_note(f"given up after {attempt} tries")
                    _forget_secrets(error)
                    raise
        raise AssertionError("unreachable")


def _forget_secrets(error: BaseException) -> None:
    """Let go of what a client said of a failure, where a traceback would show the credentials in it."""
    cause = error.__cause__
    while cause is not None:
        if without_secrets(str(cause)) != str(cause):
            error.__cause__ = error.__context__ = None
            return
        cause = cause.__cause__ or cause.__context__


def within(limit_s: float, call: Callable[[], T]) -> T:
    """Return what a call gives, which another thread makes and which is left to itself after a while.

    Raises:
        TimeoutError: It gave nothing in time.
    """
    answers = _asked(call, SimpleQueue())
    try:
        answer = answers.get(timeout=limit_s)
    except Empty:
        raise TimeoutError(f"nothing answers at the store: not within {limit_s:.0f} s") from None
    return answer.result()


def hedged(patience_s: float, call: Callable[[], T], may_ask_again: Callable[[], bool]) -> T:
    """Return what a call gives, or the same call made again behind `patience_s`: what comes first.

        first   |··············patience··············|·······················x   left to itself
        second                                       |·······|                   taken

    Args:
        patience_s: How long it is waited for at first.
        call: May run twice at once, each time in a thread of its own.
        may_ask_again: Whether it may be made again, asked when that is due.

    Raises:
        BaseException: What the call raised, when there is no other one to wait for.
    """
    answers = _asked(call, SimpleQueue())
    try:
        answer = answers.get(timeout=patience_s)
    except Empty:
        if is_hedged := may_ask_again():
            _asked(call, answers)
        answer = answers.get()
        if is_hedged and answer.exception() is not None:
            answer = answers.get()
    return answer.result()


def _asked(call: Callable[[], T], answers: SimpleQueue[Future[T]]) -> SimpleQueue[Future[T]]:
    """Make a call in a thread of its own, which puts the answer there. It ends when the client gives up."""

    def ask() -> None:
        answer: Future[T] = Future()
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)
        answers.put(answer)

    threading.Thread(target=ask, name="store-call", daemon=True).start()
    return answers
