"""Why a build process failed: a small file that it leaves in the cache for its parent."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.cache.files import Files
from stoker.errors import (
    CacheError,
    CacheFullError,
    ChunkCorruptError,
    FieldError,
    FieldMismatchError,
    SourceChangedError,
    SourceError,
    SourceMissingError,
    StokerError,
    TransformError,
)

# The attribute that each of our errors has beside its message, and how it is read back.
_KINDS: dict[type[StokerError], tuple[str, Callable[[Any], Any]]] = {
    SourceError: ("url", str),
    SourceMissingError: ("url", str),
    SourceChangedError: ("url", str),
    FieldError: ("columns", tuple),
    TransformError: ("fragment", str),
    FieldMismatchError: ("fragment", str),
    CacheError: ("path", Path),
    CacheFullError: ("path", Path),
    ChunkCorruptError: ("path", Path),
}


def failure_path(folder: Path, key: str, pid: int) -> Path:
    """Return where the process `pid` says why it could not build a chunk."""
    return folder / f"{key}.{pid}.json"


def write_failure(path: Path, error: BaseException, files: Files) -> None:
    """Write down an error with its traceback, whole or not at all."""
    kind = type(error) if type(error) in _KINDS else None
    name = _KINDS[kind][0] if kind is not None and issubclass(kind, StokerError) else None
    value = getattr(error, name) if name is not None else None
    content = {
        "kind": None if kind is None else kind.__name__,
        "message": str(error) if kind is not None else f"{type(error).__name__}: {error}",
        "value": list(value) if isinstance(value, tuple) else str(value),
        "notes": getattr(error, "__notes__", []),
        "traceback": "".join(traceback.format_exception(error)),
    }
    files.write_small(path, json.dumps(content).encode(), aside=path.with_suffix(".new"))


def take_failure(path: Path, *, fragment: str) -> StokerError | None:
    """Return the error that a build process wrote down, and remove the file; None where there is none."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    path.unlink(missing_ok=True)
    kind = next((kind for kind in _KINDS if kind.__name__ == content["kind"]), None)
    error: StokerError
    if kind is None:
        error = TransformError(f"a build process failed on {fragment}: {content['message']}", fragment=fragment)
    else:
        name, parse = _KINDS[kind]
        make: Callable[..., StokerError] = kind
        error = make(content["message"], **{name: parse(content["value"])})
    for note in content["notes"]:
        error.add_note(note)
    error.add_note(f"in a build process:\n{content['traceback']}")
    return error


def sweep_failures(folder: Path, files: Files) -> None:
    """Remove what processes wrote down whose parents were killed before they read it."""
    for path in folder.iterdir():
        pid = path.name.split(".")[1]
        if not (pid.isdigit() and _is_alive(int(pid))):
            files.remove(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True
