"""What this runs on: the machine by parts, what the process may have of it, and the versions of what does the work.

A process may have what is left to its control groups: a container is one.

Source:
    The kernel's documentation of control groups, version 2: cpu.max, memory.max and memory.stat.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import os
import platform
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T", int, float)


def machine() -> dict[str, str]:
    """Return the machine by parts: processor, cores, memory, system. Names no host and no user."""
    cpuinfo = ""
    with contextlib.suppress(OSError):
        cpuinfo = Path("/proc/cpuinfo").read_text()
    processor = processor_of(cpuinfo) or platform.processor() or platform.machine()
    parts = {"processor": processor, "cores": str(num_cores())}
    if (total := _meminfo("MemTotal")) is not None:
        parts["memory"] = f"{total / 2**30:.0f} GiB"
    return parts | {"system": f"{platform.system()} {platform.machine()}"}


def versions() -> dict[str, str]:
    """Return the versions of what did the work."""
    found = {"python": platform.python_version()}
    for name in ("stoker", "numpy", "pyarrow", "torch"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def cores() -> float:
    """Return how many processors this process may have at a time: its cores, or less where its container has less."""
    num = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = core_quota()
    return float(num) if quota is None else min(float(num), quota)


def num_cores() -> int:
    """Return how many threads can work at a time in this process: its `cores`, a part of one counted as one."""
    return max(1, math.ceil(cores()))


def available_bytes() -> int | None:
    """Return how much memory could be filled without anyone's being pushed out of it; None where nobody tells.

    What the system says (proc_meminfo(5), MemAvailable), or what is left to this process's control groups, if less.
    """
    return min((num for num in (_meminfo("MemAvailable"), memory_left()) if num is not None), default=None)


def free_memory_bytes() -> int:
    """Return `available_bytes`; 4 GiB where nobody tells."""
    available = available_bytes()
    return 4 * 2**30 if available is None else available


def processor_of(cpuinfo: str) -> str:
    """Return the processor's name by Linux's `/proc/cpuinfo`, with numbers: some virtual ones are called like many."""
    lines = [line.partition(":") for line in cpuinfo.partition("\n\n")[0].splitlines()]
    about = {key.strip(): value.strip() for key, _, value in lines}
    name, family, model = (about.get(key, "") for key in ("model name", "cpu family", "model"))
    return f"{name}, family {family} model {model}" if name and family and model else name


def _meminfo(name: str) -> int | None:
    with contextlib.suppress(OSError):
        if (found := re.search(rf"^{name}: *(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)) is not None:
            return int(found[1]) * 1024
    return None


def core_quota(groups: Sequence[Path] | None = None) -> float | None:
    """Return how many processors at a time the process may have by its groups; None without a limit."""
    return _least(_cores_of, groups)


def memory_left(groups: Sequence[Path] | None = None) -> int | None:
    """Return how many bytes the process may still take by its groups, its page cache included; None without a limit."""
    return _least(_left_to, groups)


def _least(limit_of: Callable[[Path], T | None], groups: Sequence[Path] | None) -> T | None:
    found = map(limit_of, own_groups() if groups is None else groups)
    return min((limit for limit in found if limit is not None), default=None)


def own_groups(own: Path = Path("/proc/self/cgroup"), top: Path = Path("/sys/fs/cgroup")) -> list[Path]:
    """Return the folders of the group of this process and of those above it, at each of which a limit may stand."""
    with contextlib.suppress(OSError):
        # "0::/a/b" is version 2.
        name = Path(own.read_text().rpartition("::")[2].strip().lstrip("/"))
        return [top / name, *map(top.joinpath, name.parents)]
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
