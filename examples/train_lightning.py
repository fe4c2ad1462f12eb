"""Train with Lightning, stop in mid-epoch, go on from the checkpoint: python examples/train_lightning.py FOLDER

A few hundred rows are written to FOLDER first. Under torchrun each rank takes its share.
"""

import argparse
import os
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

import stoker
from stoker.lightning import KeepPosition
from stoker.testing import write_example
from stoker.torch import TorchLoader


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, number):
        return (self.layer(batch["vector"]).squeeze(1) - batch["half"]).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        # Behind this Lightning hands no position to a loader any more: KeepPosition does.
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Stop(Callback):
    """Saves and stops after some steps."""

    def __init__(self, step, path):
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


def train(folder, *, stop_after, checkpoint=None):
    """Return how many steps are done."""
    dataset = stoker.Dataset(folder / "data")
    with TorchLoader(dataset, batch_size=32, shuffle=True, seed=7, cache=folder / "cache") as loader:
        trainer = Trainer(
            max_epochs=2,
            accelerator="cpu",
            devices=int(os.environ.get("WORLD_SIZE", "1")),
            callbacks=[KeepPosition(loader), Stop(stop_after, folder / "last.ckpt")],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            default_root_dir=folder,
        )
        trainer.fit(Module(), loader, ckpt_path=checkpoint)
        return trainer.global_step


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    if "RANK" in os.environ:  # the others wait until the data are there; Lightning takes the process group as it is
        torch.distributed.init_process_group("gloo")
    if os.environ.get("RANK", "0") == "0":
        write_example(folder / "data")
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    print(f"left after {train(folder, stop_after=5)} steps")
    print(f"{train(folder, stop_after=None, checkpoint=folder / 'last.ckpt')} steps in all")


if __name__ == "__main__":
    main()
