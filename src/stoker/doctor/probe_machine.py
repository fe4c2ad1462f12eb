"""What the machine can do: cores, memory, disk. Each in a fraction of a second, nothing left behind."""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stoker.doctor.meter import in_threads
from stoker.host.machine import num_cores

_MIB = 1 << 20
_SPIN_S = 0.15
_SPIN_BYTES = 4 * _MIB


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A disk's pace.

    Attributes:
        read_bytes_s: Sequential, past the page cache where the system lets us.
        write_bytes_s: Sequential, until the bytes are on the disk.
        is_memory: Whether the folder is no disk at all.
    """

    read_bytes_s: float
    write_bytes_s: float
    is_memory: bool


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What this process gets of the processors at the moment.

    Attributes:
        cores: How many: fewer than it may use, where others use them too.
        speed: Pieces of the same work a processor second: a core that shares its parts with a neighbour, here or on the
            same host, does less in its time.
    """

    cores: float
    speed: float


def pace() -> Pace:
    """Return what this process gets of the processors right now, all of them at work."""
    count = num_cores()
    rng = np.random.default_rng(0)
    rows = np.ones((_SPIN_BYTES // 512, 512), dtype=np.uint8)
    order = rng.integers(0, len(rows), 2_048)
    values = rng.standard_normal(1 << 15)
    places = [(np.empty((len(order), 512), dtype=np.uint8), values.copy()) for _ in range(count)]
    spent: list[tuple[float, float]] = []  # (processor seconds, seconds) of each thread
    each_s: list[float] = []  # processor seconds of each piece
    together = threading.Barrier(count)

    def piece(taken: Any, mine: Any) -> None:
        # Memory here and there, then sums and branches: no GIL in either, and each so long that it is hardly asked for,
        # since threads that wait for it leave cores idle.
        np.take(rows, order, axis=0, out=taken, mode="clip")
        mine[:] = values
        mine.sort(kind="heapsort")

    def spin(i: int) -> None:
        # The first piece may pay what those before have left: an allocator tidies up for as long as all of this takes.
        piece(*places[i])
        together.wait()
        cpu_s = began_s = time.thread_time()
        start_s = time.perf_counter()
        while (wall_s := time.perf_counter() - start_s) < _SPIN_S:
            piece(*places[i])
            last_s, cpu_s = cpu_s, time.thread_time()
            each_s.append(cpu_s - last_s)
        spent.append((cpu_s - began_s, wall_s))

    in_threads(count, spin)
    share = sum(cpu_s for cpu_s, _ in spent) / sum(wall_s for _, wall_s in spent)
    return Pace(cores=count * min(1.0, max(0.1, share)), speed=1 / statistics.median(each_s))


def memory_bytes_s() -> float:
    """Return the bytes a second that all cores together copy: read once, written once, counted once."""
    sources = [np.ones(32 * _MIB, dtype=np.uint8) for _ in range(num_cores())]
    targets = [np.ones_like(source) for source in sources]
    num_times = 4

    def copy(i: int) -> None:
        for _ in range(num_times):
            np.copyto(targets[i], sources[i])

    wall_s = min(in_threads(len(sources), copy) for _ in range(2))
    return num_times * sum(source.nbytes for source in sources) / wall_s


def disk(folder: Path, *, size_bytes: int = 256 * _MIB, limit_s: float = 2.0) -> Disk:
    """Return the pace of the disk that `folder` lies on.

    Args:
        folder: A file is written there, and removed.
        size_bytes: Of that file.
        limit_s: Seconds for each direction: a slow disk gets a smaller file.
    """
    block = np.random.default_rng(0).integers(0, 256, 4 * _MIB, dtype=np.uint8).data
    with tempfile.NamedTemporaryFile(dir=folder, prefix="stoker-doctor-") as file:
        start = time.perf_counter()
        written = 0
        while written < size_bytes and (written == 0 or time.perf_counter() - start < limit_s):
            written += os.write(file.fileno(), block)
            if written % (32 * _MIB) == 0:
                os.fsync(file.fileno())
        os.fsync(file.fileno())
        write_bytes_s = written / (time.perf_counter() - start)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        start = time.perf_counter()
        read = 0
        while read < written and (read == 0 or time.perf_counter() - start < limit_s):
            read += len(os.pread(file.fileno(), 4 * _MIB, read))
        read_bytes_s = read / (time.perf_counter() - start)
    return Disk(read_bytes_s=read_bytes_s, write_bytes_s=write_bytes_s, is_memory=_is_memory(folder))


def _is_memory(folder: Path) -> bool:
    """Return whether the folder lies on tmpfs."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return False
    where = str(folder.resolve())
    best = max(
        (parts for parts in mounts if where == parts[1] or where.startswith(parts[1].rstrip("/") + "/")),
        key=lambda parts: len(parts[1]),
        default=None,
    )
    return best is not None and best[2] in ("tmpfs", "ramfs")
