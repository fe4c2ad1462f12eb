"""`stoker warm`: fill a cache before training; stopped at any time, it goes on where it was.

With --engine ray, the parts of a data set are built by the tasks of a Ray cluster:

    here     0/32   1/32   2/32   ...                    which chunks are in a part is arithmetic
               ▼      ▼      ▼
    nodes    stoker warm --part I/32  ──► the node's own cache ──► the mirror

Ray decides where a part is built, and has it built again where a worker or a node is lost: what of it is in the mirror
by then is left there.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from rich.console import Console

from stoker.cache.store import Cache
from stoker.cli.arguments import FAILED, INTERRUPTED, OK
from stoker.cli.interrupts import stoppable
from stoker.cli.target import counting, target_of, unit_of
from stoker.dataset.units.kinds import SamplingUnit
from stoker.errors import StokerError
from stoker.loader.config import LoaderConfig
from stoker.loader.fill import WarmProgress, warm
from stoker.loader.opened import OpenDataset, open_datasets, pool_of
from stoker.paint import make_console, print_json, print_line, progress
from stoker.words import bytes_text, count_text, duration_text

# Without a terminal: how long from one line to the next.
_LINE_S = 10.0
# Several parts for each node, so that the last ones on a slow node do not hold up the end.
_PARTS_A_NODE = 8
# A part that fails because of its data set would fail each time, so it is not retried for ever.
_NUM_TRIES = 4
# What is added up over data sets, and over parts.
_SUMS = ("num_chunks", "num_present", "num_built", "num_fetched", "size_bytes", "num_not_uploaded")
# How often to look whether Ctrl-C was pressed.
_LOOK_S = 0.5


def run(options: argparse.Namespace, console: Console) -> int:
    """Build every chunk that the cache lacks."""
    if options.engine == "ray":
        return _run_on_ray(options, console)
    started = time.monotonic()
    warmed, names = _warm(options)
    seconds = time.monotonic() - started
    total = _total([*warmed.values()], len(names))
    if options.json:
        for one in warmed.values():
            one["units"] = None if one["units"] is None else dataclasses.asdict(one["units"])
        num_samples = sum(one["num_samples"] for one in warmed.values())
        told = warmed[""] if "" in warmed else total | {"num_samples": num_samples, "datasets": warmed}
        print_json({"cache": str(Path(options.cache).absolute()), "seconds": round(seconds, 3)} | told)
    else:
        for name, one in warmed.items():
            if name:
                print_line(console, name, "bold cyan")
            _print_end(console, options.cache, one, seconds)
        if len(warmed) < len(names):
            print_line(console, f"Not begun: {', '.join(names[len(warmed) :])}.", "yellow")
    return _code(total)


def _code(total: Mapping[str, Any]) -> int:
    return INTERRUPTED if total["was_stopped"] else FAILED if total["num_not_uploaded"] else OK


def _warm(options: argparse.Namespace) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    """Build what is missing; return what came of each data set that was begun, and the names of all."""
    target, unit = target_of(options), unit_of(options)
    config = LoaderConfig(
        batch_size=1,  # which decides nothing about chunks
        cache=Cache(Path(options.cache), limit=options.cache_limit, is_shared=options.shared, mirror=options.mirror),
        num_threads=options.threads,
        transform_in="processes" if options.processes else "threads",
        on_error=options.on_error,
        unit=unit,
    )
    messages = make_console(stderr=True)
    with counting("opening the data set …") as (_, show):
        opened = open_datasets(target, config, part=options.part, on_count=show)
    names = ("",) if opened.mixture is None else opened.mixture.names
    warmed: dict[str, dict[str, Any]] = {}
    try:
        with stoppable(messages) as stop_event:
            for name, chunks in zip(names, opened.datasets, strict=True):
                if stop_event.is_set():
                    break
                if name:
                    print_line(messages, name, "bold cyan")
                with _showing(messages) as show_progress:
                    found = warm(
                        chunks.builder,
                        pool=pool_of([chunks], config.num_threads),
                        part=options.part,
                        on_progress=show_progress,
                        stop_event=stop_event,
                    )
                warmed[name] = _warmed(chunks, found, None if options.part else unit)
    finally:
        opened.close()
    return warmed, names


def _run_on_ray(options: argparse.Namespace, console: Console) -> int:
    messages = make_console(stderr=True)
    # What Ray prints is not part of our output.
    with stoppable(messages) as stop_event, redirect_stdout(sys.stderr):
        told = _warm_on_ray(options, messages, stop_event)
    if options.json:
        print_json(told)
    else:
        built = f"{count_text(told['num_built'])} were built now"
        chunks = f"{count_text(told['num_present'], 'chunk')} of this data set"
        print_line(console, f"{options.mirror} has {chunks}; {built}.", "green")
    return OK if told["is_complete"] else INTERRUPTED if told["was_stopped"] else FAILED


def _warm_on_ray(options: argparse.Namespace, messages: Console, stop_event: threading.Event) -> dict[str, Any]:
    """Have all parts built, and return what came of them, as one `stoker warm --json` tells it.

    Parts in the making are cancelled once `stop_event` is set.
    """
    if options.mirror is None:
        why = "where the nodes put their chunks, for each other and for training"
        raise ValueError(f"--engine ray needs --mirror: {why}")
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise ValueError("--engine ray needs Ray: pip install 'stoker[ray]', here and on the nodes") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    num_parts = options.parts or _PARTS_A_NODE * len(nodes)
    threads = options.threads or max(1, int(min(node["Resources"].get("CPU", 1) for node in nodes)))
    given = {**vars(options), "threads": threads}
    build = ray.remote(num_cpus=threads, max_retries=_NUM_TRIES, retry_exceptions=True, scheduling_strategy="SPREAD")(
        build_part
    )
    left = [build.remote({**given, "part": (i, num_parts)}) for i in range(num_parts)]
    told: list[Mapping[str, Any]] = []
    try:
        while left and not stop_event.is_set():
            for done in ray.wait(left, timeout=_LOOK_S)[0]:
                told.append(ray.get(done))
                left.remove(done)
                built, found = (sum(one[name] for one in told) for name in ("num_built", "num_present"))
                chunks = f"{count_text(built, 'chunk')} built, {count_text(found - built)} were there"
                messages.print(f"{len(told)} of {count_text(num_parts, 'part')}: {chunks}")
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error
        raise StokerError(f"a part could not be built on the cluster: {cause}") from error
    finally:
        for task in left:
            ray.cancel(task)
    return _total(told, num_parts) | {"num_parts": num_parts, "num_nodes": len(nodes)}


def build_part(options: Mapping[str, Any]) -> dict[str, Any]:
    """Build a part on a node, and return what came of it; runs in a worker of Ray."""
    warmed, names = _warm(argparse.Namespace(**options))
    total = _total([*warmed.values()], len(names))
    if _code(total) != OK:
        raise RuntimeError(f"part {options['part']} is not complete: {total}")  # Ray tries again
    return total


def _warmed(chunks: OpenDataset, progress: WarmProgress, unit: SamplingUnit | None) -> dict[str, Any]:
    """Return what came of a data set, as JSON has it except for its units."""
    counts = chunks.counts()
    return {
        "fingerprint": chunks.catalogue.fingerprint,
        "num_chunks": progress.num_chunks,
        "num_present": progress.num_done,
        "num_built": counts["num_built"],
        "num_fetched": counts["num_fetched"],
        "num_not_uploaded": progress.num_not_uploaded,
        "num_samples": int(chunks.num_samples.sum()),
        "size_bytes": progress.found_bytes + progress.size_bytes,
        "is_complete": progress.is_complete,
        "is_full": progress.is_full,
        "was_stopped": not (progress.is_complete or progress.is_full),
        "units": None if unit is None else chunks.report,
    }


def _total(told: Sequence[Mapping[str, Any]], num: int) -> dict[str, Any]:
    """Return what came of all data sets of a mixture together, or of all parts: there are `num`."""
    is_all = len(told) == num
    return {
        **{name: sum(one[name] for one in told) for name in _SUMS},
        "is_complete": is_all and all(one["is_complete"] for one in told),
        "is_full": any(one["is_full"] for one in told),
        "was_stopped": not is_all or any(one["was_stopped"] for one in told),
    }


@contextmanager
def _showing(messages: Console) -> Iterator[Callable[[WarmProgress], object]]:
    """Give what shows how far warming is: a bar on a terminal, a line now and then elsewhere."""
    started_s, is_begun = time.monotonic(), messages.is_terminal
    with progress(messages, line_s=_LINE_S) as bar:

        def show(one: WarmProgress) -> None:
            nonlocal is_begun
            if not is_begun and not one.is_complete:
                there = f"{count_text(one.num_done)} of {count_text(one.num_chunks, 'chunk')} there already"
                messages.print(f"{there}, the others are built now")
            is_begun = True
            bar(one.num_done, one.num_chunks, _told(one, time.monotonic() - started_s))

        yield show


def _told(progress: WarmProgress, seconds: float) -> str:
    """Return chunks, bytes, rates and the time that is left: "3/8 chunks · 96 MB · 812,000 rows/s · 20 s left"."""
    chunks = f"{count_text(progress.num_done)}/{count_text(progress.num_chunks)} chunks"
    words = [chunks, bytes_text(progress.size_bytes)]
    num_built, num_left = progress.num_done - progress.num_found, progress.num_chunks - progress.num_done
    if num_built and seconds > 0:
        words.append(f"{count_text(progress.num_samples / seconds)} rows/s")
        words.append(f"{bytes_text(progress.size_bytes / seconds)}/s")
    if num_built and num_left:
        words.append(f"{duration_text(seconds * num_left / num_built)} left")
    return " · ".join(words)


def _print_end(console: Console, cache: str, warmed: Mapping[str, Any], seconds: float) -> None:
    if warmed["units"] is not None:
        print_line(console, f"{warmed['units']}.")
    num_built, num_fetched, num_present = warmed["num_built"], warmed["num_fetched"], warmed["num_present"]
    fetched = f"{count_text(num_fetched)} fetched from the mirror, " * bool(num_fetched)
    reused = f"{count_text(max(0, num_present - num_built - num_fetched))} already there"
    built = f"{count_text(num_built, 'chunk')} built, {fetched}{reused}"
    if warmed["num_not_uploaded"]:
        left = count_text(warmed["num_not_uploaded"], "chunk")
        print_line(console, f"{left} could not be uploaded to the mirror: the same command tries again.", "yellow")
    size, held = bytes_text(warmed["size_bytes"]), f"{num_present:,} of {warmed['num_chunks']:,} chunks"
    if warmed["was_stopped"]:
        print_line(console, f"Stopped with {held} in the cache ({size}): {built}.", "yellow")
        print_line(console, "The same command goes on from there.")
    elif warmed["is_full"]:
        print_line(console, f"{cache} is full: it holds {held} ({size}). {built}.", "yellow")
        others = "builds the others each time it needs them, unless the limit is raised"
        print_line(console, f"Training works, and {others}.")
    elif num_built + num_fetched == 0:
        print_line(console, f"{cache} was warm already: {held}, {size}.", "green")
    else:
        print_line(console, f"{cache} is warm: {held}, {size}.", "green")
        print_line(console, f"{built}, in {duration_text(seconds)}.")
