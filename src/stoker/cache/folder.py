"""What lies where in a cache folder.

    stoker-cache.json               says that it is one, and of which version
    chunks/ab/abcd….safetensors     kept
    overflow/abcd….safetensors      needed now, but beyond what is kept: goes when room is needed
    tmp/abcd….….kept, .overflow     being written; a lock of its writer's name says that this one lives
    datasets/….json, .keys          data sets that used this cache, and the chunks they are made of
    failed/                         why a build process failed, until its parent has read it
    checked/abcd…                   which files were checked since the machine started
    usage                           bytes of kept chunks, and of all else at most
    locks                           empty; its bytes are what processes lock

A chunk is kept or in overflow by where it lies, so that all processes agree without talking.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.cache.files import Files
from stoker.errors import CacheError

FOLDER_VERSION = 1
SUFFIX = ".safetensors"
_MARKER = "stoker-cache.json"
_FOLDERS = ("chunks", "overflow", "tmp", "datasets", "failed", "checked")
# What the source keeps beside the chunks may be there before the cache itself.
_ALSO_OURS = (*_FOLDERS, "source", "usage", "locks")


@dataclass(frozen=True)
class ChunkFile:
    """A chunk file as a listing shows it.

    Attributes:
        key: Of the chunk.
        path: Of the file.
        size_bytes: Of the file.
        is_kept: False in overflow.
        changed_ns: When it was published.
    """

    key: str
    path: Path
    size_bytes: int
    is_kept: bool
    changed_ns: int


class Folder:
    """Paths of a cache folder, and listings of it.

    Args:
        path: The folder; made if it is not there.
        files: What changes the disk.

    Raises:
        CacheError: It holds something else, is of another version, or cannot be made.
    """

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path.absolute()
        self._files = files
        self.chunks = self.path / "chunks"
        self._chunks_name = str(self.chunks)
        self.overflow = self.path / "overflow"
        self._overflow_name = str(self.overflow)
        self.tmp = self.path / "tmp"
        self.datasets = self.path / "datasets"
        self.failed = self.path / "failed"
        self.checked = self.path / "checked"
        self.locks = self.path / "locks"
        self.usage = self.path / "usage"
        try:
            self._make()
        except OSError as error:
            raise CacheError(
                f"{self.path} cannot be used as a cache: {error.strerror}; give a folder that this user may write to",
                path=self.path,
            ) from error

    def _make(self) -> None:
        marker = self.path / _MARKER
        if not marker.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            known = (*_ALSO_OURS, _MARKER)
            strange = sorted(name for name in os.listdir(self.path) if not name.startswith(known))  # noqa: PTH208
            if strange and not marker.exists():
                raise CacheError(
                    f"{self.path} is no Stoker cache: it holds {strange[0]!r}; give a folder of its own",
                    path=self.path,
                )
            content = json.dumps({"format": "stoker-cache", "version": FOLDER_VERSION}) + "\n"
            # Aside in the same folder: tmp is not there yet, and of processes that start together each writes its own.
            aside = self.path / f"{_MARKER}.{secrets.token_hex(8)}"
            self._files.write_small(marker, content.encode(), aside=aside)
        self._check(marker)
        for name in _FOLDERS:
            if not (self.path / name).exists():
                (self.path / name).mkdir(exist_ok=True)

    def _check(self, marker: Path) -> None:
        try:
            content = json.loads(marker.read_text())
            version = content["version"]
        except (ValueError, KeyError, TypeError):
            version = "unreadable"
        if version != FOLDER_VERSION:
            raise CacheError(
                f"{self.path} is a cache of version {version}, this Stoker uses version {FOLDER_VERSION}; "
                f"give another folder, or remove this one",
                path=self.path,
            )

    def kept_path(self, key: str) -> Path:
        """Return where a kept chunk lies."""
        return Path(self.kept_name(key))

    def kept_name(self, key: str) -> str:
        """Return where a kept chunk lies, as a text: asked for each chunk of each window."""
        return f"{self._chunks_name}/{key[:2]}/{key}{SUFFIX}"

    def overflow_path(self, key: str) -> Path:
        """Return where a chunk lies that is needed now but not kept."""
        return Path(self.overflow_name(key))

    def overflow_name(self, key: str) -> str:
        """Return where a chunk lies that is needed now but not kept, as a text."""
        return f"{self._overflow_name}/{key}{SUFFIX}"

    def kept_chunks(self) -> Iterator[ChunkFile]:
        """Yield every kept chunk."""
        for folder in sorted(self.chunks.iterdir()):
            if folder.is_dir():
                yield from _chunk_files(folder, is_kept=True)

    def kept_bytes(self) -> int:
        """Return the bytes of all kept chunks: a quarter of the time that listing them takes."""
        folders = [item.path for item in _scan(self.chunks) if item.is_dir()]
        files = (item for folder in folders for item in _scan(folder) if item.name.endswith(SUFFIX))
        return sum(about.st_size for item in files if (about := _stat(item)) is not None)

    def overflow_chunks(self) -> list[ChunkFile]:
        """Return the chunks in overflow, the one published first in front."""
        return sorted(_chunk_files(self.overflow, is_kept=False), key=lambda chunk: (chunk.changed_ns, chunk.key))

    def strays(self) -> list[Path]:
        """Return what lies among the chunks and is none."""
        places = [self.chunks, self.overflow, *(p for p in self.chunks.iterdir() if p.is_dir())]
        return sorted(
            path
            for place in places
            for path in place.iterdir()
            if not path.name.endswith(SUFFIX) and not (place == self.chunks and path.is_dir())
        )

    def temporary(self) -> list[ChunkFile]:
        """Return the files being written, as the chunks they will be."""
        found = []
        for item in _scan(self.tmp):
            about = _stat(item)
            if about is not None:
                path = Path(item.path)
                found.append(ChunkFile(path.stem, path, about.st_size, path.suffix == ".kept", about.st_mtime_ns))
        return found


def is_cache(path: Path) -> bool:
    """Return whether a folder is a cache, of whatever version; nothing is made."""
    return (path / _MARKER).is_file()


def file_size(path: Path | str) -> int | None:
    """Return the size of a file in bytes, None where there is none."""
    try:
        return os.stat(path).st_size  # noqa: PTH116  (of a text, too)
    except FileNotFoundError:
        return None


def _scan(folder: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as items:
            return list(items)
    except FileNotFoundError:
        return []


def _stat(item: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return item.stat()
    except FileNotFoundError:  # removed since it was listed
        return None


def _chunk_files(folder: Path, *, is_kept: bool) -> Iterator[ChunkFile]:
    for item in _scan(folder):
        if item.name.endswith(SUFFIX):
            about = _stat(item)
            if about is not None:
                key = item.name.removesuffix(SUFFIX)
                yield ChunkFile(key, Path(item.path), about.st_size, is_kept, about.st_mtime_ns)
