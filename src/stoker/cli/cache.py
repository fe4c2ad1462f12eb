"""`stoker cache`: looks into a cache folder, checks it, removes data sets from it."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from stoker.cache import admin
from stoker.cache.disk import DatasetEntry
from stoker.cache.folder import is_cache
from stoker.cache.store import Store
from stoker.cli.arguments import DAMAGED, FAILED, OK
from stoker.errors import CacheError, StokerError
from stoker.paint import make_console, print_json, print_line, progress, table
from stoker.words import age_text, bytes_text, count_text, some_of

# As `Dataset` writes itself: the name under which a cache knows it.
_TRANSFORM = re.compile(r"transform=(?P<name>[^,]+), transform_version='(?P<version>[^']*)'")
_SHORT = 8
_WIDE = 76
# Characters of columns, filter, fields and transform that a listing shows; --json has all.
_DETAILS = 240


def ls(options: argparse.Namespace, console: Console) -> int:
    """List the data sets in it."""
    with _existing_store(options) as store:
        entries, usage_bytes, path = admin.entries(store), store.disk.folder.count_bytes(), store.path
    named = [entry for entry in entries if entry.fingerprint]
    if options.json:
        others = [entry for entry in entries if not entry.fingerprint]
        unclaimed = {
            "num_chunks": sum(len(entry.chunks) for entry in others),
            "size_bytes": sum(entry.size_bytes for entry in others),
        }
        found = {"size_bytes": usage_bytes, "datasets": list(map(_as_json, named)), "unclaimed": unclaimed}
        print_json({"cache": str(path)} | found)
        return OK
    print_line(console, f"{path}: {count_text(len(named), 'data set')}, {bytes_text(usage_bytes)}", "bold")
    if entries:
        console.print()
        _print_entries(entries, console)
    return OK


def _print_entries(entries: Sequence[DatasetEntry], console: Console) -> None:
    rows: list[Sequence[str | Text]] = []
    for entry in entries:
        num, size = count_text(len(entry.chunks)), bytes_text(entry.size_bytes)
        if not entry.fingerprint:
            rows.append(("", "chunks of no data set", num, size, "", ""))
            continue
        is_whole = len(entry.keys) == len(entry.chunks)
        rows.append(
            (
                Text(entry.fingerprint[:_SHORT], style="cyan"),
                _name(entry, with_details=console.is_terminal and console.width >= _WIDE),
                Text(f"{num}/{count_text(len(entry.keys))}", style="" if is_whole else "yellow"),
                size,
                age_text(time.time() - entry.opened_ns / 1e9),
                Text("yes", style="green") if entry.is_in_use else "",
            )
        )
    numbers = ("chunks", "size", "opened")
    console.print(table("", "data set", *numbers, "in use", rows=rows, numbers=numbers, folds=("data set",)))


def _name(entry: DatasetEntry, *, with_details: bool) -> Text:
    """Return the sources, and beneath, dim, what else makes the data set what it is; in a pipe, one line."""
    name = Text(some_of(entry.urls, 1))
    _, comma, rest = entry.name.removesuffix(")").partition(", " if len(entry.urls) == 1 else "], ")
    if comma and with_details:
        name.append(f"\n{rest if len(rest) <= _DETAILS else rest[:_DETAILS] + ' …'}", style="dim")
    return name


def _as_json(entry: DatasetEntry) -> dict[str, object]:
    transform = _TRANSFORM.search(entry.name)
    return {
        "fingerprint": entry.fingerprint,
        "name": entry.name,
        "urls": list(entry.urls),
        "transform": transform["name"] if transform else None,
        "transform_version": transform["version"] if transform else None,
        "num_chunks": len(entry.keys),
        "num_present": len(entry.chunks),
        "size_bytes": entry.size_bytes,
        "opened": entry.opened_ns / 1e9,
        "is_in_use": entry.is_in_use,
    }


def verify(options: argparse.Namespace, console: Console) -> int:
    """Compare the checksums of every chunk."""
    done = 0
    with _existing_store(options) as store, progress(make_console(stderr=True)) as show:
        size_bytes = sum(store.disk.folder.list_chunks().values())

        def on_chunk(chunk_bytes: int) -> None:
            nonlocal done
            done += chunk_bytes
            show(done, size_bytes, f"{bytes_text(done)} of {bytes_text(size_bytes)}")

        chunks, corrupt, strays = admin.verify(store, fix=options.fix, on_chunk=on_chunk)
    code, num_bytes = DAMAGED if corrupt else OK, sum(chunks.values())
    if options.json:
        print_json(
            {
                "cache": str(store.path),
                "num_chunks": len(chunks),
                "size_bytes": num_bytes,
                "damaged": [{"path": str(path), "reason": reason} for path, reason in corrupt],
                "strays": list(map(str, strays)),
                "is_fixed": options.fix,
            }
        )
        return code
    for path, reason in corrupt:
        print_line(console, reason if str(path) in reason else f"{path}: {reason}", "red")
    for path in strays:
        print_line(console, f"{path} is not a chunk", "yellow")
    checked = f"{count_text(len(chunks), 'chunk')}, {bytes_text(num_bytes)}"
    found = [count_text(len(corrupt), "damaged chunk")] * bool(corrupt)
    found += [count_text(len(strays), "unrecognized file")] * bool(strays)
    if not found:
        print_line(console, f"{checked}: all sound", "green")
        return code
    after = "removed" if options.fix else "left in place; --fix removes them"
    print_line(console, f"{checked}: {' and '.join(found)}, {after}; chunks that are needed are built again", "bold")
    return code


def rm(options: argparse.Namespace, console: Console) -> int:
    """Remove data sets from it."""
    if bool(options.names) == options.all:
        raise ValueError("name the data sets to remove, or give --all; `stoker cache ls` shows what there is")
    with _existing_store(options) as store:
        entries = admin.entries(store)
        chosen = entries if options.all else admin.choose(entries, options.names)
        if chosen and not options.yes and not _may_remove(chosen, make_console(stderr=True)):
            print_line(console, "nothing was removed")
            return FAILED
        names, removed = [entry.fingerprint for entry in chosen if entry.fingerprint], list[int]()
        try:
            store.disk.remove_datasets(None if options.all else names, on_removed=removed.append)
        except BaseException:
            with contextlib.suppress(OSError, StokerError):  # a disk that fails may fail again: what ended this counts
                _tell_what_is_gone(store, names, removed, options, console)
            raise
    freed = sum(removed)
    if options.json:
        print_json({"cache": str(store.path), "removed": names, "freed_bytes": freed})
    else:
        print_line(console, f"{count_text(len(names), 'data set')} removed, {bytes_text(freed)} freed", "green")
    return OK


def _tell_what_is_gone(
    store: Store, names: Sequence[str], removed: Sequence[int], options: argparse.Namespace, console: Console
) -> None:
    """Say what is gone of the data sets that were to be removed, and of their chunks, whose bytes are in `removed`."""
    left = store.disk.folder.list_datasets()
    gone = [name for name in names if name not in left]
    if options.json and (removed or gone):
        print_json({"cache": str(store.path), "removed": gone, "freed_bytes": sum(removed)})
    elif removed or gone:
        num_empty = sum(entry.fingerprint in names and not entry.chunks for entry in admin.entries(store))
        told = f"{len(gone)} of {count_text(len(names), 'data set')} removed"
        told += f", {num_empty} left without chunks" * bool(num_empty)
        chunks = f"{count_text(len(removed), 'chunk')} removed, {bytes_text(sum(removed))} freed"
        print_line(console, f"{chunks} before it ended: {told}", "yellow")


def _may_remove(chosen: Sequence[DatasetEntry], messages: Console) -> bool:
    if not sys.stdin.isatty():
        raise ValueError("there is no terminal to ask on: give --yes to remove without asking")
    _print_entries(chosen, messages)
    what = "this data set with its" if len(chosen) == 1 else f"these {len(chosen)} data sets with their"
    return messages.input(f"\nRemove {what} chunks? [y/N] ", markup=False).strip().lower() in ("y", "yes")


def _existing_store(options: argparse.Namespace) -> Store:
    """Return the store of a folder that is a cache already: looking must not make one."""
    path = Path(options.folder).expanduser()
    if not is_cache(path):
        what = "is not there" if not path.exists() else "is a file" if path.is_file() else "is a folder without a cache"
        way_out = "name the folder that Loader(cache=...) or `stoker warm --cache` uses"
        raise CacheError(f"{path} {what}: {way_out}", path=path)
    return Store(path, is_shared=options.shared)
