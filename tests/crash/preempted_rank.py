"""One rank of a training run that is preempted, for test_preemption.py: the ten lines of the docs around its loop.

Writes the ids of each step to `seen-<run>-<rank>`, a line a step.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import stoker

OPTIONS = {"global_batch_size": 24, "shuffle": True, "seed": 11, "window": 3, "on_error": "substitute"}


def transform(table: pa.Table) -> dict[str, np.ndarray]:
    """Take a while, so that chunks are in the making when a signal comes, and refuse some rows."""
    ids = table["id"].to_numpy()
    if 100 in ids:
        raise ValueError("100 is not wanted")
    time.sleep(0.02)
    return {"id": ids, "twice": ids * np.int64(2)}


def data(folder: Path) -> stoker.Dataset:
    """Return the data set of all runs."""
    return stoker.Dataset(folder / "data", transform=transform, transform_version="1", chunk_size=2500)


def is_told_anywhere(folder: Path, *, step: int, is_told: bool) -> bool:
    """Return whether any rank was told by now, the same on each of them: what all_reduce does, without torch."""
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder.mkdir(exist_ok=True)
    (folder / f"{step}-{rank}-{int(is_told)}").touch()
    while len(found := list(folder.glob(f"{step}-*"))) < num_ranks:
        time.sleep(0.001)
    return any(path.name.endswith("-1") for path in found)


def train(given: argparse.Namespace) -> int:
    """Train an epoch from where the checkpoint says; return 0 at its end, and 143 where SIGTERM came before."""
    folder, checkpoint, rank = given.folder, given.folder / "checkpoint", int(os.environ["RANK"])
    options = {"num_threads": given.num_threads, "transform_in": given.transform_in, "cache": folder / "cache"}
    told = threading.Event()

    def note(*_: object) -> None:
        told.set()

    signal.signal(signal.SIGTERM, note)
    with (
        stoker.Loader(data(folder), **options, **OPTIONS) as loader,
        (folder / f"seen-{given.run}-{rank}").open("w") as seen,
    ):
        if checkpoint.exists():
            loader.load_state_dict(json.loads(checkpoint.read_text()))
        for step, batch in enumerate(loader):
            assert (batch["twice"] == 2 * batch["id"]).all()
            seen.write(json.dumps(batch["id"].tolist()) + "\n")
            seen.flush()
            while step == given.waits_at and not told.is_set():  # so that the signal comes before the epoch's end
                time.sleep(0.001)
            if is_told_anywhere(folder / f"told-{given.run}", step=step, is_told=told.is_set()):
                if rank == 0:
                    aside = checkpoint.with_suffix(".new")
                    aside.write_text(json.dumps(loader.state_dict()))
                    aside.replace(checkpoint)
                return 143
        assert signal.getsignal(signal.SIGTERM) is note  # nobody has put another one in its place
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("run")
    parser.add_argument("--transform-in", default="threads")
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument("--waits-at", type=int)
    raise SystemExit(train(parser.parse_args()))
