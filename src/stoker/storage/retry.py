"""Trying again: a storage whose calls survive a transient failure."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from stoker.errors import without_secrets
from stoker.storage.failures import is_transient, retry_after_s, translated
from stoker.storage.storage import BytesLike, ObjectInfo, Storage, VersionReader, exactly, version_reader

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


class RetryingStorage:
    """`inner`, with every failure as `SourceError`, after 4 tries where trying again may help.

    Args:
        inner: Where the objects are.
        wait: Waits between two tries, by the seconds it is given; if it returns True the failure is raised at once.
    """

    def __init__(self, inner: Storage, *, wait: Wait = time.sleep) -> None:
        self.inner = inner
        self._wait = wait

    def list(self, url: str) -> list[ObjectInfo]:
        """Return every object under `url`."""
        return self._tried(lambda: self.inner.list(url), url=url, doing="listing")

    def stat(self, url: str) -> ObjectInfo:
        """Return what is known of the object `url`."""
        return self._tried(lambda: self.inner.stat(url), url=url, doing="looking up")

    def read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        """Return exactly `num_bytes` of the object `url` from `offset` on."""
        return self._tried(
            lambda: exactly(self.inner.read(url, offset, num_bytes), num_bytes, url=url, offset=offset),
            url=url,
            doing="reading",
        )

    @property
    def read_version(self) -> VersionReader | None:
        """The same for bytes of a version that is proven, where `inner` can."""
        inner = version_reader(self.inner)
        if inner is None:
            return None

        def read(info: ObjectInfo, offset: int, num_bytes: int) -> BytesLike:
            return self._tried(
                lambda: exactly(inner(info, offset, num_bytes), num_bytes, url=info.url, offset=offset),
                url=info.url,
                doing="reading",
            )

        return read

    def _tried(self, call: Callable[[], T], *, url: str, doing: str) -> T:
        wait_s = _FIRST_WAIT_S
        for attempt in range(1, NUM_TRIES + 1):
            try:
                with translated(url, doing=doing):
                    return call()
            except Exception as error:
                if not is_transient(error):
                    _forget_secrets(error)
                    raise
                pause_s = max(wait_s * random.uniform(*_JITTER), min(retry_after_s(error), _MOST_WAIT_S))
                if attempt == NUM_TRIES or self._wait(pause_s) is True:
                    error.add_note(f"given up after {attempt} tries")
                    _forget_secrets(error)
                    raise
                wait_s *= _WAIT_FACTOR
        raise AssertionError("unreachable")


def _forget_secrets(error: BaseException) -> None:
    """Let go of what a client said of a failure, where a traceback would show the credentials in it."""
    cause = error.__cause__
    while cause is not None:
        if without_secrets(str(cause)) != str(cause):
            error.__cause__ = error.__context__ = None
            return
        cause = cause.__cause__ or cause.__context__
