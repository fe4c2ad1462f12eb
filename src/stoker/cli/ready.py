"""`stoker ready`: whether this host has what the first steps of a training run need, for whoever starts it."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from stoker.cli.arguments import FAILED, OK, Commands, add_command, add_json, add_order, at_least_0, at_least_1, folder
from stoker.cli.paint import print_json, print_line
from stoker.cli.target import add_target, add_units, counting, planned, target_of, unit_of
from stoker.words import bytes_text, count_text, duration_text

if TYPE_CHECKING:
    from stoker.cache.store import Store
    from stoker.fields.offsets import Int64
    from stoker.plan.known import BuildRate, Known, KnownSet


# Chunks that are missing are counted; so many of them are named.
_MOST_NAMED = 100


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "ready",
        summary="whether the cache has what the first steps need, as a scheduler's probe",
        text="""
Says whether the cache of this host has every chunk that its ranks need for the
first N steps of an epoch, what is missing, and about how long that takes.
Nothing is built. The order is computed from the same arguments that your
Loader has: give the same ones here.

Exits with 0 if all of it is there, with 1 if it is not, or cannot be told, and
with 2 after wrong usage.""",
        examples="""
stoker ready data/ --cache /nvme/stoker --steps 100 --batch-size 4096 --shuffle
stoker ready train.py:dataset --cache /nvme/stoker --steps 1000 --batch-size 512 --world-size 16 --ranks 8-15""",
    )
    add_target(parser, takes_mixture=True)
    parser.add_argument("--cache", metavar="DIR", type=folder, required=True, help="the cache folder of this host")
    parser.add_argument("--steps", metavar="N", type=at_least_1, required=True, help="how many steps it should have")
    parser.add_argument(
        "--first-step", metavar="K", type=at_least_0, default=0, help="the step they begin with (default: 0)"
    )
    add_order(parser, shuffle=False)
    add_units(parser)
    parser.add_argument("--ranks", metavar="R|A-B", help="the ranks of this host, such as 8-15 (default: all)")
    parser.add_argument(
        "--remainder", choices=("keep", "drop", "pad"), default="keep", help="as your Loader has it (default: keep)"
    )
    parser.add_argument(
        "--on-error", choices=("raise", "substitute"), default="raise", help="as your Loader has it (default: raise)"
    )
    parser.add_argument("--mirror", metavar="URL", help="the cache's mirror: what it has is fetched, and not built")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, console: Console) -> int:
    """Look for what is needed, and print what is missing."""
    from stoker.host.machine import num_cores
    from stoker.loader.config import plain_window
    from stoker.plan.known import needed_chunks
    from stoker.sampling import RankShare, Steps

    ranks = _ranks(options.ranks, options.world_size)
    if options.window is None and not options.shuffle:
        options.window = plain_window(num_cores())
    shards = [RankShare(rank, options.world_size) for rank in ranks]
    with counting("reading footers …") as (_, show):
        known, orders = planned(options, target_of(options), unit_of(options), show)
    steps = Steps(
        lane_sizes=orders.order.lane_sizes_in(options.epoch),
        global_batch_size=options.batch_size * options.world_size,
        remainder=options.remainder,
    )
    which = range(options.first_step, min(options.first_step + options.steps, steps.num_steps))
    if not which:
        raise ValueError(
            f"an epoch has {count_text(steps.num_steps, 'step')} of this size, and none from {options.first_step:,} on"
        )
    needed = needed_chunks(orders, steps, which, shards, epoch=options.epoch)
    found = _look(options, known, needed)
    about = {
        "cache": options.cache,
        "epoch": options.epoch,
        "first_step": which.start,
        "num_steps": len(which),
        "ranks": list(ranks),
        "world_size": options.world_size,
    }
    if options.json:
        print_json({**about, **found})
    else:
        _print(console, about, found)
    return OK if found["is_ready"] else FAILED


def _ranks(text: str | None, world_size: int) -> range:
    """Return the ranks that "3" or "8-15" names, all unless told.

    Raises:
        ValueError: It names none of them.
    """
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


def _look(options: argparse.Namespace, known: Known, needed: list[Int64]) -> dict[str, Any]:
    """Return what of the needed chunks is there, and how long the others take, as JSON has it."""
    from stoker.cache.folder import is_cache
    from stoker.cache.mirror import Mirror
    from stoker.cache.store import Store

    cache = Path(options.cache)
    missing: list[dict[str, object]] = []
    num_needed, missing_bytes, seconds, notes = 0, 0, 0.0, list[str]()
    is_bound, num_mirrored = False, 0
    mirrored = Mirror(options.mirror).sizes() if options.mirror else {}
    store = Store(cache) if is_cache(cache) else None
    try:
        for one, chunks in zip(known.datasets, needed, strict=True):
            filled = dict.fromkeys([*_opening(one), *chunks[one.num_samples[chunks] > 0].tolist()])
            has = [store is not None and _has(one, store, chunk, options.on_error) for chunk in filled]
            absent = [chunk for chunk, is_there in zip(filled, has, strict=True) if not is_there]
            num_needed += len(filled)
            missing += [{"chunk": chunk, "fragment": str(one.catalogue.fragments[chunk])} for chunk in absent]
            fetched = [chunk for chunk in absent if one.catalogue.key(chunk) in mirrored]
            num_mirrored += len(fetched)
            if fetched:
                is_bound = True
                notes.append(f"fetching {count_text(len(fetched), 'chunk')} from the mirror comes on top")
            absent = [chunk for chunk in absent if chunk not in set(fetched)]
            if absent:
                rate = _rate(one, store, absent)
                num_samples = int(one.num_samples[absent].sum())
                seconds += num_samples / max(rate.samples_s, 1e-9)
                missing_bytes += round(num_samples * _sample_bytes(one, store))
                is_bound |= rate.is_bound
                notes.append(rate.told)
    finally:
        if store is not None:
            store.close()
    there = cache if cache.exists() else next(parent for parent in cache.parents if parent.exists())
    return {
        "is_ready": not missing,
        "num_chunks": num_needed,
        "num_missing": len(missing),
        "num_mirrored": num_mirrored,
        "missing": missing[:_MOST_NAMED],
        "missing_bytes": missing_bytes,
        "free_bytes": shutil.disk_usage(there).free,
        "seconds": round(seconds, 1),
        "is_bound": is_bound,
        "rate": "; ".join(dict.fromkeys(notes)) or None,
    }


def _opening(known: KnownSet) -> list[int]:
    """Return the chunk that a loader makes sure of when it is made: the first with samples, unless it is a part."""
    first = np.flatnonzero(known.num_samples)[:1].tolist()
    return [chunk for chunk in first if len(known.catalogue.unit(chunk)) == 1]


def _has(known: KnownSet, store: Store, chunk: int, on_error: str) -> bool:
    from stoker.cache.substitute import Substitutes

    is_there = store.size_of(known.catalogue.key(chunk)) is not None
    if is_there or on_error == "raise":
        return is_there
    return store.size_of(Substitutes(known.catalogue, store).key(chunk)) is not None


def _rate(known: KnownSet, store: Store | None, absent: list[int]) -> BuildRate:
    from stoker.host.machine import num_cores
    from stoker.plan.known import measured_rate, noted_rate

    present = set(range(len(known.catalogue))).difference(absent)
    noted = None if store is None else noted_rate(known, store, sorted(present))
    return noted or measured_rate(known, absent[0], num_threads=min(num_cores(), len(absent)))


def _sample_bytes(known: KnownSet, store: Store | None) -> float:
    """Return about how much a sample takes in the cache: as in the chunks that are there, or as its columns say."""
    sizes, num_samples = 0, 0
    for chunk in np.flatnonzero(known.num_samples).tolist() if store is not None else ():
        assert store is not None
        size_bytes = store.size_of(known.catalogue.key(chunk))
        if size_bytes is not None:
            sizes, num_samples = sizes + size_bytes, num_samples + int(known.num_samples[chunk])
    if num_samples:
        return sizes / num_samples
    spec = known.planned_spec()
    return 0.0 if spec is None else float(spec.record_bytes)


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
    size = f"About {bytes_text(found['missing_bytes'])} are to be built, which takes "
    least = "at least " if found["is_bound"] else "about "
    if found["num_mirrored"] < found["num_missing"]:
        print_line(console, f"{size}{least}{duration_text(found['seconds'])} ({found['rate']}).")
    else:
        print_line(console, "The mirror has all of them: they are fetched when they are needed.")
    if found["missing_bytes"] > found["free_bytes"]:
        print_line(console, f"Its disk has {bytes_text(found['free_bytes'])} free, which is less.", "yellow")
    print_line(console, f"First: {found['missing'][0]['fragment']}. `stoker warm` builds them all.")
