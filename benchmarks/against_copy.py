"""Warm epochs by two threads, against two threads that copy: how near to the memory's limit."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Answer, compare, rate_of, sized
from stoker import Dataset, Pack
from stoker.fields.spec import Ragged

# A copy this large lies in no cache.
COPY_BYTES = sized(256 << 20, small=1 << 20)


def against_copy(
    words: str,
    dataset: Dataset,
    folder: Path,
    *,
    batch_size: int,
    num_rounds: int,
    promise: float | None,
    sequence: Pack | None = None,
) -> Answer:
    """Ask how the bytes that a warm epoch delivers as torch tensors compare with those that `memcpy` copies.

    Args:
        words: What is delivered.
        dataset: From where.
        folder: The cache is made in it.
        batch_size: Samples of a batch.
        num_rounds: Times both are measured.
        promise: The ratio that is promised.
        sequence: How tokens are packed, where they are.
    """
    from stoker.torch import TorchLoader

    source, target = np.ones(COPY_BYTES, dtype=np.uint8), np.empty(COPY_BYTES, dtype=np.uint8)

    def copy() -> None:
        half = COPY_BYTES // 2
        threads = [
            threading.Thread(target=np.copyto, args=(target[at : at + half], source[at : at + half]))
            for at in (0, half)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    options: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "num_threads": 2, "sequence": sequence}
    with TorchLoader(dataset, cache=folder / "cache", **options) as loader:
        first = [(_num_rows(batch), _num_bytes(batch.values())) for batch in loader]
        num_samples, num_bytes = (sum(numbers) for numbers in zip(*first, strict=True))
        if sequence is None and num_samples != loader.num_samples:
            raise AssertionError(f"{num_samples} rows of {loader.num_samples} were delivered")
        num_fields = len(loader.spec)

        def epoch() -> None:
            num_rows = sum(_num_rows(batch) for batch in loader)
            if num_rows != num_samples:
                raise AssertionError(f"{num_rows} rows of {num_samples} were delivered")

        return compare(
            f"warm epoch, {words}, 2 threads / 2 threads of memcpy",
            ours=lambda: rate_of(num_bytes, epoch) / 1e9,
            ceiling=lambda: rate_of(COPY_BYTES, copy) / 1e9,
            unit="GB/s",
            num_rounds=num_rounds,
            promise=promise,
            remarks=lambda: (
                f"{num_fields} fields, {num_bytes / num_samples:,.0f} bytes a row without padding, batches of "
                f"{batch_size:,} rows; bytes delivered against bytes copied, {COPY_BYTES >> 20} MiB in two halves",
            ),
        )


def _num_rows(batch: dict[str, Any]) -> int:
    first = next(iter(batch.values()))
    return len(first.offsets) - 1 if isinstance(first, Ragged) else len(first)


def _num_bytes(fields: Iterable[Any]) -> int:
    return sum(_num_bytes(field) if isinstance(field, Ragged) else field.nbytes for field in fields)
