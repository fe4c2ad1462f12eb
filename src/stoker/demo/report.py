"""The demo's page: one HTML file with everything in it, no script, light and dark, for phone and desk."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from stoker.demo.results import ARROW, BIN_S, PLAIN, RAM, STOKER, DemoResult, TimeShares, WayResult

# Ways whose first epoch differs from the later ones, for it fills a cache.
_CACHING = (ARROW, STOKER)
_MAX_TICKS = 7
_METHOD = {
    "busy": "time in which a step runs, over all time from asking for the first batch to the end of the last step; "
    "while a step runs, the loop may fetch the next batch",
    "the same work": "each way delivers all columns of each row, in shuffled batches of 4,096, as arrays ready for "
    "tensors",
    "local disk": "the caches lie on this machine's disk; what still is in the page cache is read from memory, in "
    "every way",
}


def write_demo_report(result: DemoResult, path: Path) -> None:
    """Write the page, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(demo_html(result), encoding="utf-8")
    aside.replace(path)


def demo_html(result: DemoResult) -> str:
    """Return the page."""
    page, style = files("stoker.demo") / "report.html", files("stoker.doctor") / "page.css"
    plain, stoker = result.later(PLAIN), result.later(STOKER)
    real, is_simulated = "reading, decoding and the loop are real.", "simulated" in result.setting["accelerator"]
    what = f"remote store and the accelerator are simulated; {real}"
    texts = {
        "plain_busy": f"{plain.busy:.0%}",
        "plain_waits": f"{plain.waited:.0%}",
        "stoker_busy": f"{stoker.busy:.0%}",
        "times_plain": f"{result.times_plain:.1f}",
        "of_ceiling": f"{result.of_ceiling:.0%}",
        "when": result.when,
        "num_rows": f"{result.num_rows:,}",
        "num_epochs": str(result.num_epochs),
        "wall_s": f"{result.wall_s:.0f}",
        "what_is_real": f"The {what if is_simulated else f'remote store is simulated; the GPU, {real}'}",
        "conclusion": result.conclusion,
    }
    parts = {
        "style": style.read_text(encoding="utf-8") + (files("stoker.demo") / "report.css").read_text(encoding="utf-8"),
        "bars": "\n".join(_bar_row(way) for way in result.ways),
        "lanes": _lanes(result),
        "table": _table(result),
        "checks": _checks(result),
        "method": _definitions(result.setting | _METHOD | {way.name: way.how for way in result.ways}),
        "notes": "".join(f'<p class="note">{escape(note)}</p>' for note in result.notes),
        "machine": _definitions(result.machine),
    }
    template = Template(page.read_text(encoding="utf-8"))
    return template.substitute({name: escape(text) for name, text in texts.items()} | parts)


def _table(result: DemoResult) -> str:
    heads = "".join(f"<th>{head.replace(chr(10), '<br>')}</th>" for head in ("", *result.figures(result.ways[0])))
    rows = "\n".join(
        f"<tr{' class=is-marked' if way.key == STOKER else ''}><th>{escape(way.name)}</th>"
        + "".join(f"<td>{figure}</td>" for figure in result.figures(way).values())
        + "</tr>"
        for way in result.ways
    )
    return f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"


def _checks(result: DemoResult) -> str:
    return "\n".join(
        f"<li{'' if check.holds else ' class=fails'}>{escape(check.text)}<small>{escape(check.detail)}</small></li>"
        for check in result.checks
    )


def _definitions(pairs: dict[str, str]) -> str:
    return "\n".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs.items())


def _lanes(result: DemoResult) -> str:
    """Return how busy the accelerator is over the time of all epochs, one lane a way, all on one scale."""
    longest_s = max(way.wall_s for way in result.ways)
    rows = "\n".join(_lane_row(way, longest_s=longest_s) for way in result.ways)
    ticks = "".join(
        f'<span style="left:{second / longest_s:.2%}">{f"{second:g} s" if second else "0"}</span>'
        for second in _ticks(longest_s)
    )
    return f'{rows}\n<div class="axis" aria-hidden="true"><div>{ticks}</div></div>'


def _bar_row(way: WayResult) -> str:
    about = "thin: first epoch" if way.key in _CACHING else "the ceiling" if way.key == RAM else ""
    strips = _strip(way.later, "", f"later epochs {way.later.busy:.1%} busy")
    if way.key in _CACHING:
        strips = _strip(way.first, " is-first", f"first epoch {way.first.busy:.1%} busy") + strips
    rate = f"{way.later.rows_per_s:,.0f} rows/s"
    return _row(way, about, f'<div class="strips">{strips}</div>', f"{way.later.busy:.0%}", rate)


def _row(way: WayResult, about: str, picture: str, value: str, more: str) -> str:
    """Return a way's name, its picture, and a figure with another one beneath."""
    name = f'<div class="name">{escape(way.name)}{f"<small>{about}</small>" * bool(about)}</div>'
    figure = f'<div class="value"><b>{value}</b><small>{more}</small></div>'
    return f'<div class="way{" is-ours" * (way.key == STOKER)}">{name}{picture}{figure}</div>'


def _strip(share: TimeShares, kind: str, label: str) -> str:
    parts = (("busy", share.busy), ("other", share.other), ("waited", share.waited))
    inside = "".join(f'<i class="{name}" style="width:{part:.2%}"></i>' for name, part in parts)
    return f'<div class="strip{kind}" role="img" aria-label="{escape(label)}">{inside}</div>'


def _lane_row(way: WayResult, *, longest_s: float) -> str:
    epochs = f"{len(way.epochs)} epoch{'s' if len(way.epochs) > 1 else ''}"
    box = f'style="width:{way.wall_s / longest_s:.2%}" viewBox="0 0 {way.wall_s:.3f} 1" preserveAspectRatio="none"'
    label = f'role="img" aria-label="{escape(way.name)}: {epochs} in {way.wall_s:.1f} seconds"'
    lane = f'<div class="lane"><svg {box} {label}>{_area(way)}</svg></div>'
    return _row(way, "", lane, f"{way.wall_s:.1f} s", epochs)


def _area(way: WayResult) -> str:
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
    return f'<path d="M0 1{"".join(points)}L{start:.3f} 1Z"/>{"".join(borders[:-1])}'


def _ticks(longest_s: float) -> list[float]:
    steps = [step * 10**power for power in (-1, 0, 1, 2) for step in (1, 2, 5)]
    step = next((step for step in steps if longest_s / step <= _MAX_TICKS), steps[-1])
    # The last tick keeps its distance from the edge, where its label would be cut off.
    return [i * step for i in range(int(longest_s * 0.97 / step) + 1)]
