"""What recording costs: processor time of all threads at 1,000 steps/s, with it and without it, side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.measure import Answer
from stoker import Dataset, Loader, Trace
from stoker.demo.data import DemoData
from stoker.metrics.stages import Stages, Subject

# Small batches: the less a step costs besides, the plainer the difference.
BATCH_SIZE = 32
STEPS_A_TURN = 50
TURNS_A_ROUND = 20
STEP_S = 1e-3
NUM_CALLS = 5


class _Silence:
    """A span that records nothing."""

    num_bytes, num_calls = 0, 1
    start_ns, stop_ns = 0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class _SilentStages(Stages):
    """Records nothing at all: what the others are compared with."""

    _silence = _Silence()

    def __call__(self, *_: object, **__: object) -> None:
        pass

    def span(self, stage: str, num_bytes: int = 0, subject: Subject | None = None) -> Any:  # noqa: ARG002
        return self._silence


class _Silent(Trace):
    def stages(self, name: str) -> Stages:  # noqa: ARG002
        return _SilentStages()


def run(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Ask it."""
    dataset = Dataset([str(path) for path in data.paths])
    trace = Trace()
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(
                Loader(dataset, batch_size=BATCH_SIZE, shuffle=True, cache=folder / "cache", num_threads=1, trace=kind)
            )
            for kind in (_Silent(), None, trace)
        ]
        for loader in loaders:
            for _ in loader:  # everything built, compiled and touched once
                pass
        batches = [_endless(loader) for loader in loaders]
        turns = [[_cpu_s(each) for each in batches] for _ in range((num_rounds + 1) * TURNS_A_ROUND)][TURNS_A_ROUND:]
        spans_a_step = sum(map(len, trace.spans().values())) / loaders[2].stats().num_steps
        files_s = _cost_of_a_look(loaders[2])
        for each in batches:
            each.close()
    silent, totals, traced = (statistics.median(column) for column in zip(*turns, strict=True))
    rounds = [turns[i : i + TURNS_A_ROUND] for i in range(0, len(turns), TURNS_A_ROUND)]
    ratios = [STEP_S / (STEP_S + statistics.median(turn[2] - turn[0] for turn in some)) for some in rounds]
    return Answer(
        question="1,000 steps/s with a trace / with nothing recorded, by processor time",
        ours=1e-3 / (STEP_S + traced - silent),
        ceiling=1e-3 / STEP_S,
        unit="thousand steps/s",
        ratios=tuple(ratios),
        promise=0.99,
        remarks=(
            f"processor time a step, all threads: {silent * 1e6:.1f} µs with nothing recorded, {totals * 1e6:.1f} with "
            f"totals, {traced * 1e6:.1f} with a trace of {spans_a_step:.1f} spans a step",
            f"so totals cost {(totals - silent) / STEP_S:.2%} of a step of 1 ms, and a trace "
            f"{(traced - silent) / STEP_S:.2%}",
            f"the calls that record {NUM_CALLS} pieces of work, alone: {_cost_of_calls(Stages()) * 1e6:.1f} µs for "
            f"totals, {_cost_of_calls(Trace().stages('data')) * 1e6:.1f} for a trace; what is more "
            "above is noise, or caches",
            f"writing the status file costs {files_s * 1e6:.0f} µs a second, {files_s:.3%} of the time, included above",
        ),
    )


def _endless(loader: Loader) -> Generator[Any, None, None]:
    while True:
        yield from loader


def _cpu_s(batches: Iterator[Any]) -> float:
    """Return the processor time of a step, over all threads, at a pace of 1,000 steps/s."""
    next(batches)
    start_s, begun = time.perf_counter(), time.process_time()
    for step in range(STEPS_A_TURN):
        next(batches)
        time.sleep(max(0.0, start_s + (step + 1) * STEP_S - time.perf_counter()))
    return (time.process_time() - begun) / STEPS_A_TURN


def _cost_of_calls(stages: Stages) -> float:
    """Return the processor time of what a step tells of: step, wait, batch, gather, wait for room."""
    costs = []
    for _ in range(20):
        begun = time.thread_time()
        for step in range(2_000):
            subject = (0, step, -1, -1)
            stages("step", 1, 2, 0, subject)
            with stages.span("wait", subject=subject):
                pass
            with stages.span("batch", subject=subject):
                stages("gather", time.perf_counter_ns(), time.perf_counter_ns(), 1)
            with stages.span("wait_room"):
                pass
        costs.append((time.thread_time() - begun) / 2_000)
    return min(costs)


def _cost_of_a_look(loader: Loader) -> float:
    """Return what the status file costs once a second: its processor time."""
    from tempfile import TemporaryDirectory

    from stoker.metrics.status import About, ShownLoader, StatusWriter

    stages = Stages()
    about = About(dataset="data", rank=0, world_size=1, global_batch_size=BATCH_SIZE)
    with TemporaryDirectory() as folder:
        entry = ShownLoader(StatusWriter([Path(folder) / "status"]), stages, lambda: (about, loader.stats()))
        entry.show()
        costs = []
        for second in range(1, 30):
            begun = time.thread_time()
            stages("gather", 0, second * 2_000_000_000, 0)
            costs.append(time.thread_time() - begun)
        entry.close()
    return statistics.median(costs)
