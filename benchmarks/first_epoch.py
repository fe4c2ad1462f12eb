"""The first epoch, everything included: how near to bare pyarrow decode of the same columns on as many threads?"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.measure import Answer, compare, rate_of
from stoker import Dataset, Field, Loader
from stoker.demo.data import DemoData
from stoker.demo.machine import num_cores
from stoker.demo.ranking import COUNTRIES, column_names

BATCH_SIZE = 4096


def run_on_all(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Ask it with a thread a core: then whatever is done beside decoding takes from decoding."""
    return run(data, folder, num_rounds=num_rounds, num_threads=num_cores())


def run(data: DemoData, folder: Path, *, num_rounds: int, num_threads: int = 1) -> Answer:
    """Ask it with one thread that builds."""
    urls = [str(path) for path in data.paths]
    jobs = [(url, group) for url in urls for group in range(pq.read_metadata(url).num_row_groups)]
    dataset = Dataset(
        urls,
        columns=column_names(),
        fields={
            "dense": Field("float32", columns="dense_*"),
            "ids": Field("int64", columns="id_*"),
            "country": Field("int32", vocabulary=COUNTRIES),
        },
    )
    stages: list[str] = []

    def decode() -> None:
        def read(job: tuple[str, int]) -> int:
            url, group = job
            return int(pq.ParquetFile(url).read_row_group(group, use_threads=False).num_rows)

        with ThreadPoolExecutor(num_threads) as threads:
            if sum(threads.map(read, jobs)) != data.num_rows:
                raise AssertionError("rows are missing")

    def first_epoch() -> None:
        cache = folder / "cold"
        shutil.rmtree(cache, ignore_errors=True)
        with Loader(dataset, batch_size=BATCH_SIZE, shuffle=True, cache=cache, num_threads=num_threads) as loader:
            num_rows = sum(len(batch["label"]) for batch in loader)
            if num_rows != data.num_rows:
                raise AssertionError(f"{num_rows} rows of {data.num_rows} were delivered")
            totals = loader.stats().stages.items()
            stages[:] = [f"{stage} {total.busy_s:.2f} s" for stage, total in totals if stage not in ("wait", "open")]
        shutil.rmtree(cache)

    return compare(
        f"first epoch, all columns, num_threads={num_threads} / bare pyarrow decode on as many threads",
        ours=lambda: rate_of(data.num_rows, first_epoch) / 1e6,
        ceiling=lambda: rate_of(data.num_rows, decode) / 1e6,
        unit="million rows/s",
        num_rounds=num_rounds,
        promise=0.6,
        remarks=lambda: ("thread time of the last first epoch: " + ", ".join(stages),),
    )
