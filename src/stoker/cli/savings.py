"""`stoker inspect --deduplicate` and `--compact`: which fields could be kept once or narrower, and what that saves."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from stoker.cli.paint import print_facts, print_line, table
from stoker.words import bytes_text, count_text

if TYPE_CHECKING:
    from stoker.plan.savings import NarrowingFound, SharingFound

# Below it, sharing is not worth its tables.
_MIN_FACTOR = 1.1


def print_sharing(found: SharingFound, console: Console, *, num_samples: int) -> None:
    """Print what was found, and the argument that asks for it."""
    from stoker.plan.savings import BATCH_SIZE

    seen = f"in {count_text(found.num_rows, 'row')} that were read"
    if not found.keys:
        print_line(console, f"Sharing would not pay: neighbouring rows repeat too little, {seen}.")
        return
    print_line(console, f"Neighbouring rows share fields, {seen}:", "bold")
    rows = [
        (
            one.key,
            f"{one.run_rows:.1f}",
            f"{one.row_bytes / found.row_bytes:.0%}",
            Text(", ".join(one.patterns) or "none but the key", style="green"),
        )
        for one in found.keys
    ]
    heads = ("key", "rows a run", "of a row", "fields that do not change within a run")
    console.print(table(*heads, rows=rows, numbers=heads[1:3], folds=heads[3:]))
    console.print()
    kept, shuffled = found.row_bytes / found.kept_bytes, found.row_bytes / found.shuffled_bytes
    few = "" if shuffled >= _MIN_FACTOR else ": does not pay, too few rows of a run meet"
    carry = f"{kept:.1f} times less to carry with Loader(group_by={found.keys[0].key!r})"
    print_facts(
        console,
        [
            ("on SSD", f"{kept:.1f} times less, {_become(found.row_bytes, found.kept_bytes, num_samples)}"),
            (f"a batch of {BATCH_SIZE:,}", carry),
            ("", f"{shuffled:.2f} times less in random order over {count_text(found.window_rows, 'row')}{few}"),
            ("ask for it with", f"Dataset(..., deduplicate={json.dumps(_deduplicate(found))})"),
        ],
    )


def sharing_json(found: SharingFound) -> dict[str, object]:
    """Return what was found as JSON can write it."""
    more = {"kept_bytes": found.kept_bytes, "shuffled_bytes": found.shuffled_bytes}
    return asdict(found) | more | {"deduplicate": _deduplicate(found)}


def _deduplicate(found: SharingFound) -> dict[str, list[str]]:
    """Return the argument of `Dataset` that asks for what was found."""
    return {one.key: list(one.patterns or (one.key,)) for one in found.keys}


def print_narrowing(found: NarrowingFound, console: Console, *, num_samples: int) -> None:
    """Print what was found, and an argument that asks for it."""
    seen = f"in {count_text(found.num_rows, 'row')} that were read"
    if not found.fields:
        print_line(console, f"No field could be kept much narrower, {seen}.")
        return
    print_line(console, f"Fields could be kept narrower, {seen}:", "bold")
    rows = [
        (
            one.field,
            Text(f'"{one.storage_dtype}"', style="yellow" if one.error else "green"),
            f"{one.row_bytes:,.0f}",
            f"{one.kept_bytes:,.0f}",
            f"within {one.error:.1g}" if one.error else "the same",
        )
        for one in found.fields
    ]
    heads = ("field", "storage_dtype", "bytes a row", "then", "what comes back")
    console.print(table(*heads, rows=rows, numbers=heads[2:4], folds=heads[:1]))
    console.print()
    whole, exact, rounded = found.row_bytes, found.kept_bytes, found.rounded_bytes
    less = f"{whole / exact:.2f} times less, {_become(whole, exact, num_samples)} with what comes back the same"
    all_less = f"{whole / rounded:.2f} times less, {_become(whole, rounded, num_samples)} with all of them"
    first = found.fields[0]
    print_facts(
        console,
        [
            ("on SSD", less),
            ("", all_less if rounded < exact else ""),
            ("on a device", "widened there, behind the copy of so many bytes less: give all of them that you can"),
            ("on the host", "widening takes time of its own, most for bits and bfloat16"),
            ("ask for it with", f'fields={{"{first.field}": Field(..., storage_dtype="{first.storage_dtype}"), ...}}'),
        ],
    )
    print_line(
        console,
        "A value that does not fit is an error when its chunk is built, which names it; integers have twice the room "
        "that these rows take.",
        "dim",
    )


def narrowing_json(found: NarrowingFound) -> dict[str, object]:
    """Return what was found as JSON can write it."""
    return asdict(found) | {"kept_bytes": found.kept_bytes, "rounded_bytes": found.rounded_bytes}


def _become(before: float, after: float, num_samples: int) -> str:
    return f"{bytes_text(int(before * num_samples))} become {bytes_text(int(after * num_samples))}"
