"""A small file that says how the loaders of this process are doing, for `stoker top`.

One file a process, in a folder that only this user may enter, written at most once a second by whichever thread has
just done a piece of work: no thread, no socket, nothing to wait for. It goes when the last loader is closed. A process
holds a lock on its file, which the system drops with the process: so whoever writes there first, or looks next, knows
what killed processes have left, and removes it.
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
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from stoker.host.forks import Home, open_in_forks
from stoker.metrics.stages import NEVER_NS, Stages
from stoker.metrics.stats import LoaderStats

FORMAT = 2
# Where the files are, in place of the usual folder; "off" for no files at all.
VARIABLE = "STOKER_STATUS"
_PREFIX = "loaders-"
_PERIOD_NS = 1_000_000_000
# What "now" means to a reader: rates are taken over this long. Shorter jumps about, longer hides what just changed.
_RECENT_NS = 5_000_000_000
# The training loop's own stages: another thread writes the file where there is one, so that no step waits for it.
_OF_THE_LOOP = frozenset({"wait", "step"})
# Who reads while the file is written may find half of it, and reads again.
_NUM_READS = 3

_log = logging.getLogger("stoker")


class About(NamedTuple):
    """What a loader is: what it loads, for people, its rank of how many, and samples a step over all of them."""

    dataset: str
    rank: int
    world_size: int
    global_batch_size: int


Look: TypeAlias = Callable[[], tuple[About, LoaderStats] | None]
"""Returns what a loader is, and what it has done so far; None when it is gone."""

RunningLoader: TypeAlias = dict[str, Any]
"""A loader of a running process: its pid, host, command, how old the figures are (`age_s`), and what its file says."""


def folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return where files are; None where the user wants none.

    It does not follow TMPDIR or XDG_RUNTIME_DIR: jobs and shells do not always have the same environment.
    """
    wanted = environment.get(VARIABLE)
    if wanted is not None:
        return None if wanted in ("", "off") else Path(wanted)
    return Path("/tmp") / f"stoker-{os.getuid()}"


def is_ours(folder: Path) -> bool:
    """Return whether a folder is this user's own, and nobody else may write to it."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


class StatusWriter:
    """Writes the file of one process.

    Args:
        place: The folder; None for no file at all.
    """

    def __init__(self, place: Path | None) -> None:
        self.place = place
        self.home = Home()
        # Again by the same thread: a loader may be collected, and so closed, while the file is being written.
        self._lock = threading.RLock()
        self._shown: list[ShownLoader] = []
        self._file: tuple[int, Path] | None = None

    def add(self, loader: ShownLoader) -> None:
        """Begin to tell of a loader, the next time that one of its threads has done something."""
        with self._lock:
            self._shown.append(loader)
        if self.place is not None:
            loader.stages.on_due = self._on_due
            loader.stages.due_ns = 0

    def remove(self, loader: ShownLoader) -> None:
        """Tell no more of a loader; without any, the file goes."""
        loader.stages.due_ns, loader.stages.on_due = NEVER_NS, None
        if self.home.is_here:
            with self._lock:
                self._shown = [one for one in self._shown if one is not loader]
                if not self._shown and self._file is not None:
                    (fd, path), self._file = self._file, None
                    path.unlink(missing_ok=True)
                    os.close(fd)

    def leave(self) -> None:
        """Give up what a fork has of its parent's file: the lock would outlive the parent."""
        if self._file is not None:
            os.close(self._file[0])
            self._file = None

    def _on_due(self, stage: str, now_ns: int) -> None:
        if stage in _OF_THE_LOOP and any(now_ns < one.stages.due_ns + _PERIOD_NS for one in self._shown):
            return
        if self.home.is_here and self._lock.acquire(blocking=False):
            try:
                self._defer(now_ns + _PERIOD_NS)
                self._write(now_ns)
            except Exception:  # whatever it is: training matters, this file does not
                _log.debug("no status file any more", exc_info=True)
                self._defer(NEVER_NS)
            finally:
                self._lock.release()

    def _defer(self, due_ns: int) -> None:
        for loader in self._shown:
            loader.stages.due_ns = due_ns

    def _write(self, now_ns: int) -> None:
        told = [told for one in self._shown if (told := one.to_json(now_ns)) is not None]
        if not self._shown:  # closed meanwhile
            return
        content = {
            "format": FORMAT,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200] if sys.argv else "",
            "time": time.time(),
            "loaders": told,
        }
        text, is_first = json.dumps(content).encode(), self._file is None
        fd, path = self._file = self._file or self._open()
        os.pwrite(fd, text, 0)
        os.ftruncate(fd, len(text))
        if is_first:  # locked and whole before anybody finds it
            self._file = fd, path.rename(path.with_suffix(".json"))

    def _open(self) -> tuple[int, Path]:
        assert self.place is not None  # else nobody is told when it is due
        with contextlib.suppress(OSError):
            self.place.mkdir(mode=0o700, exist_ok=True)
        if not is_ours(self.place):
            raise PermissionError(f"{self.place} is not this user's own folder")
        running(self.place)  # which removes what is left over
        while True:
            fd, name = tempfile.mkstemp(prefix=f"{_PREFIX}{os.getpid()}-", suffix=".new", dir=self.place)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return fd, Path(name)
            os.close(fd)  # somebody looked before it was locked, and took it for one that was left


class ShownLoader:
    """One loader of a process.

    Args:
        writer: Of that process.
        stages: Told of its work.
        look: Asked for its figures, once it is shown. Must not keep the loader alive.
    """

    def __init__(self, writer: StatusWriter, stages: Stages, look: Look) -> None:
        self.stages = stages
        self._writer = writer
        self._look = look
        self._before: deque[tuple[int, LoaderStats]] = deque()

    def show(self) -> None:
        """Begin to tell of it: once, when there is something to tell."""
        self._writer.add(self)

    def close(self) -> None:
        """Tell no more of it. Harmless when called again, or when it was never shown."""
        self._writer.remove(self)

    def to_json(self, now_ns: int) -> dict[str, object] | None:
        """Return what the file says of it: since it was made, and over the last seconds."""
        if (seen := self._look()) is None:
            return None
        about, stats = seen
        before = self._before
        while len(before) > 1 and before[1][0] <= now_ns - _RECENT_NS:
            before.popleft()
        recent = stats.since(before[0][1]) if before else stats
        before.append((now_ns, stats))
        return {**about._asdict(), "total": figures(stats), "recent": figures(recent)}


def figures(stats: LoaderStats) -> dict[str, object]:
    """Return everything a loader says of itself, for JSON."""
    rates = ("busy_share", "stall_share", "samples_per_s", "steps_per_s", "hit_share", "left_s")
    return asdict(stats) | {name: getattr(stats, name) for name in rates} | {"waits": asdict(stats.waits)}


_of_this_process: StatusWriter | None = None
_making = open_in_forks(threading.Lock())


def publisher() -> StatusWriter:
    """Return this process's writer; a fork gets its own, and so does a loader for which the variable was changed."""
    global _of_this_process
    with _making:
        if _of_this_process is None or _of_this_process.place != folder():
            _of_this_process = StatusWriter(folder())
        return _of_this_process


def _leave() -> None:
    global _of_this_process
    if _of_this_process is not None:
        _of_this_process.leave()
        _of_this_process = None


os.register_at_fork(after_in_child=_leave)


def running(place: Path | None = None, *, now: float | None = None) -> list[RunningLoader]:
    """Return the loaders that run on this host as this user, by process, and remove the files of processes that ended.

    Args:
        place: Folder to look in; the usual one unless told.
        now: Seconds since 1970.
    """
    place = folder() if place is None else place
    if place is None or not is_ours(place):
        return []
    now = time.time() if now is None else now
    # Those that are begun, too: who is killed meanwhile leaves one.
    paths = sorted(place.glob(f"{_PREFIX}*"), key=lambda path: (len(path.name), path.name))
    return [loader for path in paths for loader in _read(path, now)]


def _read(path: Path, now: float) -> list[RunningLoader]:
    with contextlib.suppress(OSError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            for _ in range(_NUM_READS):
                with contextlib.suppress(ValueError, KeyError):
                    file.seek(0)
                    content = json.loads(file.read())
                    process = {name: content[name] for name in ("pid", "host", "command")}
                    process["age_s"] = max(0.0, now - content["time"])
                    return [process | loader for loader in content["loaders"] if content["format"] == FORMAT]
        else:
            path.unlink(missing_ok=True)
    return []
