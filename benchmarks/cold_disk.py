"""Warm cache, cold page cache: does an epoch of data that memory does not hold keep up with the disk?"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

from benchmarks.measure import Answer, compare, rate_of, sized
from benchmarks.warm_gather import BATCH_SIZE, STACKED
from stoker import Dataset, Loader
from stoker._native import cached_bytes
from stoker.demo.data import DemoData

# Windows of an epoch.
NUM_WINDOWS = 10
CHUNK_BYTES = sized(16 << 20, small=256 << 10)
# What a program that copies large files takes.
BLOCK_BYTES = 8 << 20
# A page that somebody else reads meanwhile may stay.
MAX_LEFT = 0.01


def run(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Epochs whose chunks were dropped from the page cache, against one read of the same files past it."""
    dataset = Dataset([str(path) for path in data.paths], fields=STACKED, chunk_size=CHUNK_BYTES)
    cache = folder / "cold"
    with Loader(dataset, batch_size=BATCH_SIZE, shuffle=True, cache=cache, num_threads=2) as loader:
        for _ in loader:
            pass
        num_chunks = loader.stats().num_built
    files = sorted((cache / "chunks").glob("*"))
    num_bytes = sum(path.stat().st_size for path in files)
    window = max(1, num_chunks // NUM_WINDOWS)
    _sync(files)
    buffer = mmap.mmap(-1, BLOCK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    buffer.madvise(mmap.MADV_HUGEPAGE)
    buffered: list[float] = []
    cpu: list[float] = []
    left: list[int] = []

    def epoch(loader: Loader) -> None:
        num_rows = sum(len(batch["label"]) for batch in loader)
        if num_rows != data.num_rows:
            raise AssertionError(f"{num_rows} rows of {data.num_rows} were delivered")

    def ours() -> float:
        # One of its own each time: a chunk that stays mapped cannot be dropped.
        with Loader(dataset, cache=cache, window=window, batch_size=BATCH_SIZE, shuffle=True, num_threads=2) as loader:
            drop(files)
            start_s = time.process_time()
            rate = rate_of(num_bytes, lambda: epoch(loader)) / 1e9
            cpu.append(time.process_time() - start_s)
            left.append(_in_memory(files))
            return rate

    def disk() -> float:
        drop(files)
        buffered.append(rate_of(num_bytes, lambda: read(files, buffer)) / 1e9)
        drop(files)
        return rate_of(num_bytes, lambda: read(files, buffer, flags=os.O_DIRECT)) / 1e9

    answer = compare(
        f"cold page cache, window a tenth of {num_bytes / 1e9:.1f} GB / one sequential read past the page cache",
        ours=ours,
        ceiling=disk,
        unit="GB/s",
        num_rounds=num_rounds,
        promise=0.8,
        remarks=lambda: (
            f"{num_chunks} chunk files, windows of {window}, batches of {BATCH_SIZE:,}, all fields, 2 threads; "
            "bytes of the files a second",
            f"the same read through the page cache: {sorted(buffered)[len(buffered) // 2]:.2f} GB/s",
            f"processor seconds of an epoch, ours: {sorted(cpu)[len(cpu) // 2]:.2f}",
            f"of the files, an epoch left at most {max(left) / 1e6:,.0f} MB in the page cache",
        ),
    )
    buffer.close()
    return answer


def read(files: list[Path], buffer: mmap.mmap, *, flags: int = 0) -> None:
    """Read files one after the other, in large blocks."""
    view = memoryview(buffer)
    for path in files:
        fd = os.open(path, os.O_RDONLY | flags)
        try:
            at = 0
            while num := os.preadv(fd, [view], at):
                at += num
                if num % mmap.PAGESIZE:  # its end
                    break
        finally:
            os.close(fd)
    view.release()


def drop(files: list[Path]) -> None:
    """Drop files from the page cache.

    Raises:
        AssertionError: Somebody keeps them there.
    """
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
    left, num_bytes = _in_memory(files), sum(path.stat().st_size for path in files)
    if left > MAX_LEFT * num_bytes:
        raise AssertionError(f"{left:,} of {num_bytes:,} bytes are still in the page cache")


def _in_memory(files: list[Path]) -> int:
    total = 0
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        try:
            total += cached_bytes(fd, path.stat().st_size)
        finally:
            os.close(fd)
    return total


def _sync(files: list[Path]) -> None:
    """Have the disk take what was written, so that it can be dropped."""
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
