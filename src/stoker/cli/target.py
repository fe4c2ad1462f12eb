"""What a command works on: a URL, or a data set named in the user's code; what its order counts; how far reading is."""

from __future__ import annotations

import argparse
import csv
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from stoker.arguments import near
from stoker.dataset.catalogue import OnCount
from stoker.dataset.dataset import Dataset
from stoker.dataset.mixture import Mixture
from stoker.dataset.units.kinds import SamplingUnit
from stoker.errors import StokerError
from stoker.loader.config import parse_unit
from stoker.loader.orders import CountedSets, Orders
from stoker.paint import make_console, progress
from stoker.plan.known import open_known, plan_orders
from stoker.sampling import Steps
from stoker.words import count_text

# Where there is no terminal: how long until the first line, and from one to the next.
_LINE_S = 5.0
_MAX_NAMES = 10

# A module or a .py file, a colon, a name. A URL has "//" behind its colon.
_NAMED = re.compile(r"(?P<module>[^:]+):(?P<name>[A-Za-z_]\w*)")


def single_dataset_of(options: argparse.Namespace) -> Dataset:
    """Return the data set that the arguments name, where the command takes no mixture."""
    found = target_of(options)
    if not isinstance(found, Dataset):
        raise ValueError(
            f"{options.target} is a stoker.Mixture, and this command takes one data set: give {found.names[0]!r} or "
            "another of its data sets a name of its own in the module, and name that"
        )
    return found


def target_of(options: argparse.Namespace) -> Dataset | Mixture:
    """Return the data set or the mixture that the arguments name; a `ValueError` where options contradict it."""
    text = options.target
    if text.endswith(".py") and Path(text).is_file():
        raise ValueError(f"{text} is Python: name the Dataset in it, such as {text}:dataset")
    if _NAMED.fullmatch(text) is None or Path(text).exists():
        given: dict[str, Any] = {"chunk_size": options.chunk_size} if options.chunk_size else {}
        if options.columns:
            # As in a CSV file: a name with a comma or with blanks around it stands in quotes.
            try:
                given["columns"] = next(csv.reader([options.columns], skipinitialspace=True))
            except csv.Error as error:
                raise ValueError(f"--columns {options.columns!r}: {error}; such names stand in quotes") from None
        return Dataset(text, refresh=options.refresh, **given)
    if options.columns or options.chunk_size:
        raise ValueError(
            f"{text} says itself which columns and chunk size it has; leave --columns and --chunk-size out"
        )
    found: Dataset | Mixture = load_named(text, what="a Dataset or a Mixture", kinds=(Dataset, Mixture))
    for dataset in found.datasets.values() if isinstance(found, Mixture) else [found]:
        dataset.refresh = dataset.refresh or options.refresh
    return found


def load_named(text: str, *, what: str, kinds: Any = object) -> Any:
    """Return what `text` names in the user's code, such as train.py:step; a module loaded before is not loaded again.

    Raises:
        ValueError: It names nothing, or nothing of these kinds.
        StokerError: The user's module cannot be imported.
    """
    match = _NAMED.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} does not name {what}: write train.py:name or package.module:name")
    module, name = _load(match["module"], what=what), match["name"]
    if not isinstance(getattr(module, name, None), kinds) or not hasattr(module, name):
        names = [known for known, value in vars(module).items() if isinstance(value, kinds) and known[0] != "_"]
        has = near(name, names) or (f"it has {', '.join(sorted(names)[:_MAX_NAMES])}" if names else "it has none")
        raise ValueError(f"{match['module']} has nothing with the name {name!r} that is {what}; {has}")
    return getattr(module, name)


def _load(name: str, *, what: str) -> ModuleType:
    """Import a module of the user's, by its name or its file."""
    if not name.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        try:
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        except (ModuleNotFoundError, ValueError) as error:
            named = "a script is named with its ending: train.py:name"
            raise ValueError(f"there is no module {name!r} to take {what} from ({error}); {named}") from None
        with _importing(name):
            return importlib.import_module(name)
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"there is no file {path} to take {what} from")
    loaded = sys.modules.get(path.stem)
    if loaded is not None and path.resolve() == Path(getattr(loaded, "__file__", None) or "").resolve():
        return loaded
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # of every file that ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A transform is known by its module's name, in the cache and in build processes.
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.resolve().parent))
    with _importing(name):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _importing(name: str) -> Iterator[None]:
    """Turn what the user's code raises while it is imported into one line that names the place."""
    try:
        yield
    except (StokerError, KeyboardInterrupt):
        raise
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        what = "exited" if isinstance(error, SystemExit) else f"failed: {type(error).__name__}: {error}"
        where = f"{last.filename}, line {last.lineno}"
        way_out = 'what trains belongs behind if __name__ == "__main__":'
        raise StokerError(f"importing {name} {what} ({where}); {way_out}") from error


def unit_of(options: argparse.Namespace) -> SamplingUnit | None:
    """Return what the arguments say that the order counts; None for rows."""
    group_by = None if options.group_by is None else [name.strip() for name in options.group_by.split(",")]
    sequence = None if options.sequence is None else load_named(options.sequence, what="a sequence")
    return parse_unit(group_by=group_by, weights=options.weights, sequence=sequence)


@contextmanager
def counting(text: str = "reading footers …") -> Iterator[tuple[Callable[[str], object], OnCount]]:
    """Show on stderr what is under way, and give what changes the text and what is told of counting."""
    with progress(make_console(stderr=True), line_s=_LINE_S) as bar:

        def show(num_done: int, num_fragments: int, num_rows: int) -> None:
            done = f"{count_text(num_done)} of {count_text(num_fragments, 'fragment')}"
            bar(num_done, num_fragments, f"counting: {done}, {count_text(num_rows, 'row')}")

        say = partial(bar, 0, None)
        say(text)
        yield say, show


def planned(options: argparse.Namespace, show: OnCount) -> tuple[CountedSets, Orders]:
    """Return what a loader with these arguments would go through, and its orders, from footers and counts alone."""
    cache = Path(options.cache) if options.cache else None
    known = open_known(target_of(options), cache=cache, unit=unit_of(options), on_count=show)
    order = {name: getattr(options, name) for name in ("shuffle", "seed", "window", "lanes")}
    return known, plan_orders(known, **order)


def steps_of(options: argparse.Namespace, orders: Orders) -> Steps:
    """Return the steps of the epoch that the arguments name."""
    return Steps(
        lane_sizes=orders.order.lane_sizes_in(options.epoch),
        global_batch_size=options.batch_size * options.world_size,
        remainder=options.remainder,
    )
