"""What the demo ran on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path


def machine() -> dict[str, str]:
    """Return the machine by parts: processor, cores, memory, system. Names no host and no user."""
    parts = {"processor": _processor(), "cores": str(num_cores())}
    total = _meminfo("MemTotal")
    if total is not None:
        parts["memory"] = f"{total / 2**30:.0f} GiB"
    return parts | {"system": f"{platform.system()} {platform.machine()}"}


def versions() -> dict[str, str]:
    """Return the versions of what did the work."""
    found = {"python": platform.python_version()}
    for name in ("stoker", "numpy", "pyarrow", "numba", "torch"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def num_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory_bytes() -> int:
    """Return the memory that is free or can be had by dropping file pages; 4 GiB where the system does not say."""
    available = _meminfo("MemAvailable")
    return 4 * 2**30 if available is None else available


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _meminfo(name: str) -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None
