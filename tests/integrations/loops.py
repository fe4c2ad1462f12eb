"""The training loop of each framework, interrupted twice in mid-epoch: one rank, started by test_frameworks.py.

Each loop is left after some steps, made anew from its checkpoint, left and made anew once more, and goes on to the end
of the last epoch. What its steps got is written down.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import stoker
from stoker.torch import TorchDataset, TorchLoader

NUM_EPOCHS = 3
BATCH_SIZE = 16
OPTIONS: dict[str, Any] = {"batch_size": BATCH_SIZE, "shuffle": True, "seed": 3, "window": 2}
KINDS = ("TorchLoader", "DataLoader", "StatefulDataLoader")
# What was handed to a step: framework's epoch, ids.
Steps = list[tuple[int, list[int]]]


class Left(Exception):  # noqa: N818  no error
    """The loop is left here."""


@contextmanager
def making(place: Path, kind: str, num_workers: int) -> Iterator[Any]:
    """Make a loader of this kind; closed at the end."""
    source = stoker.Dataset(place / "data", chunk_size=2000)
    if kind == "TorchLoader":
        with TorchLoader(source, cache=place / "cache", **OPTIONS) as loader:
            yield loader
        return
    loader_of: Any = DataLoader
    if kind == "StatefulDataLoader":
        from torchdata.stateful_dataloader import StatefulDataLoader as loader_of  # noqa: N813
    with TorchDataset(source, cache=place / "cache", **OPTIONS) as dataset:
        # A fork beside the threads of a process group may hang, whatever the data set.
        context = "forkserver" if num_workers and "RANK" in os.environ else None
        yield loader_of(dataset, batch_size=None, num_workers=num_workers, multiprocessing_context=context)


class Model(nn.Module):
    """Its loss is no more than something to step on; it notes the ids that it was trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.seen: list[list[int]] = []

    def forward(self, id: torch.Tensor, dense: torch.Tensor, history: Any, **_: Any) -> dict[str, torch.Tensor]:  # noqa: A002
        assert len(history) == len(id)
        if self.training:
            self.seen.append(id.tolist())
        return {"loss": self.layer(dense).square().mean()}


# ---------------------------------------------------------------------- a loop of one's own, alone or in DDP


def plain(loader: Any, folder: Path, stop_after: int | None) -> Steps:
    """Go on from the folder's checkpoint, and leave one when the loop is left."""
    model: nn.Module = Model()
    if torch.distributed.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dataset = getattr(loader, "dataset", None)
    checkpoint, first, num_done = folder / f"position-{rank()}.json", 0, 0
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        first = saved["epoch"]
        (loader if hasattr(loader, "load_state_dict") else dataset).load_state_dict(saved["state"])
    steps: Steps = []
    for epoch in range(first, NUM_EPOCHS):
        for num_done, batch in enumerate(loader, start=1):
            steps.append((epoch, batch["id"].tolist()))
            model(**batch)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            if len(steps) == stop_after:
                state = loader.state_dict() if hasattr(loader, "state_dict") else dataset.state_after(num_done)
                checkpoint.write_text(json.dumps({"state": state, "epoch": epoch}))
                return steps
    return steps


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


# ---------------------------------------------------------------------- Lightning


def lightning_with(keeps: bool, schedules: bool) -> Callable[[Any, Path, int | None], Steps]:
    """Return a loop of Lightning's, perhaps with our callback, perhaps with a schedule that asks for all its steps."""

    def loop(loader: Any, folder: Path, stop_after: int | None) -> Steps:
        from lightning.pytorch import Callback, LightningModule, Trainer

        steps: Steps = []

        class Module(LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.model = Model()

            def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
                steps.append((self.current_epoch, batch["id"].tolist()))
                return self.model(**batch)["loss"]

            def validation_step(self, batch: Any, batch_idx: int) -> None:
                self.model(**batch)

            def configure_optimizers(self) -> Any:
                optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
                if not schedules:
                    return optimizer
                total = self.trainer.estimated_stepping_batches
                assert total == NUM_EPOCHS * len(loader)
                schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=int(total))
                return [optimizer], [{"scheduler": schedule, "interval": "step"}]

        class Leave(Callback):
            def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
                if len(steps) == stop_after:
                    trainer.save_checkpoint(folder / "lightning.ckpt")
                    trainer.should_stop = True

        callbacks: list[Any] = [Leave()]
        if keeps:
            from stoker.lightning import KeepPosition

            callbacks.append(KeepPosition(loader))
        trainer = Trainer(
            max_epochs=NUM_EPOCHS,
            accelerator="cpu",
            devices=int(os.environ.get("WORLD_SIZE", "1")),
            strategy="ddp" if "WORLD_SIZE" in os.environ else "auto",
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        checkpoint = folder / "lightning.ckpt"
        with making(folder.parent, "TorchLoader", 0) as validation:  # its sanity check is a pass that is left early
            trainer.fit(Module(), loader, validation, ckpt_path=str(checkpoint) if checkpoint.exists() else None)
        return steps

    return loop


# ---------------------------------------------------------------------- Hugging Face


def trainer_with(prepares: bool) -> Callable[[Any, Path, int | None], Steps]:
    """Return a loop of transformers.Trainer, of a loader as it is, or prepared by us."""

    def loop(loader: Any, folder: Path, stop_after: int | None) -> Steps:
        from transformers import Trainer, TrainerCallback, TrainingArguments

        epochs: list[int] = []

        class MyTrainer(Trainer):
            def get_train_dataloader(self) -> Any:
                if not prepares:
                    return loader
                from stoker.hf import prepare

                return prepare(self.accelerator, loader)

        class Leave(TrainerCallback):
            def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                epochs.append(int(state.epoch + 1e-6))

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if len(epochs) == stop_after:
                    control.should_save = control.should_training_stop = True

        arguments = TrainingArguments(
            output_dir=str(folder / "trainer"),
            num_train_epochs=NUM_EPOCHS,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            save_strategy="no",
            lr_scheduler_type="cosine",
            warmup_steps=2,
        )
        checkpoints = sorted((folder / "trainer").glob("checkpoint-*"), key=lambda path: path.stat().st_mtime_ns)
        model = Model()
        trainer = MyTrainer(model=model, args=arguments, callbacks=[Leave()])
        trainer.train(resume_from_checkpoint=str(checkpoints[-1]) if checkpoints else None)
        return list(zip(epochs, model.seen, strict=True))

    return loop


def accelerate_with(prepares: bool, **options: Any) -> Callable[[Any, Path, int | None], Steps]:
    """Return a loop of Accelerate's, of a loader that it prepares, or that we do."""

    def loop(loader: Any, folder: Path, stop_after: int | None) -> Steps:
        from accelerate import Accelerator, DataLoaderConfiguration

        from stoker.hf import prepare

        accelerator = Accelerator(
            cpu=True, gradient_accumulation_steps=2, dataloader_config=DataLoaderConfiguration(**options)
        )
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
        model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
        loader = prepare(accelerator, loader) if prepares else accelerator.prepare(loader)
        if isinstance(loader, TorchLoader):
            accelerator.register_for_checkpointing(loader)
        place, steps, first = folder / "accelerate", [], 0
        if place.exists():
            accelerator.load_state(str(place))
            first = json.loads((folder / "epoch.json").read_text())
        for epoch in range(first, NUM_EPOCHS):
            for batch in loader:
                with accelerator.accumulate(model):
                    steps.append((epoch, batch["id"].tolist()))
                    accelerator.backward(model(**batch)["loss"])
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                if len(steps) == stop_after:
                    accelerator.save_state(str(place))
                    (folder / "epoch.json").write_text(json.dumps(epoch))
                    return steps
        return steps

    return loop


def evaluate(place: Path) -> dict[str, list[int]]:
    """Return the ids that are left of padded batches where ranks gather what they made of them."""
    from accelerate import Accelerator
    from transformers import Trainer, TrainingArguments

    from stoker.hf import prepare

    class Model(nn.Module):
        def forward(self, id: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:  # noqa: A002
            return {"logits": id[:, None]}

    class MyTrainer(Trainer):
        def get_test_dataloader(self, _: Any = None) -> Any:
            return prepare(self.accelerator, loader)

    found: dict[str, list[int]] = {}
    accelerator = Accelerator(cpu=True)
    source, options = stoker.Dataset(place / "data", columns=["id"]), {"batch_size": 29, "remainder": "pad"}
    with TorchLoader(source, **options) as loader, TorchDataset(source, cache=place / "cache", **options) as dataset:
        for name, one in (("TorchLoader", loader), ("DataLoader", DataLoader(dataset, batch_size=None))):
            batches = prepare(accelerator, one)
            found[name] = [i for batch in batches for i in accelerator.gather_for_metrics(batch["id"]).tolist()]
        arguments = TrainingArguments(output_dir=str(place / "out"), use_cpu=True, report_to=[], disable_tqdm=True)
        predictions: Any = MyTrainer(model=Model(), args=arguments).predict(None).predictions
    return found | {"predict": predictions.reshape(-1).tolist()}


# ---------------------------------------------------------------------- Ray Train


def ray_rank(given: dict[str, Any]) -> None:
    """Run all ways of a rank that Ray Train has started."""
    import ray.train

    context = ray.train.get_context()
    os.environ["RANK"] = str(context.get_world_rank())
    write_down(Path(given["place"]), "ray", context.get_world_size())


def start_ray(place: Path, world_size: int) -> None:
    """Run all ways in workers of Ray Train."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(
        num_cpus=world_size + 1,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}},
    )
    try:
        scaling = ScalingConfig(num_workers=world_size, use_gpu=False)
        TorchTrainer(
            ray_rank,
            train_loop_config={"place": str(place)},
            scaling_config=scaling,
            run_config=RunConfig(storage_path=str(place / "ray")),
        ).fit()
    finally:
        ray.shutdown()


def prepared_by_ray(loader: Any, folder: Path, stop_after: int | None) -> Steps:
    """Go on as `plain` does, with a loader that Ray has prepared."""
    from ray.train.torch import prepare_data_loader

    return plain(prepare_data_loader(loader), folder, stop_after)


# ---------------------------------------------------------------------- what is run


class Way:
    """How a kind of loader is used in a framework, or how it is not.

    Args:
        words: What a table says of it.
        loop: Runs it.
        fails: What the error says where it cannot be right; None where it is.
        only: Numbers of processes for which that is so.
    """

    def __init__(
        self,
        words: str,
        loop: Callable[[Any, Path, int | None], Steps],
        *,
        fails: str | None = None,
        only: tuple[int, ...] = (1, 2),
    ) -> None:
        self.words = words
        self.loop = loop
        self.fails = fails
        self.only = only


_PREPARE = "`stoker.hf.prepare`"
_KEEP = "with `KeepPosition`"
WAYS: dict[str, dict[str, list[Way]]] = {
    "plain": {
        "TorchLoader": [Way("as it is", plain)],
        "DataLoader": [Way("as it is, `state_after`", plain)],
        "StatefulDataLoader": [Way("as it is", plain)],
    },
    "lightning": {
        "TorchLoader": [
            Way("as it is", lightning_with(keeps=False, schedules=False)),
            Way(_KEEP, lightning_with(keeps=True, schedules=True)),
            Way("with a schedule", lightning_with(keeps=False, schedules=True), fails="KeepPosition"),
        ],
        "DataLoader": [
            Way(_KEEP, lightning_with(keeps=True, schedules=True)),
            Way("as it is", lightning_with(keeps=False, schedules=False), fails="KeepPosition"),
        ],
        "StatefulDataLoader": [
            Way("as it is", lightning_with(keeps=False, schedules=False)),
            Way(_KEEP, lightning_with(keeps=True, schedules=True)),
            Way("with a schedule", lightning_with(keeps=False, schedules=True), fails="KeepPosition"),
        ],
    },
    "transformers": {
        "TorchLoader": [
            Way(_PREPARE, trainer_with(prepares=True)),
            Way("as it is", trainer_with(prepares=False), fails="stoker.hf.prepare"),
        ],
        "DataLoader": [
            Way(_PREPARE, trainer_with(prepares=True)),
            Way("as it is", trainer_with(prepares=False), fails="stoker.hf.prepare"),
        ],
        "StatefulDataLoader": [
            Way(_PREPARE, trainer_with(prepares=True)),
            Way("as it is", trainer_with(prepares=False), fails="stoker.hf.prepare"),
        ],
    },
    "accelerate": {
        "TorchLoader": [
            Way(_PREPARE, accelerate_with(prepares=True)),
            Way("as it is, `register_for_checkpointing`", accelerate_with(prepares=False)),
        ],
        "DataLoader": [
            Way(_PREPARE, accelerate_with(prepares=True)),
            Way("as it is", accelerate_with(prepares=False), fails="stoker.hf.prepare"),
            Way(
                "`dispatch_batches=False`",
                accelerate_with(prepares=False, dispatch_batches=False),
                fails="stoker.hf.prepare",
                only=(2,),
            ),
        ],
        "StatefulDataLoader": [
            Way(_PREPARE, accelerate_with(prepares=True)),
            Way("as it is", accelerate_with(prepares=False), fails="stoker.hf.prepare"),
        ],
    },
}


WAYS["ray"] = {
    **WAYS["plain"],
    "TorchLoader": [
        Way("as it is", plain),
        Way("`prepare_data_loader`", prepared_by_ray, fails="prepare_data_loader", only=(2,)),
    ],
}


def run_all(place: Path, framework: str, world_size: int, only: str | None = None) -> dict[str, Any]:
    """Return what the steps of each way got, or what the error said."""
    found: dict[str, Any] = {}
    for kind, ways in WAYS[framework].items():
        for way in ways:
            if world_size not in way.only:
                continue
            # Where a rank fails in a worker, others wait for it until it ends: that is for torchrun to see, not for us.
            is_lone = kind == "TorchLoader" or (way.fails is not None and world_size > 1)
            for num_workers in (0,) if is_lone else (0, 2):
                name = f"{kind} {way.words} {num_workers}"
                if only is None or only in name:
                    found[name] = run_one(place, name, way, kind, num_workers, world_size)
    return found


def run_one(place: Path, name: str, way: Way, kind: str, num_workers: int, world_size: int) -> Any:
    """Run a way from its beginning to its end, left and made anew twice."""
    folder = place / f"{world_size}-{name.replace('/', '-')}"  # the same on all ranks
    folder.mkdir(exist_ok=True)
    steps: Steps = []
    with making(place, kind, num_workers) as loader:
        num_steps = len(loader)
    try:
        for stop_after in (num_steps + 3, 2, None):  # in the second epoch
            with making(place, kind, num_workers) as loader:
                steps += way.loop(loader, folder, stop_after)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "steps": steps}
    return {"steps": steps}


def write_down(place: Path, framework: str, world_size: int, only: str | None = None) -> None:
    """Run all ways on this rank, and write down what came of them."""
    found = run_all(place, framework, world_size, only)
    (place / f"{framework}-{world_size}-{rank()}.json").write_text(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=[*sorted(WAYS), "evaluate"])
    parser.add_argument("place", type=Path)
    parser.add_argument("--world-size", type=int, default=int(os.environ.get("WORLD_SIZE", "1")))
    parser.add_argument("--only")
    given = parser.parse_args()
    if given.framework == "ray":
        start_ray(given.place, given.world_size)
        return
    if given.framework == "evaluate":
        (given.place / f"evaluate-{given.world_size}-{rank()}.json").write_text(json.dumps(evaluate(given.place)))
        return
    if "RANK" in os.environ and given.framework == "plain":  # frameworks do it themselves
        torch.distributed.init_process_group("gloo")
    write_down(given.place, given.framework, given.world_size, given.only)


if __name__ == "__main__":
    from tests.integrations import loops  # what Ray sends to its workers has to be importable there

    loops.main()
