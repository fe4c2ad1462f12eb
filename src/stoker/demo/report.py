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
    folder = files("stoker.demo")
    plain, stoker = result.way(PLAIN), result.way(STOKER)
    is_simulated = result.setting["accelerator"].startswith("simulated")
    real = "reading, decoding and the loop are real."
    texts = {
        "plain_busy": f"{plain.later.busy:.0%}",
        "plain_waits": f"{plain.later.waited:.0%}",
        "stoker_busy": f"{stoker.later.busy:.0%}",
        "times_plain": f"{result.times_plain:.1f}",
        "of_ceiling": f"{result.of_ceiling:.0%}",
        "when": result.when,
        "num_rows": f"{result.num_rows:,}",
        "num_epochs": str(result.num_epochs),
        "wall_s": f"{result.wall_s:.0f}",
        "what_is_real": f"The remote store and the accelerator are simulated; {real}"
        if is_simulated
        else f"The remote store is simulated; the GPU, {real}",
        "conclusion": f"{result.conclusion} {result.comparison}",
    }
    parts = {
        "style": (folder / "report.css").read_text(encoding="utf-8"),
        "bars": "\n".join(_bar_row(way) for way in result.ways),
        "lanes": _lanes(result),
        "table": _table(result),
        "checks": _checks(result),
        "method": _definitions(result.setting | _METHOD | {way.name: way.how for way in result.ways}),
        "notes": "".join(f'<p class="note">{escape(note)}</p>' for note in result.notes),
        "machine": _definitions(result.machine),
    }
    page = Template((folder / "report.html").read_text(encoding="utf-8"))
    return page.substitute({name: escape(text) for name, text in texts.items()} | parts)


def _table(result: DemoResult) -> str:
    heads = "".join(f"<th>{head.replace(chr(10), '<br>')}</th>" for head in ("", *result.figures(result.ways[0])))
    rows = "\n".join(
        f'<tr class="{_ours(way).strip()}"><td>{escape(way.name)}</td>'
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
