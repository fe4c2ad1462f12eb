"""The page's sections, from the verdict to the figures under it; each is "" where there is nothing to tell."""

from __future__ import annotations

from stoker.doctor.report.charts_fixes import fixes_chart, measured_of
from stoker.doctor.report.charts_machine import ceilings_chart, sweep_chart
from stoker.doctor.report.charts_stages import stages_chart
from stoker.doctor.report.charts_step import money_chart, step_chart
from stoker.doctor.report.charts_timeline import hidden_tracks, timeline_chart
from stoker.doctor.report.facts import again, data, environment, gpus
from stoker.doctor.report.figures import NONE, PATH_WORDS, ceiling, cost, rate, seconds, share, size, stage_words, times
from stoker.doctor.report.headline import head, headline
from stoker.doctor.report.markup import html_table, paragraphs, sentence, words
from stoker.doctor.results import DoctorResult, Rate, StageResult

__all__ = [
    "again",
    "batch_sizes",
    "ceilings",
    "data",
    "environment",
    "fixes",
    "gpus",
    "head",
    "headline",
    "money",
    "paths",
    "stages",
    "step",
    "timeline",
    "verified",
    "where_to_keep",
]


def step(result: DoctorResult) -> str:
    """Return where a step's time goes, today and with the fix."""
    chart = step_chart(result)
    if not chart:
        return ""
    return _section(
        "Where a step’s time goes",
        "Filled: the step runs. Hatched: it waits, and for what. All bars have one scale.",
        _figure(chart),
    )


def stages(result: DoctorResult) -> str:
    """Return supply against demand."""
    if not result.stages:
        return ""
    if result.step is None:
        lead = (
            "Each stage alone on this machine, against what all of today’s path gives: no step was given, so nobody "
            "knows yet how much it should be."
        )
    else:
        lead = (
            "Each stage alone on this machine, against what the step could eat. A bar to the left of the line starves "
            "the step by itself; one to the right has room. The thin line is the spread of the measurement."
        )
    chart = stages_chart(result)
    rows = [_stage_row(stage, result) for stage in result.stages]
    head = (
        "stage, alone",
        "supply",
        *(["× demand"] if result.step is not None else []),
        "CPU",
        "of it GIL",
        "waits",
        "gives",
        "by threads",
    )
    marked = [i for i, stage in enumerate(result.stages) if stage.key in result.verdict.stages]
    notes = paragraphs((f"{stage.name}: {stage.note}" for stage in result.stages if stage.note), kind="note")
    return _section(
        "Supply against demand",
        lead,
        _figure(chart) if chart else "",
        html_table(head, rows, about="Each stage alone", marked=marked),
        '<p class="note">Rates in samples/s. CPU, GIL, waits and bytes are of each sample.</p>',
        notes,
    )


def timeline(result: DoctorResult) -> str:
    """Return one window of today's path."""
    chart = timeline_chart(result)
    if not chart:
        return ""
    hidden = hidden_tracks(result)
    left_out = f" {hidden} more threads that do the same are left out." if hidden else ""
    return _section(
        "One window of today’s path",
        f"As it was measured: what each thread did, and when the loop had to wait for a batch.{left_out}",
        _figure(chart),
    )


def fixes(result: DoctorResult) -> str:
    """Return what each fix would give."""
    if not result.fixes:
        return _section("What a fix would give", "Nothing: no change that is known gives more than today.")
    rows = []
    for fix in result.fixes:
        measured = measured_of(result, fix.key)
        rows.append(
            (fix.text, rate(fix.predicted_s), times(fix.times), _measured(measured), share(fix.busy),
             stage_words(result, fix.limit), fix.how)
        )  # fmt: skip
    head = ("fix", "samples/s", "× today", "measured", "step busy", "what limits then", "how")
    is_measured = result.today.measured is not None or any(measured_of(result, fix.key) for fix in result.fixes)
    return _section(
        "What each fix would give",
        "Predicted from what every stage takes of cores, network, disk and lock: bounds of capacity, not waits taken "
        "away." + (" ◆ is what was measured." if is_measured else ""),
        _figure(fixes_chart(result)),
        html_table(head, rows, about="What each fix would give", marked=(0,), worded=(5, 6)),
    )


def verified(result: DoctorResult) -> str:
    """Return what came out where fixes were applied."""
    tried = list(result.tried)
    if result.verified is not None and result.verified not in tried:
        tried.insert(0, result.verified)
    if not tried:
        return ""
    rows = [
        (one.text, rate(one.predicted_s), rate(one.measured.samples_s), _range(one.measured),
         f"{one.error:+.1%}" if one.measured.samples_s else NONE)
        for one in tried
    ]  # fmt: skip
    return _section(
        "Tried, beside what was predicted",
        "Each was applied for a short run on this machine.",
        html_table(
            ("fix", "predicted", "measured", "slowest to fastest", "error"), rows, about="Predicted and measured"
        ),
    )


def where_to_keep(result: DoctorResult) -> str:
    """Return where in the path to keep what was made."""
    if not result.materialise:
        return ""
    rows = [
        (place.name, size(place.disk_bytes), seconds(place.extra_s), seconds(place.saved_s),
         "never" if place.pays_after is None else f"after epoch {place.pays_after:,}")
        for place in result.materialise
    ]  # fmt: skip
    head = ("kept on SSD", "takes", "first epoch, longer by", "later epochs, shorter by", "pays")
    return _section(
        "What to keep on SSD", "For the whole data set.", html_table(head, rows, about="What to keep on SSD")
    )


def paths(result: DoctorResult) -> str:
    """Return the ways samples can take."""
    rows = [
        (PATH_WORDS.get(path.key, path.name) + (", today" if path.is_today else ""), rate(path.predicted_s),
         _measured(path.measured), share(path.busy), seconds(path.epoch_s), stage_words(result, path.limit),
         stage_words(result, path.next_limit) if path.next_limit else NONE)
        for path in result.paths
    ]  # fmt: skip
    if result.ram is not None:
        rows.append(("all batches in RAM", rate(result.ram.samples_s), _measured(result.ram), NONE, NONE, NONE, NONE))
    head = ("samples come", "samples/s", "measured", "step busy", "an epoch", "limit", "after that")
    marked = [i for i, path in enumerate(result.paths) if path.is_today]
    story = "".join(f"<li>{sentence(line)}</li>" for line in result.verdict.story)
    return _section(
        "The ways samples can come",
        "",
        f'<ol class="story">{story}</ol>' if story else "",
        html_table(head, rows, about="The ways samples can come", marked=marked, worded=(5, 6)),
        _bounds(result),
    )


def _bounds(result: DoctorResult) -> str:
    rows = [
        (bound.name, rate(bound.samples_s), ", ".join(stage_words(result, key) for key in bound.stages))
        for bound in result.today.bounds
    ]
    if not rows:
        return ""
    head = ("resource", "allows, samples/s", "taken by")
    about = "What each resource allows on today’s path, the tightest first"
    return f'<p class="soft gap">{about}:</p>\n' + html_table(head, rows, about=about, worded=(2,))


def ceilings(result: DoctorResult) -> str:
    """Return what the machine can do."""
    if not result.ceilings:
        return ""
    notes = [(one.name, ceiling(one), one.note) for one in result.ceilings if one.note]
    return _section(
        "What this machine can do",
        "Ceilings measured in this run, and how much of them today’s path takes at its rate.",
        _figure(ceilings_chart(result)),
        html_table(("ceiling", "measured", "how"), notes, about="How ceilings were measured", worded=(2,))
        if notes
        else "",
    )


def batch_sizes(result: DoctorResult) -> str:
    """Return where larger batches stop paying."""
    if result.sweep is None or not result.sweep.points:
        return ""
    has_step = any(point.step_s is not None for point in result.sweep.points)
    rows = [
        (f"{point.batch_size:,}", rate(point.loader_s), *([rate(point.step_s)] if has_step else []))
        for point in result.sweep.points
    ]
    largest = result.sweep.points[-1].batch_size
    lead = _knee("the warm loader", result.sweep.loader_knee, largest=largest)
    if result.sweep.step_knee is not None:
        lead += ", " + _knee("the step", result.sweep.step_knee, largest=largest)
    elif not has_step:
        lead += "; the step was not measured at other sizes, for it is not a function that could be asked"
    chart = sweep_chart(result.sweep)
    head = ("samples a batch", "loader, samples/s", *(["step, samples/s"] if has_step else []))
    return _section(
        "Larger batches", lead + ".", _figure(chart) if chart else "", html_table(head, rows, about="Batches")
    )


def money(result: DoctorResult) -> str:
    """Return what it costs."""
    spent = result.money
    if spent is None:
        return ""
    gpus_text = "one GPU" if spent.num_gpus == 1 else f"{spent.num_gpus:,} GPUs"
    lead = f"{gpus_text} at {spent.gpu_hour:,.2f} an hour each; all amounts are in the currency of that price."
    rows = [(part.name, cost(part.cost), _part(part.cost, spent.epoch)) for part in spent.parts]
    rows += [
        ("of an epoch, lost to stalls", cost(spent.stalls), _part(spent.stalls, spent.epoch)),
        ("an epoch today", cost(spent.epoch), share(1.0)),
    ]
    if result.fixes:
        rows.append(
            (f"an epoch with: {result.fixes[0].text}", cost(spent.best_fix), _part(spent.best_fix, spent.epoch))
        )
    chart = money_chart(result)
    head = ("", "cost", "share of an epoch")
    return _section(
        "What it costs", lead, _figure(chart) if chart else "", html_table(head, rows, about="What it costs")
    )


def _stage_row(stage: StageResult, result: DoctorResult) -> tuple[str, ...]:
    elsewhere = "" if result.today.key in stage.paths else ", not on today’s path"
    return (
        stage.name + elsewhere,
        " ".join(text for text in (rate(stage.supply.samples_s), _spread(stage.supply)) if text),
        *([times(stage.headroom)] if result.step is not None else []),
        seconds(stage.cpu_s) if stage.cpu_s else NONE,
        share(min(1.0, stage.gil_s / stage.cpu_s)) if stage.cpu_s and stage.gil_s else NONE,
        seconds(stage.wait_s) if stage.wait_s else NONE,
        size(stage.size_bytes) if stage.size_bytes else NONE,
        ", ".join(f"{at.num_threads}:\u00a0{rate(at.samples_s)}" for at in stage.threads) or NONE,
    )


def _spread(one: Rate) -> str:
    return f"± {share(one.spread)}" if one.high > one.low and one.samples_s else ""


def _measured(one: Rate | None) -> str:
    return NONE if one is None else rate(one.samples_s)


def _range(one: Rate) -> str:
    return f"{rate(one.low)} to {rate(one.high)}" if one.num_rounds > 1 else "one round"


def _knee(who: str, knee: int, *, largest: int) -> str:
    if knee == largest:
        return f"{who} still gains at batches of {knee:,}, the largest that were measured"
    return f"{who} gives nearly all it can from batches of {knee:,} on"


def _part(amount: float, whole: float) -> str:
    return share(amount / whole) if whole else NONE


def _figure(chart: str) -> str:
    return f"<figure>\n{chart}\n</figure>" if chart else ""


def _section(title: str, lead: str, *parts: str) -> str:
    body = "\n".join(part for part in parts if part)
    about = f'<p class="soft">{sentence(lead)}</p>\n' if lead else ""
    return f"<section>\n<h2>{words(title)}</h2>\n{about}{body}\n</section>"
