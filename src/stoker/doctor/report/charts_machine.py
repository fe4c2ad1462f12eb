"""How much of the machine today's path takes, and where larger batches stop paying."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from stoker.doctor.report.draw import COLOURS, LABEL, SMALL, Sheet, chart, fitted
from stoker.doctor.report.figures import ceiling, rate, share
from stoker.doctor.results import BatchSweep, Ceiling, DoctorResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW, _BAR = 34, 16
# From here on a resource is as good as used up.
_FULL = 0.9


def ceilings_chart(result: DoctorResult) -> str:
    """Return how much of each of the machine's ceilings is used; "" where none was measured."""
    if not result.ceilings:
        return ""
    about = "; ".join(f"{one.name} {ceiling(one)}, {_used(one)}" for one in result.ceilings)
    return chart(
        lambda sheet: _draw_ceilings(sheet, result.ceilings),
        key="ceilings",
        label=f"The machine's ceilings and how much today's path takes of them: {about}",
        height=lambda is_wide: len(result.ceilings) * (_ROW if is_wide else _ROW + 18) + 4,
    )


def sweep_chart(sweep: BatchSweep | None) -> str:
    """Return samples/s by batch size; "" where fewer than two sizes were measured."""
    if sweep is None or len(sweep.points) < 2:
        return ""
    about = "; ".join(
        f"{point.batch_size:,} samples: loader {rate(point.loader_s)}"
        + ("" if point.step_s is None else f", step {rate(point.step_s)}")
        for point in sweep.points
    )
    return chart(
        lambda sheet: _draw_sweep(sheet, sweep),
        key="sweep",
        label=f"Samples/s by batch size: {about}",
        height=lambda is_wide: 300 if is_wide else 270,
    )


def _draw_ceilings(sheet: Sheet, ceilings: tuple[Ceiling, ...]) -> None:
    row = _ROW if sheet.is_wide else _ROW + 18
    left, right = (252, 128) if sheet.is_wide else (0, 0)
    width = sheet.width - left - right
    for i, one in enumerate(ceilings):
        middle = i * row + (row / 2 if sheet.is_wide else row - 14)
        line = middle if sheet.is_wide else middle - 21
        is_full = one.used is not None and one.used >= _FULL
        sheet.text(0, line, fitted(one.name, width=130, size=LABEL, is_bold=is_full), is_bold=is_full)
        sheet.text(left - 16 if sheet.is_wide else 232, line, ceiling(one), side="right", colour="soft")
        sheet.text(sheet.width, line, _used(one), side="right", is_bold=is_full, colour="ember" if is_full else "ink")
        if one.used is None:
            sheet.rule(left, middle, left + width, middle)
            continue
        sheet.box(left, middle - _BAR / 2, width, _BAR, colour="track")
        part = max(0.0, min(1.0, one.used)) if math.isfinite(one.used) else 1.0
        sheet.box(left, middle - _BAR / 2, width * part, _BAR, colour="ember" if is_full else "busy")


def _used(one: Ceiling) -> str:
    return "not a share" if one.used is None and one.unit == "s" else "not used" if one.used is None else (
        f"{share(one.used)} used"
    )  # fmt: skip


def _draw_sweep(sheet: Sheet, sweep: BatchSweep) -> None:
    axes = sheet.plot_area(64 if sheet.is_wide else 46, 46, 18, 48)
    sizes = [point.batch_size for point in sweep.points]
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(sizes) / 1.15, max(sizes) * 1.15)
    axes.minorticks_off()
    shown = sizes if sheet.is_wide else [size for i, size in enumerate(sizes) if (len(sizes) - 1 - i) % 2 == 0]
    axes.set_xticks(shown, [_short(size) for size in shown])
    steps = [(point.batch_size, point.step_s) for point in sweep.points if point.step_s is not None]
    loaders = [(point.batch_size, point.loader_s) for point in sweep.points]
    top = max((value for _, value in (*steps, *loaders) if math.isfinite(value)), default=0.0) or 1.0
    axes.set_ylim(0, top * 1.12)
    axes.locator_params(axis="y", nbins=4)
    axes.yaxis.set_major_formatter(lambda value, _: rate(value) if value else "0")
    axes.grid(axis="y", color=COLOURS["line"], linewidth=1)
    axes.set_axisbelow(True)
    for points, colour, marker, style, knee in (
        (loaders, "ember", "o", "solid", sweep.loader_knee),
        (steps, "busy", "s", (0, (5, 2)), sweep.step_knee),
    ):
        if not points:
            continue
        x, y = [size for size, _ in points], [value if math.isfinite(value) else math.nan for _, value in points]
        axes.plot(x, y, color=COLOURS[colour], marker=marker, linestyle=style, linewidth=2.2, markersize=6.5)
        at = next((value for size, value in points if size == knee), None)
        if knee in _paying(sweep) and at is not None and math.isfinite(at):
            _ring(axes, knee, at, size=14)
    sheet.text(sheet.width / 2, sheet.height - 9, "samples a batch", size=SMALL, colour="soft", side="center")
    _sweep_legend(sheet, has_step=bool(steps), has_knee=bool(_paying(sweep)))


def _paying(sweep: BatchSweep) -> set[int]:
    """Return the sizes beyond which larger ones hardly pay; the largest that was measured says nothing of it."""
    knees = {knee for knee in (sweep.loader_knee, sweep.step_knee) if knee is not None}
    return knees - {sweep.points[-1].batch_size}


def _sweep_legend(sheet: Sheet, *, has_step: bool, has_knee: bool) -> None:
    sheet.rule(0, 12, 26, 12, colour="ember")
    sheet.axes.plot([13], [12], linestyle="none", marker="o", markersize=6.5, color=COLOURS["ember"])
    sheet.text(33, 12, "loader")
    if has_step:
        sheet.rule(92, 12, 118, 12, colour="busy", dashed=True)
        sheet.axes.plot([105], [12], linestyle="none", marker="s", markersize=6.5, color=COLOURS["busy"])
        sheet.text(125, 12, "step")
    if has_knee:
        x = 180 if has_step else 104
        _ring(sheet.axes, x, 12, size=12)
        sheet.text(x + 13, 12, "larger hardly pays", colour="soft")


def _ring(axes: Axes, x: float, y: float, *, size: float) -> None:
    axes.plot(
        [x], [y], linestyle="none", marker="o", markersize=size, markerfacecolor="none",
        markeredgecolor=COLOURS["ink"], markeredgewidth=1.6,
    )  # fmt: skip


def _short(size: int) -> str:
    return f"{size // 1024} Ki" if size >= 1024 and size % 1024 == 0 else f"{size:,}"
