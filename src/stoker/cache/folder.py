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

import ctypes
import errno
import json
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from stoker.errors import CacheError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""What a full disk answers."""

FOLDER_VERSION = 1
SUFFIX = ".safetensors"
_MARKER = "stoker-cache.json"
_FOLDERS = ("chunks", "overflow", "tmp", "datasets", "failed", "checked")
# What the source keeps beside the chunks may be there before the cache itself.
_ALSO_OURS = (*_FOLDERS, "source", "usage", "locks")


class Files:
    """Every change the cache makes to its disk: a crash can fall between any two of these calls, and nowhere else.

    Paths may be texts: a dozen `Path`s made for a chunk take a tenth of the time in which a small one is published.
    """

    def create(self, path: Path | str, *, size_bytes: int = 0) -> int:
        """Return a descriptor, open for reading and writing, of a new file of `size_bytes` zeros.

        Raises:
            FileExistsError: There is one.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            os.ftruncate(fd, size_bytes)
        except BaseException:
            os.close(fd)
            self.remove(path)
            raise
        return fd

    def write(self, fd: int, data: bytes | memoryview, *, offset: int) -> None:
        """Write all of `data`, bytes, at `offset`."""
        rest = memoryview(data)
        while rest:
            num_bytes = os.pwrite(fd, rest, offset)
            rest, offset = rest[num_bytes:], offset + num_bytes

    def reserve(self, fd: int, size_bytes: int) -> None:
        """Have the disk find room for the first `size_bytes` of a file, where the file system can.

        A full disk then says so before anything is written; and what was found is not looked for again, 4 KiB at a
        time, by each write: on ext4 that is half of what writing into the page cache costs.

        Raises:
            OSError: There is no room. Anything else that is wrong shows when the file is written.
        """
        fallocate = _fallocate()
        if fallocate is not None and fallocate(fd, 0, 0, size_bytes) != 0:
            number = ctypes.get_errno()
            if number in NO_ROOM:
                raise OSError(number, os.strerror(number))

    def replace(self, source: Path | str, target: Path | str) -> None:
        """Give `source` the name `target`, at once, in place of what was there."""
        os.replace(source, target)  # noqa: PTH105

    def remove(self, path: Path | str) -> bool:
        """Remove a file and return whether there was one."""
        try:
            os.unlink(path)  # noqa: PTH108
        except FileNotFoundError:
            return False
        return True

    def write_small(self, path: Path, data: bytes, *, aside: Path) -> None:
        """Write a small file whole or not at all, through `aside`, a path nobody else uses."""
        fd = self.create(aside)
        try:
            try:
                self.write(fd, data, offset=0)
            finally:
                os.close(fd)
            self.replace(aside, path)
        except BaseException:
            self.remove(aside)
            raise


@cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """Return fallocate(2), None where the system has none.

    Not `os.posix_fallocate`: where the file system cannot, that one writes to every block of the file.
    """
    found: Callable[[int, int, int, int], int] | None = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
    if found is not None:
        found.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]  # type: ignore[attr-defined]
    return found


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

    Attributes:
        path: The folder, absolute.
        files: What changes the disk.

    Raises:
        CacheError: It holds something else, is of another version, or cannot be made.
    """

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path.absolute()
        self.files = files
        self.chunks = self.path / "chunks"
        self._chunks_name = str(self.chunks)
        self.overflow = self.path / "overflow"
        self._overflow_name = str(self.overflow)
        self.tmp = self.path / "tmp"
        self.datasets = self.path / "datasets"
        self.failed = self.path / "failed"
        self.checked = self.path / "checked"
        self.lock_file = self.path / "locks"
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
            self.files.write_small(marker, content.encode(), aside=aside)
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

    def unwritable(self, error: OSError) -> CacheError:
        """Return what to raise where the disk refuses."""
        return CacheError(f"{self.path} cannot be written to: {error.strerror}", path=self.path)

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

    def sweep_failures(self) -> None:
        """Remove what processes wrote down whose parents were killed before they read it."""
        for path in self.failed.iterdir():
            pid = path.name.split(".")[1]
            if not (pid.isdigit() and _is_alive(int(pid))):
                self.files.remove(path)

    def temporary(self) -> list[ChunkFile]:
        """Return the files being written, as the chunks they will be."""
        found = []
        for item in _scan(self.tmp):
            about = _stat(item)
            if about is not None:
                path = Path(item.path)
                found.append(ChunkFile(path.stem, path, about.st_size, path.suffix == ".kept", about.st_mtime_ns))
        return found


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


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
