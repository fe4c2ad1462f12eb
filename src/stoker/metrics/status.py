"""A small file that says how a loader is doing, for `stoker top`.

One file a loader, in a folder that only this user may enter, written at most once a second by whichever of its threads
has just done a piece of work: no thread, no socket, nothing to wait for. It goes when the loader is closed. Its process
holds a lock on it, which the system drops with the process: so whoever writes there first, or looks next, knows what
killed processes have left, and removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
import stat
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from stoker.host.forks import close_here, closed_in_forks, this_process
from stoker.metrics.stages import NEVER_NS, Stages
from stoker.metrics.stats import LoaderStats

FORMAT = 3
# Where the files are, in place of the usual folder; "off" for no files at all.
VARIABLE = "STOKER_STATUS"
_PREFIX = "loaders-"
_PERIOD_NS = 1_000_000_000
# What "now" means to a reader: rates are taken over this long. Shorter jumps about, longer hides what just changed.
_RECENT_NS = 5_000_000_000
# The training loop's own stages: another thread writes the file where there is one, so that no step waits for it.
_OF_THE_LOOP = frozenset({"wait", "step"})
# Who reads while the file is written may find half of it: it is read until it is twice the same.
_NUM_READS = 6

_log = logging.getLogger("stoker")

Look: TypeAlias = Callable[[], tuple[dict[str, object], LoaderStats] | None]
"""Returns what a loader is (`dataset`, `rank`, `world_size`, `global_batch_size`), and what it has done so far; None
when it is gone."""


def _folder() -> Path | None:
    """Return where files are; None where the user wants none.

    It does not follow TMPDIR or XDG_RUNTIME_DIR: jobs and shells do not always have the same environment.
    """
    if (wanted := os.environ.get(VARIABLE)) is not None:
        return None if wanted in ("", "off") else Path(wanted)
    return Path("/tmp") / f"stoker-{os.getuid()}"


def _is_ours(folder: Path) -> bool:
    """Return whether a folder is this user's own, and nobody else may write to it."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def figures(stats: LoaderStats) -> dict[str, object]:
    """Return everything a loader says of itself, for JSON."""
    rates = ("busy_share", "stall_share", "samples_per_s", "steps_per_s", "hit_share", "left_s")
    return asdict(stats) | {name: getattr(stats, name) for name in rates} | {"waits": stats.waits._asdict()}


class StatusFile:
    """The file of a loader, from the first piece of work that one of its threads ends until it is closed.

    `look` is asked for the figures, and must not keep the loader alive.
    """

    def __init__(self, stages: Stages, look: Look) -> None:
        self._stages, self._look, self._place, self._home = stages, look, _folder(), this_process()
        # Again by the same thread: the loader may be collected, and so closed, while the file is being written.
        self._lock = threading.RLock()
        self._file: tuple[int, Path] | None = None
        self._before: deque[tuple[int, LoaderStats]] = deque()
        self._is_closed = False

    def show(self) -> None:
        """Begin to tell of the loader: once, when there is something to tell."""
        if self._place is not None:
            self._stages.on_due, self._stages.due_ns = self._on_due, 0

    def close(self) -> None:
        """Tell no more of it. Harmless when called again, or when it was never shown."""
        self._stages.due_ns, self._stages.on_due, self._is_closed = NEVER_NS, None, True
        if self._home.is_here:
            with self._lock:
                if self._file is not None:
                    self._file[1].unlink(missing_ok=True)
                    close_here(self._file[0])
                    self._file = None

    def _on_due(self, stage: str, now_ns: int) -> None:
        if stage in _OF_THE_LOOP and now_ns < self._stages.due_ns + _PERIOD_NS:
            return
        if self._home.is_here and self._lock.acquire(blocking=False):
            try:
                self._stages.due_ns = now_ns + _PERIOD_NS
                self._write(now_ns)
            except Exception:  # whatever it is: training matters, this file does not
                _log.debug("no status file any more", exc_info=True)
                self._stages.due_ns = NEVER_NS
            finally:
                self._lock.release()

    def _write(self, now_ns: int) -> None:
        seen = self._look()
        if seen is None or self._is_closed:  # closed meanwhile
            return
        about, stats = seen
        before = self._before
        while len(before) > 1 and before[1][0] <= now_ns - _RECENT_NS:
            before.popleft()
        recent = stats.since(before[0][1]) if before else stats
        before.append((now_ns, stats))
        content = {
            "format": FORMAT,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200] if sys.argv else "",
            "time": time.time(),
            **about,
            "total": figures(stats),
            "recent": figures(recent),
        }
        text, is_first = json.dumps(content).encode(), self._file is None
        fd, path = self._file = self._file or self._open()
        os.pwrite(fd, text, 0)
        os.ftruncate(fd, len(text))
        if is_first:  # locked and whole before anybody finds it
            self._file = fd, path.rename(path.with_suffix(".json"))

    def _open(self) -> tuple[int, Path]:
        assert self._place is not None  # else nobody is told when it is due
        with contextlib.suppress(OSError):
            self._place.mkdir(mode=0o700, exist_ok=True)
        if not _is_ours(self._place):
            raise PermissionError(f"{self._place} is not this user's own folder")
        running(self._place)  # which removes what is left over
        while True:
            fd, name = tempfile.mkstemp(prefix=f"{_PREFIX}{os.getpid()}-", suffix=".new", dir=self._place)
            fcntl.flock(closed_in_forks(fd), fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return fd, Path(name)
            close_here(fd)  # somebody looked before it was locked, and took it for one that was left


def running(place: Path | None = None) -> list[dict[str, Any]]:
    """Return the loaders that train on this host as this user, and remove the files of processes that ended.

    Each is what its file says, in the usual folder unless told, and how old that is (`age_s`), by process.
    """
    place = _folder() if place is None else place
    if place is None or not _is_ours(place):
        return []
    # Those that are begun, too: who is killed meanwhile leaves one.
    paths = sorted(place.glob(f"{_PREFIX}*"), key=lambda path: (len(path.name), path.name))
    return [loader for path in paths if (loader := _read(path)) is not None]


def _read(path: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            fd, text = file.fileno(), b""
            for _ in range(_NUM_READS):
                before, text = text, os.pread(fd, os.fstat(fd).st_size, 0)
                with contextlib.suppress(ValueError, KeyError):
                    # Read twice: of two texts as long as each other, a half of each may be JSON, too.
                    if text == before and (found := json.loads(text)).pop("format") == FORMAT:
                        return {**found, "age_s": max(0.0, time.time() - found["time"])}
        else:
            path.unlink(missing_ok=True)
    return None
