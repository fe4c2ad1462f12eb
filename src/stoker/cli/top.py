"""`stoker top`: the loaders that run on this host, and what they are doing right now."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from stoker.cli.arguments import OK
from stoker.metrics.status import running
from stoker.paint import facts, print_json, table
from stoker.words import bar_text, bytes_text, count_text, duration_text, time_text

_NOBODY = (
    "No loader of yours is running on this host.\n"
    "One shows up here a second after its first batch, unless STOKER_STATUS=off is in its environment."
)
# Older figures are said to be so: the file is written once a second as long as anything happens.
_FRESH_S = 3.0
# Lines that a block takes beside its stages.
_BLOCK_LINES = 8
# From this width on a line has all its columns.
_WIDE = 100
# A file is read on a screen some day.
_FILE_WIDTH = 120
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
_WAITS = {
    "loop_for_batch_s": "loop for a batch",
    "batch_for_window_s": "batch for a window",
    "window_for_chunk_s": "window for a chunk",
    "build_for_bytes_s": "build for bytes",
    "batch_for_room_s": "batch for room in the queue",
}


def run(options: argparse.Namespace, console: Console) -> int:
    """Show the loaders that run on this host, once or until Ctrl-C."""

    def look(height: int | None = None) -> RenderableType:
        return screen(running(), width=console.width, height=height, time_s=time.time())

    if options.json:
        print_json({"time": time.time(), "loaders": running()})
    elif console.is_terminal and not options.once:
        _watch(console, lambda: look(console.height), interval_s=max(0.1, options.interval))
    else:
        if not console.is_terminal:
            console.width = min(console.width, _FILE_WIDTH)
        console.print(look())
    return OK


def _watch(console: Console, look: Callable[[], RenderableType], *, interval_s: float) -> None:
    tick = threading.Event()
    try:
        with Live(look(), console=console, screen=True, auto_refresh=False) as live:
            while not tick.wait(interval_s):
                live.update(look(), refresh=True)
    except KeyboardInterrupt:
        pass  # that is how one leaves


def screen(loaders: Sequence[Mapping[str, Any]], *, width: int, height: int | None, time_s: float) -> RenderableType:
    """Return the whole screen, at `time_s` seconds since 1970; without a height it may have any number of lines."""
    clock = time.strftime("%H:%M:%S", time.localtime(time_s)) + " · Ctrl-C leaves" * (height is not None)
    num = count_text(len(loaders), "loader") if loaders else "no loader"
    parts: list[RenderableType] = [_block(loader, width) for loader in loaders] or [Text(_NOBODY, style="dim")]
    num_lines = 2 + sum(_BLOCK_LINES + len(_stages_of(loader["recent"])) for loader in loaders)
    if height is not None and num_lines > height and len(loaders) > 1:
        parts = [_overview(loaders, width)]
    head = Text.assemble(("stoker top", "bold"), f"  {num}  ", (clock, "dim"))
    return Group(head, *(one for part in parts for one in (Text(), part)))


def _block(loader: Mapping[str, Any], width: int) -> RenderableType:
    recent, total = loader["recent"], loader["total"]
    num_cells = max(10, min(40, width - 50))
    style = _style(recent["stall_share"])
    stepping = Text.assemble(
        (bar_text(recent["busy_share"], num_cells, rest="░"), style),
        (f" {recent['busy_share']:6.1%} busy", f"bold {style}"),
        (f"  {recent['stall_share']:.1%} stall", style),
    )
    ready = count_text(recent["num_ready"], "batch", plural="batches")
    share, left = _progress(loader)
    epoch = Text.assemble((bar_text(share, num_cells, rest="░"), "cyan"), f" {share:6.1%} of epoch {total['epoch']}")
    counts = {"built": total["num_built"], "evicted": total["num_evicted"], "mended": total["num_mended"]}
    told = [f"{count_text(num)} {what}" for what, num in counts.items() if num or what == "built"]
    rate = f"{count_text(recent['samples_per_s'])} samples/s · {_number(recent['steps_per_s'])} steps/s"
    rows: dict[str, str | Text] = {
        "step": stepping if recent["num_steps"] else Text("no step in the last seconds", style="yellow"),
        "rate": f"{rate} · {ready} ready",
        "epoch": epoch.append(f"  {left} left" if left else "", style="dim"),
        "cache": " · ".join([f"{total['hit_share']:.1%} hits", *told]),
        "waiting": _waits(recent, width - len("waiting") - 2),
    }
    return Group(_title(loader, width), facts(rows.items()), _stage_table(recent, width))


def _title(loader: Mapping[str, Any], width: int) -> Text:
    is_old = loader["age_s"] > _FRESH_S
    who = [f"rank {loader['rank']} of {loader['world_size']}"] if loader["world_size"] > 1 else []
    who.append(f"pid {loader['pid']}")
    if is_old:
        who.append(f"no news for {duration_text(loader['age_s'])}")
    tail = "  " + " · ".join(who)
    name = _short(loader["dataset"], max(12, width - len(tail)))
    if loader["command"] and len(name) + len(tail) + len(loader["command"]) + 3 <= width:
        tail += f" · {loader['command']}"
    title = Text.assemble((name, "bold cyan"), (tail, "yellow" if is_old else "dim"))
    title.truncate(width, overflow="ellipsis")
    return title


def _progress(loader: Mapping[str, Any]) -> tuple[float, str]:
    """Return how much of the epoch is over, and how long the rest takes, "" where that is not known."""
    total, recent = loader["total"], loader["recent"]
    left_s = recent["left_s"] if recent["left_s"] is not None else total["left_s"]
    share = total["epoch_step"] / total["epoch_steps"] if total["epoch_steps"] else 0.0
    return share, "" if left_s is None else duration_text(left_s)


def _waits(recent: Mapping[str, Any], width: int) -> str:
    """Return who waits for whom, and how many of them at a time: the most first, as many as fit."""
    elapsed_s, text = recent["elapsed_s"], ""
    shares = [(recent["waits"][name] / elapsed_s, what) for name, what in _WAITS.items()] if elapsed_s > 0 else []
    for share, what in sorted(shares, reverse=True):
        more = f"{text} · {what} {share:.2f}" if text else f"{what} {share:.2f}"
        if share < 0.005 or len(more) > width:
            break
        text = more
    return text


def _stages_of(recent: Mapping[str, Any]) -> list[str]:
    return [name for name in _STAGES if recent["stages"].get(name, {}).get("num_calls")]


def _stage_table(recent: Mapping[str, Any], width: int) -> Table:
    elapsed_s = max(recent["elapsed_s"], 1e-9)
    bar_width = max(8, min(24, width - 62))
    stages = {name: recent["stages"][name] for name in _stages_of(recent)}
    most = max([1.0, *(stage["busy_s"] / elapsed_s for stage in stages.values())])
    rows = [
        (
            _STAGES[name],
            f"{stage['busy_s'] / elapsed_s:.2f}",
            Text(bar_text(stage["busy_s"] / elapsed_s / most, bar_width, rest="░"), style="magenta"),
            _number(stage["num_calls"] / elapsed_s),
            bytes_text(stage["num_bytes"] / elapsed_s) if stage["num_bytes"] else "",
            time_text(stage["busy_s"] / stage["num_calls"]),
        )
        for name, stage in stages.items()
    ]
    numbers = ("threads", "calls/s", "bytes/s", "each")
    return table("stage", "threads", "", "calls/s", "bytes/s", "each", rows=rows, numbers=numbers)


def _overview(loaders: Sequence[Mapping[str, Any]], width: int) -> Table:
    heads = ["pid", "rank", "data set", "busy", "stall", "samples/s", "epoch"]
    heads += ["ready", "left"] if width >= _WIDE else []
    name_width = max(8, width - (82 if width >= _WIDE else 62))
    rows: list[list[str | Text]] = []
    for loader in loaders:
        recent, total = loader["recent"], loader["total"]
        style = _style(recent["stall_share"]) if recent["num_steps"] else "dim"
        busy = bar_text(recent["busy_share"], 10, rest="░") if recent["num_steps"] else "no step".ljust(10)
        share, left = _progress(loader)
        row: list[str | Text] = [
            str(loader["pid"]),
            str(loader["rank"]),
            _short(loader["dataset"], name_width),
            Text(busy, style=style),
            Text(f"{recent['stall_share']:.1%}", style=style),
            count_text(recent["samples_per_s"]),
            f"{total['epoch']} {share:4.0%}",
            str(total["num_ready"]),
            left,
        ]
        rows.append(row[: len(heads)])
    made = table(*heads, rows=rows, numbers=[head for head in heads if head not in ("data set", "busy")])
    made.columns[2].ratio = 1
    return made


def _style(stall_share: float) -> str:
    return "green" if stall_share < 0.05 else "yellow" if stall_share < 0.25 else "red"


def _number(num: float) -> str:
    return f"{num:,.0f}" if num >= 100 else f"{num:.1f}" if num >= 1 or num == 0 else f"{num:.2f}"


def _short(name: str, width: int) -> str:
    """Return the end of a name, which says more than its beginning."""
    return name if len(name) <= width else "…" + name[len(name) - width + 1 :]
