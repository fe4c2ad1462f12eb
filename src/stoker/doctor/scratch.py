"""The folder that experiments write to: gone with the examination, or, after a kill, with the next one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "stoker-doctor-"
_OWNER = "owner"


class Scratch:
    """A folder that is removed by `close`.

    Its file `owner` is locked as long as its process lives: who can lock it knows that nobody needs the folder.

    Args:
        parent: Where it is made; the system's place for temporary files unless told.
    """

    def __init__(self, parent: Path | None) -> None:
        where = Path(tempfile.gettempdir()) if parent is None else parent
        where.mkdir(parents=True, exist_ok=True)
        _sweep(where)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=where))
        self._owner = os.open(self.path / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._owner, fcntl.LOCK_EX)

    def close(self) -> None:
        """Remove it. Harmless when called again."""
        if self._owner >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._owner)
            self._owner = -1


def _sweep(parent: Path) -> None:
    """Remove the folders of processes that are no more."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, just removed, or still being made
            owner = os.open(folder / _OWNER, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(owner)
