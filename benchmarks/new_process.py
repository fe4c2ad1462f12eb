"""What a process has of a warm cache that has imported Stoker and done nothing yet: a rank, a worker, the next run."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from benchmarks.chunk_counts import in_chunks
from benchmarks.measure import Answer, compare, in_a_new_process
from stoker import Dataset, Loader
from stoker.demo.data import DemoData

BATCH_SIZE = 4096
# In seconds, of the first batch of a loader whose chunks lie in the page cache.
FIRST_BATCH_S = 0.1
# Rows of a chunk of 512 KiB, so that a window of all of them has some hundred.
FIRST_BATCH_CHUNKS = 128


def run_first_batch(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """From making a loader to its first batch, cache and page cache warm, for several windows."""
    del data
    windows = (1, 16, None, "all")
    dataset = in_chunks(folder, FIRST_BATCH_CHUNKS)
    _first_batch_s(dataset, folder, "all")  # builds what is missing
    found: dict[str, list[float]] = {str(window): [] for window in windows}

    def slowest() -> float:
        for window in windows:
            found[str(window)].append(in_a_new_process(_first_batch_s, dataset, folder, window))
        return 1 / max(times[-1] for times in found.values())

    return compare(
        f"first warm batch, the slowest of windows {', '.join(found)}: at most {FIRST_BATCH_S} s",
        ours=slowest,
        ceiling=lambda: 1 / FIRST_BATCH_S,
        unit="first batches/s",
        num_rounds=num_rounds,
        promise=1.0,
        remarks=lambda: (
            "each in a process that has imported stoker and done nothing yet",
            *(
                f"window {window} of {FIRST_BATCH_CHUNKS} chunks: {statistics.median(times) * 1e3:.0f} ms"
                for window, times in found.items()
            ),
        ),
    )


def _first_batch_s(dataset: Dataset, folder: Path, window: object) -> float:
    start = time.perf_counter()
    with Loader(dataset, batch_size=BATCH_SIZE, shuffle=True, cache=folder / "cache", window=window) as loader:  # type: ignore[arg-type]
        next(iter(loader))
        return time.perf_counter() - start
