"""What the control groups of this process leave to it: a container is one.

Source:
    The kernel's documentation of control groups, version 2: cpu.max, memory.max and memory.stat.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path


def core_quota(groups: Sequence[Path] | None = None) -> float | None:
    """Return how many processors at a time the process may have; None without a limit.

    Args:
        groups: Where limits may stand; `own_groups` unless told.
    """
    groups = own_groups() if groups is None else groups
    return min((cores for group in groups if (cores := _cores_of(group)) is not None), default=None)


def memory_left(groups: Sequence[Path] | None = None) -> int | None:
    """Return how many bytes the process may still take, those of its page cache included; None without a limit.

    Args:
        groups: Where limits may stand; `own_groups` unless told.
    """
    groups = own_groups() if groups is None else groups
    return min((left for group in groups if (left := _left_to(group)) is not None), default=None)


def own_groups(own: Path = Path("/proc/self/cgroup"), top: Path = Path("/sys/fs/cgroup")) -> list[Path]:
    """Return the folders of the group of this process and of those above it, at each of which a limit may stand.

    Args:
        own: Names the group.
        top: The folder of all groups.
    """
    with contextlib.suppress(OSError):
        # "0::/a/b" is version 2.
        name = Path(own.read_text().rpartition("::")[2].strip().lstrip("/"))
        return [top / name, *(top / above for above in name.parents)]
    return []


def _cores_of(group: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        return int(quota) / int(period)  # "max" is no number
    return None


def _left_to(group: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        limit = int((group / "memory.max").read_text())  # "max" is no number
        used = int((group / "memory.current").read_text())
        match = re.search(r"^inactive_file (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)
        return max(0, limit - used + (int(match[1]) if match is not None else 0))
    return None
