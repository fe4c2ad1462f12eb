"""What goes wrong in a store, in words: which object, why, and the way out; and whether trying again may help."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from stoker.errors import SourceError, SourceMissingError
from stoker.source.clients import WrongArgumentError

_HOPELESS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)
# What stores say, in the words of pyarrow's clients and of their own.
_MISSING = re.compile(r"NO_SUCH_KEY|NO_SUCH_BUCKET|NoSuchKey|NoSuchBucket|HTTP status 404\b")
_WAYS_OUT = (
    (
        re.compile(
            r"ACCESS_DENIED|AccessDenied|INVALID_ACCESS_KEY_ID|InvalidAccessKeyId|SIGNATURE_DOES_NOT_MATCH|"
            r"SignatureDoesNotMatch|INVALID_CLIENT_TOKEN_ID|ExpiredToken|InvalidToken|Forbidden|HTTP status 40[13]\b"
        ),
        "check the credentials or storage_options",
    ),
    (
        re.compile(r"PermanentRedirect|AuthorizationHeaderMalformed|HTTP status 301\b"),
        "the bucket is in another region: name it in storage_options, as region",
    ),
    (
        # An answer to HEAD has no words, only a number.
        re.compile(r"HTTP status 400\b.*No response body"),
        "check the credentials, which may have expired, and the region, in storage_options",
    ),
)
_UNREACHABLE = re.compile(r"NETWORK_CONNECTION")


@contextmanager
def translated(url: str, *, doing: str) -> Iterator[None]:
    """Turn whatever a file system raises inside the block into a `SourceError` that names `url` and a way out."""
    try:
        yield
    except (SourceError, WrongArgumentError):
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceMissingError(f"nothing is stored at {url}: check the name", url=url) from error
    except IsADirectoryError as error:
        raise SourceMissingError(f"{url} is a folder, not a file", url=url) from error
    except PermissionError as error:
        raise SourceError(
            f"no permission while {doing} {url} ({_first_line(error)}): check the credentials or storage_options",
            url=url,
        ) from error
    except Exception as error:
        # Clients of stores raise whatever they like, from botocore's own trees to bare Exception.
        reason = _first_line(error)
        if _MISSING.search(reason):
            raise SourceMissingError(f"nothing is stored at {url} ({reason}): check the name", url=url) from error
        way_out = _way_out(error)
        if way_out is None and _UNREACHABLE.search(reason):
            way_out = "check the network, and endpoint_override in storage_options"
        raise SourceError(f"{doing} {url} failed: {reason}{'; ' + way_out if way_out else ''}", url=url) from error


def _way_out(error: BaseException) -> str | None:
    """Return what the user can do about a store that refuses for good; None where it does not, or says no more."""
    if getattr(error, "status", None) in (401, 403):
        return _WAYS_OUT[0][1]
    text = str(error)
    return next((way_out for pattern, way_out in _WAYS_OUT if pattern.search(text)), None)


def is_transient(error: BaseException) -> bool:
    """Whether trying again may help: a failure of the way there, not of the object or the permissions."""
    seen = error.__cause__ if isinstance(error, SourceError) else error
    if seen is None or isinstance(error, SourceMissingError) or isinstance(seen, _HOPELESS):
        return False
    if _way_out(seen) is not None or _MISSING.search(str(seen)):
        return False
    if isinstance(seen, OSError):
        return seen.errno not in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.EINVAL, errno.EMFILE)
    return not isinstance(seen, ValueError | TypeError | NotImplementedError | AttributeError | KeyError | MemoryError)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
