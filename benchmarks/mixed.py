"""Warm epochs whose batches are of several data sets, or of several windows: against the same rows of one."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import Answer, compare, rows_rate
from benchmarks.warm_gather import BATCH_SIZE, STACKED
from stoker import Dataset, Loader, Mixture
from stoker.demo.data import DemoData

LANES = 4


def run_mixture(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Half of the files as one data set and half as another, mixed in every batch."""
    paths = [str(path) for path in data.paths]
    mixture = Mixture(
        {"even": Dataset(paths[::2], fields=STACKED), "odd": Dataset(paths[1::2], fields=STACKED)},
        weights={"even": 1, "odd": 1},
    )
    return _compare("two data sets mixed", data, folder, mixture, lanes=1, num_rounds=num_rounds)


def run_lanes(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """All lanes of a data set in one process, each with windows of its own."""
    dataset = Dataset([str(path) for path in data.paths], fields=STACKED)
    return _compare(f"{LANES} lanes in one process", data, folder, dataset, lanes=LANES, num_rounds=num_rounds)


def _compare(
    words: str, data: DemoData, folder: Path, mixed: Dataset | Mixture, *, lanes: int, num_rounds: int
) -> Answer:
    from stoker.torch import TorchLoader

    def loader_of(dataset: Dataset | Mixture, *, lanes: int = 1) -> Loader:
        return TorchLoader(
            dataset, batch_size=BATCH_SIZE, shuffle=True, lanes=lanes, cache=folder / "cache", num_threads=2
        )

    plain = Dataset([str(path) for path in data.paths], fields=STACKED)
    with loader_of(plain) as one, loader_of(mixed, lanes=lanes) as several:
        for loader in (one, several):
            for _ in loader:
                pass

        return compare(
            f"warm epoch, all columns, 2 threads, {words} / one data set",
            ours=lambda: rows_rate(several),
            ceiling=lambda: rows_rate(one),
            unit="million rows/s",
            num_rounds=num_rounds,
            promise=None,
            remarks=lambda: (f"{several!r}", f"batches of {BATCH_SIZE:,} rows"),
        )
