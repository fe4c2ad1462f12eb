"""All that is said of a result, in one place: the terminal and the page draw the same statements.

DoctorResult ─► story ─► screen   lines and tables
                     └─► page     the same, with charts, as HTML
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from stoker.doctor.results import ARROW, MODEL, RAM, SHARED, SOURCE, STAGE_NAMES, SUPPLY, TENSORS, UNKNOWN
from stoker.doctor.verdict import DoctorResult
from stoker.words import (
    NONE,
    bytes_text,
    cost_text,
    count_text,
    factor_text,
    range_text,
    rate_text,
    share_text,
    time_text,
)

# A demand that is this many times the longest bar would make all bars tiny: it is then given in words alone.
_FAR = 3.0
# A supply fills its bar at twice the demand: what matters is on which side of the mark it ends.
_FULL = 2.0
# What the machine can do, as people read it, and how it was measured.
_CEILINGS = {
    "network": ("network", "real reads, as many at once as bring most"),
    "connection": ("one connection", "one real read"),
    "latency": ("first byte", "one byte read"),
    "disk_read": ("disk, reading", "a file of its own, past the page cache"),
    "disk_write": ("disk, writing", "a file of its own, until it is on the disk"),
}


class Share(NamedTuple):
    """A cell with a bar: its text, the bar's length as a share of the cell, and whether the figure is good."""

    text: str
    share: float
    is_good: bool


Row = Sequence[str | Share]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar with its words.

    Attributes:
        name: What it is of.
        value: Its figure, as people read it.
        share: Its length, as a share of the longest possible.
        kind: How it looks: "today", "ours", "plain", "bound".
        spread: Where the slowest and the fastest repeat end, as such shares; None where there was only one repeat.
        parts: What it is made of: name, figure, share of the longest bar, and whether it is time that is lost.
    """

    name: str
    value: str
    share: float = 1.0
    kind: str = "plain"
    spread: tuple[float, float] | None = None
    parts: Sequence[tuple[str, str, float, bool]] = ()


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the story; the terminal shows its table and lines, the page all of it.

    Attributes:
        title: As people read it.
        lead: One sentence or two above it; "" for none.
        bars: All on one scale.
        mark: Where a line crosses them, as a share, and what it stands for.
        head: Names of the table's columns: ">" before one of figures, "~" before one that a narrow terminal leaves out.
        rows: Its cells.
        marked: Numbers of the rows that stand out.
        lines: Sentences below it.
        pairs: Names and what they are; the page alone has them.
        code: A command.
    """

    title: str
    lead: str = ""
    bars: Sequence[Bar] = ()
    mark: tuple[float | None, str] = (None, "")
    head: Sequence[str] = ()
    rows: Sequence[Row] = ()
    marked: Sequence[int] = ()
    lines: Sequence[str] = ()
    pairs: Sequence[tuple[str, str]] = ()
    code: str = ""


def headline(result: DoctorResult) -> str:
    """Return the verdict in a few words."""
    if not result.stages:
        return "Too little was measured"
    if result.stages == (MODEL,):
        return "The model is the limit: its data comes in time"
    first, *behind = (STAGE_NAMES[key] for key in result.stages)
    does = "starves the step"
    if not result.numbers.step:
        does = "sets the pace, and no stage explains it" if result.stages == (UNKNOWN,) else "sets the pace of the data"
    return f"{first[:1].upper()}{first[1:]} {does}" + (f", and behind it {' and '.join(behind)}" if behind else "")


def status(result: DoctorResult) -> tuple[str, str]:
    """Return a mark and what it stands for."""
    known = {
        "fed": ("✓", "Nothing to mend in the data path"),
        "starved": ("✗", "The step waits for data"),
        "open": ("•", "No step was given"),
    }
    return known.get(result.kind, ("•", "Interrupted, or out of time"))


def tiles(result: DoctorResult) -> Iterator[tuple[str, str, bool]]:
    """Yield the most important figures: value, what it is, whether it is that of the best fix."""
    today, supply = result.today, result.numbers.path(SUPPLY)
    if result.kind == "unknown":
        return
    if result.busy is None:
        yield rate_text(today.rate_s), "samples/s come today", False
    else:
        yield share_text(result.busy), "of the time the step runs today", False
    for best in result.fixes[:1]:
        busy, times = result.busy_of(best), result.times_of(best)
        value = rate_text(best.rate_s) if busy is None else share_text(busy)
        yield value, f"{'samples/s' if busy is None else 'of the time'} with: {best.name}", True
        yield f"{factor_text(times)}×", "today's samples/s, with that", False
        yield time_text(result.epoch_s / times), f"an epoch with that, {time_text(result.epoch_s)} today", False
    if not result.fixes:
        yield time_text(result.epoch_s), "an epoch", False
        if supply is not None and result.demand_s is not None:
            about = f"samples/s come with no step behind them; the step eats {rate_text(result.demand_s)}"
            yield rate_text(supply.rate_s), about, False
    if result.money is not None:
        about = f"lost to stalls, of {cost_text(result.money['epoch'])} an epoch"
        yield cost_text(result.money["stalls"]), about, False


def sections(result: DoctorResult) -> Iterator[Section]:
    """Yield the parts in the order in which they are read."""
    numbers = result.numbers
    if result.busy is not None:
        yield _time_of_a_step(result)
    if numbers.paths:
        yield _paths(result)
    yield _advice(result)
    came = [path for path in numbers.paths if path.came_s is not None]
    if came:
        lead = "The changes that helped, run once more at the end, in samples/s. Inside a range, a rate is off by 0 %."
        rows = list[Row]()
        for path in came:
            times = f"{factor_text((path.came_s or 0) / result.today.rate_s)}×"
            promised = range_text(*path.promised)
            rows.append((path.name, promised, rate_text(path.came_s or 0), times, f"{path.error:+.1%}"))
        head = ("change", ">promised", ">came", ">× today", ">off what was promised")
        yield Section(title="Verified", lead=lead, head=head, rows=rows)
    if numbers.stages:
        yield _stages(result)
    yield _machine(result)
    if result.money is not None:
        yield _money(result, result.money)
    yield _data(result)
    again = f"The examination took {time_text(numbers.wall_s)}, of a budget of {time_text(numbers.budget_s)}."
    yield Section(title="Do it again", lines=(again,), code=numbers.command)


def _time_of_a_step(result: DoctorResult) -> Section:
    today, bars = result.today, list[Bar]()
    for name, path in {"Today": today, **{f"With {best.name}": best for best in result.fixes[:1]}}.items():
        if parts := result.parts_of(path):
            told = [
                (what, time_text(seconds), seconds * today.rate_s / today.batch_size, key != MODEL)
                for key, what, seconds in parts
            ]
            of = "a step" if path.batch_size == today.batch_size else "for as many samples"
            bars.append(Bar(name=name, value=f"{time_text(sum(part[2] for part in parts))} {of}", parts=told))
    lead = "Filled: the step runs. Hatched: it waits, or the loader has its cores. All bars have one scale."
    return Section(title="Where a step’s time goes", lead=lead, bars=bars)


def _paths(result: DoctorResult) -> Section:
    numbers, demand_s = result.numbers, result.demand_s or 0.0
    own = [path.rate_s for path in numbers.paths if path.key not in (RAM, SUPPLY, SHARED)]
    longest_s = max([1e-9, *own, *(bound.at_most_s for bound in result.bounds if bound.key != "gpus")])
    # Bars of the comparison paths fit in too, unless they are far longer than the others.
    longest_s = max(
        rate_s for rate_s in (*(path.rate_s for path in numbers.paths), longest_s) if rate_s <= _FAR * longest_s
    )
    is_shown = 0 < demand_s <= _FAR * longest_s
    longest_s = 1.02 * max(longest_s, demand_s if is_shown else 0.0)
    bars, rows = list[Bar](), list[Row]()

    def bar(name: str, rate_s: float, value: str, **look: Any) -> None:
        name += ", beyond the scale" if rate_s > longest_s else ""
        bars.append(Bar(name=name, value=value, share=rate_s / longest_s, **look))

    for path in numbers.paths:
        is_today, is_repeated = path is result.today, path.num_rounds > 1
        name = path.name + (", today" if is_today else "")
        value = f"{'≤ ' if path.is_disk_bound else ''}{rate_text(path.rate_s)}"
        low, high = min(path.rates, default=0.0), max(path.rates, default=0.0)
        spread = (low / longest_s, high / longest_s) if is_repeated and not path.is_disk_bound else None
        kind = "today" if is_today else "ours" if path in result.fixes[:1] else "plain"
        bar(name, path.rate_s, value, kind=kind, spread=spread)
        share, limit = None if path.key in (RAM, SHARED) else result.busy_of(path), result.limit_of(path)
        busy = NONE if share is None else Share(share_text(share), share, share > 0.9)
        around = range_text(low, high) if is_repeated else NONE
        others = share_text(path.others)
        rows.append((name, value, busy, STAGE_NAMES[limit] if limit else NONE, around, str(path.num_rounds), others))
    for bound in result.bounds:
        bar(f"{bound.text}: a bound", bound.at_most_s, f"≤ {rate_text(bound.at_most_s)}", kind="bound")
    demand = f"what the step could eat: {rate_text(demand_s)}" if demand_s else ""
    return Section(
        title="The paths, each run whole",
        lead="Each ran on this machine for a few seconds, with the step behind it, in turn with the others. The thin "
        "line goes from the slowest repeat to the fastest. Hatched bars are bounds of what could not be tried here.",
        bars=bars,
        mark=(demand_s / longest_s if is_shown else None, demand),
        head=("path", ">samples/s", ">the step is busy", "limit", "~>slowest to fastest", "~>repeats", "~>others took"),
        rows=rows,
        marked=(0,),
    )


def _advice(result: DoctorResult) -> Section:
    title = "What would help"
    if not result.fixes and not result.bounds:
        says = "Nothing: the step is fed." if result.kind == "fed" else "Nothing that could be tried here gave more."
        return Section(title=title, lines=(says,))
    rows = list[Row]()
    for fix in result.fixes:
        times, limit = f"{factor_text(result.times_of(fix))}×", STAGE_NAMES[result.limit_of(fix)]
        rows.append((fix.name, range_text(*fix.promised), times, "measured", limit, fix.how))
    rows += [(one.text, f"≤ {rate_text(one.at_most_s)}", NONE, "a bound", NONE, one.why) for one in result.bounds]
    head = ("change", ">samples/s", ">× today", "", "~what limits then", "how")
    lead = "Measured changes ran here. A bound is the most that a change can give: it was computed, not run."
    return Section(title=title, lead=lead, head=head, rows=rows, marked=(0,) if result.fixes else ())


def _stages(result: DoctorResult) -> Section:
    stages, rows = result.numbers.stages, list[Row]()
    for stage in stages:
        against: str | Share = NONE
        if result.demand_s is not None:
            times = stage.supply_s / result.demand_s
            text = f"{times:.2g}×" if 0.001 <= times < 99.5 else "> 100×" if times >= 99.5 else "< 0.001×"
            against = Share(text, times / _FULL, times >= 1)
        alone = time_text(stage.seconds) if stage.seconds else NONE
        threads = "one at a time" if stage.is_locked else "wait" if stage.waits else NONE
        rows.append((STAGE_NAMES[stage.key], rate_text(stage.supply_s), against, alone, threads))
    return Section(
        title="Why",
        lead="What each stage gives when it does nothing but its own work: this explains the paths' rates.",
        head=("stage, alone", ">supply", ">of the demand", ">a sample", "threads"),
        rows=rows,
        marked=[i for i, stage in enumerate(stages) if stage.key in result.stages],
    )


def _machine(result: DoctorResult) -> Section:
    numbers, data, rows = result.numbers, result.numbers.data, list[Row]()
    for key, value in numbers.ceilings.items():
        name, how = _CEILINGS[key]
        share: str | Share = NONE
        if key == "network" and numbers.today == SOURCE and value > 0:
            of_it = min(1.0, result.today.rate_s * data.source_bytes / value)
            share = Share(share_text(of_it), of_it, of_it <= 0.9)
        rows.append((name, time_text(value) if key == "latency" else f"{bytes_text(value)}/s", share, how))
    gpus = [f"GPU: {_gpu_text(gpu)}" for gpu in numbers.gpus]
    versions = ", ".join(f"{name} {version}" for name, version in numbers.versions.items())
    return Section(
        title="The machine",
        head=("this machine", ">ceiling", ">used today", "~how"),
        rows=rows,
        lines=(*gpus, numbers.gpu_note) if gpus else (f"GPU: {numbers.gpu_note or 'no GPU here'}.",),
        pairs=(*numbers.machine.items(), ("versions", versions)),
    )


def _gpu_text(gpu: Mapping[str, Any]) -> str:
    words = [gpu["name"]]
    if "utilisation" in gpu:
        words.append(f"utilisation {share_text(gpu['utilisation'])}")
    if "sm_clock_mhz" in gpu:
        words.append(f"SM clock {gpu['sm_clock_mhz']:,.0f} of {gpu.get('max_sm_clock_mhz', 0):,.0f} MHz")
    if "power_w" in gpu:
        words.append(f"{gpu['power_w']:.0f} of {gpu.get('power_limit_w', 0):.0f} W")
    if "memory_used_bytes" in gpu:
        words.append(f"{bytes_text(gpu['memory_used_bytes'])} of {bytes_text(gpu.get('memory_bytes', 0))}")
    words.append("held down by " + ", ".join(gpu["throttled"]) if gpu["throttled"] else "not throttled")
    return " · ".join(words)


def _money(result: DoctorResult, money: Mapping[str, float]) -> Section:
    numbers = result.numbers
    gpus = "one GPU" if numbers.num_gpus == 1 else f"{numbers.num_gpus:,} GPUs"
    best = f"an epoch with: {result.fixes[0].name}" if result.fixes else "nothing gives more"
    names = {"epoch": "an epoch today", "stalls": "of it, lost to stalls", "best_fix": best}
    return Section(
        title="What it costs",
        lead=f"{gpus} at {numbers.gpu_hour:,.2f} an hour each; all amounts are in the currency of that price.",
        head=("", ">cost"),
        rows=[(names[key], cost_text(amount)) for key, amount in money.items()],
    )


def _data(result: DoctorResult) -> Section:
    numbers, data, ram = result.numbers, result.numbers.data, result.numbers.path(RAM)
    sizes = {TENSORS: data.tensor_bytes, ARROW: data.arrow_bytes}
    kept = ", ".join(
        f"{path.name} {bytes_text(sizes[path.key] * data.num_samples)}" for path in numbers.paths if path.key in sizes
    )
    widest = f"{data.widest_column}, {share_text(data.widest_share)} of the bytes at the source"
    files, chunks = count_text(data.num_files, "file"), count_text(data.num_chunks, "chunk")
    each = (
        f"{bytes_text(data.source_bytes)} at the source, {bytes_text(data.arrow_bytes)} as Arrow, "
        f"{bytes_text(data.tensor_bytes)} as tensors"
    )
    return Section(
        title="What was looked at",
        lines=(f"On SSD, the whole data set takes: {kept}.",) if kept else (),
        pairs=(
            ("data set", data.text),
            ("samples", f"{data.num_samples:,} in {files}, {chunks}; {count_text(data.num_probed, 'chunk')} looked at"),
            ("where", "behind a network" if data.is_remote else "on this machine"),
            ("a sample", each),
            ("widest column", widest if data.widest_column else ""),
            ("repeats", f"{share_text(data.repeated_share)} of the bytes, which deduplicated features would save"),
            ("step", numbers.step or "none was given"),
            ("cores that the step uses", "" if ram is None else f"{ram.cores_used:.1f} of {numbers.cores:.3g}"),
        ),
    )
