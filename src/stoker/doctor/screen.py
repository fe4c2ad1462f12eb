"""The result on a terminal: the sentence, supply against demand, fixes, ceilings."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stoker.doctor.results import MODEL, DoctorResult, PathResult, StageResult
from stoker.doctor.words import rate_text, share_text, size_text, time_text
from stoker.words import bar_text

_WIDE = 100
# A bar is full at twice the demand: what matters is on which side of the mark it ends.
_FULL = 2.0
_NUM_FIXES = 6
# A column of words that may take several lines, beside "<" and ">" for those that may not.
_FOLDS = "~"
_SHORT = {
    "draw": "draw rows in Arrow",
    "dequeue": "Arrow to arrays",
    "batch": "work a batch",
    "copy": "copy to GPU",
    "step": "the step (demand)",
}
_PATHS = {"source": "from the source", "arrow": "Arrow on SSD", "tensors": "tensors on SSD"}


def print_result(result: DoctorResult, console: Console) -> None:
    """Print what was found, short."""
    for part in _parts(result, is_wide=console.width >= _WIDE):
        console.print(Padding(part, (0, 1, 0, 1)))


def _parts(result: DoctorResult, *, is_wide: bool) -> Iterable[RenderableType]:
    yield Text()
    yield _head(result)
    yield Text()
    yield _sentence(result)
    if result.verdict.then:
        yield Text(result.verdict.then)
    yield Text()
    yield _story(result, is_wide=is_wide)
    yield Text()
    yield _stages(result, is_wide=is_wide)
    if result.fixes:
        yield Text()
        yield _fixes(result, is_wide=is_wide)
    if result.materialise:
        yield Text()
        yield _materialise(result)
    yield Text()
    yield _ceilings(result, is_wide=is_wide)
    lines = [line for line in (_sweep(result), _money(result), _gpu(result), _verified(result)) if line is not None]
    if lines:
        yield Text()
        yield Group(*lines)
    notes = [*result.verdict.notes, *(note for note in result.notes if note not in result.verdict.notes)]
    for note in notes:
        yield Text(f"note: {note}", style="yellow")
    yield Text()
    yield Text(
        f"{result.wall_s:.0f} s · {result.data.num_probed:,} of {result.data.num_chunks:,} chunks looked at · "
        "rates in samples/s",
        style="dim",
    )


def _head(result: DoctorResult) -> Text:
    data, step = result.data, result.step
    what = f"{data.num_samples:,} samples in {data.num_files:,} files"
    demand = "no step was given" if step is None else f"step: {step.text}, batches of {step.batch_size:,}"
    return Text.assemble(("stoker doctor", "bold"), "  ", (data.text, "cyan"), (f"\n{what} · {demand}", "dim"))


def _sentence(result: DoctorResult) -> Text:
    is_fine = result.verdict.stages == (MODEL,)
    mark = ("✓ ", "bold green") if is_fine else ("✗ ", "bold red") if result.step is not None else ("• ", "bold cyan")
    return Text.assemble(mark, (result.verdict.sentence, "bold"))


def _story(result: DoctorResult, *, is_wide: bool) -> Table:
    table = _table(("", "<"), ("samples/s", ">"), ("measured", ">"), ("the step is busy", "<"), ("limit", "<"))
    for path in result.paths:
        name = Text(_PATHS[path.key])
        if path.is_today:
            name.append("  today", "cyan")
        measured = Text("–" if path.measured is None else rate_text(path.measured.samples_s), style="dim")
        table.add_row(
            name,
            rate_text(path.predicted_s),
            measured,
            _busy(path, num_cells=20 if is_wide else 10),
            Text(_limit(path.limit), style="green" if path.limit == MODEL else "red" if path.is_today else ""),
        )
    return table


def _busy(path: PathResult, *, num_cells: int) -> Text:
    if path.busy is None:
        return Text("no step", style="dim")
    return Text.assemble(
        *_bar(path.busy, num_cells=num_cells, style="green" if path.busy > 0.9 else "yellow"),
        f" {share_text(path.busy):>5}",
    )


def _limit(key: str) -> str:
    names = {MODEL: "the model", "draw": "conversion", "dequeue": "conversion", "": "–", "batch": "work a batch"}
    names |= {"decode": "decode", "publish": "pack and publish", "convert": "conversion", "skew": "skewed chunks"}
    return names.get(key, key)


def _stages(result: DoctorResult, *, is_wide: bool) -> Table:
    heads: list[tuple[str, str]] = [("stage, alone", "<"), ("supply", ">")]
    if result.step is not None:
        heads += [("supply / demand", "<")]
    heads += [("CPU", ">")]
    if is_wide:
        heads += [("GIL", ">"), ("gives", ">"), ("at threads", _FOLDS)]
    table = _table(*heads)
    for stage in result.stages:
        cells: list[RenderableType] = [_stage_name(stage, result), rate_text(stage.supply.samples_s)]
        if result.step is not None:
            cells.append(_headroom(stage, num_cells=12))
        cells.append(time_text(stage.cpu_s) if stage.cpu_s else Text("–", style="dim"))
        if is_wide:
            held = stage.gil_s / stage.cpu_s if stage.cpu_s else 0.0
            cells.append(share_text(held) if held >= 0.005 else Text("–", style="dim"))
            cells.append(Text(f"{size_text(stage.size_bytes)}", style="dim") if stage.size_bytes else "")
            cells.append(Text(_threads(stage), style="dim"))
        table.add_row(*cells)
    return table


def _stage_name(stage: StageResult, result: DoctorResult) -> Text:
    style = "bold red" if stage.key in result.verdict.stages and stage.key != MODEL else ""
    on_today = result.today.key in stage.paths
    return Text(_SHORT.get(stage.key, stage.name), style=style or ("" if on_today else "dim"))


def _headroom(stage: StageResult, *, num_cells: int) -> Text:
    if stage.headroom is None:
        return Text("│".rjust(num_cells // 2 + 1) + " 1", style="dim")
    style = "red" if stage.headroom < 1 else "yellow" if stage.headroom < 1.2 else "green"
    bar = _bar(stage.headroom / _FULL, num_cells=num_cells, style=style)
    number = f" {stage.headroom:.2g}×" if stage.headroom < 100 else " > 100×"
    return Text.assemble(*bar, number)


def _threads(stage: StageResult) -> str:
    return "  ".join(f"{at.num_threads}: {rate_text(at.samples_s)}" for at in stage.threads[-2:])


def _fixes(result: DoctorResult, *, is_wide: bool) -> Table:
    heads = [("what would help", _FOLDS), ("predicted", ">"), ("", ">")]
    if is_wide:
        heads += [("then limits", "<"), ("how", _FOLDS)]
    table = _table(*heads)
    for i, fix in enumerate(result.fixes[:_NUM_FIXES]):
        cells: list[RenderableType] = [
            Text(fix.text, style="bold" if i == 0 else ""),
            rate_text(fix.predicted_s),
            Text(f"× {fix.times:.2f}" if fix.times < 10 else f"× {fix.times:.0f}", style="green"),
        ]
        if is_wide:
            cells += [_limit(fix.limit), Text(fix.how, style="dim")]
        table.add_row(*cells)
    return table


def _materialise(result: DoctorResult) -> Text:
    parts = []
    for place in result.materialise:
        pays = "never pays" if place.pays_after is None else f"pays after epoch {place.pays_after}"
        parts.append(f"{place.name} takes {size_text(place.disk_bytes)} and {pays}")
    return Text("; ".join(parts) + ".")


def _ceilings(result: DoctorResult, *, is_wide: bool) -> Table:
    table = _table(("this machine", "<"), ("ceiling", ">"), ("used today", "<"), *([("", _FOLDS)] if is_wide else []))
    for ceiling in result.ceilings:
        if ceiling.unit == "s":
            value = time_text(ceiling.value)
        elif ceiling.unit == "cores":
            value = f"{ceiling.value:.3g} cores"
        else:
            value = f"{size_text(ceiling.value)}/s"
        used = Text("–", style="dim")
        if ceiling.used is not None:
            style = "red" if ceiling.used > 0.9 else "green"
            used = Text.assemble(*_bar(ceiling.used, num_cells=10, style=style), f" {share_text(ceiling.used):>5}")
        table.add_row(ceiling.name, value, used, *([Text(ceiling.note, style="dim")] if is_wide else []))
    return table


def _sweep(result: DoctorResult) -> Text | None:
    if result.sweep is None:
        return None
    text = f"batches: the loader gives nearly all it can from {result.sweep.loader_knee:,} samples on"
    if result.sweep.step_knee is not None:
        text += f", the step from {result.sweep.step_knee:,} on"
    return Text(text + ".")


def _money(result: DoctorResult) -> Text | None:
    money = result.money
    if money is None:
        return None
    parts = ", ".join(f"{part.name} {_cost(part.cost)}" for part in money.parts if part.cost > 0.005 * money.epoch)
    return Text(
        f"money: an epoch costs {_cost(money.epoch)}, of which stalls {_cost(money.stalls)} ({parts}); "
        f"after the best fix {_cost(money.best_fix)}."
    )


def _cost(amount: float) -> str:
    return f"{amount:,.2f}" if amount >= 0.995 else f"{amount:.2g}"


def _gpu(result: DoctorResult) -> Text:
    if not result.gpus:
        return Text(f"GPU: {result.gpu_note}.", style="dim")
    lines = []
    for gpu in result.gpus:
        words = [gpu.name]
        if gpu.utilisation is not None:
            words.append(f"utilisation {share_text(gpu.utilisation)}")
        if gpu.sm_activity is not None:
            words.append(f"SM activity {share_text(gpu.sm_activity)}")
        if gpu.sm_clock_mhz is not None:
            words.append(f"SM clock {gpu.sm_clock_mhz:,.0f} of {gpu.max_sm_clock_mhz or 0:,.0f} MHz")
        if gpu.power_w is not None:
            words.append(f"{gpu.power_w:.0f} of {gpu.power_limit_w or 0:.0f} W")
        if gpu.memory_used_bytes is not None:
            words.append(f"{size_text(gpu.memory_used_bytes)} of {size_text(gpu.memory_bytes or 0)}")
        words.append("held down by " + ", ".join(gpu.throttled) if gpu.throttled else "not throttled")
        lines.append("GPU: " + " · ".join(words))
    return Text("\n".join([*lines, result.gpu_note]))


def _verified(result: DoctorResult) -> Text | None:
    verified = result.verified
    if verified is None:
        return None
    return Text.assemble(
        ("verified: ", "bold"),
        f"{verified.text}: {rate_text(verified.predicted_s)} predicted, {rate_text(verified.measured.samples_s)} "
        f"measured ({verified.error:+.1%}).",
    )


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0), show_edge=False)
    for head, side in columns:
        # Where the terminal is too narrow, columns of words give way, so that no number is cut off.
        table.add_column(head, justify="right" if side == ">" else "left", no_wrap=side != _FOLDS, overflow="ellipsis")
    return table


def _bar(share: float, *, num_cells: int, style: str) -> list[tuple[str, str]]:
    """Return a bar in styled parts."""
    full = bar_text(share, num_cells)
    return [(full, style), ("░" * (num_cells - len(full)), "dim")]
