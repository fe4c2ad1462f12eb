"""The processes on this host that have loaders, read from their status files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.metrics.status import FORMAT, folders, has_ended, is_ours, remove_ended

# A file of another set of pids (a container that shares the folder): nobody here can tell whether its process lives.
_FOREIGN_FRESH_S = 60
_FOREIGN_GONE_S = 86_400


@dataclass(frozen=True, kw_only=True)
class RunningLoader:
    """A loader of a running process.

    Attributes:
        pid: Of its process.
        host: Where that runs.
        command: What it was started as.
        age_s: How old the figures are.
        about: The figures, as `stoker.metrics.status` writes them.
    """

    pid: int
    host: str
    command: str
    age_s: float
    about: Mapping[str, Any]


def running(places: Iterable[Path] | None = None, *, now: float | None = None) -> list[RunningLoader]:
    """Return the loaders that run on this host as this user, by process, and remove the files of processes that ended.

    Args:
        places: Folders to look in; the usual ones unless told.
        now: Seconds since 1970.
    """
    now = time.time() if now is None else now
    found: list[RunningLoader] = []
    for place in folders() if places is None else places:
        if is_ours(place):
            remove_ended(place)
            for path in sorted(place.glob("*.json"), key=lambda path: (len(path.name), path.name)):
                found += _read(path, now)
    return found


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
        return [
            RunningLoader(
                pid=content["pid"], host=content["host"], command=content["command"], age_s=age_s, about=loader
            )
            for loader in content["loaders"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # gone meanwhile, or none of ours
