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

import sys
from collections.abc import Sequence
from pathlib import Path


def printable(text: str) -> str:
    """Return a text that can be printed: backslash and digits where the locale cannot write the name of a file."""
    encoding = sys.getfilesystemencoding()
    return text.encode(encoding, "backslashreplace").decode(encoding)


class StokerError(Exception):
    """Base of all errors that Stoker raises on its own account.

    Its text can be printed: what the locale cannot write of the name of a file stands in it as backslash and digits.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


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

    `is_of_rows` says whether these are why, rather than memory, a module or a file that was not there.
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
