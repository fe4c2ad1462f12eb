"""`stoker inspect --compact`: which fields could be kept narrower, and what that saves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from stoker.cli.paint import cells, print_facts, print_line, table
from stoker.words import bytes_text, count_text

if TYPE_CHECKING:
    from stoker.plan.savings import Narrower, NarrowingFound


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


def narrowing_json(found: NarrowingFound) -> dict[str, object]:
    """Return what was found as JSON can write it."""
    return {
        "num_rows_read": found.num_rows,
        "row_bytes": found.row_bytes,
        "kept_row_bytes": found.kept_bytes,
        "rounded_row_bytes": found.rounded_bytes,
        "fields": [
            {
                "field": one.field,
                "storage_dtype": one.storage_dtype,
                "row_bytes": one.row_bytes,
                "kept_bytes": one.kept_bytes,
                "error": one.error,
            }
            for one in found.fields
        ],
    }


def _less(before: float, after: float, num_samples: int) -> str:
    sizes = f"{bytes_text(int(before * num_samples))} become {bytes_text(int(after * num_samples))}"
    return f"{before / after:.2f} times less, {sizes}"


def _argument(one: Narrower) -> str:
    return f'fields={{"{one.field}": Field(..., storage_dtype="{one.storage_dtype}"), ...}}'
