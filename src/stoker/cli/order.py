"""`stoker order quality`: how well an order mixes the samples, before anything is trained with it."""

from __future__ import annotations

import argparse
import dataclasses

import numpy as np
from rich.console import Console

from stoker.cli.arguments import OK
from stoker.cli.target import counting, planned
from stoker.dataset.units.kinds import Weighted
from stoker.paint import print_facts, print_json, print_line, table
from stoker.plan.labels import label_quality, read_labels
from stoker.sampling.quality import Quality
from stoker.words import count_text, plain_number


def quality(options: argparse.Namespace, console: Console) -> int:
    """Compare batches with those of a random permutation."""
    with counting() as (say, show):
        known, orders = planned(options, show)
        order = orders.order
        say(f"reading column {options.column} …")
        catalogues = {name: one.catalogue for name, one in known.named.items()}
        labels, are_values = read_labels(catalogues, options.column)
        say("measuring …")
        size = options.batch_size * options.world_size
        found = label_quality(orders, labels, batch_size=size, epoch=options.epoch, num_batches=options.batches)
        num_classes = len(np.unique(np.concatenate(labels)))
    unit = known.unit
    if options.json:
        units = "rows" if unit is None else unit.told()
        about = {"column": options.column, "num_classes": num_classes, "units": units, "num_samples": order.num_samples}
        print_json(_as_json(found) | about)
        return OK
    kinds = "values" if are_values else "ranges of values"
    order_of = "" if unit is None else f"{count_text(order.num_samples)} {unit.told()}"
    if not isinstance(unit, Weighted | None):
        order_of += ", each by its first row"
    print_line(console, found.sentence, "bold")
    console.print()
    facts = {
        "order of": order_of,
        "measured by": f"{options.column}, {count_text(num_classes)} {kinds}",
        "looked at": f"{count_text(found.num_batches)} batches of {count_text(size)}",
        "chi-square": f"{found.chi_square:.3f} per degree of freedom (1 in a random permutation)",
        "chunks a batch": _mean(found.num_chunks),
        "files a batch": _mean(found.num_files),
        "window": _window(found.chunks_per_window, found.chunks_per_lane),
    }
    print_facts(console, facts.items())
    if len(found.shares) > 1:
        rows = [
            (
                share.name,
                *(f"{part:.2%}" for part in (share.expected, share.mean, share.lowest, share.highest)),
                _window(share.chunks_per_window, share.chunks_per_lane),
            )
            for share in found.shares
        ]
        numbers = ("of the mixture", "of a batch", "at least", "at most", "window")
        console.print()
        console.print(table("data set", *numbers, rows=rows, numbers=numbers, folds=("data set",)))
    return OK


def _as_json(found: Quality) -> dict[str, object]:
    names = ("num_batches", "chi_square", "chunks_per_window", "chunks_per_lane", "window_for_weak", "sentence")
    return {name: getattr(found, name) for name in names} | {
        "num_chunks_a_batch": found.num_chunks,
        "num_files_a_batch": found.num_files,
        "shares": [dataclasses.asdict(share) for share in found.shares] if len(found.shares) > 1 else None,
    }


def _mean(num: float) -> str:
    return plain_number(round(num, 1))


def _window(num_chunks: float, num_of_lane: float) -> str:
    return f"{_mean(num_chunks)} of {count_text(num_of_lane)} chunks"
