"""Bars that are split into parts: where a step's time goes, and where an epoch's money."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.doctor.report.draw import LABEL, NARROW, SMALL, TITLE, WIDE, Sheet, chart, fitted, text_width, wrapped

_TITLE, _BAR, _LINE, _GAP = 20, 30, 18, 22
# One hatching for each thing that is waited for: without colours they are told apart by it, and by their names.
_HATCHES = ("////", "\\\\\\\\", "xxxx", "....", "----", "||||")


@dataclass(frozen=True, kw_only=True)
class BarPart:
    """A part of a bar.

    Attributes:
        name: As people read it.
        value: Its length; the parts of all bars have one scale.
        text: The same as people read it.
        is_lost: Whether it is time or money that only waits.
    """

    name: str
    value: float
    text: str
    is_lost: bool


@dataclass(frozen=True, kw_only=True)
class SplitBar:
    """A bar with a title.

    Attributes:
        title: What it stands for.
        total: All of it, as people read it.
        parts: From left to right.
        is_ours: Whether it is what could be, and not what is.
        note: A line under it, before its parts' names.
    """

    title: str
    total: str
    parts: tuple[BarPart, ...]
    is_ours: bool = False
    note: str = ""

    @property
    def length(self) -> float:
        """All parts together."""
        return sum(part.value for part in self.parts)

    @property
    def caption(self) -> str:
        """Its parts in words."""
        names = " · ".join(f"{part.name} {part.text}" for part in self.parts)
        return " · ".join(text for text in (self.note, names) if text)


def split_bars(bars: Sequence[SplitBar], *, key: str, label: str) -> str:
    """Return bars one above the other, all on one scale.

    Args:
        bars: From top to bottom.
        key: Names the chart.
        label: What it shows, for who cannot see it.
    """
    longest = max((bar.length for bar in bars), default=0.0)

    def draw(sheet: Sheet) -> None:
        y = 0.0
        for bar in bars:
            y = _draw_bar(sheet, bar, y=y, longest=longest) + _GAP

    def height(is_wide: bool) -> float:
        width = WIDE if is_wide else NARROW
        return sum(_height(bar, width=width) for bar in bars) + _GAP * (len(bars) - 1) + 2

    spoken = "; ".join(f"{bar.title}, {bar.total}: {bar.caption}" for bar in bars)
    return chart(draw, key=key, label=f"{label}: {spoken}", height=height)


def _height(bar: SplitBar, *, width: int) -> float:
    lines = len(wrapped(bar.caption, width=width, size=SMALL))
    return _TITLE * len(_title_lines(bar, width=width)) + 6 + _BAR + _LINE * lines + 8


def _title_lines(bar: SplitBar, *, width: int) -> list[str]:
    # Bold letters are wider than those that `wrapped` counts with.
    room = 0.92 * (width - text_width(bar.total, size=TITLE) - 12)
    lines = wrapped(bar.title, width=room, size=TITLE)
    return [*lines[:2], fitted(" ".join(lines[2:]), width=room, size=TITLE)] if len(lines) > 3 else lines or [""]


def _draw_bar(sheet: Sheet, bar: SplitBar, *, y: float, longest: float) -> float:
    colour = "ember" if bar.is_ours else "ink"
    sheet.text(sheet.width, y + 11, bar.total, size=TITLE, side="right", colour=colour)
    for title in _title_lines(bar, width=sheet.width):
        sheet.text(0, y + 11, title, size=TITLE, is_bold=True, colour=colour)
        y += _TITLE
    y += 6
    x, num_lost = 0.0, 0
    for part in bar.parts:
        width = sheet.width * part.value / longest if longest else 0.0
        hatch = _HATCHES[num_lost % len(_HATCHES)] if part.is_lost else ""
        colour = "track" if part.is_lost else "ember" if bar.is_ours else "busy"
        # A line of paper between two parts: they stay two without any colour.
        sheet.box(x, y, max(0.0, width - 1.5), _BAR, colour=colour, hatch=hatch)
        _name_part(sheet, part, x=x, y=y, width=width)
        num_lost += part.is_lost
        x += width
    y += _BAR + 6
    for line in wrapped(bar.caption, width=sheet.width, size=SMALL):
        sheet.text(0, y + _LINE / 2, line, size=SMALL, colour="soft")
        y += _LINE
    return y + 2


def _name_part(sheet: Sheet, part: BarPart, *, x: float, y: float, width: float) -> None:
    """Write a part's name into it where there is room."""
    wide = text_width(part.name, size=LABEL)
    if wide + 20 > width:
        return
    if part.is_lost:
        sheet.box(x + width / 2 - wide / 2 - 7, y + 5, wide + 14, _BAR - 10, colour="track")
    sheet.text(x + width / 2, y + _BAR / 2, part.name, side="center", colour="ink" if part.is_lost else "on-ember")
