"""Train with Accelerate, stop in mid-epoch, go on: python examples/train_accelerate.py FOLDER

A few hundred rows are written to FOLDER first. Under `accelerate launch` or torchrun each rank takes its share.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator

import stoker
from stoker.hf import prepare
from stoker.testing import write_example
from stoker.torch import TorchLoader


def train(folder, *, stop_after):
    """Go on from the folder's checkpoint; leave one after some steps. Return how many samples this rank got."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Linear(3, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.1))
    dataset = stoker.Dataset(folder / "data")
    with TorchLoader(dataset, batch_size=32, shuffle=True, seed=7, cache=folder / "cache") as loader:
        batches = prepare(accelerator, loader)  # in place of accelerator.prepare(loader)
        if (folder / "state").exists():
            accelerator.load_state(folder / "state")
        num_steps = num_samples = 0
        while loader.epoch < 2:
            for batch in batches:
                with accelerator.accumulate(model):
                    accelerator.backward((model(batch["vector"]).squeeze(1) - batch["half"]).square().mean())
                    optimizer.step()
                    optimizer.zero_grad()
                num_steps += 1
                num_samples += len(batch["half"])
                if num_steps == stop_after:
                    accelerator.save_state(folder / "state")
                    return num_samples
        return num_samples


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    if Accelerator(cpu=True).is_main_process:
        write_example(folder / "data")
    Accelerator(cpu=True).wait_for_everyone()
    before, after = train(folder, stop_after=5), train(folder, stop_after=None)
    print(f"{before} samples, then {after}: {before + after} in two epochs")


if __name__ == "__main__":
    main()
