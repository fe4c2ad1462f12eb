"""Does a loader's memory stay what its batches need, for any number of epochs?"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import Answer, in_a_new_process, sized
from stoker import Dataset, Loader
from stoker.demo.data import DemoData
from stoker.fields.spec import Arrays
from stoker.loader.batches import TOGETHER_BYTES

BATCH_SIZE = 4_096
NUM_EPOCHS = sized(50, small=6)
# By then every buffer has been made.
NUM_FIRST = 5
# Beside the batches that are ahead and the one in use there are those gathered together with the first of the former
# and with the latter, so many at most each.
TOGETHER_MIB = TOGETHER_BYTES >> 20
# Rows enough for some hundred batches an epoch.
NUM_FILES = 4
_MIB = 1 << 20


def run(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Memory of a process after fifty epochs, beside that of the batches that it has at a time."""
    del num_rounds  # an epoch after the other is what is asked
    found = _found(data, folder)
    num_ahead = found.num_ahead
    budget = (num_ahead + 1) * found.batch_mib + 2 * TOGETHER_MIB
    return Answer(
        question=f"batches that a loader has at a time / its own memory in epoch {NUM_EPOCHS}",
        ours=budget,
        ceiling=found.own[-1],
        unit="MiB; own: beside what the process had, at most in the epoch",
        ratios=(budget / found.own[-1],),
        promise=0.9,
        remarks=(
            f"{found.num_batches} batches of {BATCH_SIZE:,} rows an epoch, all columns, of {found.batch_mib:.1f} MiB: "
            f"{num_ahead} ahead, one in use, and twice {TOGETHER_MIB} MiB of what is gathered together with these",
            *_by_epoch(found),
        ),
    )


class _Found(NamedTuple):
    """What a process measured of itself.

    Attributes:
        own: Its own memory, at most in each epoch, beside what it had, in MiB.
        mapped: That of mapped files.
        batch_mib: Mean size of a batch.
        num_ahead: Batches that are made ahead.
        num_batches: In an epoch.
    """

    own: list[float]
    mapped: list[float]
    batch_mib: float
    num_ahead: int
    num_batches: int


def _found(data: DemoData, folder: Path) -> _Found:
    paths = [str(path) for path in data.paths[:NUM_FILES]]
    with _loader(paths, folder) as loader:  # builds the chunks
        for _ in loader:
            pass
    return in_a_new_process(_measure, paths, folder, NUM_EPOCHS)


def _by_epoch(found: _Found) -> tuple[str, ...]:
    own = ", ".join(f"{found.own[i]:.0f}" for i in (0, 1, NUM_FIRST - 1, NUM_EPOCHS // 2, -1))
    mapped = ", ".join(f"{found.mapped[i]:.0f}" for i in (0, NUM_FIRST - 1, -1))
    return f"own memory by epoch: {own}", f"mapped pages of the cache by epoch: {mapped}"


def _loader(paths: list[str], folder: Path) -> Loader:
    return Loader(Dataset(paths), batch_size=BATCH_SIZE, shuffle=True, cache=folder / "cache")


def _measure(paths: list[str], folder: Path, num_epochs: int) -> _Found:
    with _loader(paths, folder) as loader:  # whatever a process takes once
        for batch in loader:
            del batch
        num_ahead = loader._settle().prefetch
    before = _memory_mib()
    own: list[float] = []
    mapped: list[float] = []
    sizes: list[float] = []
    with _loader(paths, folder) as loader:
        for _ in range(num_epochs):
            most = 0.0
            for i, batch in enumerate(loader):
                if i % 16 == 0:
                    most = max(most, _memory_mib()[0])
                    sizes.append(_batch_mib(batch))
                del batch
            own.append(most - before[0])
            mapped.append(_memory_mib()[1] - before[1])
    return _Found(own, mapped, sum(sizes) / len(sizes), num_ahead, i + 1)


def _memory_mib() -> tuple[float, float]:
    """Return the resident memory that is the process's own, and that of mapped files, in MiB."""
    found = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key in ("RssAnon", "RssFile", "RssShmem"):
            found[key] = int(value.split()[0]) / 1024
    return found["RssAnon"], found["RssFile"] + found["RssShmem"]


def _batch_mib(batch: Arrays) -> float:
    return sum(field.nbytes for field in batch.values()) / _MIB
