"""`stoker vocabulary`: which values a column has, as a file that `Field(vocabulary=...)` takes."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from stoker.cli.arguments import OK
from stoker.cli.target import single_dataset_of
from stoker.dataset.vocabulary import Vocabulary
from stoker.paint import make_console, print_facts, print_json, print_line, progress
from stoker.words import count_text

_NUM_SHOWN = 5


def run(options: argparse.Namespace, console: Console) -> int:
    """Count the values of a column and write them to a file."""
    output = Path(options.output)
    if not output.parent.is_dir():
        raise ValueError(f"--output {output}: there is no folder {output.parent}")
    older = Vocabulary.load(options.extend) if options.extend else None
    with progress(make_console(stderr=True)) as bar:
        found = Vocabulary.from_column(
            single_dataset_of(options),
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
