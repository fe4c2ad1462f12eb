"""The result on a terminal: the sentence, the paths that were run, what would help, why."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stoker.doctor.results import MODEL, RAM, SHARED, STAGE_NAMES, SUPPLY, Ceiling, GpuFacts, Measurements, PathResult
from stoker.doctor.verdict import DoctorResult, Verdict, is_comparable, limit_now
from stoker.doctor.words import NONE, cost_text, factor_text, rate_text, share_text, size_text, time_text
from stoker.words import bar_text

_WIDE = 100
# A bar is full at twice the demand: what matters is on which side of the mark it ends.
_FULL = 2.0
# A column of words that may take several lines, beside "<" and ">" for those that may not.
_FOLDS = "~"


def print_result(result: DoctorResult, console: Console) -> None:
    """Print what was found, short."""
    for part in _parts(result, is_wide=console.width >= _WIDE):
        console.print(Padding(part, (0, 1, 0, 1)))


def _parts(result: DoctorResult, *, is_wide: bool) -> Iterable[RenderableType]:
    numbers, verdict = result.numbers, result.verdict
    yield Text()
    yield _head(numbers)
    yield Text()
    yield _sentence(verdict)
    if verdict.then:
        yield Text(verdict.then)
    if numbers.paths:
        yield Text()
        yield _paths(numbers, verdict, is_wide=is_wide)
    if verdict.fixes or verdict.bounds:
        yield Text()
        yield _advice(verdict)
    if numbers.stages:
        yield Text()
        yield _stages(numbers, verdict, is_wide=is_wide)
    if numbers.ceilings:
        yield Text()
        yield _ceilings(numbers, is_wide=is_wide)
    yield Text()
    yield Group(*_lines(numbers, verdict))
    for note in verdict.notes:
        yield Text(f"note: {note}", style="yellow")
    yield Text()
    yield Text(
        f"{numbers.wall_s:.0f} s · {numbers.data.num_probed:,} of {numbers.data.num_chunks:,} chunks looked at · "
        "rates in samples/s",
        style="dim",
    )


def _head(numbers: Measurements) -> Text:
    data, step = numbers.data, numbers.step
    what = f"{data.num_samples:,} samples in {data.num_files:,} files"
    demand = "no step was given" if step is None else f"step: {step.text}, batches of {step.batch_size:,}"
    return Text.assemble(("stoker doctor", "bold"), "  ", (data.text, "cyan"), (f"\n{what} · {demand}", "dim"))


def _sentence(verdict: Verdict) -> Text:
    marks = {"fed": ("✓ ", "bold green"), "starved": ("✗ ", "bold red")}
    return Text.assemble(marks.get(verdict.kind, ("• ", "bold cyan")), (verdict.sentence, "bold"))


def _paths(numbers: Measurements, verdict: Verdict, *, is_wide: bool) -> Table:
    table = _table(
        ("measured whole", _FOLDS), ("samples/s", ">"), ("±", ">"), ("the step is busy", "<"), ("limit", "<")
    )
    for path in numbers.paths:
        name = Text(path.name)
        if path.key == numbers.today:
            name.append("  today", "cyan")
        limit = path_limit_text(numbers, path, verdict)
        table.add_row(
            name,
            path_rate_text(path),
            Text(share_text(path.rate.spread) if path.rate.num_rounds > 1 else NONE, style="dim"),
            _busy(path_busy(numbers, path, verdict), num_cells=20 if is_wide else 10),
            Text(limit, style="green" if limit == STAGE_NAMES[MODEL] else ""),
        )
    return table


def path_rate_text(path: PathResult) -> str:
    """Return a path's rate; of one that a disk bounds, that it is no more."""
    return f"{'≤ ' if path.rate_s < path.rate.samples_s else ''}{rate_text(path.rate_s)}"


def path_limit_text(numbers: Measurements, path: PathResult, verdict: Verdict) -> str:
    """Return what limits a path; "" of those that others are only compared with."""
    if path.key in (RAM, SHARED, SUPPLY):
        return ""
    return STAGE_NAMES[limit_now(numbers, path, verdict.demand_s if is_comparable(numbers, path) else None)]


def path_busy(numbers: Measurements, path: PathResult, verdict: Verdict) -> float | None:
    """Return the share of the time in which the step runs on a path; None where it is another step, or none."""
    if verdict.demand_s is None or path.key == RAM or not is_comparable(numbers, path):
        return None
    return path.rate_s / verdict.demand_s


def _busy(busy: float | None, *, num_cells: int) -> Text:
    if busy is None:
        return Text(NONE, style="dim")
    style = "green" if busy > 0.9 else "yellow"
    return Text.assemble(*_bar(busy, num_cells=num_cells, style=style), f" {share_text(busy):>5}")


def _advice(verdict: Verdict) -> Table:
    table = _table(("what would help", _FOLDS), ("samples/s", ">"), ("", ">"), ("how", _FOLDS))
    for i, fix in enumerate(verdict.fixes):
        table.add_row(
            Text(fix.text, style="bold" if i == 0 else ""),
            rate_text(fix.rate_s),
            Text(f"× {factor_text(fix.times)}", style="green"),
            Text(fix.how, style="dim"),
        )
    for bound in verdict.bounds:
        table.add_row(
            Text(bound.text),
            f"≤ {rate_text(bound.at_most_s)}",
            Text("bound", style="dim"),
            Text(bound.why, style="dim"),
        )
    return table


def _stages(numbers: Measurements, verdict: Verdict, *, is_wide: bool) -> Table:
    heads: list[tuple[str, str]] = [("stage, alone", "<"), ("supply", ">")]
    if verdict.demand_s is not None:
        heads.append(("supply / demand", "<"))
    heads += [("a sample", ">"), ("GIL", ">"), *([("at threads", _FOLDS)] if is_wide else [])]
    table = _table(*heads)
    for stage in numbers.stages:
        cells: list[RenderableType] = [
            Text(STAGE_NAMES[stage.key], style="bold red" if stage.key in verdict.stages else ""),
            rate_text(stage.supply_s),
        ]
        if verdict.demand_s is not None:
            headroom = stage.supply_s / verdict.demand_s
            style = "red" if headroom < 1 else "yellow" if headroom < 1.2 else "green"
            number = f" {headroom:.2g}×" if 0.001 <= headroom < 100 else " > 100×" if headroom >= 100 else " < 0.001×"
            cells.append(Text.assemble(*_bar(headroom / _FULL, num_cells=12, style=style), number))
        cells.append(time_text(stage.seconds) if stage.seconds else Text(NONE, style="dim"))
        cells.append(share_text(stage.gil_share) if stage.gil_share else Text(NONE, style="dim"))
        if is_wide:
            cells.append(Text("  ".join(f"{num}: {rate_text(rate)}" for num, rate in stage.by_threads), style="dim"))
        table.add_row(*cells)
    return table


def _ceilings(numbers: Measurements, *, is_wide: bool) -> Table:
    table = _table(("this machine", "<"), ("ceiling", ">"), ("used today", "<"), *([("", _FOLDS)] if is_wide else []))
    for ceiling in numbers.ceilings:
        used = Text(NONE, style="dim")
        if ceiling.used is not None:
            style = "red" if ceiling.used > 0.9 else "green"
            used = Text.assemble(*_bar(ceiling.used, num_cells=10, style=style), f" {share_text(ceiling.used):>5}")
        table.add_row(
            ceiling.name, ceiling_text(ceiling), used, *([Text(ceiling.note, style="dim")] if is_wide else [])
        )
    return table


def ceiling_text(ceiling: Ceiling) -> str:
    """Return what a machine can do, with its unit."""
    return time_text(ceiling.value) if ceiling.unit == "s" else f"{size_text(ceiling.value)}/s"


def gpu_text(gpu: GpuFacts) -> str:
    """Return what the driver says of a GPU, on one line."""
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


def _lines(numbers: Measurements, verdict: Verdict) -> Iterable[Text]:
    kept = [path for path in numbers.paths if path.disk_bytes]
    if kept:
        sizes = ", ".join(f"{path.name} {size_text(path.disk_bytes)}" for path in kept)
        yield Text(f"disk: the whole data set takes {sizes}.")
    if verdict.money is not None:
        money = verdict.money
        yield Text(
            f"money: an epoch costs {cost_text(money.epoch)}, of which stalls {cost_text(money.stalls)}; with the best "
            f"fix {cost_text(money.best_fix)}."
        )
    for verified in numbers.verified:
        name = next(path.name for path in numbers.paths if path.key == verified.fix)
        yield Text.assemble(
            ("verified: ", "bold"),
            f"{name}: {rate_text(verified.promised_s)} promised, {rate_text(verified.measured.samples_s)} came "
            f"({verified.error:+.1%}).",
        )
    if not numbers.gpus:
        yield Text(f"GPU: {numbers.gpu_note or 'no GPU here'}.", style="dim")
    else:
        yield Text("\n".join([*(f"GPU: {gpu_text(gpu)}" for gpu in numbers.gpus), numbers.gpu_note]))


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0), show_edge=False)
    for head, side in columns:
        # Where the terminal is too narrow, columns of words give way, so that no number is cut off.
        table.add_column(
            head,
            justify="right" if side == ">" else "left",
            no_wrap=side != _FOLDS,
            overflow="fold" if side == _FOLDS else "ellipsis",
        )
    return table


def _bar(share: float, *, num_cells: int, style: str) -> list[tuple[str, str]]:
    """Return a bar in styled parts."""
    full = bar_text(share, num_cells)
    return [(full, style), ("░" * (num_cells - len(full)), "dim")]
