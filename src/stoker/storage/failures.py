"""What goes wrong in a store or a file, in words: which object, why, and the way out; and waiting for a store.

That is trying again where it may help, asking twice, and giving up.
"""

from __future__ import annotations

import errno
import itertools
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, as_completed, wait
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from stoker.errors import SourceCorruptError, SourceError, SourceMissingError, without_secrets
from stoker.storage.storage import Around, BytesLike, Storage

# What no second try changes: a name, permissions, the arguments.
_HOPELESS = (
    *(FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError),
    *(ValueError, TypeError, NotImplementedError, AttributeError, KeyError, MemoryError),
)
_HOPELESS_NUMBERS = (errno.EINVAL, errno.EMFILE, errno.ELOOP, errno.ENAMETOOLONG)
# What stores say: the number of an answer, and their own words for it.
_GONE = (404, 410)
_MISSING = re.compile(r"NoSuchKey|NoSuchBucket|ContainerNotFound|BlobNotFound")
_RENEW = "check the credentials, in storage_options or the environment, and renew them where they have run out"
# What a client says that does not reach a store, or is answered something else, and the way out: the next try may be
# answered well.
_UNANSWERED = {
    r"metadata\.google|computeMetadata|oauth2\.googleapis": (
        "no credentials for Google Cloud Storage: set GOOGLE_APPLICATION_CREDENTIALS, or access_token in "
        "storage_options, or anonymous=True there for a public bucket; and check the network"
    ),
    r"metadata/identity/oauth2|login\.microsoftonline": (
        "no credentials for Azure: give account_key, sas_token, or tenant_id, client_id and client_secret in "
        "storage_options, or set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET"
    ),
    r"latest/api/token|security-credentials": (
        "no credentials for S3: give access_key and secret_key in storage_options, or anonymous=True for a public "
        "bucket, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    ),
    r"error sending request|nothing came within|nothing answers at|get a new connection|Cannot connect to host|"
    r"[Cc]onnection (timeout|refused)|Timeout on reading": (
        "check the network and the address: endpoint_override in storage_options, or the host in the URL"
    ),
    r"non-partial response": "the server answers no ranges (with status 206), as rclone's does not: use another one",
}
# What one says that refuses for good: nothing is gained by asking again.
_REFUSED = {
    r"(?i:ExpiredToken|TokenRefreshRequired|token (included in the request )?(is|has) expired)": (
        "the credentials have expired: renew them (session token and keys), in the environment or storage_options"
    ),
    r"AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|InvalidClientTokenId|Forbidden|"
    r"AuthenticationFailed|AuthorizationFailure|InvalidAuthenticationInfo|Anonymous caller": _RENEW,
    r"PermanentRedirect|AuthorizationHeaderMalformed|redirect without LOCATION": (
        "the bucket is in another region: name it in storage_options, as region"
    ),
    r"libjvm|libhdfs|\bdlopen\(": (
        "hdfs:// needs Java and libhdfs: set JAVA_HOME, HADOOP_HOME or ARROW_LIBHDFS_DIR, and CLASSPATH"
    ),
}


class WrongArgumentError(ValueError):
    """An argument that only making the client shows to be wrong: a plain `ValueError` to the user."""


class StoreError(OSError):
    """What a store answered, in plain words, and the number of its answer, if there was one."""

    def __init__(self, words: str, *, status: int | None) -> None:
        super().__init__(words)
        self.status = status


_MOST_REASON = 240  # characters of what a client says
# pyarrow counts the columns that it was asked for, which nobody else knows.
_COUNTED = re.compile(r"^Column \d+ named\b")


@contextmanager
def decoding(url: str, *, where: str, look_closer: Callable[[], SourceError | None] = lambda: None) -> Iterator[None]:
    """Turn whatever pyarrow raises on a bad file into a `SourceCorruptError` that says where.

    What lacks memory or keys is a plain `SourceError`: the file may be sound. `look_closer` returns an error that says
    more, where there is one.
    """
    try:
        yield
    except SourceError:
        raise
    except Exception as error:
        closer = look_closer()
        if closer is not None:
            raise closer from error
        # pyarrow raises OSError, ValueError, TypeError, NotImplementedError and its own on broken files.
        lines = str(error).strip().splitlines()
        reason = _COUNTED.sub("column", lines[0]) if lines else type(error).__name__
        kind = SourceError if "crypt" in reason or is_of_surroundings(error) else SourceCorruptError
        if "crypt" in reason:
            reason += " (the file is encrypted: Stoker has no keys; decrypt it, or leave the encrypted columns out)"
        elif isinstance(error, MemoryError):
            reason += " (the memory asked for is not there: too large for this machine, or a corrupt length)"
        raise kind(f"{where} cannot be decoded: {reason}", url=url) from error


def is_of_surroundings(error: BaseException) -> bool:
    """Return whether memory, a module, a file or a network that was not there is why, rather than what was looked at.

    Libraries raise an `OSError` of their own for bad bytes: it has no number of the system's.
    """
    is_surely = isinstance(error, MemoryError | ImportError | ConnectionError | TimeoutError)
    return is_surely or getattr(error, "errno", None) is not None


@contextmanager
def translated(url: str, *, doing: str) -> Iterator[None]:
    """Turn whatever a file system raises inside the block into a `SourceError` that names `url` and a way out."""
    try:
        yield
    except (SourceError, WrongArgumentError):
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        first: BaseException = error
        while isinstance(first, FileNotFoundError) and first.__cause__ is not None:
            first = first.__cause__  # fsspec says so of a file on a server that does not answer
        if isinstance(first, (FileNotFoundError, NotADirectoryError)) or getattr(first, "status", None) in _GONE:
            raise SourceMissingError(f"nothing is stored at {url}: check the name", url=url) from error
        raise _failure(first, url, doing=doing) from first
    except IsADirectoryError as error:
        raise SourceMissingError(f"{url} is a folder, not a file", url=url) from error
    except PermissionError as error:
        raise SourceError(f"no permission while {doing} {url} ({_first_line(error)}): {_RENEW}", url=url) from error
    except Exception as error:
        raise _failure(error, url, doing=doing) from error


def _failure(error: BaseException, url: str, *, doing: str) -> SourceError:
    """Return what clients of stores raise, which is whatever they like, as an error of ours."""
    reason = _first_line(error)
    if getattr(error, "status", None) in _GONE or _MISSING.search(str(error)) is not None:
        return SourceMissingError(f"nothing is stored at {url} ({reason}): check the name", url=url)
    way_out = _way_out(error, _UNANSWERED) or _refusal(error)
    return SourceError(f"{doing} {url} failed: {reason}{'; ' + way_out if way_out else ''}", url=url)


def _way_out(error: BaseException, ways_out: Mapping[str, str]) -> str | None:
    return next((way_out for pattern, way_out in ways_out.items() if re.search(pattern, str(error))), None)


def _refusal(error: BaseException) -> str | None:
    """Return what the user can do about a store that refuses for good; None where it does not."""
    found, status = _way_out(error, _REFUSED), getattr(error, "status", None)
    # An answer to a look-up has no words, only a number.
    if found is None and status == 400 and "Bad Request" in str(error):
        return _RENEW + "; and the region"
    return found or (_RENEW if status in (401, 403) else None)


def _is_transient(error: BaseException) -> bool:
    """Return whether trying again may help: a failure of the way there, not of the object or the permissions."""
    seen = error.__cause__ if isinstance(error, SourceError) else error
    if seen is None or isinstance(error, SourceMissingError) or isinstance(seen, _HOPELESS):
        return False
    return _refusal(seen) is None and (not isinstance(seen, OSError) or seen.errno not in _HOPELESS_NUMBERS)


def _retry_after_s(error: BaseException) -> float:
    """Return how long a store that refused asks to wait; 0 where it does not say."""
    cause: BaseException | None = error
    while cause is not None:
        headers: Any = getattr(cause, "headers", None)
        told = str(headers.get("Retry-After", "")) if hasattr(headers, "get") else ""
        if told.isdigit():
            return float(told)
        cause = cause.__cause__
    return 0.0


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    if not text:
        return type(error).__name__
    line = text.splitlines()[0]
    return line if len(line) <= _MOST_REASON else line[:_MOST_REASON].rsplit(" ", 1)[0] + " ..."


# ---------------------------------------------------------------------------------------------- waiting for a store

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
    """`inner`, with every failure as `SourceError`, after 4 tries where trying again may help, and `wait` between."""

    def __init__(self, inner: Storage | Callable[[], Storage], *, wait: Wait = time.sleep) -> None:
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
                if _is_transient(error):
                    wait_s = _FIRST_WAIT_S * _WAIT_FACTOR ** (attempt - 1) * random.uniform(*_JITTER)
                    pause_s = max(wait_s, min(_retry_after_s(error), _MOST_WAIT_S))
                    if attempt < NUM_TRIES and self._wait(pause_s) is not True:
                        continue
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
    """Return what a call gives, which another thread makes; after a while it is left to itself by a `TimeoutError`."""
    answer = _asked(call)
    if wait([answer], limit_s).not_done:
        raise TimeoutError(f"nothing answers at the store: not within {limit_s:.0f} s")
    return answer.result()


def hedged(patience_s: float, call: Callable[[], T], may_ask_again: Callable[[], bool]) -> T:
    """Return what a call gives, or the same call made again behind `patience_s`, if it may be: what comes first.

        first   |··············patience··············|·······················x   left to itself
        second                                       |·······|                   taken

    What the call raised is raised when there is no other one to wait for.
    """
    answers = [_asked(call)]
    if wait(answers, patience_s).not_done and may_ask_again():
        answers.append(_asked(call))
    for answer in as_completed(answers):
        if answer.exception() is None:
            break
    return answer.result()


def _asked(call: Callable[[], T]) -> Future[T]:
    """Make a call in a thread of its own, which ends when the client gives up."""
    answer: Future[T] = Future()

    def ask() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="store-call", daemon=True).start()
    return answer
