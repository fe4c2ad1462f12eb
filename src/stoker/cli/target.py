"""What a command works on: a URL, or a data set named in the user's code."""

from __future__ import annotations

import argparse
import csv
import importlib
import importlib.util
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypedDict

from stoker.errors import StokerError

if TYPE_CHECKING:
    from stoker.dataset.dataset import Dataset
    from stoker.dataset.mixture import Mixture

# A module or a .py file, a colon, a name. A URL has "//" behind its colon.
_NAMED = re.compile(r"(?P<module>[^:]+):(?P<name>[A-Za-z_]\w*)")


class _Options(TypedDict, total=False):
    columns: list[str]
    chunk_size: str


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
        given: _Options = {}
        if options.columns:
            # As in a CSV file: a name with a comma or with blanks around it stands in quotes.
            given["columns"] = next(csv.reader([options.columns], skipinitialspace=True))
        if options.chunk_size:
            given["chunk_size"] = options.chunk_size
        return Dataset(options.target, refresh=options.refresh, **given)
    if options.columns or options.chunk_size:
        raise ValueError(
            f"{options.target} says itself which columns and chunk size it has; leave --columns and --chunk-size out"
        )
    module = _load(match["module"])
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
    path = Path(match["module"])
    loaded = sys.modules.get(path.stem) if match["module"].endswith(".py") else None
    if loaded is not None and path.is_file() and path.resolve() == Path(loaded.__file__ or "").resolve():
        module = loaded
    else:
        module = _load(match["module"])
    if not hasattr(module, match["name"]):
        raise ValueError(f"{match['module']} has nothing with the name {match['name']!r} to be {what}")
    found: object = getattr(module, match["name"])
    return found


def _load(name: str) -> ModuleType:
    if name.endswith(".py"):
        return _load_file(Path(name))
    sys.path.insert(0, str(Path.cwd()))
    try:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    except (ModuleNotFoundError, ValueError) as error:
        raise ValueError(
            f"there is no module {name!r} to take the data set from ({error}); a script is named with its ending: "
            f"train.py:dataset"
        ) from None
    with _Importing(name):
        return importlib.import_module(name)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"there is no file {path} to take the data set from")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    # A transform is known by its module's name, in the cache and in build processes.
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.resolve().parent))
    with _Importing(str(path)):
        spec.loader.exec_module(module)
    return module


class _Importing:
    """Turns what the user's code raises while it is imported into one line that names the place."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, StokerError | KeyboardInterrupt):
            return
        last = traceback.extract_tb(error.__traceback__)[-1]
        what = "left" if isinstance(error, SystemExit) else f"failed: {type(error).__name__}: {error}"
        raise StokerError(
            f"importing {self._name} {what} ({last.filename}, line {last.lineno}); what trains belongs behind "
            f'if __name__ == "__main__":'
        ) from error
