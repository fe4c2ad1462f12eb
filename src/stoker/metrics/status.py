"""A small file that says how the loaders of this process are doing, for `stoker top`.

One file a process, in a folder that only this user may enter, replaced whole at most once a second by whichever thread
has just done a piece of work: no thread, no socket, nothing to wait for. It goes when the last loader is closed; what
processes leave that were killed is removed by whoever writes there first or looks next.
"""

from __future__ import annotations

import contextlib
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

from stoker.host.forks import open_in_forks
from stoker.metrics.stages import NEVER_NS, Stages
from stoker.metrics.stats import LoaderStats

FORMAT = 1
# Where the files are, in place of the usual folder; "off" for no files at all.
VARIABLE = "STOKER_STATUS"
_PERIOD_NS = 1_000_000_000
# What "now" means to a reader: rates are taken over this long. Shorter jumps about, longer hides what just changed.
_RECENT_NS = 5_000_000_000
# The training loop's own stages: another thread writes the file where there is one, so that no step waits for it.
_OF_THE_LOOP = frozenset({"wait", "step"})

# A file of another set of pids (a container that shares the folder): nobody here can tell whether its process lives.
_FOREIGN_FRESH_S = 60
_FOREIGN_GONE_S = 86_400

_log = logging.getLogger("stoker")


class About(NamedTuple):
    """What a loader is.

    Attributes:
        dataset: What it loads, for people.
        rank: Its rank.
        world_size: How many ranks there are.
        global_batch_size: Samples a step over all ranks.
    """

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
    user = os.getuid() if hasattr(os, "getuid") else 0
    return Path("/tmp" if os.name == "posix" else tempfile.gettempdir()) / f"stoker-{user}"


def is_ours(folder: Path) -> bool:
    """Return whether a folder is this user's own, and nobody else may write to it."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    is_mine = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    return stat.S_ISDIR(found.st_mode) and is_mine and not found.st_mode & 0o022


def started_ticks(pid: int) -> int:
    """Return when a process began, in clock ticks since boot: with it a pid is one process. 0 where that is not known.

    Source: proc_pid_stat(5), field 22; the second field may hold spaces and brackets.
    """
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def namespace() -> int:
    """Return which set of pids this process lives in, 0 where there is one alone."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def status_name(pid: int) -> str:
    """Return what the file of a process of this set of pids is called."""
    return f"{namespace()}-{pid}-{started_ticks(pid)}.json"


def has_ended(name: str) -> bool | None:
    """Return whether the process that a file is named after has ended; None where nobody here can tell."""
    where, pid, ticks = (int(part) for part in name.removesuffix(".json").removesuffix(".new").split("-"))
    if where != namespace():
        return None  # a container that shares the folder
    if ticks:
        return started_ticks(pid) != ticks
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def remove_ended(place: Path) -> None:
    """Remove what processes that have ended left in a folder."""
    for path in place.iterdir():
        with contextlib.suppress(OSError, ValueError):  # gone meanwhile, or none of ours
            if has_ended(path.name):
                path.unlink()


class StatusWriter:
    """Writes the file of one process.

    Args:
        place: The folder; None for no file at all.
    """

    def __init__(self, place: Path | None) -> None:
        self._place = place
        self._pid = os.getpid()
        # Again by the same thread: a loader may be collected, and so closed, while the file is being written.
        self._lock = threading.RLock()
        self._shown: list[ShownLoader] = []
        self._num_shown = 0
        self._path: Path | None = None

    @property
    def is_of_this_process(self) -> bool:
        """Whether this process made it; a fork inherits one that is its parent's."""
        return self._pid == os.getpid()

    def add(self, loader: ShownLoader) -> None:
        """Begin to tell of a loader, the next time that one of its threads has done something."""
        with self._lock:
            self._num_shown += 1
            loader.number = self._num_shown
            self._shown.append(loader)
        if self._place is not None:
            loader.stages.on_due = self._on_due
            loader.stages.due_ns = 0

    def remove(self, loader: ShownLoader) -> None:
        """Tell no more of a loader; without any, the file goes."""
        loader.stages.due_ns, loader.stages.on_due = NEVER_NS, None
        if self.is_of_this_process:
            with self._lock:
                self._shown = [one for one in self._shown if one is not loader]
                self._tidy()

    def _on_due(self, stage: str, now_ns: int) -> None:
        if stage in _OF_THE_LOOP and any(now_ns < one.stages.due_ns + _PERIOD_NS for one in self._shown):
            return
        if self.is_of_this_process and self._lock.acquire(blocking=False):
            try:
                self._defer(now_ns + _PERIOD_NS)
                self._write(now_ns)
            except Exception:  # whatever it is: training matters, this file does not
                _log.debug("no status file any more", exc_info=True)
                self._defer(NEVER_NS)
            finally:
                self._lock.release()

    def _tidy(self) -> None:
        if not self._shown and self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None

    def _defer(self, due_ns: int) -> None:
        for loader in self._shown:
            loader.stages.due_ns = due_ns

    def _write(self, now_ns: int) -> None:
        assert self._place is not None  # else nobody is told when it is due
        if self._path is None:
            with contextlib.suppress(OSError):
                self._place.mkdir(mode=0o700, exist_ok=True)
            if not is_ours(self._place) or not os.access(self._place, os.W_OK):
                self._defer(NEVER_NS)
                return
            remove_ended(self._place)
        content = {
            "format": FORMAT,
            "pid": self._pid,
            "host": socket.gethostname(),
            "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200] if sys.argv else "",
            "time": time.time(),
            "loaders": [told for one in self._shown if (told := one.to_json(now_ns)) is not None],
        }
        path = self._path or self._place / status_name(self._pid)
        aside = path.with_suffix(".new")
        aside.write_text(json.dumps(content))
        aside.replace(path)
        self._path = path
        self._tidy()


class ShownLoader:
    """One loader of a process.

    Args:
        publisher: Of that process.
        stages: Told of its work.
        look: Asked for its figures, once it is shown. Must not keep the loader alive.
    """

    def __init__(self, publisher: StatusWriter, stages: Stages, look: Look) -> None:
        self.number = 0  # until it is shown
        self.stages = stages
        self._publisher = publisher
        self._look = look
        self._before: deque[tuple[int, LoaderStats]] = deque()

    def show(self) -> None:
        """Begin to tell of it: once, when there is something to tell."""
        self._publisher.add(self)

    def close(self) -> None:
        """Tell no more of it. Harmless when called again, or when it was never shown."""
        self._publisher.remove(self)

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
        return {"number": self.number, **about._asdict(), "total": figures(stats), "recent": figures(recent)}


def figures(stats: LoaderStats) -> dict[str, object]:
    """Return everything a loader says of itself, for JSON."""
    rates = ("busy_share", "stall_share", "samples_per_s", "steps_per_s", "hit_share", "left_s")
    return asdict(stats) | {name: getattr(stats, name) for name in rates} | {"waits": asdict(stats.waits)}


_of_this_process: StatusWriter | None = None
_making = open_in_forks(threading.Lock())


def publisher() -> StatusWriter:
    """Return this process's publisher; a fork gets its own."""
    global _of_this_process
    with _making:
        if _of_this_process is None or not _of_this_process.is_of_this_process:
            _of_this_process = StatusWriter(folder())
        return _of_this_process


def running(place: Path | None = None, *, now: float | None = None) -> list[RunningLoader]:
    """Return the loaders that run on this host as this user, by process, and remove the files of processes that ended.

    Args:
        place: Folder to look in; the usual one unless told.
        now: Seconds since 1970.
    """
    place = folder() if place is None else place
    if place is None or not is_ours(place):
        return []
    remove_ended(place)
    now = time.time() if now is None else now
    paths = sorted(place.glob("*.json"), key=lambda path: (len(path.name), path.name))
    return [loader for path in paths for loader in _read(path, now)]


def _read(path: Path, now: float) -> list[RunningLoader]:
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            return []
        age_s = max(0.0, now - content["time"])
        if has_ended(path.name) is None and age_s > _FOREIGN_FRESH_S:
            if age_s > _FOREIGN_GONE_S:
                path.unlink(missing_ok=True)
            return []
        process = {name: content[name] for name in ("pid", "host", "command")} | {"age_s": age_s}
        return [process | loader for loader in content["loaders"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # gone meanwhile, or none of ours
