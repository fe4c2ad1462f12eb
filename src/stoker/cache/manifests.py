"""The data sets that use a cache: what they are called, which chunks they are made of, who has them in use."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.cache.folder import Files
from stoker.cache.verified import FileVersion, version_of
from stoker.fields.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What the cache knows of a data set.

    Attributes:
        fingerprint: Of the data set.
        name: What people call it.
        urls: Where it comes from.
        num_chunks: Chunks that it is made of, in the cache or not.
        reserve_bytes: Room that its loaders need for chunks beyond those that are kept.
        spec: What a sample is, where that is known.
        opened_ns: When it was last opened; decides what goes first.
    """

    fingerprint: str
    name: str
    urls: tuple[str, ...]
    num_chunks: int
    reserve_bytes: int
    spec: Spec | None
    opened_ns: int = 0


class Manifests:
    """The manifests of a cache folder. An unreadable one counts as not there: its data set registers again."""

    def __init__(self, folder: Path, files: Files) -> None:
        self._folder = folder
        self._files = files
        # Read anew only when the file is another one: the reserves are asked for at every chunk.
        self._read: dict[str, tuple[FileVersion, Manifest | None]] = {}

    def fingerprints(self) -> list[str]:
        """Return the data sets that have a manifest."""
        with os.scandir(self._folder) as items:
            return sorted(item.name.removesuffix(".json") for item in items if item.name.endswith(".json"))

    def __iter__(self) -> Iterator[Manifest]:
        for fingerprint in self.fingerprints():
            manifest = self.get(fingerprint)
            if manifest is not None:
                yield manifest

    def get(self, fingerprint: str) -> Manifest | None:
        """Return the manifest of a data set, None where there is none that can be read."""
        path = self._path(fingerprint)
        try:
            about = path.stat()
        except FileNotFoundError:
            return None
        version = version_of(about)
        known = self._read.get(fingerprint)
        if known is None or known[0] != version:
            known = self._read[fingerprint] = (version, self._parse(fingerprint, about.st_mtime_ns))
        return known[1]

    def keys(self, fingerprint: str) -> list[str]:
        """Return the keys of a data set's chunks, in its order."""
        try:
            return self._keys_path(fingerprint).read_text("ascii").split()
        except (FileNotFoundError, UnicodeDecodeError):
            return []

    def write(self, manifest: Manifest, keys: Sequence[str] | None) -> None:
        """Write a manifest that now counts as opened; `keys` only where they have changed."""
        if keys is not None:
            data = "".join(f"{key}\n" for key in keys).encode("ascii")
            self._write(self._keys_path(manifest.fingerprint), data)
        content = {
            "fingerprint": manifest.fingerprint,
            "name": manifest.name,
            "urls": manifest.urls,
            "num_chunks": manifest.num_chunks,
            "reserve_bytes": manifest.reserve_bytes,
            "spec": None if manifest.spec is None else manifest.spec.to_json(),
        }
        self._write(self._path(manifest.fingerprint), (json.dumps(content, indent=1) + "\n").encode())

    def remove(self, fingerprint: str) -> None:
        """Forget a data set."""
        self._files.remove(self._path(fingerprint))
        self._files.remove(self._keys_path(fingerprint))

    def _path(self, fingerprint: str) -> Path:
        return self._folder / f"{fingerprint}.json"

    def _keys_path(self, fingerprint: str) -> Path:
        return self._folder / f"{fingerprint}.keys"

    def _write(self, path: Path, data: bytes) -> None:
        # Under the ledger's lock, so nobody else uses this name; what a crash left there is in the way of nobody.
        aside = path.with_suffix(f"{path.suffix}.new")
        self._files.remove(aside)
        self._files.write_small(path, data, aside=aside)

    def _parse(self, fingerprint: str, opened_ns: int) -> Manifest | None:
        try:
            content = json.loads(self._path(fingerprint).read_text())
            return Manifest(
                fingerprint=content["fingerprint"],
                name=content["name"],
                urls=tuple(content["urls"]),
                num_chunks=content["num_chunks"],
                reserve_bytes=content["reserve_bytes"],
                spec=None if content["spec"] is None else Spec.from_json(content["spec"]),
                opened_ns=opened_ns,
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None
