"""Does a loader's memory stay what its batches need, for any number of epochs?"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.measure import Answer
from stoker import Dataset, Loader
from stoker.demo.data import DemoData
from stoker.spec import Arrays

BATCH_SIZE = 4_096
NUM_EPOCHS = 50
# By then every buffer has been made.
NUM_FIRST = 5
PREFETCH = 8
# Rows enough for some hundred batches an epoch.
NUM_FILES = 4
_MIB = 1 << 20


def run(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Memory of a process after a few epochs and after fifty, beside that of the batches that it has at a time."""
    del num_rounds  # an epoch after the other is what is asked
    paths = [str(path) for path in data.paths[:NUM_FILES]]
    with _loader(paths, folder) as loader:  # builds the chunks
        num_batches = sum(1 for _ in loader)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        own, mapped, batch_mib = pool.submit(_measure, paths, folder, NUM_EPOCHS).result()
    num_middle = NUM_EPOCHS // 2
    budget = (PREFETCH + 2) * batch_mib
    return Answer(
        question=f"memory of a loader in epoch {NUM_FIRST} / in epoch {NUM_EPOCHS}",
        ours=own[NUM_FIRST - 1],
        ceiling=own[-1],
        unit="MiB of the process's own beside what it had, at most in the epoch",
        # Less than a MiB is nothing that could be told from what else a process does.
        ratios=(max(1.0, own[NUM_FIRST - 1]) / max(1.0, own[-1]),),
        promise=0.9,
        remarks=(
            f"{num_batches} batches of {BATCH_SIZE:,} rows an epoch, all columns, {batch_mib:.1f} MiB each; {PREFETCH} "
            f"are made ahead, one is made and one is used: {budget:.0f} MiB",
            "own memory by epoch: " + ", ".join(f"{own[i]:.0f}" for i in (0, 1, NUM_FIRST - 1, num_middle, -1)),
            "mapped pages of the cache by epoch: " + ", ".join(f"{mapped[i]:.0f}" for i in (0, NUM_FIRST - 1, -1)),
        ),
    )


def _loader(paths: list[str], folder: Path) -> Loader:
    return Loader(Dataset(paths), batch_size=BATCH_SIZE, shuffle=True, cache=folder / "cache", prefetch=PREFETCH)


def _measure(paths: list[str], folder: Path, num_epochs: int) -> tuple[list[float], list[float], float]:
    """Return own and mapped memory of each epoch, and the mean size of a batch, in MiB."""
    with _loader(paths, folder) as loader:  # has the loops loaded
        next(iter(loader))
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
    return own, mapped, sum(sizes) / len(sizes)


def _memory_mib() -> tuple[float, float]:
    """Return the resident memory that is the process's own, and that of mapped files, in MiB."""
    found = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key in ("RssAnon", "RssFile", "RssShmem"):
            found[key] = int(value.split()[0]) / 1024
    return found["RssAnon"], found["RssFile"] + found["RssShmem"]


def _batch_mib(batch: Arrays) -> float:
    total = 0
    for field in batch.values():
        parts = field if isinstance(field, tuple) else (field,)
        total += sum(part.nbytes for part in parts)
    return total / _MIB
