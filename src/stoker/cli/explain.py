"""`stoker explain`: where the samples of a step come from, and when a row is used."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from rich.console import Console

from stoker.cli.arguments import OK, at_least_0
from stoker.cli.target import counting, planned, steps_of
from stoker.errors import printable
from stoker.loader.explain import Explanation, SourceRow, explain, find_all
from stoker.loader.orders import CountedSets, Orders
from stoker.paint import print_json, print_line, print_lines
from stoker.sampling import RankShare, Steps
from stoker.words import count_text


def run(options: argparse.Namespace, console: Console) -> int:
    """Name file, row group and row of every sample of a step, or the steps of a row."""
    shard = RankShare(options.rank, options.world_size)
    with counting() as (_, show):
        known, orders = planned(options, show)
    steps = steps_of(options, orders)
    if options.find:
        return _find(options, known, orders, steps, console)
    if options.step >= steps.num_steps:
        last = f", 0 to {steps.num_steps - 1}" if steps.num_steps else ""
        raise ValueError(
            f"there is no step {options.step}: an epoch has {count_text(steps.num_steps, 'step')} of this size{last}"
        )
    found = explain(orders, steps, options.step, epoch=options.epoch, shard=shard)
    if options.json:
        _print_json(found, known, steps)
    elif console.is_terminal:
        print_line(console, str(found))
        print_line(console, "--json or a pipe has every sample", "dim")
    else:
        print_lines(map("\t".join, _rows(found, known)))
    return OK


def _rows(found: Explanation, known: CountedSets) -> Iterator[list[str]]:
    """Yield heads and cells of the samples of a step, names in them made printable."""
    is_mixed = bool(found.names)
    name = cache(partial(printable, is_line=True))  # each comes again and again
    yield ["sample" if known.unit is None else "unit", *["data set"] * is_mixed, "file", "row_group", "row"]
    for unit, row in zip(found.unit.tolist(), found, strict=True):
        yield [str(unit), *[name(row.dataset or "")] * is_mixed, name(row.url), *_place(row, known)]


def _place(row: SourceRow, known: CountedSets) -> tuple[str, str]:
    """Return row group and row as texts: of a filtered fragment, its row groups and which passing row it is."""
    if row.row_group is not None:
        return str(row.row_group), str(row.row)
    fragment = known.named[row.dataset or ""].catalogue.fragments[row.chunk]
    first, last = fragment.row_groups[0], fragment.row_groups[-1]
    part = "" if fragment.rows is None else f" rows {fragment.rows[0]}-{fragment.rows[1] - 1}"
    return (str(first) if first == last else f"{first}-{last}") + part, f"passing row {row.chunk_row}"


def _print_json(found: Explanation, known: CountedSets, steps: Steps) -> None:
    def sample(unit: int, row: SourceRow) -> dict[str, Any]:
        row_groups = known.named[row.dataset or ""].catalogue.fragments[row.chunk].row_groups
        about = row._asdict()
        about |= {"unit": unit, "file": about.pop("url"), "chunk_row_groups": [row_groups[0], row_groups[-1]]}
        return about

    print_json(
        {
            "fingerprint": known.fingerprint,
            "epoch": found.epoch,
            "step": found.step,
            "num_steps": steps.num_steps,
            "rank": found.shard.rank,
            "world_size": found.shard.world_size,
            "samples": [sample(unit, row) for unit, row in zip(found.unit.tolist(), found, strict=True)],
        }
    )


def _find(options: argparse.Namespace, known: CountedSets, orders: Orders, steps: Steps, console: Console) -> int:
    url, *place = options.find
    row_group, row = (_number(text, name) for text, name in zip(place, ("ROW_GROUP", "ROW"), strict=True))
    at = (url, row_group, row)
    uses = find_all(orders, steps, at, epoch=options.epoch, world_size=options.world_size)
    used = [use for use in uses if use.step is not None]
    if options.json:
        about = {"num_steps": steps.num_steps, "world_size": options.world_size}
        print_json({**uses[0]._asdict(), **about, "uses": [use._asdict() for use in used]})
        return OK
    what = f"row {row} of row group {row_group} of {url}"
    what += "" if uses[0].dataset is None else f" (of {uses[0].dataset})"
    if not used:
        print_line(console, f"{what} is not used in epoch {options.epoch}: {_why_not(options, known, orders)}")
        return OK
    told = [
        f"step {use.step:,} of {steps.num_steps:,}" + (f" on rank {use.rank}" if options.world_size > 1 else "")
        for use in used
    ]
    times = "" if len(told) == 1 else f" {len(told)} times"
    print_line(console, f"{what} is used{times} in epoch {options.epoch}, {', '.join(told)}")
    return OK


def _why_not(options: argparse.Namespace, known: CountedSets, orders: Orders) -> str:
    """Return what may have left a row out of an epoch."""
    reasons = ["the remainder is dropped"] if options.remainder == "drop" else []
    if orders.unit is not None:
        reasons.append(f"it is in none of the {orders.unit.told()}")
    if known.mixture is not None and known.mixture.weights is not None:
        reasons.append("its data set gives only a part of its samples to each epoch: another one has it")
    return ", or ".join(reasons) or "the reason is not known"


def _number(text: str, name: str) -> int:
    try:
        return at_least_0(text)
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"--find {name}: {error}") from None
