"""Where machine code is kept, and what it was made of: for which processor, and from which files.

loops-<processor>.bin    a checksum
                         one line of JSON: the processor, a digest of each source, where things are
                         the image
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from stoker.machine_code.image import Image
from stoker.machine_code.processors import LEVELS

_FORMAT = 2
_ROOT = Path(__file__).parents[2]
_PACKAGE = Path(__file__).parents[1].name


def read(processor: str) -> tuple[Image, Path] | None:
    """Return what was kept for a processor, and where, if it is whole and its sources are what they were.

    Args:
        processor: What the code depends on besides its sources; see `processors`.
    """
    for path in _paths(processor):
        with suppress(OSError, ValueError, KeyError):
            checksum, _, rest = path.read_bytes().partition(b"\n")
            if checksum != _checksum(rest):
                continue
            head, _, memory = rest.partition(b"\n")
            about = json.loads(head)
            if (about["format"], about["processor"]) == (_FORMAT, processor) and about["sources"] == {
                name: _digest(name) for name in about["sources"]
            }:
                return Image(memory, about["inside"], about["outside"], about["symbols"]), path
    return None


def write(processor: str, image: Image, modules: Iterable[str]) -> Path | None:
    """Keep machine code where a place can be written to; return where.

    Args:
        processor: See `read`.
        image: The code.
        modules: What it was made of; what these import from this package is found.
    """
    about = {
        "format": _FORMAT,
        "processor": processor,
        "sources": {name: _digest(name) for name in _sources(modules)},
        **{name: value for name, value in dataclasses.asdict(image).items() if name != "memory"},
    }
    content = json.dumps(about).encode() + b"\n" + image.memory
    content = _checksum(content) + b"\n" + content
    for path in _paths(processor):
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_suffix(f".{os.getpid()}")  # others read, and write, meanwhile
            try:
                beside.write_bytes(content)
                beside.replace(path)
            except BaseException:
                beside.unlink(missing_ok=True)
                raise
            return path
    return None


def _paths(processor: str) -> Iterator[Path]:
    """Yield where code for a processor may be: where numba is told to keep its own, here, or in the user's folder."""
    short = processor if processor in LEVELS.values() else hashlib.sha256(processor.encode()).hexdigest()[:16]
    name = f"loops-{short}.bin"
    if asked := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(asked) / _PACKAGE / name
    yield _ROOT / _PACKAGE / "machine_code" / "images" / name
    with suppress(RuntimeError):  # no home
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        yield Path(home) / _PACKAGE / name


def _sources(modules: Iterable[str]) -> list[str]:
    """Return the files of modules and of what they import from this package, relative to its parent."""
    unseen, seen = list(modules), set[str]()
    while unseen:
        name = _file(unseen.pop())
        if name is None or name in seen:
            continue
        seen.add(name)
        for node in ast.walk(ast.parse((_ROOT / name).read_bytes())):
            if isinstance(node, ast.Import):
                unseen.extend(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                inside = [f"{node.module}.{alias.name}" for alias in node.names]
                unseen.extend(inner if _file(inner) else node.module for inner in inside)
    return sorted(seen)


def _file(module: str) -> str | None:
    if module.partition(".")[0] != _PACKAGE:
        return None
    path = Path(*module.split("."))
    for name in (path.with_suffix(".py"), path / "__init__.py"):
        if (_ROOT / name).exists():
            return name.as_posix()
    return None


def _checksum(content: bytes) -> bytes:
    return f"{zlib.crc32(content):08x}".encode()


def _digest(name: str) -> str:
    return hashlib.sha256((_ROOT / name).read_bytes()).hexdigest()
