"""What `stoker top` looks like: a block for each loader, or a line for each where there are many."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stoker.words import bar_text, bytes_text, count_text, duration_text

if TYPE_CHECKING:
    from stoker.metrics.status import RunningLoader

# Older figures are said to be so: the file is written once a second as long as anything happens.
_FRESH_S = 3.0
# Lines that a block takes beside its stages.
_BLOCK_LINES = 8
# From the source to the step, as the data goes.
_STAGES = {
    "list": "list files",
    "footers": "read footers",
    "fetch": "fetch",
    "decode": "decode",
    "transform": "transform",
    "convert": "convert",
    "publish": "pack, publish",
    "open": "open windows",
    "gather": "gather",
    "augment": "augment",
    "copy": "copy to device",
}
# The wait, and who waits for whom in it.
_WAITS = (
    ("loop_for_batch_s", "loop for a batch"),
    ("batch_for_window_s", "batch for a window"),
    ("window_for_chunk_s", "window for a chunk"),
    ("build_for_bytes_s", "build for bytes"),
    ("batch_for_room_s", "batch for room in the queue"),
)


def screen(loaders: Sequence[RunningLoader], *, width: int, height: int | None, time_s: float) -> RenderableType:
    """Return the whole screen.

    Args:
        loaders: What runs.
        width: Columns of the terminal.
        height: Its lines; None where there may be any number.
        time_s: Seconds since 1970.
    """
    clock = time.strftime("%H:%M:%S", time.localtime(time_s))
    num = count_text(len(loaders), "loader") if loaders else "no loader"
    head = Table.grid(expand=True)
    head.add_column()
    head.add_column(justify="right")
    leave = "Ctrl-C leaves · " if height is not None else ""
    head.add_row(Text.assemble(("stoker top", "bold"), f"  {num}"), Text(f"{leave}{clock}", style="dim"))
    if not loaders:
        return Group(head, Text(), _nobody())
    num_lines = sum(_BLOCK_LINES + len(_stages_of(loader.about["recent"])) for loader in loaders)
    if height is not None and num_lines + 2 > height and len(loaders) > 1:
        return Group(head, Text(), _overview(loaders, width))
    return Group(head, *(part for loader in loaders for part in (Text(), _block(loader, width))))


def _nobody() -> Text:
    return Text.assemble(
        "No loader of yours is running on this host.\n",
        ("One shows up here a second after its first batch, unless STOKER_STATUS=off is in its environment.", "dim"),
    )


# ---------------------------------------------------------------------- one loader


def _block(loader: RunningLoader, width: int) -> RenderableType:
    about, recent = loader.about, loader.about["recent"]
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(style="dim", no_wrap=True, min_width=len("waiting"))
    rows.add_column(no_wrap=True)
    bar_width = max(10, min(40, width - 50))
    rows.add_row("step", _stepping(recent, bar_width))
    rows.add_row("rate", Text(_rate(recent)))
    rows.add_row("epoch", _progress(about["total"], recent, bar_width))
    rows.add_row("cache", _cache(about["total"]))
    waits = _waits(recent, width - len("waiting") - 2)
    if waits:
        rows.add_row("waiting", waits)
    return Group(_title(loader, width), rows, _stage_table(recent, width))


def _title(loader: RunningLoader, width: int) -> Text:
    about = loader.about
    who = [f"pid {loader.pid}"]
    if about["world_size"] > 1:
        who.insert(0, f"rank {about['rank']} of {about['world_size']}")
    if loader.age_s > _FRESH_S:
        who.append(f"no news for {duration_text(loader.age_s)}")
    tail = "  " + " · ".join(who)
    if loader.command and width - len(tail) > 80:
        tail += f" · {loader.command}"
    name = _short(about["dataset"], max(12, width - len(tail)))
    title = Text.assemble((name, "bold cyan"), (tail, "yellow" if loader.age_s > _FRESH_S else "dim"))
    title.truncate(width, overflow="ellipsis")
    return title


def _stepping(recent: Mapping[str, Any], bar_width: int) -> Text:
    busy, stall = recent["busy_share"], recent["stall_share"]
    if not recent["num_steps"]:
        return Text("no step in the last seconds", style="yellow")
    style = _style(stall)
    return Text.assemble(
        (_bar(busy, bar_width), style), (f" {busy:6.1%} busy", f"bold {style}"), (f"  {stall:.1%} stall", style)
    )


def _rate(recent: Mapping[str, Any]) -> str:
    ready = count_text(recent["num_ready"], "batch", plural="batches")
    return f"{count_text(recent['samples_per_s'])} samples/s · {_number(recent['steps_per_s'])} steps/s · {ready} ready"


def _progress(total: Mapping[str, Any], recent: Mapping[str, Any], bar_width: int) -> Text:
    step, steps = total["epoch_step"], total["epoch_steps"]
    share = step / steps if steps else 0.0
    left = recent["left_s"] if recent["left_s"] is not None else total["left_s"]
    text = Text.assemble((_bar(share, bar_width), "cyan"), f" {share:6.1%} of epoch {total['epoch']}")
    if left is not None:
        text.append(f"  {duration_text(left)} left", style="dim")
    return text


def _cache(total: Mapping[str, Any]) -> Text:
    parts = [f"{total['hit_share']:.1%} hits", f"{count_text(total['num_built'])} built"]
    if total["num_evicted"]:
        parts.append(f"{count_text(total['num_evicted'])} evicted")
    text = Text(" · ".join(parts))
    if total["num_mended"]:
        text.append(f" · {count_text(total['num_mended'])} mended", style="yellow")
    return text


def _waits(recent: Mapping[str, Any], width: int) -> str:
    """Return who waits for whom, and how many of them at a time: the most first, as many as fit."""
    elapsed_s = recent["elapsed_s"]
    if elapsed_s <= 0:
        return ""
    found = [(recent["waits"][name] / elapsed_s, what) for name, what in _WAITS]
    text = ""
    for share, what in sorted(found, reverse=True):
        more = f"{text} · {what} {share:.2f}" if text else f"{what} {share:.2f}"
        if share < 0.005 or len(more) > width:
            break
        text = more
    return text


def _stages_of(recent: Mapping[str, Any]) -> list[str]:
    stages = recent["stages"]
    return [name for name in _STAGES if name in stages and stages[name]["num_calls"]]


def _stage_table(recent: Mapping[str, Any], width: int) -> Table:
    elapsed_s = max(recent["elapsed_s"], 1e-9)
    bar_width = max(8, min(24, width - 62))
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0), show_edge=False)
    for name, justify in (
        ("stage", "left"),
        ("threads", "right"),
        ("", "left"),
        ("calls/s", "right"),
        ("bytes/s", "right"),
        ("each", "right"),
    ):
        made.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    names = _stages_of(recent)
    threads = {name: recent["stages"][name]["busy_s"] / elapsed_s for name in names}
    most = max([1.0, *threads.values()])
    for name in names:
        stage = recent["stages"][name]
        each_s = stage["busy_s"] / stage["num_calls"]
        made.add_row(
            Text(_STAGES[name]),
            f"{threads[name]:.2f}",
            Text(_bar(threads[name] / most, bar_width), style="magenta"),
            _number(stage["num_calls"] / elapsed_s),
            bytes_text(stage["num_bytes"] / elapsed_s) if stage["num_bytes"] else "",
            _brief(each_s),
        )
    return made


# ---------------------------------------------------------------------- many loaders


def _overview(loaders: Sequence[RunningLoader], width: int) -> Table:
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0), show_edge=False)
    made.add_column("pid", justify="right", no_wrap=True)
    made.add_column("rank", justify="right", no_wrap=True)
    made.add_column("data set", no_wrap=True, overflow="ellipsis", ratio=1)
    made.add_column("busy", no_wrap=True)
    made.add_column("stall", justify="right", no_wrap=True)
    made.add_column("samples/s", justify="right", no_wrap=True)
    made.add_column("epoch", justify="right", no_wrap=True)
    if width >= 100:
        made.add_column("ready", justify="right", no_wrap=True)
        made.add_column("left", justify="right", no_wrap=True)
    name_width = max(8, width - (82 if width >= 100 else 62))
    for loader in loaders:
        about, recent, total = loader.about, loader.about["recent"], loader.about["total"]
        style = _style(recent["stall_share"]) if recent["num_steps"] else "dim"
        share = total["epoch_step"] / total["epoch_steps"] if total["epoch_steps"] else 0.0
        left = recent["left_s"] if recent["left_s"] is not None else total["left_s"]
        cells: list[str | Text] = [
            str(loader.pid),
            str(about["rank"]),
            Text(_short(about["dataset"], name_width)),
            Text(_bar(recent["busy_share"], 10) if recent["num_steps"] else "no step".ljust(10), style=style),
            Text(f"{recent['stall_share']:.1%}", style=style),
            count_text(recent["samples_per_s"]),
            f"{total['epoch']} {share:4.0%}",
            str(total["num_ready"]),
            "" if left is None else duration_text(left),
        ]
        made.add_row(*cells[: len(made.columns)])
    return made


# ---------------------------------------------------------------------- words and bars


def _bar(share: float, width: int) -> str:
    return bar_text(share, width).ljust(width, "░")


def _style(stall_share: float) -> str:
    return "green" if stall_share < 0.05 else "yellow" if stall_share < 0.25 else "red"


def _number(num: float) -> str:
    return f"{num:,.0f}" if num >= 100 else f"{num:.1f}" if num >= 1 or num == 0 else f"{num:.2f}"


def _brief(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _short(name: str, width: int) -> str:
    """Return the end of a name, which says more than its beginning."""
    return name if len(name) <= width else "…" + name[len(name) - width + 1 :]
