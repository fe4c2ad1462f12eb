"""Every exception Stoker raises on its own account.

    StokerError
    ├── SourceError                 the rows cannot be read                       .url
    │   ├── SourceMissingError      the object is not there
    │   ├── SourceChangedError      the object is no longer the one that was listed
    │   └── SourceCorruptError      its bytes are not what its format says
    ├── FieldError (ValueError)     a column cannot become the field asked for    .columns
    ├── TransformError              the transform failed                          .fragment
    │   └── FieldMismatchError      its result does not fit the spec
    ├── CacheError                  the cache folder cannot do its work           .path
    │   ├── CacheFullError          no room left within the limit or on the disk
    │   └── ChunkCorruptError       a chunk is not what was published
    └── ResumeError                 the saved position is of another order        .saved, .current

A wrong argument is a plain `ValueError` or `TypeError`, raised at construction, before any I/O.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path

# Control characters, which steer terminals, and direction marks, which reverse the text after them.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_BLANKS = str.maketrans({"\n": "\\n", "\t": "\\t"})
# user:password@ in a URL, and query options that are named like credentials, signatures of presigned URLs included.
_SECRETS = re.compile(
    r"(?<=://)[^/\s?#@'\"]+:[^/\s?#@'\"]+(?=@)"
    r"|(?i:(?<=[?&])(?P<name>[\w.-]*(?:key|secret|token|sig|signature|passw(?:or)?d|credential|sas)[\w.-]*=)[^&\s'\"]+)"
)


def without_secrets(text: str) -> str:
    """Return a text with *** for the credentials in its URLs."""
    return _SECRETS.sub(lambda found: f"{found['name'] or ''}***", text)


def printable(text: str, *, is_line: bool = False) -> str:
    """Return a text that can be printed: names of files and columns may hold anything, and URLs credentials.

    Characters that would steer a terminal, or that the locale cannot write, become backslash escapes; of a line, line
    breaks and tabs, too.
    """
    encoding = sys.getfilesystemencoding()
    text = _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), without_secrets(text))
    text = text.translate(_BLANKS) if is_line else text
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _make_printable(record: logging.LogRecord) -> bool:
    """Escape a log message and its arguments, so that none of them begins a new line or steers the terminal."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            one if isinstance(one, int | float) else printable(str(one), is_line=True) for one in record.args
        )
    record.msg = printable(str(record.msg))
    return True


logging.getLogger("stoker").addFilter(_make_printable)


class StokerError(Exception):
    """Base of all errors that Stoker raises on its own account.

    Its text and notes are safe to print, whatever names of files and columns are in them; see `printable`.
    """

    def __str__(self) -> str:
        return printable(super().__str__())

    def add_note(self, note: str, /) -> None:
        """Add a note, escaped as the text is."""
        super().add_note(printable(note))


class SourceError(StokerError):
    """Rows cannot be read from `url`."""

    def __init__(self, message: str, *, url: str) -> None:
        super().__init__(message)
        self.url = url


class SourceMissingError(SourceError):
    """Nothing is stored under `url`."""


class SourceChangedError(SourceError):
    """The object at `url` is no longer the one that was listed."""


class SourceCorruptError(SourceError):
    """The bytes of the object at `url` are not what its format says."""


class FieldError(StokerError, ValueError):
    """One or more columns cannot become the fields asked for; each is named in `columns`."""

    def __init__(self, message: str, *, columns: Sequence[str]) -> None:
        super().__init__(message)
        self.columns = tuple(columns)


class TransformError(StokerError):
    """The transform failed on `fragment`, a text that names file, row groups and rows.

    `is_of_rows` says whether the rows are the reason, and not missing memory, a missing module or a missing file.
    """

    def __init__(self, message: str, *, fragment: str, is_of_rows: bool = True) -> None:
        super().__init__(message)
        self.fragment = fragment
        self.is_of_rows = is_of_rows


class FieldMismatchError(TransformError):
    """The arrays made from `fragment` do not fit the spec of the data set."""


class CacheError(StokerError):
    """The cache at `path` cannot do its work."""

    def __init__(self, message: str, *, path: Path) -> None:
        super().__init__(message)
        self.path = path


class CacheFullError(CacheError):
    """No room is left: within the cache's limit, or on its disk."""


class ChunkCorruptError(CacheError):
    """The chunk at `path` is not what was published."""


class ResumeError(StokerError):
    """The saved position belongs to another order than the loader's."""

    def __init__(self, message: str, *, saved: object, current: object) -> None:
        super().__init__(message)
        self.saved = saved
        self.current = current
