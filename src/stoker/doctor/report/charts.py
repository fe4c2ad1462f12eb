"""Charts that are plain HTML: boxes whose widths are shares, drawn by the page's style sheet at any width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.doctor.report.markup import words
from stoker.doctor.results import STAGE_NAMES, RunSpan
from stoker.doctor.words import time_text

# Of threads that do the same, as many as tell the story.
_MOST_ALIKE = 6
_LOOKS = {
    "fetch": "fetch", "decode": "decode", "transform": "transform", "convert": "convert", "publish": "publish",
    "gather": "decode", "augment": "transform", "copy": "copy", "wait": "wait", "step": "step",
}  # fmt: skip
_ORDER = ("build", "batch", "loop")


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar with its words.

    Attributes:
        name: What it is of.
        value: Its figure, as people read it.
        share: Its length, of the longest there may be.
        kind: How it looks: "today", "ours", "plain", "bound".
        low: Where the slowest repeat ends; None where there was one alone.
        high: Where the fastest does.
    """

    name: str
    value: str
    share: float
    kind: str = "plain"
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class SplitBar:
    """A bar in parts.

    Attributes:
        name: What it is of.
        value: The figure of all of it.
        parts: Name, figure, share of the longest bar, and whether it is time that is lost.
    """

    name: str
    value: str
    parts: Sequence[tuple[str, str, float, bool]]


def bars(rows: Sequence[Bar], *, label: str, mark: float | None = None, mark_text: str = "") -> str:
    """Return bars under each other.

    Args:
        rows: From top to bottom.
        label: What they show, for who cannot see it.
        mark: Where a line crosses all of them, as a share; None for none.
        mark_text: What the line stands for.
    """
    line = "" if mark is None else f'<b class="mark" style="left:{_percent(mark)}"></b>'
    key = f'<p class="key"><b></b>{words(mark_text)}</p>\n' if mark is not None else ""
    body = "\n".join(
        f'<div class="row is-{row.kind}"><span class="name">{words(row.name)}</span>'
        f'<span class="value">{words(row.value)}</span>'
        f'<span class="bar"><i style="width:{_percent(row.share)}"></i>{_whisker(row)}{line}</span></div>'
        for row in rows
    )
    spoken = "; ".join(f"{row.name} {row.value}" for row in rows)
    return f'<figure role="group" aria-label="{words(f"{label}: {spoken}")}">\n{key}{body}\n</figure>'


def split_bars(rows: Sequence[SplitBar], *, label: str) -> str:
    """Return bars in parts, all on one scale."""
    body = "\n".join(
        f'<div class="split"><span class="name">{words(row.name)}</span><span class="value">{words(row.value)}</span>'
        '<span class="bar">'
        + "".join(
            f'<i class="{"is-lost" if is_lost else "is-work"}" style="width:{_percent(share)}"></i>'
            for _, _, share, is_lost in row.parts
        )
        + f'</span><span class="caption">{words(" · ".join(f"{name} {text}" for name, text, _, _ in row.parts))}</span>'
        "</div>"
        for row in rows
    )
    return f'<figure role="group" aria-label="{words(label)}">\n{body}\n</figure>'


def timeline(spans: Sequence[RunSpan]) -> str:
    """Return what each thread did in a stretch of time; "" where nothing was recorded."""
    if not spans:
        return ""
    stop_s = max(span.stop_s for span in spans)
    tracks = _tracks(spans)
    seen = dict.fromkeys(span.stage for span in spans if span.track in tracks)
    legend = "".join(
        f'<span><i class="at-{_LOOKS.get(stage, "decode")}"></i>{words(_name(stage))}</span>'
        for stage in _LOOKS
        if stage in seen
    )
    body = "\n".join(
        f'<div class="lane"><span class="name">{words(track)}</span><span class="track">'
        + "".join(
            f'<i class="at-{_LOOKS.get(span.stage, "decode")}" style="left:{_percent(span.start_s / stop_s)};'
            f'width:{_percent((span.stop_s - span.start_s) / stop_s)}"></i>'
            for span in spans
            if span.track == track
        )
        + "</span></div>"
        for track in tracks
    )
    label = f"{time_text(stop_s)} of {len(tracks)} threads: {', '.join(_name(stage) for stage in seen)}"
    return (
        f'<figure role="group" aria-label="{words(label)}">\n<p class="legend">{legend}</p>\n{body}\n'
        f'<p class="axis"><span>0</span><span>{words(time_text(stop_s))}</span></p>\n</figure>'
    )


def _tracks(spans: Sequence[RunSpan]) -> list[str]:
    """Return the tracks from producer to consumer, a few of each kind."""
    kinds: dict[str, list[str]] = {}
    for track in dict.fromkeys(span.track for span in spans):
        kinds.setdefault(track.split(" ")[0], []).append(track)
    ordered = sorted(kinds, key=lambda kind: _ORDER.index(kind) if kind in _ORDER else 1)
    return [track for kind in ordered for track in sorted(kinds[kind], key=_natural)[:_MOST_ALIKE]]


def _natural(track: str) -> tuple[int, str]:
    digits = "".join(c for c in track if c.isascii() and c.isdigit())
    return int(digits[:9] or 0), track


def _name(stage: str) -> str:
    return {"wait": "the loop waits", "step": "the loop steps"}.get(stage, STAGE_NAMES.get(stage, stage))


def _whisker(row: Bar) -> str:
    if row.low is None or row.high is None:
        return ""
    low, high = min(1.0, row.low), min(1.0, row.high)
    return f'<u style="left:{_percent(low)};width:{_percent(high - low)}"></u>'


def _percent(share: float) -> str:
    return f"{100 * min(1.0, max(0.0, share)):.2f}%"
