"""`stoker ready`: whether this host has what the first steps of a training run need, for whoever starts it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from stoker.cli.arguments import FAILED, OK
from stoker.cli.target import counting, planned, steps_of
from stoker.host.machine import num_cores
from stoker.loader.config import plain_window
from stoker.loader.orders import needed_chunks
from stoker.paint import print_json, print_line
from stoker.plan.readiness import look_for
from stoker.sampling import RankShare
from stoker.words import bytes_text, count_text, duration_text


def run(options: argparse.Namespace, console: Console) -> int:
    """Say whether the cache has every chunk that the first steps need."""
    ranks = _ranks(options.ranks, options.world_size)
    if options.window is None and not options.shuffle:
        options.window = plain_window(num_cores())
    shards = [RankShare(rank, options.world_size) for rank in ranks]
    with counting() as (_, show):
        known, orders = planned(options, show)
    steps = steps_of(options, orders)
    which = range(options.first_step, min(options.first_step + options.steps, steps.num_steps))
    if not which:
        num_steps = count_text(steps.num_steps, "step")
        raise ValueError(f"an epoch has {num_steps} of this size, and none from {options.first_step:,} on")
    needed = needed_chunks(orders, steps, which, shards, epoch=options.epoch)
    substitutes = options.on_error == "substitute"
    found = look_for(known, needed, cache=Path(options.cache), mirror=options.mirror, substitutes=substitutes)
    about = {
        "cache": options.cache,
        "epoch": options.epoch,
        "first_step": which.start,
        "num_steps": len(which),
        "ranks": list(ranks),
        "world_size": options.world_size,
    }
    if options.json:
        print_json(about | found)
    else:
        _print(console, about, found)
    return OK if found["is_ready"] else FAILED


def _ranks(text: str | None, world_size: int) -> range:
    """Return the ranks that "3" or "8-15" names; all of them for None."""
    if text is None:
        return range(world_size)
    first, _, last = text.partition("-")
    try:
        found = range(int(first), int(last or first) + 1)
    except ValueError:
        raise ValueError(f"--ranks {text!r}: write one, such as 3, or the first and the last, such as 8-15") from None
    if not found or found.start < 0 or found.stop > world_size:
        raise ValueError(f"--ranks {text}: --world-size {world_size} has the ranks 0 to {world_size - 1}")
    return found


def _print(console: Console, about: dict[str, Any], found: dict[str, Any]) -> None:
    ranks = about["ranks"]
    who = "all ranks" if len(ranks) == about["world_size"] else f"rank {ranks[0]}" + f"-{ranks[-1]}" * (len(ranks) > 1)
    last = about["first_step"] + about["num_steps"] - 1
    what = f"steps {about['first_step']:,} to {last:,} of epoch {about['epoch']} on {who}"
    there = f"{count_text(found['num_chunks'] - found['num_missing'])} of {count_text(found['num_chunks'])} chunks"
    if found["is_ready"]:
        print_line(console, f"Ready: {about['cache']} has {there} that {what} need.", "green")
        return
    print_line(console, f"Not ready: {about['cache']} has {there} that {what} need.", "yellow")
    size = f"About {bytes_text(found['missing_bytes'])} are still to be built, which takes "
    least = "at least " if found["is_bound"] else "about "
    if found["num_mirrored"] < found["num_missing"]:
        print_line(console, f"{size}{least}{duration_text(found['seconds'])} ({found['rate']}).")
    else:
        print_line(console, "The mirror has all missing chunks: they are fetched when they are needed.")
    if found["missing_bytes"] > found["free_bytes"]:
        print_line(console, f"The cache's disk has only {bytes_text(found['free_bytes'])} free.", "yellow")
    print_line(console, f"The first missing one: {found['missing'][0]['fragment']}. `stoker warm` builds them all.")
