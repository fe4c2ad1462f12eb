"""What the machine's disk can do, and how much of it others take. Nothing is left behind."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from stoker.host.machine import cores

_MIB = 1 << 20
_MEMORY = ("tmpfs", "ramfs")
# A look shorter than this says nothing: the system counts idling in hundredths of a second.
_LEAST_S = 0.05
# The system's own work, and what a virtual machine loses to its host, is no neighbour.
_SYSTEMS_SHARE = 0.08


def cores_from_now() -> Callable[[], tuple[float, float]]:
    """Start measuring the use of the processors; the function returned ends it.

    It returns the number of cores that this process and its ended children kept busy, and the share of all cores that
    other processes took: 0 where the system does not tell.
    """
    begun_s, cpu_s, idle_s = time.perf_counter(), _cpu_s(), _idle_s()

    def tell() -> tuple[float, float]:
        wall_s, idle_now_s = time.perf_counter() - begun_s, _idle_s()
        used = (_cpu_s() - cpu_s) / max(1e-9, wall_s)
        if idle_now_s is None or idle_s is None or wall_s < _LEAST_S:
            return used, 0.0
        others = 1 - (used + (idle_now_s - idle_s) / wall_s) / cores()
        return used, min(1.0, others) if others > _SYSTEMS_SHARE else 0.0

    return tell


def disk(folder: Path, limit_s: float) -> dict[str, float]:
    """Return the pace of the disk that `folder` lies on: bytes/s of "disk_read" and "disk_write".

    Reading is past the page cache where the system lets us, writing until the bytes are on the disk.

    Args:
        folder: A file is written there, and removed.
        limit_s: Seconds for each direction: a slow disk gets a smaller file.
    """
    block = np.random.default_rng(0).integers(0, 256, 4 * _MIB, dtype=np.uint8).data
    with tempfile.NamedTemporaryFile(dir=folder, prefix="stoker-doctor-") as file:
        start, written = time.perf_counter(), 0
        while written < 256 * _MIB and (written == 0 or time.perf_counter() - start < limit_s):
            written += os.write(file.fileno(), block)
            if written % (32 * _MIB) == 0:
                os.fsync(file.fileno())
        os.fsync(file.fileno())
        write_bytes_s = written / (time.perf_counter() - start)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        start, read = time.perf_counter(), 0
        while read < written and (read == 0 or time.perf_counter() - start < limit_s):
            read += len(os.pread(file.fileno(), 4 * _MIB, read))
        read_bytes_s = read / (time.perf_counter() - start)
    return {"disk_read": read_bytes_s, "disk_write": write_bytes_s}


def _cpu_s() -> float:
    """Return the processor seconds of this process and of its children that have ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def _idle_s() -> float | None:
    """Return how long the processors this process may use have been idle; None where the system does not tell."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        fields = [line.split() for line in lines if line.split(" ", 1)[0] in ours]
        return sum(int(idle) + int(waiting) for _, _, _, _, idle, waiting, *_ in fields) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None


def is_memory(folder: Path) -> bool:
    """Return whether the folder lies on tmpfs."""
    mounts = {"/": ""}
    with suppress(OSError):
        mounts = dict(line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines())
    return next(mounts[at] for at in map(str, (folder.resolve(), *folder.resolve().parents)) if at in mounts) in _MEMORY
