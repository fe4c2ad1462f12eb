"""Folders that go with the process that made them, however it ends: a cache in memory, and what experiments write."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import time
from pathlib import Path

from stoker.host.forks import close_here, closed_in_forks, this_process

_OWNER = "owner"
# How often to remove a folder that is not empty after all, and the pause in between for whoever still writes to it.
_TRIES, _REST_S = 100, 0.002


class OwnedFolder:
    """A folder that is removed by `close`, or, after a kill, by the next process that makes one of its family.

    Its file `owner` is locked as long as its process lives: who can lock it knows that nobody needs the folder. It is
    named first and made by `make`, so that whoever is interrupted in between, or in the middle, can close it. Names of
    its family, which may be abandoned, begin alike, and its own with its `prefix`.
    """

    def __init__(self, parent: Path, *, prefix: str, family: str) -> None:
        self._parent, self._prefix, self._family = parent, prefix, family
        self._owner, self._home = -1, this_process()
        self.path = self._named()

    def make(self) -> None:
        """Make it, and remove those of its family whose processes have ended."""
        self._parent.mkdir(parents=True, exist_ok=True)
        for folder in self._parent.glob(f"{self._family}*"):
            with contextlib.suppress(OSError):  # another user's, just removed, or in use
                owner = _locked(folder, os.O_RDWR)
                try:
                    _remove(folder)
                finally:
                    close_here(owner)
        while True:
            self.path.mkdir(mode=0o700)
            try:
                self._owner = _locked(self.path, os.O_RDWR | os.O_CREAT)
            except BlockingIOError:  # a sweeper was faster, and takes it for abandoned: so be it
                self.path = self._named()
            else:
                return

    def close(self) -> None:
        """Remove it. Harmless when called again, before it was made, and in a fork, which does nothing."""
        if not self._home.is_here:
            return
        # A thread that still writes, because the one that would have ended it was interrupted, finds it gone.
        gone = self.path.with_name(f"{self.path.name}-gone")
        with contextlib.suppress(OSError):
            self.path.rename(gone)
        for _ in range(_TRIES):
            _remove(gone)
            if not gone.exists():
                break
            time.sleep(_REST_S)  # a file came that was being opened when the folder was renamed; no others can
        if self._owner >= 0:
            close_here(self._owner)
            self._owner = -1

    def _named(self) -> Path:
        return self._parent / f"{self._prefix}{secrets.token_hex(4)}"


def _locked(folder: Path, flags: int) -> int:
    """Return a descriptor of a folder's owner, locked; BlockingIOError where another process has it, or removed it."""
    owner = closed_in_forks(os.open(folder / _OWNER, flags | os.O_CLOEXEC, 0o600))
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.fstat(owner).st_nlink:  # between its opening and its locking, and so the folder
            raise BlockingIOError(errno.EAGAIN, f"{folder} was removed")
        return owner
    except BaseException:
        close_here(owner)
        raise


def _remove(folder: Path) -> None:
    """Remove a folder, its owner last: where this process is killed meanwhile, the rest is still known as abandoned."""
    for path in folder.glob("*"):
        if path.name != _OWNER:
            shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(OSError):  # a folder, which is gone by now
                path.unlink()
    shutil.rmtree(folder, ignore_errors=True)
