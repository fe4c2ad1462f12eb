"""Each stage alone against what the step could eat: to the left it starves the step, to the right it has room."""

from __future__ import annotations

import math

from stoker.doctor.report.draw import COLOURS, LABEL, SMALL, Sheet, chart, fitted, text_width
from stoker.doctor.report.figures import rate, times
from stoker.doctor.results import MODEL, DoctorResult, StageResult

_ROW, _BAR = 34, 16
_TOP, _BOTTOM = 34, 26
# Further from the demand than this nobody needs to know how far.
_MOST, _LEAST = 100.0, 0.01


def stages_chart(result: DoctorResult) -> str:
    """Return supply against demand for each stage; "" where no stage was measured."""
    stages = [stage for stage in result.stages if stage.key != MODEL and _has_rate(stage)]
    if not stages:
        return ""
    reference, reference_text = _reference(result)
    if reference is None:
        return ""
    about = "; ".join(_spoken(stage, reference) for stage in stages)
    return chart(
        lambda sheet: _draw(sheet, result, stages, reference=reference, reference_text=reference_text),
        key="stages",
        label=f"What each stage alone can give, against {reference_text}: {about}",
        height=lambda is_wide: _TOP + _BOTTOM + len(stages) * (_ROW if is_wide else _ROW + 18),
    )


def _reference(result: DoctorResult) -> tuple[float | None, str]:
    """Return what supply is held against: the demand, or without a step what all of today's path gives."""
    if result.step is not None and 0 < result.step.demand.samples_s < math.inf:
        demand = result.step.demand.samples_s
        return demand, f"demand: {rate(demand)} samples/s"
    given = result.today.predicted_s
    return (given, f"today's path: {rate(given)} samples/s") if 0 < given < math.inf else (None, "")


def _draw(
    sheet: Sheet, result: DoctorResult, stages: list[StageResult], *, reference: float, reference_text: str
) -> None:
    left, right = (300, 146) if sheet.is_wide else (18, 18)
    row = _ROW if sheet.is_wide else _ROW + 18
    ratios = [_ratio(stage, reference) for stage in stages]
    axes = sheet.plot_area(left, _TOP, right, _BOTTOM)
    axes.set_xscale("log")
    axes.set_xlim(min(0.5, min(ratios) / 1.25), max(2.0, max(ratios) * 1.25))
    axes.set_ylim(len(stages) * row, 0)
    axes.set_yticks([])
    low, high = axes.get_xlim()
    # Over many powers of ten, what lies between two of them has no room for its name.
    is_far = high / low > (300 if sheet.is_wide else 50)
    marks = (0.01, 0.1, 1, 10, 100) if is_far else (0.01, 0.1, 0.5, 1, 2, 10, 100)
    ticks = [tick for tick in marks if low <= tick <= high]
    axes.set_xticks(ticks, [times(tick) if tick < 100 else "100×" for tick in ticks])
    axes.minorticks_off()
    # On a phone a row's words stand over its bar: there the lines keep to the bars.
    tops = [row * i + (0 if sheet.is_wide else row - 14 - _BAR / 2 - 4) for i in range(len(stages))]
    ends = [row * (i + 1) - (0 if sheet.is_wide else 14 - _BAR / 2 - 4) for i in range(len(stages))]
    for tick in ticks:
        axes.vlines([tick] * len(tops), tops, ends, color=COLOURS["line"], linewidth=1, zorder=0)
    axes.vlines([1] * len(tops), tops, ends, color=COLOURS["ink"], linewidth=1.4, zorder=4)
    at_one = float(axes.transData.transform((1.0, 0.0))[0])
    _write_reference(sheet, reference_text, x=at_one)
    for i, (stage, ratio) in enumerate(zip(stages, ratios, strict=True)):
        middle = i * row + (row / 2 if sheet.is_wide else row - 14)
        is_named = stage.key in result.verdict.stages
        is_today = result.today.key in stage.paths
        colour = "ember" if ratio < 1 or is_named else "busy"
        axes.barh(
            middle, ratio - 1, left=1, height=_BAR, color=COLOURS[colour if is_today else f"{colour}-soft"], zorder=2,
            linewidth=0,
        )  # fmt: skip
        low, high = (max(_LEAST, min(_MOST, bound / reference)) for bound in (stage.supply.low, stage.supply.high))
        axes.plot([low, high], [middle, middle], color=COLOURS["ink"], linewidth=1.3, zorder=3, solid_capstyle="butt")
        _write_row(sheet, stage, ratio=stage.supply.samples_s / reference, y=_TOP + middle, is_named=is_named,
                   is_today=is_today)  # fmt: skip


def _write_reference(sheet: Sheet, text: str, *, x: float) -> None:
    width = text_width(text, size=SMALL, is_bold=True)
    # Its middle stands over the line, but for a line near an edge.
    middle = min(max(x, width / 2), sheet.width - width / 2)
    sheet.text(middle, 10, text, size=SMALL, is_bold=True, side="center")
    if sheet.is_wide:
        sheet.rule(x, 20, x, _TOP, colour="ink")


def _write_row(
    sheet: Sheet, stage: StageResult, *, ratio: float, y: float, is_named: bool, is_today: bool
) -> None:  # fmt: skip
    room = 284 if sheet.is_wide else sheet.width - 140
    line = y if sheet.is_wide else y - 21
    fits = fitted(stage.name, width=room, size=LABEL, is_bold=is_named)
    colour = "ember" if is_named else "ink" if is_today else "soft"
    if is_today or not sheet.is_wide:
        sheet.text(0, line, fits, is_bold=is_named, colour=colour)
    else:
        sheet.text(0, line - 7, fits, colour=colour)
        sheet.text(0, line + 8, "not on today's path", size=10.5, colour="soft")
    sheet.text(sheet.width - 62, line, rate(stage.supply.samples_s), side="right", colour=colour)
    sheet.text(sheet.width, line, times(ratio), side="right", is_bold=True, colour=colour)


def _ratio(stage: StageResult, reference: float) -> float:
    return max(_LEAST, min(_MOST, stage.supply.samples_s / reference))


def _has_rate(stage: StageResult) -> bool:
    return math.isfinite(stage.supply.samples_s)


def _spoken(stage: StageResult, reference: float) -> str:
    return f"{stage.name} {rate(stage.supply.samples_s)} samples/s, {times(stage.supply.samples_s / reference)}"
