"""Does a loader's memory stay what its batches need, for any number of epochs?"""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import Answer
from stoker import Dataset
from stoker.demo.data import DemoData
from stoker.torch import TorchLoader

BATCH_SIZE = 4_096
NUM_EPOCHS = 50
# By then every buffer has been made, every loop compiled and every chunk built.
NUM_FIRST = 5
PREFETCH = 8
# Rows enough for some hundred batches an epoch.
NUM_FILES = 4
_MIB = 1 << 20


def run(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Memory of the process after a few epochs and after fifty: its own, and pages of the cache that it has mapped."""
    del num_rounds  # an epoch after the other is what is asked
    own: list[float] = []
    mapped: list[float] = []
    dataset = Dataset([str(path) for path in data.paths[:NUM_FILES]])
    before = _memory_mib()
    with TorchLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, cache=folder / "cache", prefetch=PREFETCH) as loader:
        for _ in range(NUM_EPOCHS):
            most = 0
            for i, batch in enumerate(loader):
                if i == 0:
                    batch_mib = _batch_mib(batch)
                if i % 16 == 0:
                    most = max(most, _memory_mib()[0])
                del batch
            own.append(most - before[0])
            mapped.append(_memory_mib()[1] - before[1])
        num_batches = len(loader)
    budget = (PREFETCH + 2) * batch_mib
    return Answer(
        question=f"memory of a loader in epoch {NUM_FIRST} / in epoch {NUM_EPOCHS}",
        ours=own[NUM_FIRST - 1],
        ceiling=own[-1],
        unit="MiB of the process's own, at most in the epoch",
        ratios=(own[NUM_FIRST - 1] / own[-1],),
        promise=0.95,
        remarks=(
            f"{num_batches} batches of {BATCH_SIZE:,} rows an epoch, all columns, {batch_mib:.1f} MiB each; {PREFETCH} "
            f"are made ahead, one is made and one is used: {budget:.0f} MiB",
            "own memory by epoch: " + ", ".join(f"{own[i]:.0f}" for i in (0, 1, NUM_FIRST - 1, 9, 24, -1)),
            "mapped pages of the cache by epoch: " + ", ".join(f"{mapped[i]:.0f}" for i in (0, NUM_FIRST - 1, -1)),
        ),
    )


def _memory_mib() -> tuple[float, float]:
    """Return the resident memory that is the process's own, and that of mapped files, in MiB."""
    found = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key in ("RssAnon", "RssFile", "RssShmem"):
            found[key] = int(value.split()[0]) / 1024
    return found["RssAnon"], found["RssFile"] + found["RssShmem"]


def _batch_mib(batch: dict[str, object]) -> float:
    total = 0
    for field in batch.values():
        parts = field if isinstance(field, tuple) else (field,)
        total += sum(part.nbytes for part in parts)  # type: ignore[attr-defined]
    return total / _MIB
