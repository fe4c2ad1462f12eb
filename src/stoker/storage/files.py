"""Small files of our own: written aside, then renamed, so that a reader sees all of one or nothing."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

_log = logging.getLogger("stoker")

# A process that was killed while writing leaves its draft; an hour later nobody is writing it any more.
_STALE_S = 3600.0


def write_aside(path: Path, write: Callable[[Path], None]) -> bool:
    """Let `write` fill a draft beside `path`, then rename it to `path`; return whether that worked.

    What is kept here only saves time, so a full or read-only disk is a warning, not an error.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path)
        write(draft)
        draft.replace(path)
    except OSError as error:
        _log.warning("%s cannot be written (%s): the next start will take longer", path, error)
        return False
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    return True


def _remove_stale(path: Path) -> None:
    for draft in path.parent.glob(f".{path.name}.*.draft"):
        try:
            if time.time() - draft.stat().st_mtime > _STALE_S:
                draft.unlink()
        except FileNotFoundError:
            continue
