"""`stoker trace`: where the devices of a profiled run idle, and why."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from stoker.cli.arguments import OK
from stoker.doctor.traces import NAMES, EventNames, ProfilerTrace, TraceResult, analyse, as_json, read_trace
from stoker.doctor.traces.verdict import advice_of, duration, verdict_of
from stoker.errors import StokerError
from stoker.paint import cells, make_console, print_facts, print_json, print_line, table
from stoker.words import bar_text, bytes_text, count_text, range_text, share_text, some_of

_KINDS = ("data", "not_data", "collate", "synchronise", "communication")
_ENDINGS = (".json", ".json.gz")
_BAR_CELLS = 32
_SHORT_BAR_CELLS = 20
_WIDE = 100
# Parts of the time as they are shown: what it is, its words, its colour.
_BUSY = (
    ("compute", "computing", "green"),
    ("exposed_comm", "communicating, and nothing else", "blue"),
    ("exposed_copy", "copying, and nothing else", "cyan"),
)
_IDLE = (
    ("waiting_for_data", "waiting for data", "red"),
    ("collating", "collating", "red"),
    ("copying_pageable", "copying from pageable memory", "magenta"),
    ("synchronising", "synchronising", "yellow"),
    ("launching", "launching", "yellow"),
    ("queued", "queued, and held up on the device", "cyan"),
    ("unattributed", "unattributed", "bright_black"),
)


def run(options: argparse.Namespace, console: Console) -> int:
    """Say where the GPUs of a profiled run idle, and why."""
    result = analyse(_read(_files(options.files), _names(options.name or [])))
    if options.json:
        print_json(as_json(result))
    else:
        _print(result, console)
    return OK


def _names(given: list[str]) -> EventNames:
    more: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    for text in given:
        what, is_so, pattern = text.partition("=")
        if what not in more or not is_so or not pattern:
            raise ValueError(f"--name {text!r} is not WHAT=REGEX, with WHAT one of {', '.join(more)}")
        more[what].append(pattern)
    return NAMES.extended(**more)


def _files(names: list[str]) -> list[Path]:
    found: list[Path] = []
    for name in names:
        path = Path(name).expanduser()
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(entry for entry in path.iterdir() if entry.name.endswith(_ENDINGS) and entry.is_file())
        if not inside:
            raise ValueError(f"{path} is a folder without traces (*.json or *.json.gz): name a file, or another folder")
        found += inside
    return list(dict.fromkeys(found))


def _read(paths: list[Path], names: EventNames) -> Iterator[ProfilerTrace]:
    """Read one file after the other; a file that is no trace is left out, unless all are."""
    messages = make_console(stderr=True)
    failures: list[StokerError | OSError] = []
    with messages.status("reading …") as status:
        for number, path in enumerate(paths, 1):
            label = f"reading {path.name}" + (f" ({number} of {len(paths)})" if len(paths) > 1 else "")

            def show(done: int, size: int, label: str = label) -> None:
                status.update(f"{label}: {100 * done / max(size, 1):.0f} % of {bytes_text(size)} …")

            try:
                trace = read_trace(path, names=names, on_bytes=show)
            except (StokerError, OSError) as error:
                failures.append(error)
                continue
            yield trace
            del trace
    if len(failures) == len(paths):
        raise failures[0]
    for failure in failures:
        messages.print(Text.assemble(("left out ", "yellow"), str(failure)), soft_wrap=True)


def _print(result: TraceResult, console: Console) -> None:
    print_line(console, verdict_of(result), "bold")
    for number, advice in enumerate(advice_of(result)):
        print_line(console, f"{'And' if number else 'What helps'}: {advice}.")
    if result.with_device:
        console.print()
        _print_parts(result, console)
        console.print()
        print_facts(console, _facts(result))
    if len(result.ranks) > 1:
        console.print()
        _print_ranks(result, console)
    notes = list(dict.fromkeys(note for rank in result.ranks for note in rank.notes))
    if notes:
        console.print()
    for name, note in notes:
        print_line(console, f"{name}: {note}", "dim")


def _print_parts(result: TraceResult, console: Console) -> None:
    times = result.times
    num_cells = _BAR_CELLS if console.width >= _WIDE else _SHORT_BAR_CELLS
    made = table("where the time went", "", "share", "", numbers=("share",), folds=("where the time went",))
    for title, total, parts in (("busy", times.busy, _BUSY), ("idle", times.idle, _IDLE)):
        made.add_row(*cells(Text(title, style="bold"), "", Text(share_text(total / times.wall), style="bold"), ""))
        for part, words, colour in parts:
            share = getattr(times, part) / times.wall
            if share or part not in ("exposed_comm", "collating", "queued"):
                style = "" if share else "dim"
                bar = bar_text(max(share, (share > 0) / 8 / num_cells), num_cells)
                made.add_row(
                    *cells(Text(f"  {words}", style), "", Text(share_text(share), style), Text(bar, style=colour))
                )
    console.print(made)


def _facts(result: TraceResult) -> list[tuple[str, str | Text]]:
    times, ranks = result.times, result.with_device
    facts: list[tuple[str, str | Text]] = []
    if result.step_ns is not None:
        num_cycles = len(ranks[0].traces)
        of = f" in {num_cycles} cycles" if num_cycles > 1 else ""
        steps = f"median of {count_text(len(ranks[0].steps))} profiled{of}"
        facts.append(("a step", f"{duration(result.step_ns)} ({steps})"))
    if result.without_wait_ns is not None:
        facts.append(("without waiting for data", range_text(*result.without_wait_ns, duration)))
    if times.communication:
        overlap = times.overlap / times.communication
        facts.append(
            ("communication", f"{share_text(times.share('communication'))}, {share_text(overlap)} of it hidden")
        )
    num_copies, copied_bytes, _ = result.copies
    if num_copies:
        facts.append(("copies from pageable memory", f"{count_text(num_copies)}, {bytes_text(copied_bytes)}"))
    name, in_range = result.largest_range
    if name:
        facts.append(("most of unattributed", f"{share_text(in_range / times.wall)} in {name}"))
    for rank in ranks:
        devices = rank.device_names if len(rank.device_names) > 1 else ()
        facts += [(f"device {one}", f"{share_text(rank.devices[one].share('busy'))} busy") for one in devices]
    wall = sum(rank.wall for rank in ranks) / len(ranks)
    names = sorted({name for rank in ranks for name in rank.device_names.values()})
    shown = some_of(names, 3)
    facts.append(("looked at", f"{duration(wall)} of {shown if not shown.isdigit() else f'device {shown}'}"))
    return facts


def _print_ranks(result: TraceResult, console: Console) -> None:
    is_wide = console.width >= _WIDE
    heads = ["rank", "step", "busy", "idle", "data", "launch", "sync"]
    heads += ["exposed comm", "unattributed", "others wait"] if is_wide else ["comm", "others wait"]
    shares = ["busy", "idle", "data", "launching", "synchronising", "exposed_comm", *["unattributed"] * is_wide]
    rows: list[list[str | Text]] = []
    for rank in result.ranks:
        is_last = rank is result.straggler
        mark = "◄ straggler" if is_last else "" if rank.status == "ok" else rank.status.replace("_", " ")
        imposed = "–"
        if rank.collective_waits and result.num_matched:
            imposed = duration(rank.collective_waits[1] / max(len(result.with_device) - 1, 1))
        step = "–" if rank.step_ns is None else duration(rank.step_ns)
        numbers = [str(rank.rank), step, *(share_text(rank.times.share(part)) for part in shares), imposed]
        rows.append([*numbers, Text(mark, style="bold red" if is_last else "dim")])
    console.print(table(*heads, "", rows=rows, numbers=heads))
    if result.num_matched:
        collectives = count_text(result.num_matched, "collective")
        print_line(console, f"others wait: in {collectives} that ranks have in common", "dim")
