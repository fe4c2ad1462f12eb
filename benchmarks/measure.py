"""How the benchmarks measure: ours and its ceiling in turn, in one run, and the median of their ratios."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from stoker import Loader

Result = TypeVar("Result")
Size = TypeVar("Size", int, float)

# Set while tests see that everything runs: what is measured then says nothing.
IS_SMALL = "STOKER_BENCHMARKS_SMALL" in os.environ


def sized(size: Size, *, small: Size) -> Size:
    """Return a size, or a small one while only tests look."""
    return small if IS_SMALL else size


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a benchmark found.

    Attributes:
        question: What was asked.
        ours: Our rate, median over the rounds.
        ceiling: The ceiling's rate, median over the rounds.
        unit: Of both.
        ratios: Ours over ceiling, a round each.
        promise: The ratio that is promised, None where there is none.
        remarks: Where the time went, and what else the reader should know.
        data: What it was measured on; "" for the demo's rows.
    """

    question: str
    ours: float
    ceiling: float
    unit: str
    ratios: tuple[float, ...]
    promise: float | None
    remarks: tuple[str, ...] = ()
    data: str = ""

    @property
    def ratio(self) -> float:
        """The median ratio: machines are noisy, and two things measured at the same time are slowed alike."""
        return statistics.median(self.ratios)


def compare(
    question: str,
    *,
    ours: Callable[[], float],
    ceiling: Callable[[], float],
    unit: str,
    num_rounds: int,
    promise: float | None,
    remarks: Callable[[], tuple[str, ...]] = tuple,
) -> Answer:
    """Measure both in turn.

    Args:
        question: What is asked.
        ours: Does our work once and returns its rate.
        ceiling: Does the work of the ceiling once and returns its rate.
        unit: Of both rates.
        num_rounds: Times both are measured; one more round before is not counted.
        promise: The ratio that is promised.
        remarks: Asked for at the end.
    """
    rates = []
    for _ in range(num_rounds + 1):
        top = ceiling()
        rates.append((ours(), top))
    counted = rates[1:]
    return Answer(
        question=question,
        ours=statistics.median(rate for rate, _ in counted),
        ceiling=statistics.median(top for _, top in counted),
        unit=unit,
        ratios=tuple(rate / top for rate, top in counted),
        promise=promise,
        remarks=remarks(),
    )


def rate_of(num: int, work: Callable[[], object]) -> float:
    """Return how many of `num` things a second `work` does."""
    start = time.perf_counter()
    work()
    return num / (time.perf_counter() - start)


def rows_rate(loader: Loader) -> float:
    """Return how many million rows a second a whole epoch delivers, every row counted by its label.

    Raises:
        AssertionError: Rows are missing, or came twice.
    """

    def epoch() -> None:
        num_rows = sum(len(batch["label"]) for batch in loader)
        if num_rows != loader.num_samples:
            raise AssertionError(f"{num_rows} rows of {loader.num_samples} were delivered")

    return rate_of(loader.num_samples, epoch) / 1e6


def in_a_new_process(work: Callable[..., Result], *arguments: object) -> Result:
    """Return `work(*arguments)` as a process of its own gives it, which has imported what it needs and no more."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()
