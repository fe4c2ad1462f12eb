"""What the order counts, if not rows: the arguments of `Loader`, under their names."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from stoker.cli.target import load_named

if TYPE_CHECKING:
    from stoker.dataset.units.kinds import SamplingUnit


def add_units(parser: argparse.ArgumentParser) -> None:
    """Add --group-by, --weights and --sequence, of which one may be given."""
    group = parser.add_argument_group("what the order counts, as your Loader has it (default: rows)")
    group.add_argument("--group-by", metavar="A,B,...", help="columns whose runs of equal values stay together")
    group.add_argument("--weights", metavar="NAME", help="column by which samples are drawn")
    group.add_argument("--sequence", metavar="NAME", help="a stoker.NGram or stoker.Pack in code: train.py:pack")


def unit_of(options: argparse.Namespace) -> SamplingUnit | None:
    """Return what the arguments say; None for rows.

    Raises:
        ValueError: They say two things, or name nothing.
        TypeError: What --sequence names is neither an NGram nor a Pack.
        StokerError: The user's module cannot be imported.
    """
    from stoker.dataset.units.kinds import parse_unit

    group_by = None
    if options.group_by is not None:
        group_by = [name.strip() for name in options.group_by.split(",")]
    sequence = None
    if options.sequence is not None:
        sequence = load_named(options.sequence, what="a sequence")
    return parse_unit(group_by=group_by, weights=options.weights, sequence=sequence)
