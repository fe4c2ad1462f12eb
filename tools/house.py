"""`python -m tools.house`: how large Stoker is, and what is in it twice, in a circle, or only for tests.

What is counted is read from the files: nothing of Stoker is imported, but for the last table, which makes loaders and
counts what Python calls on the way. A function is one of a module or of a class; those inside functions belong to it.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

REPOSITORY = Path(__file__).resolve().parent.parent
MANY_PARAMETERS = 8
LONG_LINES = 60
# What users import from, beside `stoker` itself.
PUBLIC_MODULES = ("stoker", "stoker.torch", "stoker.jax", "stoker.testing", "stoker.hf", "stoker.lightning")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class File:
    """A file of Python or C++.

    Attributes:
        path: From the repository on.
        text: What is in it.
    """

    path: Path
    text: str

    @property
    def room(self) -> str:
        """Name of its folder: below the package where it is part of it, else of the repository."""
        parts = self.path.parts
        if parts[0] == "native":
            return "native tests" if len(parts) > 2 and parts[1] in ("tests", "fuzz") else "native"
        return (f"{parts[2]}/" if len(parts) > 3 else "modules beside them") if parts[0] == "src" else f"{parts[0]}/"

    @property
    def module(self) -> str:
        """What it is imported as, where it lies below `src`."""
        return ".".join(self.path.with_suffix("").parts[1:]).removesuffix(".__init__")

    @property
    def is_python(self) -> bool:
        return self.path.suffix == ".py"

    @property
    def num_lines(self) -> int:
        return self.text.count("\n")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def exported(self) -> list[str]:
        """What its `__all__` names."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                names: list[str] = ast.literal_eval(node.value)
                return names
        return []

    @cached_property
    def classes(self) -> list[str]:
        if not self.is_python:
            return re.findall(r"^\s*(?:struct|class) (\w+)[^;]*\{", self.text, re.MULTILINE)
        return [node.name for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]

    @cached_property
    def functions(self) -> list[tuple[str, Function]]:
        """Name, with that of its class, and what it is."""
        found: list[tuple[str, Function]] = []
        within: list[tuple[str, ast.Module | ast.ClassDef]] = [("", self.tree)] if self.is_python else []
        while within:
            prefix, outer = within.pop()
            for node in outer.body:
                if isinstance(node, Function):
                    found.append((prefix + node.name, node))
                elif isinstance(node, ast.ClassDef):
                    within.append((f"{prefix}{node.name}.", node))
        return found

    @property
    def constants(self) -> list[tuple[str, int]]:
        """Name and line of what a module assigns to, but to names of two underscores."""
        found = []
        for node in self.tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found += [(one.id, one.lineno) for one in targets if isinstance(one, ast.Name)]
        return [(name, line) for name, line in found if not name.startswith("__")]

    @cached_property
    def used(self) -> Counter[str]:
        """How often each name is used: read, called, asked for by `.name` or by its text; not where it is imported.

        But where it is imported by another name, for that one is what is read there.
        """
        found: Counter[str] = Counter()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
                found[node.id] += 1
            elif isinstance(node, ast.Attribute):
                found[node.attr] += 1
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                found[node.value] += 1
            elif isinstance(node, ast.ImportFrom):
                found.update(one.name for one in node.names if one.asname not in (None, one.name))
        return found

    def __str__(self) -> str:
        return str(self.path)


class House:
    """All files of a repository, by where they are.

    Args:
        root: The repository.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = self._files("src", "*.py")
        self.native = [one for kind in ("*.h", "*.cpp") for one in self._files("native", kind)]
        self.tests = self._files("tests", "*.py")
        self.others = [one for folder in ("benchmarks", "examples", "tools") for one in self._files(folder, "*.py")]
        self.texts = self._files(".", "README.md") + self._files("docs", "*.md")

    def _files(self, folder: str, pattern: str) -> list[File]:
        paths = sorted((self.root / folder).glob(pattern) if folder == "." else (self.root / folder).rglob(pattern))
        paths = [path for path in paths if not any(part.startswith(".") for part in path.relative_to(self.root).parts)]
        return [File(path.relative_to(self.root), path.read_text(encoding="utf-8")) for path in paths]

    @property
    def rooms(self) -> dict[str, list[File]]:
        found: dict[str, list[File]] = defaultdict(list)
        for file in (*self.source, *self.native, *self.tests, *self.others):
            found[file.room].append(file)
        return dict(found)

    @property
    def public_names(self) -> list[str]:
        """What `__all__` of the package names."""
        return [name for file in self.source if file.path.match("stoker/__init__.py") for name in file.exported]

    @property
    def long_functions(self) -> list[tuple[int, str]]:
        """Lines and name of the functions of more than sixty lines, documentation included."""
        found = []
        for file in self.source:
            for name, node in file.functions:
                num_lines = (node.end_lineno or 0) - node.lineno + 1
                if num_lines > LONG_LINES:
                    found.append((num_lines, f"{file}:{node.lineno} {name}"))
        return sorted(found, reverse=True)

    @property
    def many_parameters(self) -> list[tuple[int, str]]:
        """Number of parameters, beside self, and name of the functions of more than eight."""
        found = []
        for file in self.source:
            for name, node in file.functions:
                names = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                count = len([one for one in names if one not in ("self", "cls")])
                if count > MANY_PARAMETERS:
                    found.append((count, f"{file}:{node.lineno} {name}"))
        return sorted(found, reverse=True)

    @property
    def twice(self) -> dict[str, dict[str, list[str]]]:
        """Kind of name -> name -> the files that define it, of those that stand in several."""
        kinds: dict[str, dict[str, list[str]]] = {}
        for file in self.source:
            found = [("classes", name) for name in file.classes]
            found += [("functions", node.name) for node in file.tree.body if isinstance(node, Function)]
            found += [("constants", name) for name, _ in file.constants]
            for kind, name in found:
                kind = f"private {kind}" if name.startswith("_") and kind != "classes" else kind
                kinds.setdefault(kind, {}).setdefault(name, []).append(str(file))
        return {
            kind: {name: files for name, files in sorted(names.items()) if len(files) > 1}
            for kind, names in sorted(kinds.items())
        }

    @property
    def only_for_tests(self) -> list[str]:
        """Functions, classes and constants that nothing but tests uses: no page, example or benchmark, and no user.

        Users may call the methods of what is exported; those of a class of another library are called there.
        """
        used = sum((file.used for file in (*self.source, *self.others)), Counter[str]())
        told = set(re.findall(r"\w+", "\n".join(file.text for file in self.texts)))
        exported = {name for file in self.source if file.module in PUBLIC_MODULES for name in file.exported}
        ours = {name for file in self.source for name in file.classes}
        found = []
        for file in self.source:
            bases = {
                node.name: {getattr(base, "id", "") for base in node.bases}
                for node in ast.walk(file.tree)
                if isinstance(node, ast.ClassDef)
            }
            foreign = {name for name, its in bases.items() if its - ours - {"NamedTuple", "Protocol", "Generic"}}
            defined = {name: node.lineno for name, node in file.functions}
            defined |= {node.name: node.lineno for node in ast.walk(file.tree) if isinstance(node, ast.ClassDef)}
            defined |= dict(file.constants)
            for name, line in defined.items():
                outer, _, last = name.rpartition(".")
                is_users = outer in exported | foreign or last in exported or file.module in PUBLIC_MODULES
                if not (last.startswith("__") or is_users or used[last] or last in told):
                    found.append(f"{file}:{line} {name}")
        return found

    @property
    def tests_by_public_names(self) -> list[File]:
        """Files of tests that import nothing of the package but what users import, and touch nothing private."""
        return [file for file in self.test_files if next(_insides(file), None) is None]

    @property
    def test_files(self) -> list[File]:
        return [file for file in self.tests if file.path.name.startswith("test_")]

    @property
    def circles(self) -> list[str]:
        """Imports that would have to go, so that no folder has a circle among what lies in it."""
        import grimp

        graph = grimp.build_graph("stoker")
        packages = [name for name in sorted(graph.modules) if graph.find_children(name)]
        return [
            f"{importer} -> {imported}"
            for package in packages
            for importer, imported in sorted(graph.nominate_cycle_breakers(package))
        ]


def _insides(file: File) -> Iterator[str]:
    for node in ast.walk(file.tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "stoker":
            if node.module == "stoker.cli" and [alias.name for alias in node.names] == ["main"]:
                continue  # the command, as users have it
            if node.module not in PUBLIC_MODULES:
                yield node.module
            for alias in node.names if node.module == "stoker" else ():
                is_public = alias.name[0].isupper() or alias.name == "watch" or f"stoker.{alias.name}" in PUBLIC_MODULES
                if not is_public:
                    yield f"stoker.{alias.name}"
        elif isinstance(node, ast.Import):
            yield from (
                one.name for one in node.names if one.name.startswith("stoker") and one.name not in PUBLIC_MODULES
            )
        elif (
            isinstance(node, ast.Attribute)
            and re.match(r"_[a-z]", node.attr)
            and getattr(node.value, "id", "") not in ("self", "os", "sys")  # os._exit and the like are Python's
        ):
            yield node.attr


# ------------------------------------------------------------------------------------------------ what is called


class Trip:
    """Counts calls of Python functions of the package in all threads that begin while it is installed.

    Attributes:
        calls: Function -> how often it was called since `start`.
    """

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()
        self._is_on = False

    def __enter__(self) -> Self:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # which is how it is taken away

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if self._is_on and event == "call":
            self.calls[frame.f_code] += 1

    def count(self, work: Callable[[], object]) -> tuple[int, int, float]:
        """Return through how many files and functions of the package it goes, and with how many calls."""
        self.calls.clear()
        self._is_on = True
        work()
        self._is_on = False
        ours = {code: count for code, count in self.calls.items() if "/stoker/" in code.co_filename}
        return len({code.co_filename for code in ours}), len(ours), sum(ours.values())


def trips() -> Iterator[tuple[str, int, int, float]]:
    """Yield what is done, through how many files and functions it goes, and calls, of a batch where it is one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from stoker import Dataset, Field

    size = 20_000
    columns: dict[str, Any] = {f"dense_{k}": [float(k)] * size for k in range(20)}
    stacked = {"dense": Field("float32", columns="dense_*")}
    kinds: dict[str, dict[str, Any]] = {
        "named": {"columns": [*columns, "label"]},
        "stacked": {"columns": [*columns, "label"], "fields": stacked},
        "with a list": {"fields": stacked},
    }
    with tempfile.TemporaryDirectory() as folder, Trip() as trip:
        written = pa.table(columns | {"label": range(size), "tokens": [[k] * (k % 4) for k in range(size)]})
        pq.write_table(written, f"{folder}/data.parquet", row_group_size=size // 4)
        for kind, arguments in kinds.items():
            dataset = Dataset(f"{folder}/data.parquet", **arguments)
            yield from _trips(kind, trip, dataset, cache=f"{folder}/cache")


def _trips(kind: str, trip: Trip, dataset: Any, *, cache: str) -> Iterator[tuple[str, int, int, float]]:
    from stoker import Loader

    def make() -> None:
        made.append(Loader(dataset, batch_size=100, shuffle=True, cache=cache))

    for state in ("nothing cached", "all cached"):
        made: list[Loader] = []
        yield f"making a loader, {kind}, {state}", *trip.count(make)
        with made[0] as loader:
            num_steps = sum(1 for _ in loader) // 2
            if state == "all cached":
                batches = iter(loader)
                list(islice(batches, num_steps // 2))
                files, functions, calls = trip.count(partial(list, islice(batches, num_steps)))
                yield f"a warm batch, {kind}", files, functions, calls / num_steps


# ------------------------------------------------------------------------------------------------------- tables


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows as lines, numbers to the right; the first column to the left."""
    texts = [[*map(_text, row)] for row in [head, *rows]]
    widths = [max(len(row[k]) for row in texts) for k in range(len(head))]
    lines = [
        "  ".join(
            text.ljust(width) if k == 0 else text.rjust(width)
            for k, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in texts
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]]) + "\n"


def _text(value: object) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _sizes(files: Sequence[File]) -> tuple[int, int, int, int, int]:
    sizes = [file.num_lines for file in files]
    classes, functions = (sum(len(getattr(file, kind)) for file in files) for kind in ("classes", "functions"))
    return sum(sizes), len(files), classes, functions, max(sizes, default=0)


def _listed(title: str, lines: Sequence[str], most: int) -> str:
    shown = [f"  {line}" for line in lines[:most]]
    rest = [f"  and {len(lines) - most:,} more"] if len(lines) > most else []
    return "\n".join([f"{title}: {len(lines):,}", *shown, *rest]) + "\n"


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(prog="python -m tools.house", description=(__doc__ or "").split(":", 1)[1].strip())
    parser.add_argument("--all", action="store_true", help="lists in full, not their first ten")
    most = sys.maxsize if parser.parse_args().all else 10
    house = House(REPOSITORY)

    core = [*house.source, *(file for file in house.native if file.room == "native")]
    rows = [(room, *_sizes(files)) for room, files in house.rooms.items()]
    head = ("room", "lines", "files", "classes", "functions", "longest file")
    print(table(head, [*rows, ("src and native", *_sizes(core))]))

    num_public, (_, _, num_classes, num_functions, _) = len(house.public_names), _sizes(house.source)
    twice, public = house.twice, house.tests_by_public_names
    laws = [file for file in house.test_files if "laws" in file.path.parts]
    facts: list[tuple[str, object]] = [
        ("public names", num_public),
        ("classes a public name", num_classes / max(num_public, 1)),
        ("functions a public name", num_functions / max(num_public, 1)),
        ("files of tests by public names alone", f"{len(public)} of {len(house.test_files)}"),
        ("  of laws", f"{len([file for file in public if file in laws])} of {len(laws)}"),
    ]
    print(table(("the whole", ""), facts))
    long = [f"{num_lines} lines: {name}" for num_lines, name in house.long_functions]
    print(_listed(f"functions of more than {LONG_LINES} lines", long, most))
    many = [f"{count} parameters: {name}" for count, name in house.many_parameters]
    print(_listed(f"functions of more than {MANY_PARAMETERS} parameters", many, most))
    for kind, names in twice.items():
        lines = [
            f"{name}: {', '.join(file.removeprefix('src/stoker/') for file in files)}" for name, files in names.items()
        ]
        print(_listed(f"names of several {kind}", lines, most if kind[0] != "p" or most > 10 else 0))
    print(_listed("functions, classes and constants that nothing but tests uses", house.only_for_tests, most))
    print(_listed("imports that make a circle", house.circles, most))
    print(table(("on the way of", "files", "functions", "calls"), trips()))


if __name__ == "__main__":
    main()
