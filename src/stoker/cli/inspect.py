"""`stoker inspect`: what a data set is, and what a loader would make of it."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.text import Text

from stoker.cli.arguments import FAILED, OK
from stoker.cli.target import counting, target_of, unit_of
from stoker.columns import ColumnAnswer
from stoker.dataset.mixture import Mixture
from stoker.paint import print_facts, print_json, print_line, table
from stoker.plan.inspection import DatasetInspection, Inspection, inspect
from stoker.plan.savings import BATCH_SIZE, NarrowingFound, SharingFound, find_narrowing, find_sharing
from stoker.words import bytes_text, count_text, plain_number, some_of

# So many columns of one kind, numbered in their names, are shown as one line.
_MIN_RUN = 3
# A narrower terminal shows what columns become rather than what they were.
_WIDE = 76
# Below it, sharing is not worth its tables.
_MIN_FACTOR = 1.1


def run(options: argparse.Namespace, console: Console) -> int:
    """Show what a data set is, and what each of its columns becomes."""
    target, cache = target_of(options), Path(options.cache) if options.cache else None
    asked_for = "--deduplicate" if options.deduplicate else "--compact" if options.compact else ""
    if asked_for and (names := getattr(target, "names", ())):
        raise ValueError(f"{asked_for} looks at one data set; name one of {', '.join(names)} in the module")
    with counting() as (say, show):
        looked_at = inspect(target, cache=cache, unit=unit_of(options), on_count=show)
        first = next(iter(looked_at.parts.values()))
        say("reading some rows …")
        sharing = find_sharing(first.catalogue) if options.deduplicate and not first.problems else None
        narrowing = find_narrowing(first.catalogue) if options.compact and not first.problems else None
    mixture = looked_at.mixture
    if options.json:
        told = _inspection_json(first) if mixture is None else _mixture_json(looked_at, mixture)
        if sharing is not None:
            more = {"kept_bytes": sharing.kept_bytes, "shuffled_bytes": sharing.shuffled_bytes}
            told["sharing"] = asdict(sharing) | more | {"deduplicate": _deduplicate(sharing)}
        if narrowing is not None:
            more = {"kept_bytes": narrowing.kept_bytes, "rounded_bytes": narrowing.rounded_bytes}
            told["narrowing"] = asdict(narrowing) | more
        print_json(told)
    elif mixture is not None:
        _print_mixture(looked_at, mixture, console)
    else:
        _print_inspection(first, console)
        if sharing is not None:
            console.print()
            _print_sharing(sharing, console, num_samples=first.num_samples)
        if narrowing is not None:
            console.print()
            _print_narrowing(narrowing, console, num_samples=first.num_samples)
    problems = first.problems if mixture is None else looked_at.problems
    return FAILED if problems else OK


def _print_inspection(found: DatasetInspection, console: Console, *, is_part: bool = False) -> None:
    """Print what is known of a data set, alone or as a part of a mixture."""
    catalogue = found.catalogue
    print_line(console, some_of(catalogue.dataset.sources, 1), "bold")
    rows = count_text(found.num_rows, "row")
    if found.num_samples != found.num_rows:
        why = "are not deleted" if catalogue.dataset.filter is None else "pass the filter"
        rows += f", {count_text(found.num_samples)} {why}"
    chunk_bytes = bytes_text(catalogue.dataset.chunk_bytes)
    facts = {
        "files": f"{count_text(len(catalogue.files))}, {bytes_text(catalogue.file_bytes)}",
        "rows": rows,
        "row groups": f"{count_text(len(found.groups))}{_group_text(found)}",
        "chunks": f"{count_text(len(catalogue))}, each of up to about {chunk_bytes} decoded",
        "an epoch": "" if found.units is None else str(found.units),
    }
    print_facts(console, facts.items())
    console.print()
    if found.columns:
        _print_columns(found, console)
        console.print()
    if catalogue.dataset.transform is not None:
        _print_transform(found, console)
    if found.problems:
        num = len(found.problems)
        _print_problems(found, console, f"this{'' if num == 1 else f', for {num} reasons'}")
    else:
        print_facts(console, _sizes(found, is_part=is_part))


def _print_problems(found: DatasetInspection | Inspection, console: Console, what: str) -> None:
    print_line(console, f"A loader would refuse {what}:", "bold red")
    for problem in found.problems:
        print_line(console, f"  {problem}")


def _group_text(found: DatasetInspection) -> str:
    if not len(found.groups):
        return ""
    (fewest, median, most), (least_bytes, median_bytes, most_bytes) = found.spreads
    if fewest == most:
        return f" of {count_text(median, 'row')}, {bytes_text(median_bytes)} before compression"
    num = f"{count_text(fewest)} to {count_text(most)} rows (median {count_text(median)})"
    return f", {num}, {bytes_text(least_bytes)} to {bytes_text(most_bytes)} before compression"


def _print_columns(found: DatasetInspection, console: Console) -> None:
    becomes = "becomes" if found.catalogue.dataset.transform is None else "without the transform"
    heads = ["column", "Arrow type", becomes, "bytes", "nulls"]
    rows: list[list[str | Text]] = []
    for alike in _runs(found):
        first, num, nulls = alike[0], len(alike), found.nulls.get(alike[0].column, 0)
        size = ""
        if first.sample_bytes is not None:
            exact = plain_number(first.sample_bytes)
            size = exact if first.is_exact else f"≈ {plain_number(round(first.sample_bytes))}"
        rows.append(
            [
                first.column if num == 1 else f"{first.column} … {alike[-1].column} ({num})",
                Text(first.arrow_type, style="dim"),
                _becomes(first, num),
                f"{num} x {size}" if size and num > 1 else size,
                Text("?" if nulls is None else count_text(nulls), style="yellow" if nulls else "dim"),
            ]
        )
    if console.width < _WIDE:
        heads, rows = heads[:1] + heads[2:], [row[:1] + row[2:] for row in rows]
    console.print(table(*heads, rows=rows, numbers=("bytes", "nulls"), folds=heads[:-2]))


def _runs(found: DatasetInspection) -> list[list[ColumnAnswer]]:
    """Return columns that differ only by a number in their names together, others alone."""

    def kind(answer: ColumnAnswer) -> tuple[object, ...]:
        names = (re.sub(r"\d+", "#", name) for name in (answer.column, answer.field or ""))
        is_refused, nulls = answer.problem is not None, found.nulls.get(answer.column, 0)
        return (*names, answer.arrow_type, answer.becomes, answer.sample_bytes, is_refused, nulls)

    runs: list[list[ColumnAnswer]] = []
    for _, group in groupby(found.columns, key=kind):
        members = list(group)
        runs += [members] if len(members) >= _MIN_RUN else [[member] for member in members]
    return runs


def _becomes(answer: ColumnAnswer, num: int) -> Text:
    if answer.becomes is None:
        return Text("refused", style="red")
    if answer.field == answer.column or (num > 1 and re.search(r"\d", answer.field or "")):
        return Text(answer.becomes, style="green")
    return Text.assemble(f"{answer.field}: ", (answer.becomes, "green"))


def _print_transform(found: DatasetInspection, console: Console) -> None:
    if found.spec is None:
        way_out = "name a cache that a loader or `stoker warm` has used"
        print_line(console, f"What the transform makes of them is known once a chunk is built: {way_out}.")
        return
    kinds = {entry: Text(str(entry).removeprefix(f"{entry.name}: "), style="green") for entry in found.spec}
    rows = [(one.name, kind, "" if one.is_ragged else f"{one.value_bytes:,}") for one, kind in kinds.items()]
    console.print(table("field", "after the transform", "bytes", rows=rows, numbers=("bytes",)))
    console.print()


def _sizes(found: DatasetInspection, *, is_part: bool) -> list[tuple[str, str]]:
    about, num_chunks, spec = "" if found.is_exact else "about ", len(found.catalogue), found.spec
    sample = size = window = present = ""
    if spec is not None:
        sample = "" if found.sample_bytes is None else f"{about}{count_text(found.sample_bytes, 'byte')}: "
        sample += f"record of {count_text(spec.record_bytes, 'byte')}"
        sample += f", {count_text(len(spec.ragged), 'ragged field')} beside it" if spec.ragged else ""
    if found.size_bytes is not None:
        about = "less, by what is shared, than " if spec is not None and spec.keys else about
        size = f"{about}{bytes_text(found.size_bytes)} in {count_text(num_chunks, 'chunk')}"
    if found.window is not None and not is_part:  # a mixture has one for all
        mixed = "all of them" if found.window >= num_chunks else count_text(found.window, "chunk")
        window = f"{mixed} mixed together"
    if found.num_present is not None:
        present = f"{count_text(found.num_present)} of {count_text(num_chunks, 'chunk')}"
    return [("a sample", sample), ("on SSD", size), ("default window", window), ("in the cache", present)]


def _print_mixture(found: Inspection, mixture: Mixture, console: Console) -> None:
    """Print what an epoch has of each data set, and what each of them is."""
    print_line(console, f"a mixture of {count_text(len(mixture.names), 'data set')}", "bold")
    if found.counts is not None:
        total = max(sum(found.counts.values()), 1)
        rows = []
        for name, count in found.counts.items():
            num = found.num_samples[name]
            comes = f"{count / num:.2f} times" if num else ""
            rows.append((name, count_text(num), count_text(count), f"{count / total:.1%}", comes))
        heads = ("has", "gives an epoch", "of it", "comes")
        console.print()
        console.print(table("data set", *heads, rows=rows, numbers=heads, folds=("data set",)))
        console.print()
        ends = "" if mixture.weights is None else f", until the {mixture.until} data set is used up"
        counted = next(iter(found.parts.values())).units
        told = "samples" if counted is None else counted.told
        window = "" if found.window is None else f"{count_text(found.window)} chunks of each"
        epoch = f"{count_text(sum(found.counts.values()))} {told}{ends}"
        print_facts(console, [("an epoch", epoch), ("default window", window)])
    for name, part in found.parts.items():
        console.print()
        print_line(console, name, "bold cyan")
        _print_inspection(part, console, is_part=True)
    if found.problems:
        console.print()
        _print_problems(found, console, "this mixture")


def _inspection_json(found: DatasetInspection) -> dict[str, object]:
    catalogue = found.catalogue
    rows, num_bytes = (dict(zip(("min", "median", "max"), spread, strict=True)) for spread in found.spreads)
    return {
        "sources": list(map(str, catalogue.dataset.sources)),
        "fingerprint": catalogue.fingerprint,
        "num_files": len(catalogue.files),
        "size_bytes": catalogue.file_bytes,
        "num_rows": found.num_rows,
        "num_samples": found.num_samples,
        "num_row_groups": len(found.groups),
        "rows_a_row_group": rows,
        "bytes_a_row_group": num_bytes,
        "num_chunks": len(catalogue),
        "columns": [asdict(answer) | {"num_nulls": found.nulls.get(answer.column, 0)} for answer in found.columns],
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


def _mixture_json(found: Inspection, mixture: Mixture) -> dict[str, object]:
    weights = mixture.weights
    return {
        "fingerprint": found.fingerprint,
        "weights": None if weights is None else {name: float(weight) for name, weight in weights.items()},
        "until": None if weights is None else mixture.until,
        "num_samples": None if found.counts is None else sum(found.counts.values()),
        "counts": None if found.counts is None else dict(found.counts),
        "default_window": found.window,
        "problems": list(found.problems),
        "datasets": {name: _inspection_json(part) for name, part in found.parts.items()},
    }


def _print_sharing(found: SharingFound, console: Console, *, num_samples: int) -> None:
    seen = f"in {count_text(found.num_rows, 'row')} that were read"
    if not found.keys:
        print_line(console, f"Deduplicating would not pay: neighbouring rows have too few equal values, {seen}.")
        return
    print_line(console, f"Fields that repeat from row to row, {seen}:", "bold")
    rows = [
        (
            one.key,
            f"{one.run_rows:.1f}",
            f"{one.row_bytes / found.row_bytes:.0%}",
            Text(", ".join(one.patterns) or "none but the key", style="green"),
        )
        for one in found.keys
    ]
    heads = ("key", "rows per run", "share of a row", "fields that do not change within a run")
    console.print(table(*heads, rows=rows, numbers=heads[1:3], folds=heads[3:]))
    console.print()
    kept, shuffled = found.row_bytes / found.kept_bytes, found.row_bytes / found.shuffled_bytes
    few = "" if shuffled >= _MIN_FACTOR else ": does not pay, too few rows of a run are in one batch"
    grouped = f"{kept:.1f} times smaller with Loader(group_by={found.keys[0].key!r})"
    facts = [
        ("on SSD", f"{kept:.1f} times smaller, {_become(found.row_bytes, found.kept_bytes, num_samples)}"),
        (f"a batch of {BATCH_SIZE:,}", grouped),
        ("", f"{shuffled:.2f} times smaller in random order over {count_text(found.window_rows, 'row')}{few}"),
        ("write", f"Dataset(..., deduplicate={json.dumps(_deduplicate(found))})"),
    ]
    print_facts(console, facts)


def _deduplicate(found: SharingFound) -> dict[str, list[str]]:
    """Return the argument of `Dataset` that asks for what was found."""
    return {one.key: list(one.patterns or (one.key,)) for one in found.keys}


def _print_narrowing(found: NarrowingFound, console: Console, *, num_samples: int) -> None:
    seen = f"in {count_text(found.num_rows, 'row')} that were read"
    if not found.fields:
        print_line(console, f"No field could be kept much narrower, {seen}.")
        return
    print_line(console, f"Fields that fit into narrower types, {seen}:", "bold")
    rows = [
        (
            one.field,
            Text(f'"{one.storage_dtype}"', style="yellow" if one.error else "green"),
            f"{one.row_bytes:,.0f}",
            f"{one.kept_bytes:,.0f}",
            f"values within {one.error:.1g}" if one.error else "the same values",
        )
        for one in found.fields
    ]
    heads = ("field", "storage_dtype", "bytes per row", "then", "batches have")
    console.print(table(*heads, rows=rows, numbers=heads[2:4], folds=heads[:1]))
    console.print()
    whole, exact, rounded = found.row_bytes, found.kept_bytes, found.rounded_bytes
    less = f"{whole / exact:.2f} times smaller, {_become(whole, exact, num_samples)} with those that keep every value"
    all_less = f"{whole / rounded:.2f} times smaller, {_become(whole, rounded, num_samples)} with all of them"
    first = found.fields[0]
    facts = [
        ("on SSD", less),
        ("", all_less if rounded < exact else ""),
        ("on a device", "values are widened there, so fewer bytes are copied: use as many of these as you can"),
        ("on the host", "widening takes time, most for bits and bfloat16"),
        ("write", f'fields={{"{first.field}": Field(..., storage_dtype="{first.storage_dtype}"), ...}}'),
    ]
    print_facts(console, facts)
    fits = "A value that does not fit is an error that names it, when its chunk is built"
    print_line(console, f"{fits}; integers get twice the range that these rows take.", "dim")


def _become(before: float, after: float, num_samples: int) -> str:
    return f"{bytes_text(int(before * num_samples))} become {bytes_text(int(after * num_samples))}"
