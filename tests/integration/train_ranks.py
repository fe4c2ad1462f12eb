"""One rank of a training run, for test_ranks.py: however it is started, it trains, saves, may be killed."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import stoker
from stoker.torch import TorchDataset, TorchLoader

State = dict[str, Any]


def feed(
    given: argparse.Namespace, options: dict[str, Any]
) -> tuple[Iterable[Any], Callable[[int], State], Callable[[State], object]]:
    """Return batches by the kind that was asked for, their state after a step, and what takes a state."""
    dataset = stoker.Dataset(given.folder / "data", chunk_size=4000)
    if given.kind == "loader":
        loader = TorchLoader(dataset, group_by=given.group_by, **options)
        return loader, lambda _: loader.state_dict(), loader.load_state_dict
    shares = TorchDataset(dataset, **options)
    workers = {"batch_size": None, "num_workers": given.num_workers, "persistent_workers": given.num_workers > 0}
    if given.kind == "plain":
        return DataLoader(shares, **workers), shares.state_after, shares.load_state_dict
    from torchdata.stateful_dataloader import StatefulDataLoader

    stateful = StatefulDataLoader(shares, **workers)
    return stateful, lambda _: stateful.state_dict(), stateful.load_state_dict


def train(given: argparse.Namespace) -> None:
    """Train one epoch with DDP from where the checkpoint says; write down the ids of every step."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60), **given.meeting)
    rank = dist.get_rank()
    options = {"shuffle": True, "seed": 11, "window": 2, "cache": given.folder / "cache", "num_threads": 1}
    batches, state_after, load = feed(given, options | {"batch_size": 16})
    # The position of a StatefulDataLoader is its workers': each rank keeps its own.
    is_shared = given.kind != "stateful"
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    checkpoint = given.folder / ("checkpoint" if is_shared else f"checkpoint-{rank}")
    if checkpoint.exists():
        load(json.loads(checkpoint.read_text()))
    with (given.folder / f"seen-{given.run}-{rank}").open("w") as seen:
        for step, batch in enumerate(batches, start=1):
            loss = (model(batch["vector"]).squeeze(1) - batch["half"]).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ids = batch["id"].tolist()
            if given.group_by is not None:
                ids = [ids[start:stop] for start, stop in pairwise(batch["group_offsets"].tolist())]
            seen.write(json.dumps(ids) + "\n")
            seen.flush()
            state = state_after(step)
            if is_shared:
                states: list[object] = [None] * dist.get_world_size()
                dist.all_gather_object(states, state)
                assert all(other == states[0] for other in states), states
            if step == given.save_at and (rank == 0 or not is_shared):
                checkpoint.write_text(json.dumps(state))
            dist.barrier()
            if step == given.kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()
    # A thread of gloo's may still hold the last barrier's tensor, and ends the process with SIGABRT where it asks for
    # the interpreter's lock in order to free it while the interpreter ends.
    os._exit(0)


def arguments(*words: str, **meeting: Any) -> argparse.Namespace:
    """Return what the words of a command line ask of a rank, and how it meets the others, if torchrun does not say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("run")
    parser.add_argument("--kind", choices=("loader", "plain", "stateful"), default="loader")
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--save-at", type=int)
    parser.add_argument("--kill-after", type=int)
    parser.add_argument("--group-by")
    parser.set_defaults(meeting=meeting)
    return parser.parse_args(words)


def train_one(rank: int, num_ranks: int, *words: str) -> None:
    """Train as one rank of several that a test starts."""
    torch.set_num_threads(1)
    folder, run, *_ = words
    train(arguments(*words, init_method=f"file://{folder}/meeting-{run}", rank=rank, world_size=num_ranks))


if __name__ == "__main__":
    train(arguments(*sys.argv[1:]))
