"""`stoker inspect --deduplicate`: which fields neighbouring rows share, and what that would save."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from stoker.cli.paint import cells, print_facts, print_line, table
from stoker.words import bytes_text, count_text

if TYPE_CHECKING:
    from stoker.plan.savings import SharingFound

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
            ("ask for it with", _argument(found)),
        ],
    )


def sharing_json(found: SharingFound) -> dict[str, object]:
    """Return what was found as JSON can write it."""
    return {
        "num_rows_read": found.num_rows,
        "row_bytes": found.row_bytes,
        "kept_row_bytes": found.kept_bytes,
        "shuffled_row_bytes": found.shuffled_bytes,
        "keys": [
            {
                "key": one.key,
                "rows_a_run": one.run_rows,
                "row_bytes": one.row_bytes,
                "fields": list(one.fields),
                "patterns": list(one.patterns),
            }
            for one in found.keys
        ],
        "deduplicate": {one.key: list(one.patterns or (one.key,)) for one in found.keys},
    }


def _argument(found: SharingFound) -> str:
    keys = {one.key: list(one.patterns or (one.key,)) for one in found.keys}
    return "Dataset(..., deduplicate=" + str(keys).replace("'", '"') + ")"
