"""The two pictures of the demo's page, as HTML and SVG."""

from __future__ import annotations

from html import escape

from stoker.demo.measure import BIN_S
from stoker.demo.results import ARROW, RAM, STOKER, DemoResult, TimeShares, WayResult

# Ways whose first epoch differs from the later ones, for it fills a cache.
_CACHING = (ARROW, STOKER)
_MAX_TICKS = 7


def bars(result: DemoResult) -> str:
    """Return how busy each way keeps the accelerator: thick for later epochs, thin for a first that differs."""
    return "\n".join(_bar_row(way) for way in result.ways)


def lanes(result: DemoResult) -> str:
    """Return how busy the accelerator is over the time of all epochs, one lane a way, all on one scale."""
    longest_s = max(way.wall_s for way in result.ways)
    rows = "\n".join(_lane_row(way, longest_s=longest_s) for way in result.ways)
    ticks = "".join(
        f'<span style="left:{second / longest_s:.2%}">{f"{second:g} s" if second else "0"}</span>'
        for second in _ticks(longest_s)
    )
    return f'{rows}\n<div class="axis" aria-hidden="true"><div>{ticks}</div></div>'


def _bar_row(way: WayResult) -> str:
    first = _bar(way.first, "is-first", f"first epoch {way.first.busy:.1%} busy") if way.key in _CACHING else ""
    about = "thin: first epoch" if way.key in _CACHING else "the ceiling" if way.key == RAM else ""
    return (
        f'<div class="way{_ours(way)}"><div class="name">{escape(way.name)}'
        + (f"<small>{about}</small>" if about else "")
        + f'</div><div class="bars">{first}{_bar(way.later, "", f"later epochs {way.later.busy:.1%} busy")}</div>'
        f'<div class="value"><b>{way.later.busy:.0%}</b><small>{way.later.rows_per_s:,.0f} rows/s</small></div></div>'
    )


def _bar(share: TimeShares, kind: str, label: str) -> str:
    parts = (("busy", share.busy), ("other", share.other), ("waited", share.waited))
    return (
        f'<div class="bar {kind}" role="img" aria-label="{escape(label)}">'
        + "".join(f'<i class="{name}" style="width:{part:.2%}"></i>' for name, part in parts)
        + "</div>"
    )


def _lane_row(way: WayResult, *, longest_s: float) -> str:
    path, borders = _area(way)
    epochs = f"{len(way.epochs)} epoch{'s' if len(way.epochs) > 1 else ''}"
    return (
        f'<div class="way{_ours(way)}"><div class="name">{escape(way.name)}</div>'
        f'<div class="lane"><svg style="width:{way.wall_s / longest_s:.2%}" viewBox="0 0 {way.wall_s:.3f} 1" '
        f'preserveAspectRatio="none" role="img" aria-label="{escape(way.name)}: {epochs} in '
        f'{way.wall_s:.1f} seconds">{path}{borders}</svg></div>'
        f'<div class="value"><b>{way.wall_s:.1f} s</b><small>{epochs}</small></div></div>'
    )


def _area(way: WayResult) -> tuple[str, str]:
    """Return the path under the busy share, and the lines between epochs."""
    points, borders = [], []
    start = 0.0
    for epoch in way.epochs:
        for i, busy in enumerate(epoch.busy_over_time):
            left = start + i * BIN_S
            right = min(left + BIN_S, start + epoch.wall_s)
            points.append(f"L{left:.3f} {1 - busy:.3f}L{right:.3f} {1 - busy:.3f}")
        start += epoch.wall_s
        borders.append(f'<line x1="{start:.3f}" x2="{start:.3f}" y1="0" y2="1"/>')
    return f'<path d="M0 1{"".join(points)}L{start:.3f} 1Z"/>', "".join(borders[:-1])


def _ticks(longest_s: float) -> list[float]:
    steps = [step * 10**power for power in (-1, 0, 1, 2) for step in (1, 2, 5)]
    step = next((step for step in steps if longest_s / step <= _MAX_TICKS), steps[-1])
    # The last tick keeps its distance from the edge, where its label would be cut off.
    return [i * step for i in range(int(longest_s * 0.97 / step) + 1)]


def _ours(way: WayResult) -> str:
    return " is-ours" if way.key == STOKER else ""
