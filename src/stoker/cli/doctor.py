"""`stoker doctor`: why the accelerator waits, and what a fix would give."""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from stoker.cli.arguments import OK, Commands, add_command, add_json, at_least_1, folder
from stoker.cli.paint import make_console, print_json, print_line
from stoker.cli.target import add_target, dataset_of, load_named

if TYPE_CHECKING:
    from stoker.dataset.dataset import Dataset
    from stoker.doctor.step import Step
    from stoker.doctor.verdict import DoctorResult

# Wide enough for its tables; in a pipe, lines of a page.
_LOG_CELLS = 120
_DEMO_ROWS = 1_000_000
# The demo's accelerator, for a link of 40 MB/s: busy about 20 % of the time when it is fed from there.
_DEMO_STEP_S = 4_096 / 1_000_000


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "doctor",
        summary="why the GPU waits, and what would help, each tried for a few seconds",
        text="""
Runs your data path whole with the step behind it, and beside it what could be
instead: batches in RAM, tensors on SSD, Arrow on SSD, more threads, and more.
Each for a few seconds, in turns, within a time budget. Says which stage starves
the step, how sure that is, what it costs, and what helped. Leaves nothing behind.

Without a step it says what the path can supply, and what steps that carries.""",
        examples="""
stoker doctor --demo
stoker doctor s3://lake/ranking/2026-11/ --step-time 0.01 --batch-size 4096
stoker doctor train.py:dataset --step train.py:step --device cuda --verify
stoker doctor train.py:dataset --cache /nvme/stoker --step-time 10ms --gpu-hour 2.50
stoker doctor --ranks rank0.json rank1.json rank2.json rank3.json""",
    )
    add_target(parser)
    # A demo has a data set of its own.
    target = next(action for action in parser._actions if action.dest == "target")
    target.nargs = "?"
    parser.add_argument("--demo", action="store_true", help="examine the demo's data behind its slow simulated link")
    step = parser.add_argument_group("the step")
    step.add_argument("--step-time", metavar="S", type=seconds_of, help="seconds a step, such as 0.01 or 10ms")
    step.add_argument(
        "--step", metavar="MODULE:FUNCTION", help="a function of a batch, such as train.py:step: it is measured"
    )
    step.add_argument("--batch-size", metavar="B", type=at_least_1, help="samples a step (default: 4096)")
    step.add_argument(
        "--device",
        metavar="D",
        help="give the step torch tensors on cpu, cuda, cuda:1, or numpy arrays (default: tensors if its module uses "
        "torch)",
    )
    loader = parser.add_argument_group("the loader, as training has it")
    loader.add_argument(
        "--cache", metavar="DIR", type=folder, help="the cache that training uses; the experiments do not touch it"
    )
    loader.add_argument("--threads", metavar="N", type=at_least_1, help="its threads (default: the cores)")
    loader.add_argument("--processes", action="store_true", help="its transform runs in processes")
    parser.add_argument(
        "--ranks", metavar="FILE", nargs="+", help="compare the --json of several ranks, and name the one that is slow"
    )
    parser.add_argument(
        "--budget", metavar="S", type=seconds_of, default=60.0, help="seconds for all of it (default: 60)"
    )
    parser.add_argument(
        "--scratch", metavar="DIR", type=folder, help="where experiments write (default: beside the cache)"
    )
    parser.add_argument("--verify", action="store_true", help="run the best fix once more, and print promised and came")
    parser.add_argument("--gpu-hour", metavar="PRICE", type=float, help="what an hour of one GPU costs")
    parser.add_argument("--gpus", metavar="N", type=at_least_1, default=1, help="GPUs that wait together (default: 1)")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write it all to one page with charts as well")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, console: Console) -> int:
    """Examine and print."""
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
        raise ValueError("--demo has a data set of its own; leave TARGET out")
    if options.step is not None and options.step_time is not None:
        raise ValueError("--step measures a step, --step-time says how long it takes: give one of the two")
    if options.html is not None:
        check_report(options.html)
    with ExitStack() as stack:
        step = _step(options)  # what is wrong with it is said before anything else is looked at
        dataset = _demo(messages) if options.demo else dataset_of(options)
        on_progress = stack.enter_context(_progress(messages))
        settings = DoctorSettings(
            step=step,
            batch_size=options.batch_size or BATCH_SIZE,
            num_threads=options.threads or num_cores(),
            transform_in="processes" if options.processes else "threads",
            cache=Path(options.cache).expanduser() if options.cache else None,
            scratch=Path(options.scratch).expanduser() if options.scratch else None,
            **_delivery(_device(options, step)),
            budget_s=options.budget,
            verify=int(options.verify),
            gpu_hour=options.gpu_hour,
            num_gpus=options.gpus,
            on_progress=on_progress,
            command=_command(),
        )
        try:
            result: DoctorResult | None = examine(dataset, settings)
        except ExaminationInterrupted as interrupted:
            result, doing = interrupted.result, interrupted.doing
            is_whole = False
        else:
            doing, is_whole = "", True
    if result is not None and options.html is not None:
        write_report(result, options.html)
    if options.json:
        print_json({"verdict": None, "interrupted": doing} if result is None else result.to_json())
    elif result is not None:
        print_result(result, make_console(pipe_width=_LOG_CELLS))
    if not is_whole:
        raise KeyboardInterrupt
    return OK


def _compare(options: argparse.Namespace, console: Console) -> int:
    """Compare ranks and print."""
    from stoker.doctor.ranks import compare_ranks

    results = []
    for name in options.ranks:
        try:
            results.append(json.loads(Path(name).read_text()))
        except ValueError as error:
            raise ValueError(f"{name} is no JSON of `stoker doctor --json`: {error}") from None
    found = compare_ranks(results)
    if options.json:
        print_json(found)
    else:
        print_line(console, found["sentence"], "bold")
    return OK


def seconds_of(text: str) -> float:
    """Return seconds: "0.01", "10ms", "60s"."""
    number, factor = text.strip(), 1.0
    for ending, value in (("ms", 1e-3), ("us", 1e-6), ("s", 1.0)):
        if number.endswith(ending):
            number, factor = number[: -len(ending)], value
            break
    try:
        found = float(number) * factor
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 0.01 or 10ms") from None
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time above 0")
    return found


def _step(options: argparse.Namespace) -> Step | None:
    from stoker.doctor.step import FunctionStep, TimedStep

    if options.step_time is not None:
        return TimedStep(options.step_time)
    if options.step is not None:
        function = load_named(options.step, what="the step")
        if not callable(function):
            raise ValueError(f"{options.step} is no function of a batch, but {type(function).__name__}")
        return FunctionStep(function, name=options.step)
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
        raise ValueError("--device gives torch tensors, and torch is not here: pip install 'stoker[torch]'")
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


@contextmanager
def _progress(messages: Console) -> Iterator[Callable[[str, float], object]]:
    """Give what shows how far the examination is; where nobody watches, nothing."""
    if not messages.is_terminal:
        yield lambda _what, _share: None
        return
    bar = Progress(
        TextColumn("  [dim]{task.description}"),
        BarColumn(bar_width=24),
        console=messages,
        transient=True,
        refresh_per_second=4,
    )
    with bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)


def _command() -> str:
    """Return what was typed."""
    return "stoker " + shlex.join(sys.argv[1:]) if "doctor" in sys.argv else "stoker doctor"
