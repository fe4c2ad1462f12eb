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
from typing import Any

from rich.console import Console

from stoker.cli.arguments import OK
from stoker.cli.target import load_named, single_dataset_of
from stoker.dataset.dataset import Dataset
from stoker.demo.data import MeteredLink, make_data, ranking_dataset
from stoker.demo.run import default_folder
from stoker.doctor.examine import ExaminationInterrupted, examine
from stoker.doctor.page import check_report, write_report
from stoker.doctor.screen import print_result
from stoker.doctor.settings import BATCH_SIZE, DoctorSettings
from stoker.doctor.step import FunctionStep, Step, TimedStep
from stoker.doctor.verdict import DoctorResult, compare_ranks
from stoker.host.machine import num_cores
from stoker.paint import PAGE_CELLS, MoveBar, make_console, print_json, print_line, progress

_DEMO_ROWS = 1_000_000
# The demo's step: about 20 % busy when it is fed over a link of 40 MB/s.
_DEMO_STEP_S = 4_096 / 1_000_000


def run(options: argparse.Namespace, console: Console) -> int:
    """Say why the GPU waits, and what would help."""
    if options.ranks is not None:
        return _compare(options, console)
    _check(options)
    step = _step(options)  # what is wrong with it is said before anything else is looked at
    messages = make_console(stderr=True)
    dataset = _demo(messages) if options.demo else single_dataset_of(options)
    interrupted: str | None = None
    with progress(messages) as bar:
        try:
            result: DoctorResult | None = examine(dataset, _settings(options, step, bar))
        except ExaminationInterrupted as error:
            result, interrupted = error.result, error.doing
    if result is not None and options.html is not None:
        write_report(result, options.html)
    if options.json:
        print_json({"verdict": None, "interrupted": interrupted} if result is None else result.to_json())
    elif result is not None:
        print_result(result, make_console(pipe_width=PAGE_CELLS))
    if interrupted is not None:
        raise KeyboardInterrupt
    return OK


def _compare(options: argparse.Namespace, console: Console) -> int:
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


def _check(options: argparse.Namespace) -> None:
    if options.target is None and not options.demo:
        raise ValueError("name what to examine: a URL, a Dataset in code (train.py:dataset), or --demo")
    if options.target is not None and options.demo:
        raise ValueError("--demo has a data set of its own: leave TARGET out")
    if options.step is not None and options.step_time is not None:
        raise ValueError("--step measures a step, --step-time says how long it takes: give one of the two")
    if options.html is not None:
        check_report(options.html)


def _step(options: argparse.Namespace) -> Step | None:
    if options.step_time is not None:
        return TimedStep(options.step_time)
    if options.step is not None:
        return FunctionStep(load_named(options.step, what="a step", kinds=Callable), name=options.step)
    return TimedStep(_DEMO_STEP_S) if options.demo else None


def _settings(options: argparse.Namespace, step: Step | None, bar: MoveBar) -> DoctorSettings:
    return DoctorSettings(
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


def _device(options: argparse.Namespace, step: Step | None) -> str | None:
    """Return what batches lie on: None for NumPy arrays."""
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
    from stoker.torch.copies import Copies
    from stoker.torch.loader import TorchLoader
    from stoker.torch.tensors import as_tensor

    def deliver(arrays: Mapping[str, Any]) -> dict[str, Any]:
        copies = Copies(lambda array: as_tensor(array).to(device))
        return {name: copies.field(array) for name, array in arrays.items()}

    return {"device": device, "make_loader": partial(TorchLoader, device=device), "deliver": deliver}


def _demo(messages: Console) -> Dataset:
    """Return the demo's data set behind its link; it stays for the next time."""
    with messages.status("writing the demo's data, once …"):
        data = make_data(default_folder() / "doctor", num_rows=_DEMO_ROWS)
    return ranking_dataset(data.paths, storage=MeteredLink(data.folder))
