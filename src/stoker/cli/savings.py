"""`stoker inspect --deduplicate` and `--compact`: which fields could be kept once or narrower, and what that saves."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from stoker.cli.paint import cells, print_facts, print_line, table
from stoker.words import bytes_text, count_text

if TYPE_CHECKING:
    from stoker.plan.savings import Narrower, NarrowingFound, SharingFound

# Below it, sharing is not worth its tables.
_MIN_FACTOR = 1.1
_FIELDS = "fields that do not change within a run"


def print_sharing(found: SharingFound, console: Console, *, num_samples: int) -> None:
    """Print what was found, and the argument that asks for it."""
    from stoker.plan.savings import BATCH_SIZE

    seen = f"in {count_text(found.num_rows, 'row')} that were read"
    if not found.keys:
        print_line(console, f"Sharing would not pay: neighbouring rows repeat too little, {seen}.")
        return
    print_line(console, f"Neighbouring rows share fields, {seen}:", "bold")
    made = table("key", "rows a run", "of a row", _FIELDS, numbers=("rows a run", "of a row"), folds=(_FIELDS,))
    for one in found.keys:
        made.add_row(
            *cells(
                one.key,
                f"{one.run_rows:.1f}",
                f"{one.row_bytes / found.row_bytes:.0%}",
                Text(", ".join(one.patterns) or "none but the key", style="green"),
            )
        )
    console.print(made)
    console.print()
    kept, shuffled = found.row_bytes / found.kept_bytes, found.row_bytes / found.shuffled_bytes
    sizes = f"{bytes_text(int(found.row_bytes * num_samples))} become {bytes_text(int(found.kept_bytes * num_samples))}"
    key = found.keys[0].key
    few = "" if shuffled >= _MIN_FACTOR else ": does not pay, too few rows of a run meet"
    print_facts(
        console,
        [
            ("on SSD", f"{kept:.1f} times less, {sizes}"),
            (f"a batch of {BATCH_SIZE:,}", f"{kept:.1f} times less to carry with Loader(group_by={key!r})"),
            ("", f"{shuffled:.2f} times less in random order over {count_text(found.window_rows, 'row')}{few}"),
            ("ask for it with", "Dataset(..., deduplicate=" + str(_deduplicate(found)).replace("'", '"') + ")"),
        ],
    )


def sharing_json(found: SharingFound) -> dict[str, object]:
    """Return what was found as JSON can write it."""
    more = {"kept_bytes": found.kept_bytes, "shuffled_bytes": found.shuffled_bytes}
    return asdict(found) | more | {"deduplicate": _deduplicate(found)}


def narrowing_json(found: NarrowingFound) -> dict[str, object]:
    """Return what was found as JSON can write it."""
    return asdict(found) | {"kept_bytes": found.kept_bytes, "rounded_bytes": found.rounded_bytes}


def _deduplicate(found: SharingFound) -> dict[str, list[str]]:
    """Return the argument of `Dataset` that asks for what was found."""
    return {one.key: list(one.patterns or (one.key,)) for one in found.keys}


def print_narrowing(found: NarrowingFound, console: Console, *, num_samples: int) -> None:
    """Print what was found."""
    seen = f"in {count_text(found.num_rows, 'row')} that were read"
    if not found.fields:
        print_line(console, f"No field could be kept much narrower, {seen}.")
        return
    print_line(console, f"Fields could be kept narrower, {seen}:", "bold")
    numbers = ("bytes a row", "then")
    made = table("field", "storage_dtype", *numbers, "what comes back", numbers=numbers, folds=("field",))
    for one in found.fields:
        made.add_row(
            *cells(
                one.field,
                Text(f'"{one.storage_dtype}"', style="green" if not one.error else "yellow"),
                f"{one.row_bytes:,.0f}",
                f"{one.kept_bytes:,.0f}",
                "the same" if not one.error else f"within {one.error:.1g}",
            )
        )
    console.print(made)
    console.print()
    exact, rounded = found.kept_bytes, found.rounded_bytes
    print_facts(
        console,
        [
            ("on SSD", _less(found.row_bytes, exact, num_samples) + " with what comes back the same"),
            ("", _less(found.row_bytes, rounded, num_samples) + " with all of them" if rounded < exact else ""),
            ("on a device", "widened there, behind the copy of so many bytes less: give all of them that you can"),
            ("on the host", "widening takes time of its own, most for bits and bfloat16"),
            ("ask for it with", _argument(found.fields[0])),
        ],
    )
    print_line(
        console,
        "A value that does not fit is an error when its chunk is built, which names it; integers have twice the room "
        "that these rows take.",
        "dim",
    )


def _less(before: float, after: float, num_samples: int) -> str:
    sizes = f"{bytes_text(int(before * num_samples))} become {bytes_text(int(after * num_samples))}"
    return f"{before / after:.2f} times less, {sizes}"


def _argument(one: Narrower) -> str:
    return f'fields={{"{one.field}": Field(..., storage_dtype="{one.storage_dtype}"), ...}}'
