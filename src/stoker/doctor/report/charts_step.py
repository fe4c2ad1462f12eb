"""Where the time between two steps goes: today, with the fix, and with all batches in RAM."""

from __future__ import annotations

import math

from stoker.doctor.report.bars import BarPart, SplitBar, split_bars
from stoker.doctor.report.figures import cost, rate, seconds, share, stage_words
from stoker.doctor.results import MODEL, DoctorResult, Fix, StepPart

# A part that takes less of the time than this has no place in a bar nor in a sentence.
_SEEN = 0.004


def step_chart(result: DoctorResult) -> str:
    """Return where a step's time goes, before and after; "" where there is no step to speak of."""
    bars = _bars(result)
    if not bars:
        return ""
    return split_bars(bars, key="step", label="Where the time between two steps goes")


def money_chart(result: DoctorResult) -> str:
    """Return where an epoch's money goes, before and after; "" without a price."""
    money = result.money
    if money is None or not (math.isfinite(money.epoch) and money.epoch > 0):
        return ""
    bars = [
        SplitBar(
            title="An epoch today",
            total=cost(money.epoch),
            parts=tuple(
                BarPart(name=part.name, value=part.cost, text=cost(part.cost), is_lost=part.key != MODEL)
                for part in money.parts
                if part.cost > _SEEN * money.epoch
            ),
        )
    ]
    if result.fixes and money.best_fix < money.epoch:
        whole = BarPart(name="an epoch", value=money.best_fix, text=cost(money.best_fix), is_lost=False)
        title = f"With the best fix: {result.fixes[0].text}"
        bars.append(SplitBar(title=title, total=cost(money.best_fix), parts=(whole,), is_ours=True))
    return split_bars(bars, key="money", label="What an epoch costs")


def _bars(result: DoctorResult) -> list[SplitBar]:
    step, today = result.step, result.today
    if step is None or not today.step_parts:
        return []
    bars = [_bar("Today", today.step_parts, note=_rate_note(today.predicted_s, today.busy))]
    best = result.fixes[0] if result.fixes else None
    if best is not None and best.predicted_s > 0:
        parts = _after(result, best)
        note = _rate_note(best.predicted_s, best.busy)
        bars.append(_bar(f"With the fix: {best.text}", parts, note=note, is_ours=True))
    if result.ram is not None and result.ram.samples_s > 0:
        between_s = step.batch_size / result.ram.samples_s
        parts = (StepPart(key=MODEL, name="training step", seconds=between_s),)
        bars.append(_bar("All batches in RAM: no data path can beat it", parts, note=_rate_note(result.ram.samples_s)))
    return [bar for bar in bars if math.isfinite(bar.length) and bar.length > 0]


def _bar(title: str, parts: tuple[StepPart, ...], *, note: str, is_ours: bool = False) -> SplitBar:
    total = sum(part.seconds for part in parts)
    return SplitBar(
        title=title,
        total=f"{seconds(total)} a step",
        parts=tuple(
            BarPart(name=part.name, value=part.seconds, text=seconds(part.seconds), is_lost=part.key != MODEL)
            for part in parts
            if part.seconds > _SEEN * total
        ),
        is_ours=is_ours,
        note=note,
    )


def _after(result: DoctorResult, fix: Fix) -> tuple[StepPart, ...]:
    """Return the parts after a fix: a path's own where the fix is to take it, else the step and one wait."""
    path = next((path for path in result.paths if path.key == fix.key), None)
    if path is not None and path.step_parts:
        return path.step_parts
    assert result.step is not None
    between_s = result.step.batch_size / fix.predicted_s
    busy_s = between_s * (1.0 if fix.busy is None else fix.busy)
    parts = (StepPart(key=MODEL, name="training step", seconds=busy_s),)
    if between_s - busy_s <= _SEEN * between_s:
        return parts
    return (*parts, StepPart(key=fix.limit, name=f"waits for {stage_words(result, fix.limit)}",
                             seconds=between_s - busy_s))  # fmt: skip


def _rate_note(samples_s: float, busy: float | None = None) -> str:
    text = f"{rate(samples_s)} samples/s"
    return text if busy is None else f"the step is busy {share(busy)} of the time, {text}"
