"""One rank, for test_starting_ranks.py: started in one of many ways, it writes which rows each kind of loader gave it.

Writes `rank-<number>.json`: by kind of loader and when it was made, the ids, or the error's name and text.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tests.batches import ids_of
from torch.utils.data import DataLoader

import stoker
from stoker.torch import TorchDataset, TorchLoader

KINDS = ("Loader", "TorchLoader", "DataLoader", "DataLoader, forked worker", "DataLoader, spawned worker")
BATCH_SIZE = 7


class Ranks:
    """The loaders of one rank, and what they gave.

    Args:
        folder: With the data; results and the cache go there, too.
        kinds: Some of `KINDS`.
    """

    def __init__(self, folder: Path, kinds: tuple[str, ...] = KINDS) -> None:
        self.folder = folder
        self.found: dict[str, Any] = {}
        self._kinds = kinds
        self._made: dict[str, Any] = {}

    def make(self, when: str) -> None:
        """Make a loader of each kind."""
        dataset = stoker.Dataset(self.folder / "data")
        options: dict[str, Any] = {"batch_size": BATCH_SIZE, "cache": self.folder / "cache", "num_threads": 1}
        for kind in self._kinds:
            made: Any
            if kind in ("Loader", "TorchLoader"):
                made = (stoker.Loader if kind == "Loader" else TorchLoader)(dataset, **options)
            else:
                num_workers = 0 if kind == "DataLoader" else 1
                context = ("fork" if "fork" in kind else "spawn") if num_workers else None
                own = TorchDataset(dataset, **options)
                made = DataLoader(own, batch_size=None, num_workers=num_workers, multiprocessing_context=context)
            self._made[f"{kind}, made {when}"] = made

    def iterate(self) -> None:
        """Note which rows each of those that were made gives, or how it fails."""
        for name, loader in self._made.items():
            self.found[name] = _told(loader)
            if isinstance(loader, stoker.Loader):
                loader.close()
        self._made.clear()

    def iterate_sent(self, loader: Any) -> None:
        """Note which rows two epochs of a DataLoader give that was made in the process that started the ranks."""
        for epoch in range(2):
            self.found[f"sent, epoch {epoch}"] = _told(loader)

    def iterate_too_early(self) -> Callable[[], None]:
        """Take a batch of a loader of each kind; return what takes the others."""
        begun = {}
        for name, loader in self._made.items():
            batches = iter(loader)
            begun[name] = (loader, batches, next(batches)["id"].tolist())
        self._made.clear()

        def go_on() -> None:
            for name, (loader, batches, first) in begun.items():
                self.found[name] = _told(batches, first)
                if isinstance(loader, stoker.Loader):
                    loader.close()

        return go_on

    def write(self, rank: int) -> None:
        """Write what was found."""
        (self.folder / f"rank-{rank}.json").write_text(json.dumps(self.found))


def _told(batches: Any, first: Iterable[int] = ()) -> list[int] | str:
    """Return these ids and those of batches, or what the error says."""
    try:
        return [*first, *ids_of(batches)]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def process_group(folder: Path, rank: int | None, num_ranks: int | None) -> Iterator[None]:
    """Bring ranks together: by the launcher's variables, or by a file."""
    if rank is None or num_ranks is None:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=num_ranks)
    try:
        yield
        dist.barrier()
    finally:
        dist.destroy_process_group()


def with_torch(rank: int | None, num_ranks: int | None, folder: Path, kinds: tuple[str, ...] = KINDS) -> None:
    """Loaders made before and after the ranks are brought together, and used too early."""
    ranks = Ranks(folder, kinds)
    early = Ranks(folder, ("Loader", "TorchLoader"))
    early.make("and used before")
    go_on = early.iterate_too_early()
    ranks.make("before")
    with process_group(folder, rank, num_ranks):
        go_on()
        ranks.make("after")
        ranks.iterate()
        ranks.found |= early.found
        ranks.write(dist.get_rank())
        dist.barrier()


def with_sent(rank: int, num_ranks: int, folder: Path, loaders: list[Any]) -> None:
    """DataLoaders that came with the process."""
    with process_group(folder, rank, num_ranks):
        for number, loader in enumerate(loaders):
            ranks = Ranks(folder, ())
            ranks.iterate_sent(loader)
            (folder / str(number)).mkdir(exist_ok=True)
            ranks.folder = folder / str(number)
            ranks.write(rank)
            dist.barrier()


def send(num_ranks: int, folder: Path, method: str) -> None:
    """Make DataLoaders, with and without workers, and start ranks with them."""
    loaders = []
    for num_workers in (0, 1):
        own = TorchDataset(
            stoker.Dataset(folder / "data"), batch_size=BATCH_SIZE, shuffle=True, cache=folder / "cache", num_threads=1
        )
        context = "fork" if num_workers else None
        loaders.append(DataLoader(own, batch_size=None, num_workers=num_workers, multiprocessing_context=context))
    mp.start_processes(with_sent, (num_ranks, folder, loaders), nprocs=num_ranks, start_method=method)


def with_variables(rank: int, folder: Path) -> None:
    """Loaders where nothing but variables tell of ranks."""
    ranks = Ranks(folder)
    ranks.make("before")
    ranks.iterate()
    ranks.write(rank)


def with_accelerate(folder: Path) -> None:
    """Loaders made before and after Accelerate has brought the ranks together."""
    from accelerate import Accelerator

    ranks = Ranks(folder)
    ranks.make("before")
    accelerator = Accelerator(cpu=True)
    ranks.make("after")
    ranks.iterate()
    ranks.write(accelerator.process_index)
    accelerator.wait_for_everyone()
    accelerator.end_training()


def with_ray(folder: Path, num_ranks: int) -> None:
    """Ray Train's workers, with torch's process group and without."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    def work(config: dict[str, Any]) -> None:
        ranks = Ranks(config["folder"], ("Loader", "TorchLoader", "DataLoader"))
        ranks.make("before")
        ranks.iterate()
        ranks.write(ray.train.get_context().get_world_rank())

    ray.init(num_cpus=num_ranks, include_dashboard=False, log_to_driver=False)
    for kind in (TorchTrainer, DataParallelTrainer):
        place = folder / kind.__name__
        place.mkdir()
        (place / "data").symlink_to(folder / "data")
        kind(
            work,
            train_loop_config={"folder": place},
            scaling_config=ScalingConfig(num_workers=num_ranks),
            run_config=RunConfig(storage_path=str(folder / "ray"), name=kind.__name__),
        ).fit()
    ray.shutdown()


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=["torchrun", "spawn", "variables", "accelerate", "ray"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--num-ranks", type=int, default=2)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    arguments = parser.parse_args()
    if arguments.way == "torchrun":
        with_torch(None, None, arguments.folder, arguments.kinds)
        os._exit(0)  # a thread of gloo's may outlive the interpreter, and ends the process then
    elif arguments.way == "spawn":
        shared = (arguments.num_ranks, arguments.folder, arguments.kinds)
        mp.spawn(with_torch, shared, nprocs=arguments.num_ranks)
    elif arguments.way == "variables":
        with_variables(arguments.rank, arguments.folder)
    elif arguments.way == "accelerate":
        with_accelerate(arguments.folder)
    else:
        with_ray(arguments.folder, arguments.num_ranks)
