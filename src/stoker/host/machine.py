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
from pathlib import Path


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
    quota, _ = group_limits()
    return float(num) if quota is None else min(float(num), quota)


def num_cores() -> int:
    """Return how many threads can work at a time in this process: its `cores`, a part of one counted as one."""
    return max(1, math.ceil(cores()))


def available_bytes() -> int | None:
    """Return how much memory could be filled without anyone's being pushed out of it; None where nobody tells.

    What the system says (proc_meminfo(5), MemAvailable), or what is left to this process's control groups, if less.
    """
    return min((num for num in (_meminfo("MemAvailable"), group_limits()[1]) if num is not None), default=None)


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


def group_limits(
    own: Path = Path("/proc/self/cgroup"), top: Path = Path("/sys/fs/cgroup")
) -> tuple[float | None, int | None]:
    """Return how many processors at a time, and how many more bytes, this process may have by its groups.

    Bytes include its page cache; None is no limit. One may stand at its own group and at each of those above it.
    """
    groups: list[Path] = []
    with contextlib.suppress(OSError):
        # "0::/a/b" is version 2.
        name = Path(own.read_text().rpartition("::")[2].strip().lstrip("/"))
        groups = [top / name, *map(top.joinpath, name.parents)]
    cores = [num for num in map(_cores_of, groups) if num is not None]
    left = [num for num in map(_left_to, groups) if num is not None]
    return min(cores, default=None), min(left, default=None)


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
