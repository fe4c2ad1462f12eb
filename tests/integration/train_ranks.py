"""One rank of a training run, for test_ranks.py: started by torchrun, it trains, saves, and may be killed."""

from __future__ import annotations

import argparse
import json
import os
import signal
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import stoker
from stoker.torch import TorchLoader


def train(folder: Path, *, save_every: int, kill_after: int | None, group_by: str | None) -> None:
    """Train one epoch with DDP from where the checkpoint says; write down the ids of every step."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    run = os.environ["STOKER_TEST_RUN"]
    dataset = stoker.Dataset(folder / "data", chunk_size=4000)
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    options = {"shuffle": True, "seed": 11, "window": 2, "lanes": 1, "cache": folder / "cache", "num_threads": 1}
    options["group_by"] = group_by
    with TorchLoader(dataset, batch_size=16, **options) as loader, (folder / f"seen-{run}-{rank}").open("w") as seen:
        checkpoint = folder / "checkpoint.pt"
        if checkpoint.exists():
            saved = torch.load(checkpoint)
            model.load_state_dict(saved["model"])
            loader.load_state_dict(saved["loader"])
        for step, batch in enumerate(loader, start=1):
            loss = (model(batch["vector"]).squeeze(1) - batch["half"]).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ids = batch["id"].tolist()
            if group_by is not None:
                ids = [ids[start:stop] for start, stop in pairwise(batch["group_offsets"].tolist())]
            seen.write(json.dumps(ids) + "\n")
            seen.flush()
            states: list[object] = [None] * dist.get_world_size()
            dist.all_gather_object(states, loader.state_dict())
            assert all(state == states[0] for state in states), states
            if step % save_every == 0 and rank == 0:
                torch.save(
                    {"model": model.state_dict(), "loader": loader.state_dict(), "num_steps": step},
                    folder / "checkpoint.new",
                )
                (folder / "checkpoint.new").rename(checkpoint)
            dist.barrier()
            if kill_after is not None and step == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()
    # A thread of gloo's may still hold the last barrier's tensor, and ends the process with SIGABRT where it asks for
    # the interpreter's lock in order to free it while the interpreter ends.
    os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--save-every", type=int, default=3)
    parser.add_argument("--kill-after", type=int)
    parser.add_argument("--group-by")
    arguments = parser.parse_args()
    train(
        arguments.folder,
        save_every=arguments.save_every,
        kill_after=arguments.kill_after,
        group_by=arguments.group_by,
    )
