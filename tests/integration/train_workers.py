"""One rank whose batches come out of a DataLoader with worker processes, for test_ranks_with_workers.py."""

from __future__ import annotations

import argparse
import json
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader

import stoker
from stoker.torch import TorchDataset


def train(folder: Path, *, kind: str, num_workers: int, save_every: int, kill_after: int | None) -> None:
    """Take one epoch's batches from where the checkpoint says; write down the ids of every step."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, run = dist.get_rank(), os.environ["STOKER_TEST_RUN"]
    options: dict[str, Any] = {"shuffle": True, "seed": 11, "window": 2, "cache": folder / "cache", "num_threads": 1}
    dataset = TorchDataset(stoker.Dataset(folder / "data", chunk_size=4000), batch_size=16, **options)
    loader_of = DataLoader
    if kind == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader as loader_of  # noqa: N813
    loader = loader_of(dataset, batch_size=None, num_workers=num_workers, persistent_workers=num_workers > 0)
    # The position of a StatefulDataLoader is its workers': each rank keeps its own.
    checkpoint = folder / ("checkpoint" if kind == "plain" else f"checkpoint-{rank}")
    done = 0
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        (dataset if kind == "plain" else loader).load_state_dict(saved["state"])
        done = saved["num_steps"]
    with (folder / f"seen-{run}-{rank}").open("w") as seen:
        for step, batch in enumerate(loader, start=1):
            seen.write(json.dumps(batch["id"].tolist()) + "\n")
            seen.flush()
            state = dataset.state_after(step) if kind == "plain" else loader.state_dict()
            if kind == "plain":
                states: list[object] = [None] * dist.get_world_size()
                dist.all_gather_object(states, state)
                assert all(other == states[0] for other in states), states
            if step % save_every == 0 and (kind == "stateful" or rank == 0):
                checkpoint.with_suffix(".new").write_text(json.dumps({"state": state, "num_steps": done + step}))
                checkpoint.with_suffix(".new").rename(checkpoint)
            dist.barrier()
            if kill_after is not None and step == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
    dataset.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", choices=("plain", "stateful"), required=True)
    parser.add_argument("--num-workers", type=int, required=True)
    parser.add_argument("--save-every", type=int, default=3)
    parser.add_argument("--kill-after", type=int)
    given = parser.parse_args()
    train(
        given.folder,
        kind=given.kind,
        num_workers=given.num_workers,
        save_every=given.save_every,
        kill_after=given.kill_after,
    )
