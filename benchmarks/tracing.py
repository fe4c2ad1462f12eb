"""What recording costs: processor time of all threads at 1,000 steps/s, with it and without it, side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.measure import Answer, sized
from stoker import Dataset, Loader, Trace
from stoker.demo.data import DemoData
from stoker.metrics.stages import Stages, Subject

# Small batches: the less a step costs besides, the plainer the difference.
BATCH_SIZE = 32
STEPS_A_TURN = 50
TURNS_A_ROUND = sized(20, small=1)
STEP_S = 1e-3


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
