"""The demo's page: one HTML file with everything in it, no script, light and dark, for phone and desk."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from pathlib import Path

from stoker.demo.results import ARROW, BIN_S, PLAIN, RAM, STOKER, DemoResult, TimeShares, WayResult
from stoker.words import bytes_text

# Ways whose first epoch differs from the later ones, for it fills a cache.
_CACHING = (ARROW, STOKER)
_MAX_TICKS = 7


def write_demo_report(result: DemoResult, path: Path) -> None:
    """Write the page, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(demo_html(result), encoding="utf-8")
    aside.replace(path)


def demo_html(result: DemoResult) -> str:
    """Return the page."""
    style = (files("stoker.demo") / "report.css").read_text(encoding="utf-8")
    plain, stoker = result.way(PLAIN), result.way(STOKER)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Stoker demo: {plain.later.busy:.0%} → {stoker.later.busy:.0%} busy</title>
<style>
{style}</style>
</head>
<body>
<main>
<p class="brand"><b>stoker</b> demo · {escape(result.when)} · {result.num_rows:,} rows, {result.num_epochs} epochs</p>
<h1>{_headline(result)}</h1>
<p class="lead"><b>{escape(_what_is_real(result))}</b></p>
<p class="lead">{escape(result.conclusion)} {escape(result.comparison)}</p>
<div class="figures">
<div><b>{plain.later.busy:.0%}</b><span>busy with plain Parquet reads</span></div>
<div class="is-ours"><b>{stoker.later.busy:.0%}</b><span>busy with Stoker, from the second epoch on</span></div>
<div><b>{result.times_plain:.1f}×</b><span>the rows a second</span></div>
<div><b>{result.of_ceiling:.0%}</b><span>of what batches in RAM give</span></div>
</div>

<h2>How busy the accelerator is</h2>
<p class="soft">Five ways to feed the same steps with the same rows: later epochs, and the first where it fills
a cache.</p>
<figure>
<div class="legend"><span><i class="busy"></i>computing</span><span><i class="waited"></i>waiting for data</span>\
<span><i class="other"></i>idle for another reason</span></div>
{_bars(result)}
</figure>

<h2>{result.num_epochs} epochs from beginning to end</h2>
<p class="soft">The height is how busy the accelerator is at that moment; the lines divide epochs. All lanes
have one scale.</p>
<figure>
{_lanes(result)}
</figure>

<h2>The numbers</h2>
<div class="scroll">
{_table(result)}
</div>

<h2>What the demo made sure of</h2>
<ul class="checks">
{_checks(result)}
</ul>

<h2>How it was measured</h2>
<dl>
{_method(result)}
</dl>
{"".join(f'<p class="note">{escape(note)}</p>' for note in result.notes)}

<h2>The machine</h2>
<dl>
{_definitions(result.machine)}
{_definitions({"versions": ", ".join(f"{name} {version}" for name, version in result.versions.items())})}
</dl>

<h2>Do it again</h2>
<pre>stoker demo</pre>
<p class="note">Took {result.wall_s:.0f} seconds here. What else ran on the machine shows in the numbers.</p>
</main>
</body>
</html>
"""


def _headline(result: DemoResult) -> str:
    waits = result.way(PLAIN).later.waited
    return f"Read as plain Parquet, the accelerator waits for data {waits:.0%} of the time. It need not."


def _what_is_real(result: DemoResult) -> str:
    """Return the subtitle: what of the demo is simulated."""
    is_simulated = result.accelerator.startswith("simulated")
    return (
        "The remote store and the accelerator are simulated; reading, decoding and the loop are real."
        if is_simulated
        else "The remote store is simulated; the GPU, reading, decoding and the loop are real."
    )


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


def _method(result: DemoResult) -> str:
    method = {
        "data": f"a generated ranking log: {result.num_rows:,} rows in {result.num_files} Parquet files, "
        f"{bytes_text(result.size_bytes)} with zstd; 40 dense floats, 20 ids, a 64-float embedding, two histories "
        "up to 50 long, country, label",
        "remote store": result.link,
        "accelerator": result.accelerator,
        "length of a step": result.calibration,
        "busy": "time in which a step runs, over all time from asking for the first batch to the end of the last step; "
        "while a step runs, the loop may fetch the next batch",
        "the same work": "each way delivers all columns of each row, in shuffled batches of 4,096, as arrays ready for "
        "tensors",
    }
    method |= {way.name: way.how for way in result.ways}
    method["local disk"] = (
        "the caches lie on this machine's disk; what still is in the page cache is read from memory, in every way"
    )
    return _definitions(method)


def _definitions(pairs: dict[str, str]) -> str:
    return "\n".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs.items())


def _bars(result: DemoResult) -> str:
    """Return how busy each way keeps the accelerator: thick for later epochs, thin for a first that differs."""
    return "\n".join(_bar_row(way) for way in result.ways)


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
