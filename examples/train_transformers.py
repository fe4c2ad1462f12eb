"""Train with transformers.Trainer, stop in mid-epoch, go on: python examples/train_transformers.py FOLDER

A few hundred rows are written to FOLDER first. Under torchrun each rank takes its share.
"""

import argparse
from pathlib import Path

import torch
from accelerate import PartialState
from transformers import Trainer, TrainerCallback, TrainingArguments

import stoker
from stoker.hf import prepare
from stoker.testing import write_example
from stoker.torch import TorchLoader


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, vector, half, **_):
        return {"loss": (self.layer(vector).squeeze(1) - half).square().mean()}


class StokerTrainer(Trainer):
    """Takes a loader in place of a data set."""

    def __init__(self, *args, loader, **options):
        super().__init__(*args, **options)
        self.loader = loader

    def get_train_dataloader(self):
        return prepare(self.accelerator, self.loader)


class Stop(TrainerCallback):
    """Saves and stops after some steps."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


def train(folder, *, stop_after, checkpoint=None):
    """Return how many steps are done."""
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        num_train_epochs=2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        lr_scheduler_type="cosine",
    )
    dataset = stoker.Dataset(folder / "data")
    with TorchLoader(dataset, batch_size=32, shuffle=True, seed=7, cache=folder / "cache") as loader:
        trainer = StokerTrainer(model=Model(), args=arguments, callbacks=[Stop(stop_after)], loader=loader)
        return trainer.train(resume_from_checkpoint=checkpoint).global_step


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    ranks = PartialState(cpu=True)
    if ranks.is_main_process:
        write_example(folder / "data")
    ranks.wait_for_everyone()
    print(f"left after {train(folder, stop_after=5)} steps")
    print(f"{train(folder, stop_after=-1, checkpoint=str(folder / 'trainer' / 'checkpoint-5'))} steps in all")


if __name__ == "__main__":
    main()
