"""What a cache has of the chunks that steps need, and how long the others take: nothing is built to say so."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stoker.cache.builder import substitute_key
from stoker.cache.folder import is_cache
from stoker.cache.mirror import Mirror
from stoker.cache.store import Store
from stoker.fields.offsets import Int64
from stoker.host.machine import num_cores
from stoker.loader.orders import CountedSet, CountedSets
from stoker.plan.known import spec_known
from stoker.words import count_text

# A longer pause between two chunks that were published says nothing of how fast chunks can be built.
_PAUSE_S = 10.0
# Of fewer chunks, how long they took says little.
_LEAST_CHUNKS = 4
# Chunks that are missing are counted; so many of them are named.
_MOST_NAMED = 100
_AS_READ = "reading and decoding one chunk, as fast in every thread; transform and writing come on top"


def look_for(
    known: CountedSets, needed: Sequence[Int64], *, cache: Path, mirror: str | None, substitutes: bool
) -> dict[str, Any]:
    """Return what of the needed chunks a cache has, and how long the others take, as `stoker ready --json` has it.

    The folder may not be there yet. Where `substitutes` will do, they count as what they stand in for.

    Blocks: until one chunk is read and decoded, where the cache does not tell how long that takes.
    """
    mirrored = Mirror(mirror).sizes() if mirror else {}
    missing: list[dict[str, object]] = []
    notes: dict[str, None] = {}
    num_needed = num_mirrored = missing_bytes = 0
    seconds, is_bound = 0.0, False
    with Store(cache) if is_cache(cache) else nullcontext() as store:
        for one, chunks in zip(known.datasets, needed, strict=True):
            # A loader makes sure of its first chunk with samples when it is made, unless that is a part of a fragment.
            first = [i for i in np.flatnonzero(one.num_samples)[:1].tolist() if len(one.catalogue.unit(i)) == 1]
            filled = dict.fromkeys([*first, *chunks[one.num_samples[chunks] > 0].tolist()])
            present = _sizes(store, one.catalogue.key, filled)
            if store is not None and substitutes:
                present |= _sizes(store, partial(substitute_key, one.catalogue), filled.keys() - present)
            absent = [chunk for chunk in filled if chunk not in present]
            num_needed += len(filled)
            missing += [{"chunk": chunk, "fragment": str(one.catalogue.fragments[chunk])} for chunk in absent]
            built = [chunk for chunk in absent if one.catalogue.key(chunk) not in mirrored]
            if num_fetched := len(absent) - len(built):
                num_mirrored += num_fetched
                is_bound = True
                notes[f"fetching {count_text(num_fetched, 'chunk')} from the mirror comes on top"] = None
            if built:
                samples_s, told = _noted_rate(one, store, absent) or (_measured_rate(one, built), _AS_READ)
                num_samples = int(one.num_samples[built].sum())
                seconds += num_samples / max(samples_s, 1e-9)
                missing_bytes += round(num_samples * _sample_bytes(one, store))
                is_bound |= told == _AS_READ
                notes[told] = None
    there = cache if cache.exists() else next(parent for parent in cache.absolute().parents if parent.exists())
    return {
        "is_ready": not missing,
        "num_chunks": num_needed,
        "num_missing": len(missing),
        "num_mirrored": num_mirrored,
        "missing": missing[:_MOST_NAMED],
        "missing_bytes": missing_bytes,
        "free_bytes": shutil.disk_usage(there).free,
        "seconds": round(seconds, 1),
        "is_bound": is_bound,
        "rate": "; ".join(notes) or None,
    }


def _sizes(store: Store | None, key: Callable[[int], str], chunks: Iterable[int]) -> dict[int, int]:
    """Return the bytes of those chunks that a cache has, by the keys they have there."""
    sizes = {} if store is None else {chunk: store.size_of(key(chunk)) for chunk in chunks}
    return {chunk: size for chunk, size in sizes.items() if size is not None}


def _noted_rate(known: CountedSet, store: Store | None, absent: Sequence[int]) -> tuple[float, str] | None:
    """Return how many samples a second the chunks that are there came, as their files say; None where they do not."""
    written = []
    for chunk in sorted(set(range(len(known.catalogue))).difference(absent)):
        with suppress(OSError):
            if store is not None:
                written.append((store.path_of(known.catalogue.key(chunk)).stat().st_mtime, chunk))
    written.sort()
    times = np.array([at for at, _ in written])
    pauses = np.flatnonzero(np.diff(times) > _PAUSE_S)
    first = int(pauses[-1]) + 1 if len(pauses) else 0
    chunks = [chunk for _, chunk in written[first:]]
    if len(chunks) < _LEAST_CHUNKS or times[-1] <= times[first]:
        return None
    # The time that the first of them took is not known.
    num_samples = int(known.num_samples[chunks[1:]].sum())
    return num_samples / float(times[-1] - times[first]), f"as the last {len(chunks)} chunks that were built here"


def _measured_rate(known: CountedSet, built: Sequence[int]) -> float:
    """Return how many samples a second could come at most: one chunk is read, without transform and writing."""
    start_s = time.perf_counter()
    num_rows = int(sum(table.num_rows for _, table in known.catalogue.read(built[0])))
    return min(num_cores(), len(built)) * num_rows / max(time.perf_counter() - start_s, 1e-9)


def _sample_bytes(known: CountedSet, store: Store | None) -> float:
    """Return about how much a sample takes in the cache: as in the chunks that are there, or as its columns say."""
    sizes = _sizes(store, known.catalogue.key, np.flatnonzero(known.num_samples).tolist())
    if sizes:
        return sum(sizes.values()) / int(known.num_samples[[*sizes]].sum())
    spec = spec_known(known)
    return 0.0 if spec is None else float(spec.record_bytes)
