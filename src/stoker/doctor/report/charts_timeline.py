"""One window of today's path: which thread did what, and when the step had to wait."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from stoker.doctor.report.draw import COLOURS, LABEL, SMALL, Sheet, chart, fitted, text_width
from stoker.doctor.report.figures import seconds, stage_words
from stoker.doctor.results import MODEL, DoctorResult, RunSpan

_ROW, _BAR = 27, 17
_BOTTOM = 26
_LEGEND_LINE = 24
# Of threads that do the same, as many as tell the story.
_MOST_ALIKE = 8
WAIT = "wait"

# Every stage has a tone and a hatching of its own: either alone tells them apart.
_LOOKS: dict[str, tuple[str, str]] = {
    MODEL: ("ember", ""),
    WAIT: ("track", "////"),
    "fetch": ("busy-soft", ""),
    "read": ("busy-soft", ""),
    "decode": ("busy", ""),
    "draw": ("busy", ""),
    "transform": ("busy-soft", "xxxx"),
    "convert": ("busy-soft", "...."),
    "dequeue": ("busy-soft", "...."),
    "publish": ("soft", ""),
    "gather": ("busy", ""),
    "copy": ("ember-soft", ""),
    "open": ("busy-soft", "||||"),
}
_OTHER = ("hatch", "")


def timeline_chart(result: DoctorResult) -> str:
    """Return the timeline; "" where none was recorded."""
    spans = [span for span in result.timeline if _is_drawable(span)]
    if not spans:
        return ""
    stop_s = max(span.stop_s for span in spans)
    if stop_s <= 0:
        return ""
    tracks = _tracks(spans)
    stages = _stages(spans)
    names = [(stage, _name(result, stage)) for stage in stages]
    return chart(
        lambda sheet: _draw(sheet, spans, tracks, names, stop_s=stop_s),
        key="timeline",
        label=f"Timeline of {seconds(stop_s)}: {len(tracks)} threads ({', '.join(tracks)}); "
        + ", ".join(f"{name} {seconds(_total(spans, stage))}" for stage, name in names),
        height=lambda is_wide: len(tracks) * _ROW + _BOTTOM + _LEGEND_LINE * _num_lines(names, is_wide=is_wide) + 6,
    )


def hidden_tracks(result: DoctorResult) -> int:
    """Return how many threads the chart leaves out, for they do what others do."""
    tracks = dict.fromkeys(span.track for span in result.timeline if _is_drawable(span))
    return len(tracks) - len(_tracks([span for span in result.timeline if _is_drawable(span)]))


def _is_drawable(span: RunSpan) -> bool:
    return math.isfinite(span.start_s) and math.isfinite(span.stop_s) and span.stop_s >= span.start_s >= 0


def _tracks(spans: Iterable[RunSpan]) -> list[str]:
    """Return the tracks from producer to consumer, a few of each kind."""
    rank = {"build": 0, "assemble": 1, "copy": 2, "loop": 3, "step": 4}
    kinds: dict[str, list[str]] = {}
    for track in dict.fromkeys(span.track for span in spans):
        kinds.setdefault(track.split(" ")[0], []).append(track)
    ordered = sorted(kinds, key=lambda kind: rank.get(kind, 1))
    return [track for kind in ordered for track in sorted(kinds[kind], key=_natural)[:_MOST_ALIKE]]


def _natural(track: str) -> tuple[int, str]:
    digits = "".join(c for c in track if c.isascii() and c.isdigit())
    return int(digits[:9] or 0), track


def _stages(spans: Iterable[RunSpan]) -> list[str]:
    order = list(_LOOKS)
    found = dict.fromkeys(span.stage for span in spans)
    return sorted(found, key=lambda stage: order.index(stage) if stage in order else len(order))


def _name(result: DoctorResult, stage: str) -> str:
    if stage == WAIT:
        return "the loop waits"
    return "training step" if stage == MODEL else stage_words(result, stage)


def _total(spans: Iterable[RunSpan], stage: str) -> float:
    return sum(span.stop_s - span.start_s for span in spans if span.stage == stage)


def _draw(
    sheet: Sheet, spans: Sequence[RunSpan], tracks: list[str], names: list[tuple[str, str]], *, stop_s: float
) -> None:
    left = 104 if sheet.is_wide else 76
    top = _LEGEND_LINE * _num_lines(names, is_wide=sheet.is_wide) + 6
    _draw_legend(sheet, names)
    axes = sheet.plot_area(left, top, 8, _BOTTOM)
    axes.set_xlim(0, stop_s)
    axes.set_ylim(len(tracks) * _ROW, 0)
    axes.set_yticks([])
    axes.locator_params(axis="x", nbins=7 if sheet.is_wide else 3)
    axes.xaxis.set_major_formatter(lambda value, _: seconds(value) if value else "0")
    axes.grid(axis="x", color=COLOURS["line"], linewidth=1)
    axes.set_axisbelow(True)
    pixel_s = stop_s / (sheet.width - left - 8)
    for i, track in enumerate(tracks):
        sheet.text(0, top + (i + 0.5) * _ROW, fitted(track, width=left - 10, size=LABEL), colour="soft")
        for stage, _ in names:
            pieces = merged([span for span in spans if span.track == track and span.stage == stage], gap_s=pixel_s / 2)
            colour, hatch = _LOOKS.get(stage, _OTHER)
            axes.broken_barh(
                [(start, max(stop - start, pixel_s / 2)) for start, stop in pieces],
                ((i + 0.5) * _ROW - _BAR / 2, _BAR),
                facecolor=COLOURS[colour],
                hatch=hatch or None,
                edgecolor=_ink(stage) if hatch else "none",
                linewidth=0,
            )


def merged(spans: Iterable[RunSpan], *, gap_s: float) -> list[tuple[float, float]]:
    """Return pieces of a track, those that no eye can tell apart as one.

    Args:
        spans: Of one track and one stage.
        gap_s: What lies between two pieces that stay two.
    """
    pieces: list[tuple[float, float]] = []
    for span in sorted(spans, key=lambda span: span.start_s):
        if pieces and span.start_s - pieces[-1][1] < gap_s:
            pieces[-1] = (pieces[-1][0], max(pieces[-1][1], span.stop_s))
        else:
            pieces.append((span.start_s, span.stop_s))
    return pieces


def _ink(stage: str) -> str:
    return COLOURS["hatch"] if stage == WAIT else COLOURS["soft"]


def _draw_legend(sheet: Sheet, names: list[tuple[str, str]]) -> None:
    from matplotlib.patches import Rectangle

    for (stage, name), (x, line) in zip(names, _places(names, is_wide=sheet.is_wide), strict=True):
        colour, hatch = _LOOKS.get(stage, _OTHER)
        y = 4 + line * _LEGEND_LINE
        sheet.axes.add_patch(
            Rectangle(
                (x, y), 20, 13, facecolor=COLOURS[colour], hatch=hatch or None,
                edgecolor=_ink(stage) if hatch else "none", lw=0,
            )
        )  # fmt: skip
        sheet.text(x + 27, y + 6.5, _legend_name(name), size=SMALL, colour="soft")


def _places(names: list[tuple[str, str]], *, is_wide: bool) -> list[tuple[float, int]]:
    """Return where each name of the legend stands: how far right, and in which line."""
    from stoker.doctor.report.draw import NARROW, WIDE

    width, x, line = (WIDE if is_wide else NARROW), 0.0, 0
    places = []
    for _, name in names:
        takes = 27 + text_width(_legend_name(name), size=SMALL) + 20
        if x and x + takes - 20 > width:
            x, line = 0.0, line + 1
        places.append((x, line))
        x += takes
    return places


def _num_lines(names: list[tuple[str, str]], *, is_wide: bool) -> int:
    return 1 + max(line for _, line in _places(names, is_wide=is_wide))


def _legend_name(name: str) -> str:
    return fitted(name, width=270, size=SMALL)
