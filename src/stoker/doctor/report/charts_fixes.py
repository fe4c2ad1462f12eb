"""What each fix would give, beside today's rate, what the step could eat, and what was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stoker.doctor.report.draw import COLOURS, LABEL, SMALL, Sheet, chart, fitted, text_width
from stoker.doctor.report.figures import rate, times
from stoker.doctor.results import DoctorResult, Rate

_ROW, _BAR = 34, 16
_TOP, _BOTTOM = 32, 8
_MOST = 12


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A bar.

    Attributes:
        text: What is done.
        predicted_s: Samples/s.
        times: That over today's; None for today's own.
        measured: Where it was run.
    """

    text: str
    predicted_s: float
    times: float | None
    measured: Rate | None


def fixes_chart(result: DoctorResult) -> str:
    """Return what each fix would give; "" where there is nothing to gain."""
    rows = _rows(result)
    if len(rows) < 2:
        return ""
    about = "; ".join(f"{row.text} {rate(row.predicted_s)} samples/s" for row in rows)
    return chart(
        lambda sheet: _draw(sheet, result, rows),
        key="fixes",
        label=f"Predicted samples/s: {about}",
        height=lambda is_wide: _top(result, rows) + _BOTTOM + len(rows) * (_ROW if is_wide else _ROW + 18),
    )


def measured_of(result: DoctorResult, key: str) -> Rate | None:
    """Return what came out where a fix was tried; None where it was not."""
    fix = next((fix for fix in result.fixes if fix.key == key), None)
    if fix is not None and fix.measured is not None:
        return fix.measured
    tried = (*((result.verified,) if result.verified is not None else ()), *result.tried)
    return next((one.measured for one in tried if one.fix == key), None)


def _rows(result: DoctorResult) -> list[_Row]:
    today = result.today
    rows = [_Row(text="today", predicted_s=today.predicted_s, times=None, measured=today.measured)]
    rows += [
        _Row(text=fix.text, predicted_s=fix.predicted_s, times=fix.times, measured=measured_of(result, fix.key))
        for fix in result.fixes[:_MOST]
    ]
    return [row for row in rows if math.isfinite(row.predicted_s)]


def _draw(sheet: Sheet, result: DoctorResult, rows: list[_Row]) -> None:
    left, right = (306, 138) if sheet.is_wide else (2, 2)
    row_height = _ROW if sheet.is_wide else _ROW + 18
    top = _top(result, rows)
    axes = sheet.plot_area(left, top, right, _BOTTOM)
    longest = _longest(rows)
    demand = result.step.demand.samples_s if result.step is not None else math.inf
    has_demand = _has_demand(result, rows)
    axes.set_xlim(0, 1.03 * (max(longest, demand) if has_demand else longest) or 1)
    axes.set_ylim(len(rows) * row_height, 0)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines["bottom"].set_visible(False)
    axes.axvline(0, color=COLOURS["line"], linewidth=1)
    if has_demand:
        # On a phone a row's words stand over its bar: there the line keeps to the bars.
        middles = [i * row_height + (row_height / 2 if sheet.is_wide else row_height - 14) for i in range(len(rows))]
        reach = row_height / 2 if sheet.is_wide else _BAR / 2 + 4
        axes.vlines(
            [demand] * len(rows), [middle - reach for middle in middles], [middle + reach for middle in middles],
            color=COLOURS["ink"], linewidth=1.3, linestyle=(0, (4, 3)) if sheet.is_wide else "solid", zorder=1,
        )  # fmt: skip
        _write_demand(sheet, demand, x=float(axes.transData.transform((demand, 0.0))[0]))
    for i, row in enumerate(rows):
        middle = i * row_height + (row_height / 2 if sheet.is_wide else row_height - 14)
        colour = "ember" if i == 1 else "busy" if i == 0 else "ember-soft"
        axes.barh(middle, row.predicted_s, height=_BAR, color=COLOURS[colour], linewidth=0, zorder=2)
        if row.measured is not None and math.isfinite(row.measured.samples_s):
            axes.plot(
                [row.measured.samples_s], [middle], marker="D", markersize=8, color=COLOURS["ink"],
                markeredgecolor=COLOURS["card"], markeredgewidth=1.5, zorder=5, clip_on=False,
            )  # fmt: skip
        _write_row(sheet, row, y=top + middle, is_best=i == 1)


def _has_demand(result: DoctorResult, rows: list[_Row]) -> bool:
    # A demand far beyond every fix would press all bars into a corner: then it stands in words alone.
    return result.step is not None and 0 < result.step.demand.samples_s < 2.5 * _longest(rows)


def _longest(rows: list[_Row]) -> float:
    return max(max(row.predicted_s, _measured(row)) for row in rows)


def _top(result: DoctorResult, rows: list[_Row]) -> int:
    return _TOP if _has_demand(result, rows) else 4


def _write_demand(sheet: Sheet, demand: float, *, x: float) -> None:
    text = f"what the step could eat: {rate(demand)}"
    width = text_width(text, size=SMALL, is_bold=True)
    sheet.text(min(max(x, width / 2), sheet.width - width / 2), 10, text, size=SMALL, is_bold=True, side="center")
    if sheet.is_wide:
        sheet.rule(x, 19, x, _TOP, colour="ink", dashed=True)


def _write_row(sheet: Sheet, row: _Row, *, y: float, is_best: bool) -> None:
    line = y if sheet.is_wide else y - 21
    room = 292 if sheet.is_wide else sheet.width - 130
    colour = "ember" if is_best else "ink"
    sheet.text(0, line, fitted(row.text, width=room, size=LABEL, is_bold=is_best), is_bold=is_best, colour=colour)
    sheet.text(sheet.width - 60, line, rate(row.predicted_s), side="right", colour=colour)
    if row.times is not None:
        sheet.text(sheet.width, line, times(row.times), side="right", is_bold=True, colour=colour)


def _measured(row: _Row) -> float:
    rate_s = row.measured.samples_s if row.measured is not None else 0.0
    return rate_s if math.isfinite(rate_s) else 0.0
