"""What there is to say of a result, once: the terminal and the page draw the same statements.

DoctorResult ─► story ─► screen   lines and tables
                     └─► page     the same, with charts, as HTML
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stoker.doctor.results import MODEL, RAM, SHARED, STAGE_NAMES, SUPPLY, UNKNOWN, GpuFacts, Measurements, PathResult
from stoker.doctor.verdict import DoctorResult, StepPart, Verdict, is_comparable, limit_of
from stoker.doctor.words import NONE, cost_text, factor_text, rate_text, share_text, size_text, time_text
from stoker.words import count_text

# A demand far beyond every path would press all bars into a corner: then it stands in words alone.
_FAR = 3.0
# A supply fills its bar at twice the demand: what matters is on which side of the mark it ends.
_FULL = 2.0


@dataclass(frozen=True, kw_only=True)
class Share:
    """A cell with a bar: a share of the longest there may be, and its figure."""

    text: str
    share: float
    is_good: bool


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table.

    Attributes:
        about: What it shows.
        head: Names of the columns: ">" before one of figures, "~" before one that a narrow terminal leaves out.
        rows: Cells.
        marked: Numbers of the rows that stand out.
    """

    about: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | Share]]
    marked: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar with its words.

    Attributes:
        name: What it is of.
        value: Its figure, as people read it.
        share: Its length, of the longest there may be.
        kind: How it looks: "today", "ours", "plain", "bound".
        spread: Where the slowest and the fastest repeat end; None where there was one alone.
    """

    name: str
    value: str
    share: float
    kind: str = "plain"
    spread: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class SplitBar:
    """A bar in parts: name, figure, share of the longest bar, and whether it is time that is lost."""

    name: str
    value: str
    parts: Sequence[tuple[str, str, float, bool]]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the story; the terminal shows its table and lines, the page all of it.

    Attributes:
        title: As people read it.
        lead: One sentence or two; "" for none.
        bars: Of one scale.
        mark: Where a line crosses them, as a share, and what it stands for.
        splits: Bars in parts.
        table: The figures.
        lines: Sentences below it.
        pairs: Names and what they are; the page alone has them.
        code: A command.
    """

    title: str
    lead: str = ""
    bars: Sequence[Bar] = ()
    mark: tuple[float | None, str] = (None, "")
    splits: Sequence[SplitBar] = ()
    table: Table | None = None
    lines: Sequence[str] = ()
    pairs: Sequence[tuple[str, str]] = ()
    code: str = ""


def headline(result: DoctorResult) -> str:
    """Return the verdict in a few words."""
    numbers, verdict = result.numbers, result.verdict
    if not verdict.stages:
        return "Too little was measured"
    if verdict.stages == (MODEL,):
        return "The model is the limit: its data comes in time"
    first, *behind = (STAGE_NAMES[key] for key in verdict.stages)
    does = "sets the pace of the data" if numbers.step is None else "starves the step"
    if verdict.stages == (UNKNOWN,) and numbers.step is None:
        does = "is as fast as it is"
    return f"{first[:1].upper()}{first[1:]} {does}" + (f", and behind it {' and '.join(behind)}" if behind else "")


def status(verdict: Verdict) -> tuple[str, str]:
    """Return a mark and what it stands for."""
    known = {
        "fed": ("✓", "Nothing to mend in the data path"),
        "starved": ("✗", "The step waits for data"),
        "open": ("•", "No step was given"),
    }
    return known.get(verdict.kind, ("•", "Interrupted, or out of time"))


def tiles(result: DoctorResult) -> Iterator[tuple[str, str, bool]]:
    """Yield the figures that a reader takes away: value, what it is, whether it is what could be."""
    numbers, verdict = result.numbers, result.verdict
    today = numbers.path(numbers.today)
    if today is None or verdict.kind == "unknown":
        return
    if verdict.busy is None:
        yield rate_text(today.rate_s), "samples/s come today", False
    else:
        yield share_text(verdict.busy), "of the time the step runs today", False
    if verdict.fixes:
        best = verdict.fixes[0]
        value = rate_text(best.rate_s) if best.busy is None else share_text(best.busy)
        yield value, f"{'samples/s ' if best.busy is None else ''}with: {best.text}", True
        yield f"{factor_text(best.times)}×", "the samples a second, with that", False
        yield time_text(verdict.epoch_s / best.times), f"an epoch, where it is {time_text(verdict.epoch_s)} now", False
    else:
        yield time_text(verdict.epoch_s), "an epoch", False
        supply = numbers.path(SUPPLY)
        if supply is not None and verdict.demand_s is not None:
            about = f"samples/s come with no step behind them; the step eats {rate_text(verdict.demand_s)}"
            yield rate_text(supply.rate_s), about, False
    if verdict.money is not None:
        about = f"lost to stalls, of {cost_text(verdict.money.epoch)} an epoch"
        yield cost_text(verdict.money.stalls), about, False


def sections(result: DoctorResult) -> Iterator[Section]:
    """Yield the parts in the order in which they are read."""
    numbers, verdict = result.numbers, result.verdict
    today = numbers.path(numbers.today)
    if today is not None and verdict.step_parts:
        yield _time_of_a_step(today, verdict)
    if numbers.paths:
        yield _paths(numbers, verdict)
    yield _advice(verdict)
    if numbers.verified:
        yield _verified(numbers)
    if numbers.stages:
        yield _stages(numbers, verdict)
    yield _machine(numbers)
    if verdict.money is not None:
        yield _money(numbers, verdict)
    yield _data(numbers)
    again = f"It took {time_text(numbers.wall_s)} here, of a budget of {time_text(numbers.budget_s)}."
    yield Section(title="Do it again", lines=(again,), code=numbers.command)


def _time_of_a_step(today: PathResult, verdict: Verdict) -> Section:
    longest_s = sum(part.seconds for part in verdict.step_parts)

    def split(name: str, parts: Sequence[StepPart]) -> SplitBar:
        told = [(part.name, time_text(part.seconds), part.seconds / longest_s, part.key != MODEL) for part in parts]
        return SplitBar(name=name, value=f"{time_text(sum(part.seconds for part in parts))} a step", parts=told)

    splits = [split("Today", verdict.step_parts)]
    best = verdict.fixes[0] if verdict.fixes else None
    if best is not None and best.busy is not None:
        period_s = today.batch_size / best.rate_s
        parts = [StepPart(key=MODEL, name="training step", seconds=period_s * best.busy)]
        if best.busy < 1:
            parts.append(StepPart(key=best.limit, name="waits", seconds=period_s * (1 - best.busy)))
        splits.append(split(f"With {best.text}", parts))
    lead = "Filled: the step runs. Hatched: it waits. All bars have one scale; all of it was measured."
    return Section(title="Where a step’s time goes", lead=lead, splits=splits)


def _paths(numbers: Measurements, verdict: Verdict) -> Section:
    compared = (RAM, SUPPLY, SHARED)
    longest_s = max(
        *(path.rate_s for path in numbers.paths if path.key not in compared),
        *(bound.at_most_s for bound in verdict.bounds if bound.key != "gpus"),
        1e-9,
        1e-9,
    )
    demand_s = verdict.demand_s
    is_shown = demand_s is not None and demand_s <= _FAR * longest_s
    longest_s = 1.02 * (max(longest_s, demand_s) if is_shown and demand_s is not None else longest_s)
    best = verdict.fixes[0].key if verdict.fixes else ""
    bars, rows = [], []
    for path in numbers.paths:
        rate, is_bound = path.rate, path.is_disk_bound
        name = path.name + (", today" if path.key == numbers.today else "")
        value = f"{'≤ ' if is_bound else ''}{rate_text(path.rate_s)}"
        has_spread = rate.num_rounds > 1 and not is_bound
        kind = "today" if path.key == numbers.today else "ours" if path.key == best else "plain"
        spread = (rate.low / longest_s, rate.high / longest_s) if has_spread else None
        bars.append(Bar(name=name, value=value, share=path.rate_s / longest_s, kind=kind, spread=spread))
        busy: str | Share = NONE
        if demand_s is not None and path.key not in (RAM, SHARED) and is_comparable(numbers, path):
            share = path.rate_s / demand_s
            busy = Share(text=share_text(share), share=share, is_good=share > 0.9)
        limit = limit_of(numbers, path)
        around = f"{rate_text(rate.low)} to {rate_text(rate.high)}" if rate.num_rounds > 1 else NONE
        rows.append(
            (
                name,
                value,
                busy,
                STAGE_NAMES[limit] if limit else NONE,
                around,
                str(rate.num_rounds),
                share_text(path.others),
            )
        )
    for bound in verdict.bounds:
        value = f"≤ {rate_text(bound.at_most_s)}"
        bars.append(Bar(name=f"{bound.text}: a bound", value=value, share=bound.at_most_s / longest_s, kind="bound"))
    head = ("path", ">samples/s", ">the step is busy", "limit", "~>slowest to fastest", "~>repeats", "~>others took")
    demand = "" if demand_s is None else f"what the step could eat: {rate_text(demand_s)}"
    return Section(
        title="The paths, each run whole",
        lead="Each ran on this machine for a few seconds, with the step behind it, in turn with the others. The thin "
        "line goes from the slowest repeat to the fastest. Hatched bars are bounds of what could not be tried here.",
        bars=bars,
        mark=(demand_s / longest_s if is_shown and demand_s is not None else None, demand),
        table=Table(about="The paths", head=head, rows=rows, marked=(0,)),
    )


def _advice(verdict: Verdict) -> Section:
    if not verdict.fixes and not verdict.bounds:
        says = "Nothing: the step is fed." if verdict.kind == "fed" else "Nothing that could be tried here gave more."
        return Section(title="What would help", lines=(says,))
    rows = [
        (fix.text, rate_text(fix.rate_s), f"{factor_text(fix.times)}×", "measured", STAGE_NAMES[fix.limit], fix.how)
        for fix in verdict.fixes
    ]
    rows += [(one.text, f"≤ {rate_text(one.at_most_s)}", NONE, "a bound", NONE, one.why) for one in verdict.bounds]
    head = ("change", ">samples/s", ">× today", "", "~what limits then", "how")
    lead = "What is measured ran here. A bound is what no such change can beat; what it really gives, only it tells."
    marked = (0,) if verdict.fixes else ()
    return Section(
        title="What would help", lead=lead, table=Table(about="What helps", head=head, rows=rows, marked=marked)
    )


def _verified(numbers: Measurements) -> Section:
    names = {path.key: path.name for path in numbers.paths}
    rows = [
        (names.get(one.fix, one.fix), rate_text(one.promised_s), rate_text(one.measured.samples_s), f"{one.error:+.1%}")
        for one in numbers.verified
    ]
    head = ("change", ">promised", ">came", ">error")
    lead = "What was advised, run once more at the end: samples/s."
    return Section(title="Verified", lead=lead, table=Table(about="Promised and came", head=head, rows=rows))


def _stages(numbers: Measurements, verdict: Verdict) -> Section:
    demand_s = verdict.demand_s
    rows = []
    for stage in numbers.stages:
        against: str | Share = NONE
        if demand_s is not None:
            times = stage.supply_s / demand_s
            text = f"{times:.2g}×" if 0.001 <= times < 99.5 else "> 100×" if times >= 99.5 else "< 0.001×"
            against = Share(text=text, share=times / _FULL, is_good=times >= 1)
        rows.append(
            (
                STAGE_NAMES[stage.key],
                rate_text(stage.supply_s),
                against,
                time_text(stage.seconds) if stage.seconds else NONE,
                "one at a time" if stage.is_locked else "wait" if stage.waits else NONE,
                " · ".join(f"{num}: {rate_text(rate)}" for num, rate in stage.by_threads) or NONE,
            )
        )
    marked = [i for i, stage in enumerate(numbers.stages) if stage.key in verdict.stages]
    head = ("stage, alone", ">supply", ">of the demand", ">a sample", "threads", "~at threads")
    lead = "What each stage gives that does nothing but its own work: it explains paths, and overrules none."
    return Section(title="Why", lead=lead, table=Table(about="Each stage alone", head=head, rows=rows, marked=marked))


def _machine(numbers: Measurements) -> Section:
    rows: list[tuple[str | Share, ...]] = []
    for one in numbers.ceilings:
        used: str | Share = NONE
        if one.used is not None:
            used = Share(text=share_text(one.used), share=one.used, is_good=one.used <= 0.9)
        value = time_text(one.value) if one.unit == "s" else f"{size_text(one.value)}/s"
        rows.append((one.name, value, used, one.note))
    table = Table(about="What the machine can do", head=("this machine", ">ceiling", ">used today", "~how"), rows=rows)
    gpus = [f"GPU: {_gpu_text(gpu)}" for gpu in numbers.gpus]
    note = numbers.gpu_note or "no GPU here"
    versions = ", ".join(f"{name} {version}" for name, version in numbers.versions.items())
    return Section(
        title="The machine",
        table=table if rows else None,
        lines=(*gpus, note if gpus else f"GPU: {note}."),
        pairs=(*numbers.machine.items(), ("versions", versions)),
    )


def _gpu_text(gpu: GpuFacts) -> str:
    words = [gpu.name]
    if gpu.utilisation is not None:
        words.append(f"utilisation {share_text(gpu.utilisation)}")
    if gpu.sm_clock_mhz is not None:
        words.append(f"SM clock {gpu.sm_clock_mhz:,.0f} of {gpu.max_sm_clock_mhz or 0:,.0f} MHz")
    if gpu.power_w is not None:
        words.append(f"{gpu.power_w:.0f} of {gpu.power_limit_w or 0:.0f} W")
    if gpu.memory_used_bytes is not None:
        words.append(f"{size_text(gpu.memory_used_bytes)} of {size_text(gpu.memory_bytes or 0)}")
    words.append("held down by " + ", ".join(gpu.throttled) if gpu.throttled else "not throttled")
    return " · ".join(words)


def _money(numbers: Measurements, verdict: Verdict) -> Section:
    money = verdict.money
    assert money is not None
    gpus = "one GPU" if numbers.num_gpus == 1 else f"{numbers.num_gpus:,} GPUs"
    best = f"an epoch with: {verdict.fixes[0].text}" if verdict.fixes else "nothing gives more"
    rows = [
        ("an epoch today", cost_text(money.epoch)),
        ("of it, lost to stalls", cost_text(money.stalls)),
        (best, cost_text(money.best_fix)),
    ]
    lead = f"{gpus} at {numbers.gpu_hour:,.2f} an hour each; all amounts are in the currency of that price."
    return Section(title="What it costs", lead=lead, table=Table(about="What it costs", head=("", ">cost"), rows=rows))


def _data(numbers: Measurements) -> Section:
    data, step = numbers.data, numbers.step
    kept = ", ".join(f"{path.name} {size_text(path.disk_bytes)}" for path in numbers.paths if path.disk_bytes)
    widest = f"{data.widest_column}, {share_text(data.widest_share)} of the bytes at the source"
    return Section(
        title="What was looked at",
        lines=(f"The whole data set takes on SSD: {kept}.",) if kept else (),
        pairs=(
            ("data set", data.text),
            (
                "samples",
                f"{data.num_samples:,} in {count_text(data.num_files, 'file')}, "
                f"{count_text(data.num_chunks, 'chunk')}; {count_text(data.num_probed, 'chunk')} looked at",
            ),
            ("where", "behind a network" if data.is_remote else "on this machine"),
            (
                "a sample",
                f"{size_text(data.source_bytes)} at the source, {size_text(data.arrow_bytes)} as Arrow, "
                f"{size_text(data.tensor_bytes)} as tensors",
            ),
            ("widest column", widest if data.widest_column else ""),
            ("repeats", f"{share_text(data.repeated_share)} of the bytes only repeat the row before"),
            ("step", "none was given" if step is None else step.text),
            ("cores that the step uses", "" if step is None else f"{step.cores_used:.1f} of {numbers.cores:.3g}"),
        ),
    )
