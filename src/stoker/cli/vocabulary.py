"""`stoker vocabulary`: which values a column has, as a file that `Field(vocabulary=...)` takes."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from stoker.cli.arguments import OK, Commands, add_command, at_least_1, option
from stoker.cli.target import add_target, dataset_of
from stoker.paint import make_console, print_facts, print_json, print_line, progress
from stoker.words import count_text

_NUM_SHOWN = 5


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(commands, "vocabulary", run)
    add_target(parser)
    option(parser, "--column NAME", "the column, or a column of lists", required=True)
    option(parser, "--output FILE", "where to write the vocabulary, as JSON", required=True)
    option(parser, "--min-count N", "leave rarer values out", at_least_1, 1)
    option(parser, "--max-size N", "keep the N most frequent values at most", at_least_1)
    option(parser, "--extend FILE", "a vocabulary whose values keep their places")


def run(options: argparse.Namespace, console: Console) -> int:
    r"""Count the values of a column once, and keep them as a file.

    Reads one column of strings or integers once and writes its different values,
    the most frequent first, to a file: stoker.Vocabulary.load(FILE) reads it, and
    Field(vocabulary=...) turns each value into its place. With --extend, values
    that an older file has keep their places, and new ones come behind them.

    Examples:
        stoker vocabulary data/ --column word --output word.json --min-count 5
        stoker vocabulary s3://lake/2026-12/ --column word --extend word.json \
            --output word.json
    """
    from stoker.dataset.vocabulary import Vocabulary

    output = Path(options.output)
    if not output.parent.is_dir():
        raise ValueError(f"--output {output}: there is no folder {output.parent}")
    older = Vocabulary.load(options.extend) if options.extend else None
    with progress(make_console(stderr=True)) as bar:
        found = Vocabulary.from_column(
            dataset_of(options),
            options.column,
            min_count=options.min_count,
            max_size=options.max_size,
            extend=older,
            on_progress=lambda done, total: bar(
                done, total, f"reading column {options.column}: {count_text(done)} of {count_text(total, 'fragment')}"
            ),
        )
    found.save(output)
    num_new = len(found) - (0 if older is None else len(older))
    if options.json:
        about = {"column": found.column, "num_values": len(found), "num_new": num_new}
        print_json(about | {"version": found.version, "file": options.output})
        return OK
    print_line(console, f"{count_text(len(found), 'value')} of {found.column}, written to {options.output}", "bold")
    facts = {
        "first": ", ".join(map(repr, found[:_NUM_SHOWN])) + ", ..." * (len(found) > _NUM_SHOWN),
        "new": "" if older is None else f"{count_text(num_new)}, behind the {count_text(len(older))} of before",
        "version": str(found.version),
        "use it": f"Field(vocabulary=stoker.Vocabulary.load({options.output!r}), unknown={len(found)})",
    }
    print_facts(console, facts.items())
    return OK
