"""The page as a whole: the verdict first, then what it rests on, then how to see it again."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from stoker.doctor.report.charts import Bar, SplitBar, bars, split_bars, timeline
from stoker.doctor.report.markup import clean, definitions, html_table, paragraphs, sentence, words
from stoker.doctor.results import MODEL, RAM, SHARED, STAGE_NAMES, SUPPLY, Measurements, PathResult
from stoker.doctor.screen import ceiling_text, gpu_text, path_busy, path_limit_text, path_rate_text
from stoker.doctor.verdict import DoctorResult, StepPart, Verdict
from stoker.doctor.words import NONE, cost_text, factor_text, rate_text, share_text, size_text, time_text
from stoker.words import count_text

_LONGEST = 64
# A demand far beyond every path would press all bars into a corner: then it stands in words alone.
_FAR = 3.0


def check_report(path: Path) -> None:
    """Make sure that a page can be written, before anything is measured for it.

    Raises:
        ValueError: `path` is a folder.
    """
    path = path.expanduser()
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file for the page, such as {path / 'doctor.html'}")


def write_report(result: DoctorResult, path: Path) -> None:
    """Write the page, whole or not at all.

    Args:
        result: What was found.
        path: The file; its folder is made where there is none.
    """
    path = path.expanduser()
    check_report(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(report_html(result), encoding="utf-8")
    aside.replace(path)


def report_html(result: DoctorResult) -> str:
    """Return the page: one HTML document without script and without any request."""
    numbers, verdict = result.numbers, result.verdict
    style = (files("stoker.doctor.report") / "report.css").read_text(encoding="utf-8")
    sections = (
        _head(numbers, verdict), _step(numbers, verdict), _paths(numbers, verdict), _fixes(verdict),
        _verified(numbers), _timeline(numbers), _stages(numbers, verdict), _machine(numbers), _gpus(numbers),
        _money(numbers, verdict), _data(numbers), _again(numbers),
    )  # fmt: skip
    body = "\n\n".join(section for section in sections if section)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>Stoker doctor: {words(_headline(numbers, verdict))}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


# ---------------------------------------------------------------------- the verdict


def _headline(numbers: Measurements, verdict: Verdict) -> str:
    if verdict.kind == "unknown":
        return "Too little was measured"
    if verdict.stages == (MODEL,):
        return "The model is the limit: its data comes in time"
    first, *behind = (STAGE_NAMES[key] for key in verdict.stages)
    does = "sets the pace of the data" if numbers.step is None else "starves the step"
    return f"{first[:1].upper()}{first[1:]} {does}" + (f", and behind it {' and '.join(behind)}" if behind else "")


def _head(numbers: Measurements, verdict: Verdict) -> str:
    mark, kind, status = {
        "fed": ("✓", "is-fine", "Nothing to mend in the data path"),
        "starved": ("✗", "is-starved", "The step waits for data"),
        "open": ("•", "is-open", "No step was given"),
    }.get(verdict.kind, ("•", "is-open", "Interrupted"))
    tiles = "\n".join(
        f"<div{' class=is-ours' if is_ours else ''}><b>{words(value)}</b><span>{words(about)}</span></div>"
        for value, about, is_ours in _tiles(numbers, verdict)
    )
    return f"""<header>
<p class="brand"><b>stoker</b> doctor · {words(numbers.when)} · {words(numbers.data.text)}</p>
<p class="status {kind}"><span aria-hidden="true">{mark}</span> {words(status)} · {words(verdict.sure)}</p>
<h1>{words(_headline(numbers, verdict))}</h1>
<p class="verdict">{sentence(verdict.sentence)}</p>
{paragraphs([verdict.then], kind="lead")}
<div class="figures">
{tiles}
</div>
{paragraphs(verdict.notes, kind="caveat")}
</header>"""


def _tiles(numbers: Measurements, verdict: Verdict) -> list[tuple[str, str, bool]]:
    """Return the figures that a reader takes away: value, what it is, whether it is what could be."""
    today = numbers.path(numbers.today)
    if today is None:
        return []
    best = verdict.fixes[0] if verdict.fixes else None
    tiles: list[tuple[str, str, bool]] = []
    if verdict.busy is None:
        tiles.append((rate_text(today.rate_s), "samples/s come today", False))
    else:
        tiles.append((share_text(verdict.busy), "of the time the step runs today", False))
    if best is not None:
        value = rate_text(best.rate_s) if best.busy is None else share_text(best.busy)
        tiles.append((value, f"{'samples/s ' if best.busy is None else ''}with: {_shortened(best.text)}", True))
        tiles.append((f"{factor_text(best.times)}×", "the samples a second, with that", False))
        epoch = f"an epoch, where it is {time_text(verdict.epoch_s)} now"
        tiles.append((time_text(verdict.epoch_s / best.times), epoch, False))
    else:
        tiles.append((time_text(verdict.epoch_s), "an epoch", False))
        supply = numbers.path(SUPPLY)
        if supply is not None and verdict.demand_s is not None:
            about = f"samples/s come with no step behind them; the step eats {rate_text(verdict.demand_s)}"
            tiles.append((rate_text(supply.rate_s), about, False))
    if verdict.money is not None:
        about = f"lost to stalls, of {cost_text(verdict.money.epoch)} an epoch"
        tiles.append((cost_text(verdict.money.stalls), about, False))
    return tiles


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1].rstrip() + "…"


# ---------------------------------------------------------------------- what it rests on


def _step(numbers: Measurements, verdict: Verdict) -> str:
    today = numbers.path(numbers.today)
    if today is None or not verdict.step_parts:
        return ""
    longest_s = sum(part.seconds for part in verdict.step_parts)
    rows = [_split("Today", verdict.step_parts, longest_s)]
    best = verdict.fixes[0] if verdict.fixes else None
    if best is not None and best.busy is not None:
        period_s = today.batch_size / best.rate_s
        parts = [StepPart(key=MODEL, name="training step", seconds=period_s * best.busy)]
        if best.busy < 1:
            parts.append(StepPart(key=best.limit, name="waits", seconds=period_s * (1 - best.busy)))
        rows.append(_split(f"With {best.text}", tuple(parts), longest_s))
    lead = "Filled: the step runs. Hatched: it waits. All bars have one scale; all of it was measured."
    return _section("Where a step’s time goes", lead, split_bars(rows, label="Where the time between two steps goes"))


def _split(name: str, parts: tuple[StepPart, ...], longest_s: float) -> SplitBar:
    return SplitBar(
        name=name,
        value=f"{time_text(sum(part.seconds for part in parts))} a step",
        parts=[(part.name, time_text(part.seconds), part.seconds / longest_s, part.key != MODEL) for part in parts],
    )


def _paths(numbers: Measurements, verdict: Verdict) -> str:
    if not numbers.paths:
        return ""
    longest_s = max(
        max((path.rate.high for path in numbers.paths if path.key not in (RAM, SUPPLY, SHARED)), default=0.0),
        *(bound.at_most_s for bound in verdict.bounds if bound.key != "gpus"),
        1e-9,
    )
    demand_s = verdict.demand_s
    if demand_s is not None and demand_s <= _FAR * longest_s:
        longest_s = max(longest_s, demand_s)
    longest_s *= 1.02
    best = verdict.fixes[0].key if verdict.fixes else ""
    chart = [
        Bar(
            name=path.name + (", today" if path.key == numbers.today else ""),
            value=path_rate_text(path),
            share=path.rate_s / longest_s,
            kind="today" if path.key == numbers.today else "ours" if path.key == best else "plain",
            low=path.rate.low / longest_s if path.rate.num_rounds > 1 and path.rate_s == path.rate.samples_s else None,
            high=path.rate.high / longest_s
            if path.rate.num_rounds > 1 and path.rate_s == path.rate.samples_s
            else None,
        )
        for path in numbers.paths
    ]
    chart += [
        Bar(name=f"{bound.text}: a bound", value=f"≤ {rate_text(bound.at_most_s)}", share=bound.at_most_s / longest_s,
            kind="bound")
        for bound in verdict.bounds
    ]  # fmt: skip
    rows = [
        (
            path.name + (", today" if path.key == numbers.today else ""), path_rate_text(path),
            f"{rate_text(path.rate.low)} to {rate_text(path.rate.high)}", count_text(path.rate.num_rounds, "repeat"),
            _busy(numbers, path, verdict), path_limit_text(numbers, path, verdict) or NONE, share_text(path.others),
        )
        for path in numbers.paths
    ]  # fmt: skip
    head = ("path", "samples/s", "slowest to fastest", "", "step busy", "limit", "others took")
    shown = demand_s is not None and demand_s <= longest_s
    demand = "" if demand_s is None else f"what the step could eat: {rate_text(demand_s)}"
    return _section(
        "The paths, each run whole",
        "Each ran on this machine for a few seconds, with the step behind it, in turn with the others. The thin line "
        "goes from the slowest repeat to the fastest. Hatched bars are bounds of what could not be tried here.",
        bars(
            chart, label="Samples a second",
            mark=demand_s / longest_s if shown and demand_s is not None else None, mark_text=demand,
        ),
        html_table(head, rows, about="The paths", marked=(0,), worded=(5,)),
    )  # fmt: skip


def _busy(numbers: Measurements, path: PathResult, verdict: Verdict) -> str:
    busy = path_busy(numbers, path, verdict)
    return NONE if busy is None else share_text(busy)


def _fixes(verdict: Verdict) -> str:
    if not verdict.fixes and not verdict.bounds:
        lead = "Nothing that could be tried here gave more." if verdict.kind != "fed" else "Nothing: the step is fed."
        return _section("What would help", lead)
    rows = [
        (fix.text, rate_text(fix.rate_s), f"{factor_text(fix.times)}×", "measured", STAGE_NAMES[fix.limit], fix.how)
        for fix in verdict.fixes
    ] + [
        (bound.text, f"≤ {rate_text(bound.at_most_s)}", NONE, "a bound", NONE, bound.why) for bound in verdict.bounds
    ]  # fmt: skip
    head = ("change", "samples/s", "× today", "", "what limits then", "how")
    return _section(
        "What would help",
        "What is measured ran here. A bound is what no such change can beat; what it really gives, only it tells.",
        html_table(head, rows, about="What would help", marked=(0,) if verdict.fixes else (), worded=(4, 5)),
    )


def _verified(numbers: Measurements) -> str:
    rows = [
        (
            next(path.name for path in numbers.paths if path.key == one.fix), rate_text(one.promised_s),
            rate_text(one.measured.samples_s), f"{rate_text(one.measured.low)} to {rate_text(one.measured.high)}",
            f"{one.error:+.1%}",
        )
        for one in numbers.verified
    ]  # fmt: skip
    if not rows:
        return ""
    head = ("fix", "promised", "came", "slowest to fastest", "error")
    return _section("Run once more", "", html_table(head, rows, about="Promised and measured"))


def _timeline(numbers: Measurements) -> str:
    chart = timeline(numbers.timeline)
    lead = "As it was measured: what threads did, and when the loop had to wait for a batch."
    return _section("A stretch of today’s path", lead, chart) if chart else ""


def _stages(numbers: Measurements, verdict: Verdict) -> str:
    if not numbers.stages:
        return ""
    demand_s = verdict.demand_s
    far = 2 * demand_s if demand_s is not None else max(stage.supply_s for stage in numbers.stages)
    chart = [
        Bar(
            name=STAGE_NAMES[stage.key],
            value=rate_text(stage.supply_s),
            share=stage.supply_s / far,
            kind="ours" if stage.key in verdict.stages else "plain",
        )
        for stage in numbers.stages
    ]
    rows = [
        (
            STAGE_NAMES[stage.key], rate_text(stage.supply_s),
            f"{factor_text(stage.supply_s / demand_s)}×" if demand_s is not None else NONE,
            time_text(stage.seconds) if stage.seconds else NONE,
            share_text(stage.gil_share) if stage.gil_share else NONE,
            ", ".join(f"{num}:\u00a0{rate_text(rate)}" for num, rate in stage.by_threads) or NONE,
        )
        for stage in numbers.stages
    ]  # fmt: skip
    head = ("stage, alone", "supply", "× demand", "a sample takes", "of it GIL", "by threads")
    marked = [i for i, stage in enumerate(numbers.stages) if stage.key in verdict.stages]
    return _section(
        "Why: each stage alone",
        "What all threads of a stage give if they do nothing else, in a run whose bytes lay in memory; fetch by its "
        "reads alone. It explains the rates above, and overrules none of them.",
        bars(
            chart, label="Supply of each stage", mark=None if demand_s is None else 0.5,
            mark_text="what the step could eat",
        ),
        html_table(head, rows, about="Each stage alone", marked=marked),
    )  # fmt: skip


def _machine(numbers: Measurements) -> str:
    rows = [
        (one.name, ceiling_text(one), NONE if one.used is None else share_text(one.used), one.note)
        for one in numbers.ceilings
    ]
    versions = ", ".join(f"{name} {version}" for name, version in numbers.versions.items())
    return _section(
        "The machine",
        "",
        html_table(("ceiling", "measured", "used today", "how"), rows, about="Ceilings", worded=(3,)) if rows else "",
        definitions({**numbers.machine, "versions": versions}),
    )


def _gpus(numbers: Measurements) -> str:
    lines = [gpu_text(gpu) for gpu in numbers.gpus]
    note = numbers.gpu_note or "no GPU here"
    return _section("GPU", "" if lines else note, paragraphs([*lines, note] if lines else [], kind="note"))


def _money(numbers: Measurements, verdict: Verdict) -> str:
    money = verdict.money
    if money is None or numbers.gpu_hour is None:
        return ""
    gpus = "one GPU" if numbers.num_gpus == 1 else f"{numbers.num_gpus:,} GPUs"
    rows = [
        ("an epoch today", cost_text(money.epoch)),
        ("of it, lost to stalls", cost_text(money.stalls)),
        (
            f"an epoch with: {verdict.fixes[0].text}" if verdict.fixes else "nothing gives more",
            cost_text(money.best_fix),
        ),
    ]
    lead = f"{gpus} at {numbers.gpu_hour:,.2f} an hour each; all amounts are in the currency of that price."
    return _section("What it costs", lead, html_table(("", "cost"), rows, about="What it costs"))


def _data(numbers: Measurements) -> str:
    data, step = numbers.data, numbers.step
    pairs = {
        "data set": data.text,
        "samples": f"{data.num_samples:,} in {count_text(data.num_files, 'file')}, "
        f"{count_text(data.num_chunks, 'chunk')}; {count_text(data.num_probed, 'chunk')} looked at",
        "where": "behind a network" if data.is_remote else "on this machine",
        "a sample": f"{size_text(data.source_bytes)} at the source, {size_text(data.arrow_bytes)} as Arrow, "
        f"{size_text(data.tensor_bytes)} as tensors",
        "the whole on SSD": ", ".join(
            f"{path.name} {size_text(path.disk_bytes)}" for path in numbers.paths if path.disk_bytes
        ),
        "widest column": f"{data.widest_column}, {share_text(data.widest_share)} of the bytes at the source"
        if data.widest_column
        else "",
        "repeats": f"{share_text(data.repeated_share)} of the bytes only repeat the row before",
        "step": "none was given" if step is None else step.text,
    }
    if step is not None:
        pairs["cores that the step uses"] = f"{step.cores_used:.1f} of {numbers.cores:.3g}"
    return _section("What was looked at", "", definitions(pairs))


def _again(numbers: Measurements) -> str:
    took = (
        f"Took {time_text(numbers.wall_s)} here, of a budget of {time_text(numbers.budget_s)}. What else ran on the "
        "machine shows in the figures"
    )
    code = f'<pre tabindex="0">{words(clean(numbers.command))}</pre>\n'
    return _section("Do it again", "", code + paragraphs([took], kind="note"))


def _section(title: str, lead: str, *parts: str) -> str:
    body = "\n".join(part for part in parts if part)
    about = f'<p class="soft">{sentence(lead)}</p>\n' if lead else ""
    return f"<section>\n<h2>{words(title)}</h2>\n{about}{body}\n</section>"
