"""What people do with a cache, by `stoker cache`: list what is in it, find data sets by name, verify it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from stoker.cache.disk import DatasetEntry
from stoker.cache.store import Store
from stoker.errors import CacheError, without_secrets
from stoker.words import some_of


def entries(store: Store) -> list[DatasetEntry]:
    """Return the data sets and their chunks, the most recently opened first; chunks of none come last."""
    disk = store.disk
    chunks, in_use, found = disk.folder.list_chunks(), disk.in_use(), []
    for one in sorted(disk.datasets(), key=lambda one: -one.opened_ns):
        mine = {key: chunks[key] for key in one.keys if key in chunks}
        found.append(replace(one, chunks=mine, is_in_use=one.fingerprint in in_use))
    claimed = {key for one in found for key in one.chunks}
    unclaimed = {key: size for key, size in chunks.items() if key not in claimed}
    return [*found, DatasetEntry(chunks=unclaimed)] if unclaimed else found


def verify(
    store: Store, *, fix: bool = False, on_chunk: Callable[[int], object] = lambda _: None
) -> tuple[dict[str, int], list[tuple[Path, str]], list[Path]]:
    """Compare the checksums of every chunk, whose bytes are told to `on_chunk` then.

    Returns the chunks, key -> bytes; paths and reasons of the corrupt ones; and paths of what is stray among them. What
    is corrupt or stray is removed by `fix`, so that it is built again; a folder among the chunks stays. A cache that
    cannot be written to raises a `CacheError` then, before anything is read.
    """
    folder = store.disk.folder
    if fix and not store.disk.locks.is_writable:
        raise CacheError(
            f"{store.path} is read-only, or not this user's to write to: nothing can be removed", path=store.path
        )
    chunks, strays = folder.list_chunks(), folder.list_strays()
    corrupt: list[tuple[Path, str]] = []
    for key, size_bytes in chunks.items():
        if (reason := store.find_damage(key, removes=fix)) is not None:
            corrupt.append((store.path_of(key), reason))
        on_chunk(size_bytes)
    for name in strays if fix else ():
        with contextlib.suppress(OSError):  # a folder, which is not ours to empty
            folder.files.remove(folder.chunks, name)
    return chunks, corrupt, [store.path / "chunks" / name for name in strays]


def choose(entries: Sequence[DatasetEntry], names: Sequence[str]) -> list[DatasetEntry]:
    """Return the data sets that names stand for, each once, in the order of `entries`.

    A name is the beginning of one fingerprint, or a source as it was given to `Dataset`: several data sets may be made
    of one source, and all of them are meant then. Otherwise a `ValueError` says what there is.
    """
    chosen: set[str] = set()
    known = [entry for entry in entries if entry.fingerprint]
    for name in names:
        url = without_secrets(name).rstrip("/")
        found = [entry.fingerprint for entry in known if url in {one.rstrip("/") for one in entry.urls}]
        if not found:
            found = [entry.fingerprint for entry in known if name and entry.fingerprint.startswith(name.lower())]
            if len(found) > 1:
                raise ValueError(f"{len(found)} fingerprints begin with {name!r}: {', '.join(found)}; give more of it")
        if not found:
            there = some_of([f"{entry.fingerprint[:8]} ({entry.urls[0]})" for entry in known], 5) or "none at all"
            raise ValueError(f"there is no data set {name!r} in the cache; there is {there}")
        chosen.update(found)
    return [entry for entry in entries if entry.fingerprint in chosen]
