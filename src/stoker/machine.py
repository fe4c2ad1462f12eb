"""What this runs on: the machine by parts, and the versions of what does the work."""

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
        cpuinfo = Path("/proc/cpuinfo").read_text()
    except OSError:
        cpuinfo = ""
    return processor_of(cpuinfo) or platform.processor() or platform.machine()


def processor_of(cpuinfo: str) -> str:
    """Return the processor's name, with the numbers of its kind: some names of virtual ones are those of many kinds.

    Args:
        cpuinfo: Linux's `/proc/cpuinfo`; "" where it does not say.
    """
    lines = [line.partition(":") for line in cpuinfo.partition("\n\n")[0].splitlines()]
    about = {key.strip(): value.strip() for key, _, value in lines}
    name, family, model = (about.get(key, "") for key in ("model name", "cpu family", "model"))
    return f"{name}, family {family} model {model}" if name and family and model else name


def _meminfo(name: str) -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None
