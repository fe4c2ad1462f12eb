"""`stoker doctor`: why the accelerator waits, and what a fix would give."""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from stoker.cli.arguments import OK, Commands, add_command, at_least_1, folder, option, seconds
from stoker.cli.target import add_target, dataset_of, load_named
from stoker.paint import make_console, print_json, print_line, progress

if TYPE_CHECKING:
    from stoker.dataset.dataset import Dataset
    from stoker.doctor.step import Step
    from stoker.doctor.verdict import DoctorResult

# Width in a pipe: wide enough for the tables, narrow enough to read as a page.
_LOG_CELLS = 120
_DEMO_ROWS = 1_000_000
# The demo's step: about 20 % busy when it is fed over a link of 40 MB/s.
_DEMO_STEP_S = 4_096 / 1_000_000


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(commands, "doctor", run)
    add_target(parser, nargs="?")  # a demo has a data set of its own
    option(parser, "--demo", "examine the demo's data behind its slow simulated link")
    step = parser.add_argument_group("the step")
    option(step, "--step-time S", "seconds a step, such as 0.01 or 10ms", seconds)
    option(step, "--step MODULE:FUNCTION", "a function of a batch, such as train.py:step: it is measured")
    option(step, "--batch-size B", "samples a step (default: 4096)", at_least_1)
    kinds = "torch tensors on cpu, cuda, cuda:1, or numpy arrays"
    option(step, "--device D", f"give the step {kinds} (default: tensors if its module uses torch)")
    loader = parser.add_argument_group("the loader, as training has it")
    option(loader, "--cache DIR", "the cache that training uses; the experiments do not touch it", folder)
    option(loader, "--threads N", "its threads (default: the cores)", at_least_1)
    option(loader, "--processes", "its transform runs in processes")
    ranks = "compare the --json of several ranks, and name the one that is slow"
    option(parser, "--ranks FILE", ranks, nargs="+")
    option(parser, "--budget S", "seconds for all of it", seconds, 60)
    option(parser, "--scratch DIR", "where experiments write (default: beside the cache)", folder)
    option(parser, "--verify", "run the best fix once more, and compare it with what was promised")
    option(parser, "--gpu-hour PRICE", "what an hour of one GPU costs", float)
    option(parser, "--gpus N", "GPUs that wait together", at_least_1, 1)
    option(parser, "--html FILE", "also write the result to one page with charts", Path)


def run(options: argparse.Namespace, console: Console) -> int:
    """Say why the GPU waits, and what would help, each tried for a few seconds.

    Runs your whole data path with the step behind it, then the alternatives:
    batches in RAM, tensors on SSD, Arrow on SSD, more threads, and others. Each
    runs for a few seconds, in turn, within a time budget. Says which stage starves
    the step, how sure that is, what it costs, and what helped. Leaves no files
    behind.

    Without a step it says what the path can supply, and which steps that feeds.

    Examples:
        stoker doctor --demo
        stoker doctor s3://lake/ranking/2026-11/ --step-time 0.01 --batch-size 4096
        stoker doctor train.py:dataset --step train.py:step --device cuda --verify
        stoker doctor train.py:dataset --cache /nvme/stoker --step-time 10ms --gpu-hour 2.50
        stoker doctor --ranks rank0.json rank1.json rank2.json rank3.json
    """
    from stoker.doctor.examine import ExaminationInterrupted, examine
    from stoker.doctor.page import check_report, write_report
    from stoker.doctor.screen import print_result
    from stoker.doctor.settings import BATCH_SIZE, DoctorSettings
    from stoker.host.machine import num_cores

    if options.ranks is not None:
        return _compare(options, console)
    messages = make_console(stderr=True)
    if options.target is None and not options.demo:
        raise ValueError("name what to examine: a URL, a Dataset in code (train.py:dataset), or --demo")
    if options.target is not None and options.demo:
        raise ValueError("--demo has a data set of its own: leave TARGET out")
    if options.step is not None and options.step_time is not None:
        raise ValueError("--step measures a step, --step-time says how long it takes: give one of the two")
    if options.html is not None:
        check_report(options.html)
    step = _step(options)  # what is wrong with it is said before anything else is looked at
    dataset = _demo(messages) if options.demo else dataset_of(options)
    with progress(messages) as bar:
        settings = DoctorSettings(
            step=step,
            batch_size=options.batch_size or BATCH_SIZE,
            num_threads=options.threads or num_cores(),
            transform_in="processes" if options.processes else "threads",
            cache=Path(options.cache) if options.cache else None,
            scratch=Path(options.scratch) if options.scratch else None,
            **_delivery(_device(options, step)),
            budget_s=options.budget,
            verify=int(options.verify),
            gpu_hour=options.gpu_hour,
            num_gpus=options.gpus,
            on_progress=lambda what, share: bar(share, 1.0, what),
            command="stoker " + shlex.join(sys.argv[1:]) if "doctor" in sys.argv else "stoker doctor",
        )
        interrupted: str | None = None
        try:
            result: DoctorResult | None = examine(dataset, settings)
        except ExaminationInterrupted as error:
            result, interrupted = error.result, error.doing
    if result is not None and options.html is not None:
        write_report(result, options.html)
    if options.json:
        print_json({"verdict": None, "interrupted": interrupted} if result is None else result.to_json())
    elif result is not None:
        print_result(result, make_console(pipe_width=_LOG_CELLS))
    if interrupted is not None:
        raise KeyboardInterrupt
    return OK


def _compare(options: argparse.Namespace, console: Console) -> int:
    """Compare ranks and print."""
    from stoker.doctor.verdict import compare_ranks

    results = []
    for name in options.ranks:
        try:
            results.append(json.loads(Path(name).read_text()))
        except ValueError as error:
            raise ValueError(f"{name} is not a result of `stoker doctor --json`: {error}") from None
    found = compare_ranks(results)
    if options.json:
        print_json(found)
    else:
        print_line(console, found["sentence"], "bold")
    return OK


def _step(options: argparse.Namespace) -> Step | None:
    from stoker.doctor.step import FunctionStep, TimedStep

    if options.step_time is not None:
        return TimedStep(options.step_time)
    if options.step is not None:
        return FunctionStep(load_named(options.step, what="a step", kinds=Callable), name=options.step)
    return TimedStep(_DEMO_STEP_S) if options.demo else None


def _device(options: argparse.Namespace, step: Step | None) -> str | None:
    """Return what batches lie on: None for NumPy arrays."""
    from stoker.doctor.step import FunctionStep

    device: str | None = options.device
    if device is None and isinstance(step, FunctionStep) and step.takes_tensors:
        return "cpu"
    return None if device == "numpy" else device


def _delivery(device: str | None) -> dict[str, Any]:
    """Return how batches come to lie there: by a loader, and of arrays where there is none."""
    if device is None:
        return {}
    if importlib.util.find_spec("torch") is None:
        raise ValueError("--device gives torch tensors, and torch is not installed: pip install 'stoker[torch]'")
    from stoker.fields.spec import Deduplicated, Ragged
    from stoker.torch.loader import TorchLoader
    from stoker.torch.tensors import as_tensors

    def moved(field: Any) -> Any:
        if isinstance(field, Ragged | Deduplicated):
            return field.map(lambda tensor: tensor.to(device))
        return field if type(field) is int else field.to(device)

    def deliver(arrays: Mapping[str, Any]) -> dict[str, Any]:
        return {name: moved(as_tensors(array)) for name, array in arrays.items()}

    return {"device": device, "make_loader": partial(TorchLoader, device=device), "deliver": deliver}


def _demo(messages: Console) -> Dataset:
    """Return the demo's data set behind its link; it stays for the next time."""
    from stoker.demo.data import MeteredLink, make_data, ranking_dataset
    from stoker.demo.run import default_folder

    with messages.status("writing the demo's data, once …"):
        data = make_data(default_folder() / "doctor", num_rows=_DEMO_ROWS)
    return ranking_dataset(data.paths, storage=MeteredLink(data.folder))
