"""How `stoker inspect` tells of a mixture: what an epoch has of each data set, and each data set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from stoker.cli.inspect import inspection_json, print_inspection
from stoker.cli.paint import cells, print_facts, print_line, table
from stoker.words import count_text

if TYPE_CHECKING:
    from stoker.plan.inspection import MixtureInspection


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
