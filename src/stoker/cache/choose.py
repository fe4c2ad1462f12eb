"""Which data sets of a cache people mean by a name."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.cache.care import DatasetEntry


def choose(entries: Sequence[DatasetEntry], names: Sequence[str]) -> list[DatasetEntry]:
    """Return the data sets that names stand for, each once, in the order of `entries`.

    A name is the beginning of a fingerprint, or a source as it was given to `Dataset`: several data sets may be made
    of one source, and all of them are meant then.

    Raises:
        ValueError: A name stands for nothing, or is the beginning of several fingerprints.
    """
    chosen: set[str] = set()
    for name in names:
        known = [entry.manifest for entry in entries if entry.manifest is not None]
        found = [m.fingerprint for m in known if name.rstrip("/") in {url.rstrip("/") for url in m.urls}]
        if not found:
            found = [m.fingerprint for m in known if name and m.fingerprint.startswith(name.lower())]
            if len(found) > 1:
                raise ValueError(f"{len(found)} fingerprints begin with {name!r}: {', '.join(found)}; give more of it")
        if not found:
            there = ", ".join(f"{m.fingerprint[:8]} ({m.urls[0]})" for m in known[:5]) or "none at all"
            more = f" and {len(known) - 5} more" if len(known) > 5 else ""
            raise ValueError(f"there is no data set {name!r} in the cache; there is {there}{more}")
        chosen.update(found)
    return [entry for entry in entries if entry.manifest is not None and entry.manifest.fingerprint in chosen]
