"""`stoker inspect`: what a data set is, and what a loader would make of it."""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from stoker.cli.arguments import Commands, add_cache, add_command, add_json
from stoker.cli.paint import cells, make_console, print_facts, print_json, print_line, table
from stoker.cli.savings import narrowing_json, print_narrowing, print_sharing, sharing_json
from stoker.cli.target import add_target, add_units, counting, target_of, unit_of
from stoker.words import bytes_text, count_text, plain_number, some_of

if TYPE_CHECKING:
    from stoker.columns import ColumnAnswer
    from stoker.plan.inspection import Inspection, MixtureInspection
    from stoker.plan.overview import Spread

# So many columns of one kind, numbered in their names, are shown as one line.
_MIN_RUN = 3
_WIDE = 76


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "inspect",
        summary="what a data set is, and what each of its columns becomes",
        text="""
Shows what lies at TARGET (files, row groups, rows) and what a loader would
make of it: the tensor each column becomes, bytes a sample, size on SSD.
Reads footers only; with --deduplicate also some rows, to see which fields do not
change from row to row and what keeping them once would save; with --compact
the same, for fields that could be kept in narrower numbers. Exits with 1 if a
loader would refuse a column, and says what to do about it.""",
        examples="""
stoker inspect s3://lake/ranking/2026-11/
stoker inspect data/ --columns label,dense_0,user.age
stoker inspect data/ --deduplicate
stoker inspect data/ --compact
stoker inspect train.py:dataset --cache /nvme/stoker""",
    )
    add_target(parser, takes_mixture=True)
    add_cache(parser, "a cache folder: says how much of the data set it holds")
    parser.add_argument(
        "--deduplicate",
        action="store_true",
        help="read some rows: says which fields could be shared, and what that saves",
    )
    parser.add_argument(
        "--compact",
        action="store_true",
        help="read some rows: says which fields could be kept narrower, and what it costs",
    )
    add_units(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, console: Console) -> int:
    """Inspect and print."""
    from stoker.dataset.dataset import Dataset
    from stoker.plan.inspection import inspect, inspect_mixture

    target, unit = target_of(options), unit_of(options)
    cache = Path(options.cache).expanduser() if options.cache else None
    if not isinstance(target, Dataset):
        if options.deduplicate or options.compact:
            asked_for = "--deduplicate" if options.deduplicate else "--compact"
            raise ValueError(f"{asked_for} looks at one data set; name one of {', '.join(target.names)} in the module")
        with counting("reading footers …") as (_, show):
            mixed = inspect_mixture(target, cache=cache, unit=unit, on_count=show)
        if options.json:
            print_json(mixture_json(mixed))
        else:
            print_mixture(mixed, console)
        return 1 if mixed.problems else 0
    with counting("reading footers …") as (_, show):
        found = inspect(target, cache=cache, unit=unit, on_count=show)
    sharing = narrowing = None
    if not found.problems and (options.deduplicate or options.compact):
        from stoker.plan.savings import find_narrowing, find_sharing

        with make_console(stderr=True).status("reading some rows …"):
            sharing = find_sharing(found.catalogue) if options.deduplicate else None
            narrowing = find_narrowing(found.catalogue) if options.compact else None
    if options.json:
        shared = {} if sharing is None else {"sharing": sharing_json(sharing)}
        narrow = {} if narrowing is None else {"narrowing": narrowing_json(narrowing)}
        print_json(inspection_json(found) | shared | narrow)
        return 1 if found.problems else 0
    print_inspection(found, console)
    if sharing is not None:
        console.print()
        print_sharing(sharing, console, num_samples=found.num_samples)
    if narrowing is not None:
        console.print()
        print_narrowing(narrowing, console, num_samples=found.num_samples)
    return 1 if found.problems else 0


def print_inspection(found: Inspection, console: Console, *, is_part: bool = False) -> None:
    """Print what is known of a data set, alone or as a part of a mixture."""
    source, catalogue = found.source, found.catalogue
    print_line(console, _title(found), "bold")
    rows = count_text(source.num_rows, "row")
    if found.num_samples != source.num_rows:
        why = "are not deleted" if catalogue.dataset.filter is None else "pass the filter"
        rows += f", {count_text(found.num_samples)} {why}"
    print_facts(
        console,
        [
            ("files", f"{count_text(source.num_files)}, {bytes_text(source.size_bytes)}"),
            ("rows", rows),
            ("row groups", f"{count_text(source.num_row_groups)}{_group_text(source.num_row_groups, found)}"),
            ("chunks", f"{count_text(len(catalogue))}, each of up to about {_chunk_size(found)} decoded"),
            ("an epoch", "" if found.units is None else str(found.units)),
        ],
    )
    console.print()
    if found.columns:
        _print_columns(found, console)
        console.print()
    if catalogue.dataset.transform is not None:
        _print_transform(found, console)
    if found.problems:
        num = len(found.problems)
        print_line(console, f"A loader would refuse this{'' if num == 1 else f', for {num} reasons'}:", "bold red")
        for problem in found.problems:
            print_line(console, f"  {problem}")
        return
    print_facts(console, _sizes(found, is_part=is_part))


def _chunk_size(found: Inspection) -> str:
    return bytes_text(found.catalogue.dataset.chunk_bytes)


def _title(found: Inspection) -> str:
    return some_of(found.catalogue.dataset.sources, 1)


def _group_text(num_groups: int, found: Inspection) -> str:
    if not num_groups:
        return ""
    rows, sizes = found.source.rows_a_group, found.source.bytes_a_group
    if num_groups == 1:
        return f", {count_text(rows.median, 'row')}, {bytes_text(sizes.median)} before compression"
    return (
        f", {count_text(rows.minimum)} to {count_text(rows.maximum)} rows (median {count_text(rows.median)}), "
        f"{bytes_text(sizes.minimum)} to {bytes_text(sizes.maximum)} before compression"
        if rows.minimum != rows.maximum
        else f" of {count_text(rows.median)} rows, {bytes_text(sizes.median)} before compression"
    )


def _print_columns(found: Inspection, console: Console) -> None:
    becomes = "becomes" if found.catalogue.dataset.transform is None else "without the transform"
    # A narrow terminal shows what columns become rather than what they were.
    is_wide = console.width >= _WIDE
    heads = ("column", *(["Arrow type"] if is_wide else []), becomes, "bytes", "nulls")
    made = table(*heads, numbers=("bytes", "nulls"), folds=("column", "Arrow type", becomes))
    nulls = found.source.nulls
    for run_of_columns in _runs(found):
        first, last, num = run_of_columns[0], run_of_columns[-1], len(run_of_columns)
        name = first.column if num == 1 else f"{first.column} … {last.column} ({num})"
        made.add_row(
            *cells(
                name,
                *([Text(first.arrow_type, style="dim")] if is_wide else []),
                _becomes(first, num),
                "" if first.sample_bytes is None else _mean_text(first, num),
                _null_text(first.column, nulls),
            )
        )
    console.print(made)


def _runs(found: Inspection) -> list[list[ColumnAnswer]]:
    """Return columns that differ only by a number in their names together, others alone."""
    runs: list[list[ColumnAnswer]] = []
    for _, group in groupby(found.columns, key=lambda answer: _kind(answer, found)):
        members = list(group)
        runs += [members] if len(members) >= _MIN_RUN else [[member] for member in members]
    return runs


def _kind(answer: ColumnAnswer, found: Inspection) -> tuple[object, ...]:
    return (
        re.sub(r"\d+", "#", answer.column),
        re.sub(r"\d+", "#", answer.field or ""),
        answer.arrow_type,
        answer.becomes,
        answer.sample_bytes,
        answer.problem is None,
        found.source.nulls.get(answer.column, 0),
    )


def _becomes(answer: ColumnAnswer, num: int) -> Text:
    if answer.becomes is None:
        return Text("refused", style="red")
    if answer.field == answer.column or (num > 1 and re.search(r"\d", answer.field or "")):
        return Text(answer.becomes, style="green")
    return Text.assemble(f"{answer.field}: ", (answer.becomes, "green"))


def _mean_text(answer: ColumnAnswer, num: int) -> str:
    assert answer.sample_bytes is not None
    each = plain_number(answer.sample_bytes) if answer.is_exact else f"≈ {plain_number(round(answer.sample_bytes))}"
    return each if num == 1 else f"{num} x {each}"


def _null_text(column: str, nulls: dict[str, int | None]) -> Text:
    known = nulls.get(column, 0)
    if known is None:
        return Text("?", style="dim")
    return Text(count_text(known), style="dim" if known == 0 else "yellow")


def _print_transform(found: Inspection, console: Console) -> None:
    if found.spec is None:
        print_line(
            console,
            "What the transform makes of them is known once a chunk is built: name a cache that a loader or "
            "`stoker warm` has used.",
        )
        return
    made = table("field", "after the transform", "bytes", numbers=("bytes",))
    for entry in found.spec:
        text = str(entry).removeprefix(f"{entry.name}: ")
        made.add_row(*cells(entry.name, Text(text, style="green"), "" if entry.is_ragged else f"{entry.value_bytes:,}"))
    console.print(made)
    console.print()


def _sizes(found: Inspection, *, is_part: bool) -> list[tuple[str, str]]:
    about = "" if found.is_exact else "about "
    facts: list[tuple[str, str]] = []
    if found.spec is not None:
        record = f"record of {count_text(found.spec.record_bytes, 'byte')}"
        lists = f", {count_text(len(found.spec.ragged), 'ragged field')} beside it" if found.spec.ragged else ""
        size = "" if found.sample_bytes is None else f"{about}{count_text(found.sample_bytes, 'byte')}: "
        facts.append(("a sample", f"{size}{record}{lists}"))
    if found.size_bytes is not None:
        is_shared = found.spec is not None and bool(found.spec.keys)
        about = "less, by what is shared, than " if is_shared else about
        facts.append(
            ("on SSD", f"{about}{bytes_text(found.size_bytes)} in {count_text(len(found.catalogue), 'chunk')}")
        )
    if found.window is not None and not is_part:  # a mixture has one for all
        mixed = "all of them" if found.window >= len(found.catalogue) else count_text(found.window, "chunk")
        facts.append(("default window", f"{mixed} mixed together"))
    if found.num_present is not None:
        facts.append(
            ("in the cache", f"{count_text(found.num_present)} of {count_text(len(found.catalogue), 'chunk')}")
        )
    return facts


def print_mixture(found: MixtureInspection, console: Console) -> None:
    """Print what an epoch has of each data set, and what each of them is."""
    mixture = found.mixture
    print_line(console, f"a mixture of {count_text(len(mixture.names), 'data set')}", "bold")
    if found.counts is not None:
        heads = ("has", "gives an epoch", "of it", "comes")
        made = table("data set", *heads, numbers=heads, folds=("data set",))
        total = max(sum(found.counts.values()), 1)
        for name, count in found.counts.items():
            num = found.num_samples[name]
            comes = f"{count / num:.2f} times" if num else ""
            made.add_row(*cells(name, count_text(num), count_text(count), f"{count / total:.1%}", comes))
        console.print()
        console.print(made)
        console.print()
        ends = "" if mixture.weights is None else f", until the {mixture.until} data set is used up"
        counted = next(iter(found.parts.values())).units
        told = "samples" if counted is None else counted.told
        print_facts(
            console,
            [
                ("an epoch", f"{count_text(sum(found.counts.values()))} {told}{ends}"),
                *([] if found.window is None else [("default window", f"{count_text(found.window)} chunks of each")]),
            ],
        )
    for name, part in found.parts.items():
        console.print()
        print_line(console, name, "bold cyan")
        print_inspection(part, console, is_part=True)
    if found.problems:
        console.print()
        print_line(console, "A loader would refuse this mixture:", "bold red")
        for problem in found.problems:
            print_line(console, f"  {problem}")


def inspection_json(found: Inspection) -> dict[str, object]:
    """Return all of it as JSON can write it."""
    source, dataset = found.source, found.catalogue.dataset
    return {
        "sources": list(map(str, dataset.sources)),
        "fingerprint": found.catalogue.fingerprint,
        "num_files": source.num_files,
        "size_bytes": source.size_bytes,
        "num_rows": source.num_rows,
        "num_samples": found.num_samples,
        "num_row_groups": source.num_row_groups,
        "rows_a_row_group": _spread(source.rows_a_group),
        "bytes_a_row_group": _spread(source.bytes_a_group),
        "num_chunks": len(found.catalogue),
        "columns": [asdict(answer) | {"num_nulls": source.nulls.get(answer.column, 0)} for answer in found.columns],
        "spec": None if found.spec is None else found.spec.to_json(),
        "problems": list(found.problems),
        "record_bytes": None if found.spec is None else found.spec.record_bytes,
        "sample_bytes": found.sample_bytes,
        "is_exact": found.is_exact,
        "cache_bytes": found.size_bytes,
        "default_window": found.window,
        "num_present": found.num_present,
        "units": None if found.units is None else asdict(found.units),
    }


def mixture_json(found: MixtureInspection) -> dict[str, object]:
    """Return all of it as JSON can write it."""
    mixture = found.mixture
    weights = mixture.weights
    return {
        "fingerprint": found.fingerprint,
        "weights": None if weights is None else {name: float(weight) for name, weight in weights.items()},
        "until": None if weights is None else mixture.until,
        "num_samples": None if found.counts is None else sum(found.counts.values()),
        "counts": None if found.counts is None else dict(found.counts),
        "default_window": found.window,
        "problems": list(found.problems),
        "datasets": {name: inspection_json(part) for name, part in found.parts.items()},
    }


def _spread(spread: Spread) -> dict[str, int]:
    return {"min": spread.minimum, "median": spread.median, "max": spread.maximum}
