"""The table and the chart."""

from __future__ import annotations

import argparse
import datetime as dt
import math
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from benchmarks.rivals.contestants import OURS
from benchmarks.rivals.outcome import Outcome
from stoker.host.machine import machine

RESULTS = Path(__file__).parents[1] / "results"
_HEADINGS = ("loader", "rows/s warm", "ours is", "rows/s cold", "first batch", "memory", "rows", "columns")


def print_table(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Print one line a contestant, the fastest first."""
    table = Table(box=None, pad_edge=False)
    for heading in _HEADINGS:
        justify: Literal["left", "right"] = "left" if heading in ("loader", "columns", "rows") else "right"
        table.add_column(heading, justify=justify, no_wrap=True)
    for outcome in ranked(outcomes):
        *most, columns = cells(outcome, outcomes)
        table.add_row(
            *most,
            columns if len(columns) < 8 else f"{len(outcome.missing)} missing",
            style="bold" if outcome.key in OURS else "",
        )
    console.print(table)


def ranked(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the fastest first, those that failed last."""
    return sorted(outcomes, key=lambda outcome: -outcome.warm_rows_per_s)


def cells(outcome: Outcome, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Return a contestant's line, below `_HEADINGS`."""
    if outcome.error:
        return outcome.name, "failed", "", "", "", "", outcome.error.splitlines()[-1], ""
    rows = "ROWS LOST" if outcome.has_lost_rows else f"{outcome.num_rows:,}" + (", cut" if outcome.is_cut else "")
    factor = factor_of(outcome, outcomes)
    return (
        outcome.name,
        f"{outcome.warm_rows_per_s:,.0f}",
        "" if factor is None else f"{factor:,.1f} ×" if factor < 100 else f"{factor:,.0f} ×",
        f"{outcome.cold_rows_per_s:,.0f}" if outcome.cold_rows_per_s else "-",
        f"{outcome.first_batch_s * 1e3:,.0f} ms",
        f"{outcome.peak_bytes / 2**30:.1f} GiB",
        rows,
        "all" if not outcome.missing else f"without {', '.join(outcome.missing)}",
    )


def factor_of(outcome: Outcome, outcomes: Sequence[Outcome]) -> float | None:
    """Return how many times faster ours is, on the columns that the other one delivers; None for ours."""
    if outcome.key in OURS or not outcome.warm_rows_per_s:
        return None
    key = "stoker_scalars" if outcome.missing else "stoker"
    ours = next((one for one in outcomes if one.key == key), None)
    return None if ours is None else ours.warm_rows_per_s / outcome.warm_rows_per_s


def write_result(outcomes: Sequence[Outcome], options: argparse.Namespace, folder: Path = RESULTS) -> Path:
    """Keep the table and its chart as those of this machine; return the table's path."""
    where = {"date": str(dt.datetime.now(tz=dt.UTC).date())} | machine()
    short = re.sub(r"[^a-z0-9]+", "-", f"{where['processor']} {where['cores']} cores".lower()).strip("-")
    path = folder / f"rivals_{short}.md"
    chart = path.with_suffix(".svg")
    lines = [
        "# The same rows through every loader",
        "",
        f"![rows a second, logarithmic]({chart.name})",
        "",
        "|" + "|".join(_HEADINGS) + "|",
        "|" + "---|" * len(_HEADINGS),
        *("|" + "|".join(cells(outcome, outcomes)) + "|" for outcome in ranked(outcomes)),
        "",
        f"Batches of {options.batch_size:,}, {options.workers} threads or processes each, {options.epochs} epochs, and "
        "more where the warm ones take less than 2 s together: cold is converting and the first epoch, warm the median "
        "of the others. Rows are counted, and a checksum over one column is held against the one known from writing "
        "the data. Those that go sample by sample get fewer rows, and an epoch is left after "
        f"{options.seconds:g} s (cut). The system has free memory at hand before each begins: a virtual machine may "
        "have to get it from its host, and whoever came first would wait for all. *Ours is* compares on the columns "
        "that the other one delivers.",
        "",
        "Again: `make bench-rivals`, or `python -m benchmarks.rivals --write`.",
        "",
        *(f"- {key}: {value}" for key, value in where.items()),
        *(_about(outcome) for outcome in ranked(outcomes) if not outcome.error),
        "",
    ]
    folder.mkdir(exist_ok=True)
    path.write_text("\n".join(lines))
    chart.write_text(draw(outcomes))
    return path


def draw(outcomes: Sequence[Outcome]) -> str:
    """Return the chart as SVG: warm rows a second, a bar each, on a logarithmic scale."""
    shown = [outcome for outcome in ranked(outcomes) if outcome.warm_rows_per_s]
    low = math.floor(math.log10(min(outcome.warm_rows_per_s for outcome in shown)))
    high = math.log10(max(outcome.warm_rows_per_s for outcome in shown))
    left, width, height = 230, 420, 30
    bars = []
    for i, outcome in enumerate(shown):
        length = width * (math.log10(outcome.warm_rows_per_s) - low) / max(high - low, 1e-9)
        colour = "#d9480f" if outcome.key in OURS else "#868e96"
        top = i * height + 8
        bars.append(
            f'<text x="{left - 10}" y="{top + 14}" text-anchor="end">{escape(outcome.name)}</text>'
            f'<rect x="{left}" y="{top}" width="{length:.1f}" height="20" rx="2" fill="{colour}"/>'
            f'<text x="{left + length + 8:.1f}" y="{top + 14}">{outcome.warm_rows_per_s:,.0f}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {len(shown) * height + 16}" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#868e96">' + "".join(bars) + "</svg>\n"
    )


def _about(outcome: Outcome) -> str:
    versions = ", ".join(f"{package} {version}" for package, version in outcome.versions.items() if version != "?")
    refused = "".join(f"; {column}: {reason}" for column, reason in outcome.refused.items())
    return f"- {outcome.name}: {outcome.note}; {versions}{refused}"
