"""The demo's page: one HTML file with everything in it, no script, light and dark, for phone and desk."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from pathlib import Path

from stoker.demo.pictures import bars, lanes
from stoker.demo.results import PLAIN, RAM, STOKER, DemoResult, WayResult
from stoker.demo.screen import comparison, conclusion
from stoker.doctor.words import size_text


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
<p class="lead">{escape(conclusion(result))} {escape(comparison(result))}</p>
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
{bars(result)}
</figure>

<h2>{result.num_epochs} epochs from beginning to end</h2>
<p class="soft">The height is how busy the accelerator is at that moment; the lines divide epochs. All lanes
have one scale.</p>
<figure>
{lanes(result)}
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
<pre>pip install stoker
{escape(result.command)}</pre>
<p class="note">Took {result.wall_s:.0f} seconds here. What else ran on the machine shows in the numbers.</p>
</main>
</body>
</html>
"""


def _headline(result: DemoResult) -> str:
    waits = result.way(PLAIN).later.waited
    return f"Read as plain Parquet, the accelerator waits for data {waits:.0%} of the time. It need not."


def _table(result: DemoResult) -> str:
    head = "<th></th><th>busy,<br>first epoch</th><th>busy,<br>later epochs</th><th>waiting<br>for data</th>"
    head += (
        "<th>other<br>idle</th><th>rows/s</th><th>times<br>plain</th><th>cores<br>used</th><th>remote,<br>an epoch</th>"
    )
    plain = result.way(PLAIN)
    body = "\n".join(_table_row(way, plain) for way in result.ways)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _table_row(way: WayResult, plain: WayResult) -> str:
    later = way.later
    cells = [
        escape(way.name),
        "" if way.key == RAM else f"{way.first.busy:.1%}",
        f"{later.busy:.1%}",
        f"{later.waited:.1%}",
        f"{later.other:.1%}",
        f"{later.rows_per_s:,.0f}",
        f"{later.rows_per_s / plain.later.rows_per_s:.1f}",
        f"{later.cores:.1f}",
        size_text(later.remote_bytes) if later.remote_bytes else "none",
    ]
    kind = ' class="is-ours"' if way.key == STOKER else ""
    return f"<tr{kind}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _checks(result: DemoResult) -> str:
    return "\n".join(
        f"<li{'' if check.holds else ' class=fails'}>{escape(check.text)}<small>{escape(check.detail)}</small></li>"
        for check in result.checks
    )


def _method(result: DemoResult) -> str:
    method = {
        "data": f"a generated ranking log: {result.num_rows:,} rows in {result.num_files} Parquet files, "
        f"{size_text(result.size_bytes)} with zstd; 40 dense floats, 20 ids, a 64-float embedding, two histories up to "
        "50 long, country, label",
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
