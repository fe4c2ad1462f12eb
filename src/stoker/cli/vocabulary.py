"""`stoker vocabulary`: which values a column has, as a file that `Field(vocabulary=...)` takes."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from stoker.cli.arguments import Commands, add_command, add_json, at_least_1
from stoker.cli.paint import make_console, print_facts, print_json, print_line
from stoker.cli.target import add_target, dataset_of
from stoker.words import count_text

_NUM_SHOWN = 5


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "vocabulary",
        summary="the values of a column, counted once and kept as a file",
        text="""
Reads one column of strings or integers once and writes its different values,
the most frequent first, to a file: stoker.Vocabulary.load(FILE) reads it, and
Field(vocabulary=...) turns each value into its place. With --extend, values
that an older file has keep their places, and new ones come behind them.""",
        examples="""
stoker vocabulary data/ --column word --output word.json --min-count 5
stoker vocabulary s3://lake/2026-12/ --column word --extend word.json \\
    --output word.json""",
    )
    add_target(parser)
    parser.add_argument("--column", metavar="NAME", required=True, help="the column, or a column of lists")
    parser.add_argument("--output", metavar="FILE", required=True, help="where to write the vocabulary, as JSON")
    parser.add_argument("--min-count", metavar="N", type=at_least_1, default=1, help="leave rarer values out")
    parser.add_argument("--max-size", metavar="N", type=at_least_1, help="keep the N most frequent values at most")
    parser.add_argument("--extend", metavar="FILE", help="a vocabulary whose values keep their places")
    add_json(parser)
    parser.set_defaults(run=run_vocabulary)


def run_vocabulary(options: argparse.Namespace, console: Console) -> int:
    """Count, write and print."""
    from stoker.dataset.vocabulary import Vocabulary

    output = Path(options.output)
    if not output.parent.is_dir():
        raise ValueError(f"--output {output}: there is no folder {output.parent}")
    older = Vocabulary.load(options.extend) if options.extend else None
    messages = make_console(stderr=True)
    with messages.status(f"reading column {options.column} …") as status:
        found = Vocabulary.from_column(
            dataset_of(options),
            options.column,
            min_count=options.min_count,
            max_size=options.max_size,
            extend=older,
            on_progress=lambda done, total: status.update(
                f"reading column {options.column}: {count_text(done)} of {count_text(total, 'fragment')} …"
            ),
        )
    found.save(output)
    num_new = len(found) - (0 if older is None else len(older))
    if options.json:
        about = {"column": found.column, "num_values": len(found), "num_new": num_new}
        print_json(about | {"version": found.version, "file": options.output})
        return 0
    first = ", ".join(repr(value) for value in found[:_NUM_SHOWN])
    new = "" if older is None else f"{count_text(num_new)}, behind the {count_text(len(older))} of before"
    use = f"Field(vocabulary=stoker.Vocabulary.load({options.output!r}), unknown={len(found)})"
    print_line(console, f"{count_text(len(found), 'value')} of {found.column}, written to {options.output}", "bold")
    first += ", ..." if len(found) > _NUM_SHOWN else ""
    print_facts(console, [("first", first), ("new", new), ("version", str(found.version)), ("use it", use)])
    return 0
