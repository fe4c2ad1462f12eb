"""How a chunk comes to be, stage by stage: fetched alone, then everything behind it from memory."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from stoker.cache.builder import Builder
from stoker.cache.store import Store
from stoker.dataset.catalogue import Catalogue
from stoker.doctor.gilwatch import NOISE, GilWatch
from stoker.doctor.meter import CpuMeter, in_threads
from stoker.doctor.sampled import SampledCatalogue
from stoker.doctor.tap import Read, Tap
from stoker.storage.urls import name_bytes, scheme_of

BUILD_STAGES = ("decode", "transform", "convert", "publish")
"""What a chunk goes through in one thread once its bytes are there."""

# Rounds that there should be time for, and units a thread that a round is made of at least.
_NUM_ROUNDS = 4
_LEAST = 2
# Stages in which the user's own code may ask something else and wait for it.
_MAY_WAIT = ("transform",)
# Of the processor time: less waiting is only the system's.
_WAITS = 0.2


@dataclass(kw_only=True)
class Fetched:
    """Units that were read from the source once.

    Attributes:
        units: The units.
        wall_s: Seconds that waiting for the source took, of each.
        num_bytes: Bytes that came, of each.
        num_samples: Samples of each.
        reads: What was asked of the storage, for each; empty where the source is local.
        cpu_s: Processor seconds that reading took beside decoding, over all units.
    """

    units: list[range] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    num_bytes: list[int] = field(default_factory=list)
    num_samples: list[int] = field(default_factory=list)
    reads: list[list[Read]] = field(default_factory=list)
    cpu_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class BuildCost:
    """What one stage of building took for one sample.

    Attributes:
        cpu_s: Processor seconds.
        gil_s: Of these, with the GIL held.
        wait_s: Seconds in which the thread waits for something else: a service that a transform asks.
        size_bytes: Bytes that it gave.
        spread: Of the rounds, as a share.
        by_threads: Processor seconds a sample with so many threads at it.
    """

    cpu_s: float
    gil_s: float
    wait_s: float
    size_bytes: float
    spread: float
    by_threads: tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True)
class Built:
    """What building took.

    Attributes:
        stages: By key.
        rates: Samples/s of the whole, with so many threads at it.
        cores: Processors that all threads together got at best: others use this machine, too.
    """

    stages: dict[str, BuildCost]
    rates: tuple[tuple[int, float], ...]
    cores: float


def fetch_units(
    catalogue: Catalogue, units: Sequence[range], *, tap: Tap | None, until: float, max_bytes: int
) -> Fetched:
    """Read units from the source one after the other, in this thread, and keep their bytes in the tap.

    Local files are dropped from the page cache first: they come from the disk, as they would in a data set larger than
    memory.

    Args:
        catalogue: The data set.
        units: Which.
        tap: What its storage goes through; None where the source is local.
        until: When to stop, by `time.perf_counter`; at least one unit is read.
        max_bytes: Bytes to keep at most.
    """
    found = Fetched()
    if tap is not None:
        tap.take_reads()  # those of footers, when the data set was opened
    for unit in units:
        if found.units and (time.perf_counter() > until or sum(found.num_bytes) > max_bytes):
            break
        if tap is None:
            _drop_pages(catalogue, unit)
        meter = CpuMeter()
        cpu_s = time.process_time() - time.thread_time()
        with tap.keeping() if tap is not None else nullcontext():
            for _ in catalogue.read(unit[0], on_stage=meter):
                pass
        found.cpu_s += time.process_time() - time.thread_time() - cpu_s
        fetched = meter.times.get("fetch")
        found.units.append(unit)
        found.reads.append(tap.take_reads() if tap is not None else [])
        found.wall_s.append(fetched.wall_s if fetched is not None else 0.0)
        found.num_bytes.append(fetched.num_bytes if fetched is not None else 0)
        found.num_samples.append(int(catalogue.num_samples[unit.start : unit.stop].sum()))
    return found


def build_units(
    catalogue: Catalogue,
    fetched: Fetched,
    *,
    tap: Tap | None,
    scratch: Path,
    threads: Sequence[int],
    until: float,
) -> Built:
    """Build the units from memory, with each number of threads, and return what each stage took.

    Args:
        catalogue: The data set.
        fetched: Its units that are in the tap, or in the page cache.
        tap: What its storage goes through; None where the source is local.
        scratch: Folder for chunks, removed by the caller.
        threads: Numbers of threads, the first of them 1.
        until: When to stop, by `time.perf_counter`.
    """
    costs: dict[str, list[tuple[int, float]]] = {stage: [] for stage in BUILD_STAGES}
    waits: dict[str, list[float]] = {stage: [] for stage in BUILD_STAGES}
    held: dict[str, float] = {}
    sizes: dict[str, float] = {}
    rates: list[tuple[int, float]] = []
    cores = 0.0
    with tap.replaying() if tap is not None else nullcontext():
        rounds = [1, *threads]
        for round_, num_threads in enumerate(rounds):
            now = time.perf_counter()
            if round_ > 1 and now > until:
                break
            # Slow stages get through a few units a round, fast ones through all of them.
            round_until = now + max(0.0, until - now) / min(_NUM_ROUNDS, len(rounds) - round_)
            # The first round, not counted, compiles and touches what is compiled and touched once; it is also the one
            # in which the GIL is watched, which takes some time itself.
            meter = CpuMeter()
            watch = GilWatch()
            cpu_s = time.process_time()
            with watch if round_ == 0 else nullcontext():
                wall_s, num_samples = _build_all(
                    catalogue, fetched.units, scratch / f"build-{round_}", meter, num_threads, until=round_until
                )
            cpu_s = time.process_time() - cpu_s
            shutil.rmtree(scratch / f"build-{round_}", ignore_errors=True)  # its memory is used again, as a loader's is
            if round_ == 0:
                for stage, times in meter.times.items():
                    share = watch.held_share(times.spans)
                    held[stage] = share if share is not None and share > NOISE else 0.0
                    sizes[stage] = times.num_bytes / num_samples
                continue
            rates.append((num_threads, num_samples / wall_s))
            if num_threads > 1:
                cores = max(cores, cpu_s / wall_s)
            for stage, times in meter.times.items():
                if stage in costs:
                    costs[stage].append((num_threads, times.cpu_s / num_samples))
                    if num_threads == 1 and stage in _MAY_WAIT:  # with several, they also wait for each other
                        waits[stage].append(times.wait_s / num_samples)
    return Built(
        stages={
            stage: _cost(found, held.get(stage, 0.0), sizes.get(stage, 0.0), min(waits[stage], default=0.0))
            for stage, found in costs.items()
            if found
        },
        rates=tuple(rates),
        cores=cores,
    )


def tables_of(catalogue: Catalogue, fetched: Fetched, *, tap: Tap | None, max_bytes: int) -> list[pa.Table]:
    """Return the units' rows, decoded from memory, up to so many bytes; at least one unit's."""
    tables: list[pa.Table] = []
    with tap.replaying() if tap is not None else nullcontext():
        for unit in fetched.units:
            for _, table in catalogue.read(unit[0]):
                if tables and sum(t.nbytes for t in tables) + table.nbytes > max_bytes:
                    return tables
                tables.append(table)
    return tables


def _cost(found: list[tuple[int, float]], held: float, size_bytes: float, wait_s: float) -> BuildCost:
    # What it costs with all threads at work is what counts: cores share caches and memory.
    alone = [cpu_s for num, cpu_s in found if num == 1]
    most = max(num for num, _ in found)
    full = [cpu_s for num, cpu_s in found if num == most]
    # Others, and memory that is touched for the first time, only ever add to it: the least is what it takes.
    cpu_s = min(full)
    values = [cpu_s for _, cpu_s in found]
    spread = (max(values) - min(values)) / (2 * cpu_s) if cpu_s else 0.0
    return BuildCost(
        cpu_s=cpu_s,
        gil_s=held * min(alone or full),
        wait_s=wait_s if wait_s > _WAITS * cpu_s else 0.0,
        size_bytes=size_bytes,
        spread=spread,
        by_threads=tuple(found),
    )


def _build_all(
    catalogue: Catalogue, units: Sequence[range], folder: Path, meter: CpuMeter, num_threads: int, *, until: float
) -> tuple[float, int]:
    """Build units in an empty cache, two for each thread at least, and return how long that took and their samples."""
    # Twice: finding out what a transform gives takes one unit away.
    sampled = SampledCatalogue(catalogue, units, num_times=2)
    with Store(folder) as store:
        builder = Builder(sampled, store, on_stage=meter)
        builder.find_spec()
        meter.times.clear()
        firsts = [i for i in range(len(sampled)) if sampled.unit(i)[0] == i]
        todo = [i for i in firsts if not store.has(sampled.key(i))][: len(units)]
        numbers = itertools.count()
        built: list[int] = []

        def work(_: int) -> None:
            while (k := next(numbers)) < len(todo) and (k < _LEAST * num_threads or time.perf_counter() < until):
                meter.begin()
                builder.build(todo[k])
                built.extend(sampled.unit(todo[k]))

        wall_s = in_threads(min(num_threads, len(units)), work)
        return wall_s, int(sampled.num_samples[built].sum())


def _drop_pages(catalogue: Catalogue, unit: range) -> None:
    """Ask the system to forget a unit's file, so that it is read from the disk."""
    url = catalogue.fragments[unit[0]].url
    if scheme_of(url) != "file" or not hasattr(os, "posix_fadvise"):
        return
    fd = os.open(name_bytes(url), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
