"""What a command works on: a URL, or a data set named in the user's code; what its order counts; how far reading is."""

from __future__ import annotations

import argparse
import csv
import importlib
import importlib.util
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from stoker.cli.paint import make_console
from stoker.errors import StokerError
from stoker.words import count_text

if TYPE_CHECKING:
    from rich.status import Status

    from stoker.dataset.catalogue import CountProgress
    from stoker.dataset.dataset import Dataset
    from stoker.dataset.mixture import Mixture
    from stoker.dataset.units.kinds import SamplingUnit
    from stoker.loader.orders import Orders
    from stoker.plan.known import Known

Show: TypeAlias = "Callable[[CountProgress], None]"

# Where there is no terminal: how long until the first line, and from one to the next.
_LINE_S = 5.0

# A module or a .py file, a colon, a name. A URL has "//" behind its colon.
_NAMED = re.compile(r"(?P<module>[^:]+):(?P<name>[A-Za-z_]\w*)")


def add_target(parser: argparse.ArgumentParser, *, takes_mixture: bool = False) -> None:
    """Add the arguments that say which data set is meant."""
    named = "a Dataset or Mixture" if takes_mixture else "a Dataset"
    parser.add_argument(
        "target", metavar="TARGET", help=f"Parquet file, folder, glob or URL; or {named} in code: train.py:dataset"
    )
    parser.add_argument(
        "--columns",
        metavar="A,B,...",
        help='only these columns, nested ones with dots; a name with a comma in quotes: A,"B,C"',
    )
    parser.add_argument("--chunk-size", metavar="SIZE", help="bytes that one chunk aims at (default: 32MiB)")
    parser.add_argument(
        "--refresh", action="store_true", help="list a remote source anew instead of trusting what the cache kept"
    )


def dataset_of(options: argparse.Namespace) -> Dataset:
    """Return the data set that the arguments name, where the command takes no mixture.

    Raises:
        ValueError: There is no such name, it is no Dataset, or options contradict it.
        StokerError: The user's module cannot be imported.
    """
    from stoker.dataset.dataset import Dataset

    found = target_of(options)
    if not isinstance(found, Dataset):
        raise ValueError(
            f"{options.target} is a stoker.Mixture, and this command takes one data set: give {found.names[0]!r} or "
            "another of its data sets a name of its own in the module, and name that"
        )
    return found


def target_of(options: argparse.Namespace) -> Dataset | Mixture:
    """Return the data set or the mixture that the arguments name.

    Raises:
        ValueError: There is no such name, it is neither, or options contradict it.
        StokerError: The user's module cannot be imported.
    """
    from stoker.dataset.dataset import Dataset
    from stoker.dataset.mixture import Mixture

    if options.target.endswith(".py") and Path(options.target).is_file():
        raise ValueError(f"{options.target} is Python: name the Dataset in it, such as {options.target}:dataset")
    match = _NAMED.fullmatch(options.target)
    if match is None or Path(options.target).exists():
        given: dict[str, Any] = {}
        if options.columns:
            # As in a CSV file: a name with a comma or with blanks around it stands in quotes.
            try:
                given["columns"] = next(csv.reader([options.columns], skipinitialspace=True))
            except csv.Error as error:
                raise ValueError(f"--columns {options.columns!r}: {error}; such names stand in quotes") from None
        if options.chunk_size:
            given["chunk_size"] = options.chunk_size
        return Dataset(options.target, refresh=options.refresh, **given)
    if options.columns or options.chunk_size:
        raise ValueError(
            f"{options.target} says itself which columns and chunk size it has; leave --columns and --chunk-size out"
        )
    module = _load(match["module"], what="the data set")
    found = getattr(module, match["name"], None)
    if not isinstance(found, Dataset | Mixture):
        names = sorted(name for name, value in vars(module).items() if isinstance(value, Dataset | Mixture))
        has = f"it has {', '.join(names)}" if names else "it has none at the top level"
        raise ValueError(
            f"{match['module']} has no stoker.Dataset or stoker.Mixture with the name {match['name']!r}; {has}"
        )
    for dataset in [found] if isinstance(found, Dataset) else found.datasets.values():
        dataset.refresh = dataset.refresh or options.refresh
    return found


def load_named(text: str, *, what: str) -> object:
    """Return what `text` names in the user's code, such as train.py:step; a module loaded before is not loaded again.

    Raises:
        ValueError: It names nothing.
        StokerError: The user's module cannot be imported.
    """
    match = _NAMED.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} does not name {what}: write train.py:name or package.module:name")
    module = _load(match["module"], what=what)
    if not hasattr(module, match["name"]):
        raise ValueError(f"{match['module']} has nothing with the name {match['name']!r} to be {what}")
    found: object = getattr(module, match["name"])
    return found


def _load(name: str, *, what: str) -> ModuleType:
    if name.endswith(".py"):
        return _load_file(Path(name), what=what)
    sys.path.insert(0, str(Path.cwd()))
    try:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    except (ModuleNotFoundError, ValueError) as error:
        raise ValueError(
            f"there is no module {name!r} to take {what} from ({error}); a script is named with its ending: "
            f"train.py:name"
        ) from None
    with _importing(name):
        return importlib.import_module(name)


def _load_file(path: Path, *, what: str) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"there is no file {path} to take {what} from")
    loaded = sys.modules.get(path.stem)
    if loaded is not None and path.resolve() == Path(getattr(loaded, "__file__", None) or "").resolve():
        return loaded
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    # A transform is known by its module's name, in the cache and in build processes.
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.resolve().parent))
    with _importing(str(path)):
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
        what = "left" if isinstance(error, SystemExit) else f"failed: {type(error).__name__}: {error}"
        raise StokerError(
            f"importing {name} {what} ({last.filename}, line {last.lineno}); what trains belongs behind "
            f'if __name__ == "__main__":'
        ) from error


def add_units(parser: argparse.ArgumentParser) -> None:
    """Add --group-by, --weights and --sequence, of which one may be given."""
    group = parser.add_argument_group("what the order counts, as your Loader has it (default: rows)")
    group.add_argument("--group-by", metavar="A,B,...", help="columns whose runs of equal values stay together")
    group.add_argument("--weights", metavar="NAME", help="column by which samples are drawn")
    group.add_argument("--sequence", metavar="NAME", help="a stoker.NGram or stoker.Pack in code: train.py:pack")


def unit_of(options: argparse.Namespace) -> SamplingUnit | None:
    """Return what the arguments say; None for rows.

    Raises:
        ValueError: They say two things, or name nothing.
        TypeError: What --sequence names is neither an NGram nor a Pack.
        StokerError: The user's module cannot be imported.
    """
    from stoker.dataset.units.kinds import parse_unit

    group_by = None if options.group_by is None else [name.strip() for name in options.group_by.split(",")]
    sequence = None if options.sequence is None else load_named(options.sequence, what="a sequence")
    return parse_unit(group_by=group_by, weights=options.weights, sequence=sequence)


@contextmanager
def counting(text: str) -> Iterator[tuple[Status, Show]]:
    """Show on stderr what is under way, and give what changes the text and what is told of counting."""
    messages = make_console(stderr=True)
    said_s = time.monotonic()
    with messages.status(text) as status:

        def show(progress: CountProgress) -> None:
            nonlocal said_s
            done = f"{count_text(progress.num_done)} of {count_text(progress.num_fragments, 'fragment')}"
            told = f"counting: {done}, {count_text(progress.num_rows, 'row')}"
            if messages.is_terminal:
                status.update(f"{told} …")
            elif time.monotonic() - said_s >= _LINE_S:
                said_s = time.monotonic()
                messages.print(told)

        yield status, show


def planned(
    options: argparse.Namespace, target: Dataset | Mixture, unit: SamplingUnit | None, show: Show
) -> tuple[Known, Orders]:
    """Return what a loader with these arguments would go through, and its orders, from footers and counts alone."""
    from stoker.plan.known import open_known, plan_orders

    cache = Path(options.cache).expanduser() if options.cache else None
    known = open_known(target, cache=cache, unit=unit, on_count=show)
    return known, plan_orders(
        known, shuffle=options.shuffle, seed=options.seed, window=options.window, lanes=options.lanes
    )
