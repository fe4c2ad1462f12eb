"""What lies where in a cache folder, every change to it, and the locks of those who use it.

    stoker-cache.json         says that it is one, and of which version
    chunks/abcd….safetensors  the chunks
    tmp/abcd….…               being written; a lock of its writer's name says that this one lives
    datasets/…                data sets that used this cache, and the chunks they are made of
    checked/abcd…             which files were checked since the machine started
    source/                   what opening a data set found out: footers, catalogues, sampling units
    usage                     bytes of all chunks, at most
    locks                     empty; its bytes are what processes lock

Nothing outside of the folder is ever touched, whoever may write to it. Each folder is opened once, as itself and not
through a link; each file is named in its folder's descriptor (openat), never opened through a link, and believed to be
one of ours when it is a plain file. No file is changed in place but `usage`, which must have no other name.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import itertools
import json
import os
import pwd
import secrets
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias

from stoker.errors import CacheError
from stoker.host.forks import close_here, closed_in_forks, open_in_forks, this_process
from stoker.storage.files import SAFELY, open_plain

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""What a full disk answers."""

FOLDER_VERSION = 2
SUFFIX = ".safetensors"
_MARKER = "stoker-cache.json"
_FOLDERS = ("chunks", "tmp", "datasets", "checked", "source")
_numbers = itertools.count()
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# File systems stamp changes with a clock of up to 10 ms a tick: two changes within one look like one. A file that this
# process did not write is noted only once its last change is older than that, so that a later change shows.
_SETTLED_NS = 50_000_000
# A small file that is larger is not ours: keys of eight million chunks.
_MAX_SMALL_BYTES = 256 << 20

FileVersion: TypeAlias = tuple[int, int, int]
"""Which file a chunk is: inode, time of writing in nanoseconds, size in bytes."""


class Files:
    """Every change the cache makes to its disk, by names in folders that descriptors stand for.

    A crash can fall between any two of these calls, and nowhere else.
    """

    def create(self, folder: int, name: str, *, size_bytes: int = 0, mode: int = 0o600) -> int:
        """Return a descriptor, open for reading and writing, of a new file of `size_bytes` zeros."""
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | SAFELY, mode, dir_fd=folder)
        try:
            if mode != 0o600:
                os.fchmod(fd, mode)  # whatever the umask
            os.ftruncate(fd, size_bytes)
        except BaseException:
            os.close(fd)
            self.remove(folder, name)
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
        time, by each write: on ext4 that is half of what writing into the page cache costs. Anything else that is wrong
        shows when the file is written.
        """
        fallocate = _fallocate()
        if fallocate is not None and fallocate(fd, 0, 0, size_bytes) != 0:
            number = ctypes.get_errno()
            if number in NO_ROOM:
                raise OSError(number, os.strerror(number))

    def replace(self, source: int, name: str, target: int, new_name: str) -> None:
        """Give a file another name, at once, in place of what had it."""
        os.replace(name, new_name, src_dir_fd=source, dst_dir_fd=target)

    def link(self, source: int, name: str, target: int, new_name: str) -> None:
        """Give a file a second name, which nothing has so far."""
        os.link(name, new_name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)

    def remove(self, folder: int, name: str) -> bool:
        """Remove a file, or a link itself, and return whether there was one."""
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return False
        return True


@cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """Return fallocate(2), None where the system has none.

    Not `os.posix_fallocate`: where the file system cannot, that one writes to every block of the file.
    """
    found: Callable[[int, int, int, int], int] | None = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
    if found is not None:
        found.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]  # type: ignore[attr-defined]
    return found


class Folder:
    """A cache folder, opened; made if it is not there. It may be named through links: they are the caller's.

    `root`, `chunks`, `tmp`, `datasets` and `checked` are descriptors of it and of the folders in it. Where it is
    shared, users of its group may write to what is made. This process is called `writer` where it writes files aside.

    Raises:
        CacheError: It holds something else, is of another version or another user's, or has something in the way.
        OSError: It cannot be made or used.
    """

    def __init__(self, path: Path, files: Files, *, is_shared: bool = False) -> None:
        self.path, self.files, self._is_shared = path.absolute(), files, is_shared
        self.file_mode, self._folder_mode = (0o660, 0o2770) if is_shared else (0o600, 0o700)
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(0o700)
                if is_shared:
                    self.path.chmod(self._folder_mode)
        self._fds: list[int] = []
        self.writer = f"{os.getpid()}x{secrets.token_hex(4)}"
        try:
            self.root = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._fds.append(self.root)
            about = os.fstat(self.root)
            self.identity = about.st_dev, about.st_ino
            self._check_marker()
            self.chunks, self.tmp, self.datasets, self.checked, _ = map(self._opened, _FOLDERS)
        except BaseException:
            self.close()
            raise

    @property
    def _version(self) -> object:
        """What the marker says; None where there is none, or it cannot be read."""
        try:
            content = json.loads(self.read_small(self.root, _MARKER))
            return content["version"] if content["format"] == "stoker-cache" else None
        except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _check_marker(self) -> None:
        """Raise where this is a cache of another version, or what says that it is one is not there and files are."""
        version, what = self._version, ""
        if version is None:
            names = sorted(name for name, _ in _scan(self.root))
            strange = [name for name in names if not name.startswith((*_FOLDERS, "usage", "locks", _MARKER))]
            if strange:
                what = f"is no Stoker cache: it holds {strange[0]!r}; give a folder of its own"
        elif isinstance(version, int) and version != FOLDER_VERSION:
            what = (
                f"is a cache of version {version}, this Stoker uses version {FOLDER_VERSION}; give another folder, or "
                "remove this one"
            )
        if what:
            raise CacheError(f"{self.path} {what}", path=self.path)

    def mark(self) -> None:
        """Write the marker where there is none that can be read: all of it at once, and never in place of another."""
        if self._version is None:
            content = json.dumps({"format": "stoker-cache", "version": FOLDER_VERSION}) + "\n"
            with self._written_aside(_MARKER, content.encode()) as aside:
                try:
                    self.files.link(self.tmp, aside, self.root, _MARKER)
                except OSError:  # something has its name; or the file system knows no second names
                    if self._version is None:
                        self.files.replace(self.tmp, aside, self.root, _MARKER)

    def _opened(self, name: str) -> int:
        """Return a descriptor of a folder in it, which is made if it is not there."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | SAFELY, dir_fd=self.root)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self.root)
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | SAFELY, dir_fd=self.root)
            if self._is_shared and os.fstat(fd).st_uid == os.geteuid():
                os.fchmod(fd, self._folder_mode)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            path = self.path / name
            what = "a link" if path.is_symlink() else "no folder"
            raise CacheError(f"{path} is {what} where a folder of the cache should be: remove it", path=path) from None
        self._fds.append(fd)
        self._check_owner(os.fstat(fd), name)
        return fd

    def _check_owner(self, about: os.stat_result, name: str) -> None:
        """Raise where others could have put chunks there, and nobody said that they may; root may do so anyway."""
        is_all = about.st_mode & 0o002
        if about.st_uid not in (os.geteuid(), 0) and not self._is_shared:
            what = (
                f"belongs to {_user(about.st_uid)}, and this process to {_user(os.geteuid())}, who would believe what "
                "lies there: give a folder of your own"
            )
        elif is_all or (about.st_mode & 0o020 and not self._is_shared):
            what = (
                f"may be written to by {'everybody' if is_all else 'a group'}, so what lies there cannot be believed: "
                "take that right away (chmod -R go-w)"
            )
        else:
            return
        if not is_all:
            what += ", or share it on purpose by stoker.Cache(..., is_shared=True), or --shared"
        raise CacheError(f"{self.path / name} {what}", path=self.path)

    @property
    def is_in_place(self) -> bool:
        """Whether its path, and those of the folders in it, still are these: none was removed or moved."""
        try:
            inside = [os.stat(name, dir_fd=self.root, follow_symlinks=False) for name in _FOLDERS]
            now = [os.stat(self.path), *inside]  # noqa: PTH116
        except OSError:
            return False
        return all(os.path.samestat(one, os.fstat(fd)) for one, fd in zip(now, self._fds, strict=True))

    def open_own(self, name: str) -> tuple[int, bool]:
        """Return a descriptor of a file beside the folders, made if it is not there, and whether it is writable.

        What is in its place and not a plain file with this one name is replaced.
        """
        for _ in range(2):
            try:
                fd, is_writable = os.open(name, os.O_RDWR | SAFELY, dir_fd=self.root), True
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):
                    return self.files.create(self.root, name, mode=self.file_mode), True
                continue
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENXIO, errno.ENODEV):
                    fd, is_writable = os.open(name, os.O_RDONLY | SAFELY, dir_fd=self.root), False
                else:
                    self.files.remove(self.root, name)
                    continue
            about = os.fstat(fd)
            if stat.S_ISREG(about.st_mode) and about.st_nlink == 1:
                return fd, is_writable
            os.close(fd)
            if about.st_nlink:  # else it was just removed, and what has its name by now is another one
                self.files.remove(self.root, name)
        raise OSError(errno.EEXIST, f"something is in the place of {name!r}")

    # ------------------------------------------------------------------ small files

    def read_small(self, folder: int, name: str) -> bytes:
        """Return the content of a small file; a `FileNotFoundError` says that there is none that is a plain file."""
        fd, about = open_plain(name, folder)
        with os.fdopen(fd, "rb") as file:
            if about.st_size > _MAX_SMALL_BYTES:
                raise FileNotFoundError(errno.EFBIG, f"{name} is none of ours")
            return file.read(_MAX_SMALL_BYTES)

    def write_small(self, folder: int, name: str, data: bytes) -> None:
        """Write a small file whole or not at all."""
        with self._written_aside(name, data) as aside:
            self.files.replace(self.tmp, aside, folder, name)

    @contextlib.contextmanager
    def _written_aside(self, name: str, data: bytes) -> Iterator[str]:
        """Give the name of a file in `tmp`, which is removed at the end if it still has that."""
        aside = self.name_aside(name)
        fd = self.files.create(self.tmp, aside, mode=self.file_mode)
        try:
            try:
                self.files.write(fd, data, offset=0)
            finally:
                os.close(fd)
            yield aside
        finally:
            self.files.remove(self.tmp, aside)

    def renew(self, folder: int, name: str) -> None:
        """Set the times of a small file to now, if it is this user's and no name of something else."""
        fd, about = open_plain(name, folder)
        try:
            if about.st_nlink != 1:
                raise OSError(errno.EMLINK, f"{name} has another name")
            os.utime(fd)
        finally:
            os.close(fd)

    def name_aside(self, name: str) -> str:
        """Return a name in `tmp` for a file that becomes `name`. Without its writer's lock it may be removed."""
        return f"{name}.{self.writer}-{next(_numbers)}"

    # ------------------------------------------------------------------ chunks

    def status(self, key: str) -> os.stat_result | None:
        """Return what the system tells of a chunk's file, None where it is not there."""
        if "/" in key:  # what others have written down as a chunk of a data set, and may be anywhere
            return None
        try:
            about = os.stat(key + SUFFIX, dir_fd=self.chunks, follow_symlinks=False)
        except (OSError, ValueError):  # no name has a zero in it
            return None
        return about if stat.S_ISREG(about.st_mode) else None

    def open_chunk(self, key: str) -> tuple[int, os.stat_result]:
        """Return a chunk, open for reading, and what the system tells of its file, as `open_plain` does."""
        return open_plain(key + SUFFIX, self.chunks)

    def remove(self, key: str) -> int | None:
        """Remove a chunk, and return how large it was; None where it was not there. Maps of it stay readable."""
        about = self.status(key)
        if about is None or not self.files.remove(self.chunks, key + SUFFIX):
            return None
        self._forget(key)
        return about.st_size

    # What a chunk file was when its checksums were compared is noted as the text of a link that leads nowhere:
    #
    #     checked/abcd…  ──►  "{boot} {inode} {size} {written} {changed}"
    #
    # Anything that writes to the file, renames another one over it or sets its times makes the text wrong, and so does
    # a restart of the machine, before which a file may have been published whose bytes never reached the disk. What is
    # left is a disk that silently gives other bytes than it was given: `stoker cache verify` finds those.

    def was_verified(self, key: str, about: os.stat_result) -> bool:
        """Return whether a chunk's file was verified as it is now, by this user or by root."""
        try:
            note = os.stat(key, dir_fd=self.checked, follow_symlinks=False)
            is_ours = note.st_uid in (os.geteuid(), 0)  # other users of a shared cache are not believed
            return is_ours and os.readlink(key, dir_fd=self.checked) == _version_text(about)
        except OSError:
            return False

    def note_verified(self, key: str, about: os.stat_result, *, is_new: bool = False) -> None:
        """Note that a chunk's file was verified as it is now. A crash in between leaves the old note or none.

        One that changed a moment ago is not noted, unless this process has just published it, with a time that no later
        change has.
        """
        text = _version_text(about)
        if text is None or (not is_new and time.time_ns() - about.st_ctime_ns < _SETTLED_NS):
            return
        self._forget(key)
        with contextlib.suppress(OSError):  # a folder that only others may write to, or a full disk
            os.symlink(text, key, dir_fd=self.checked)

    def _forget(self, key: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(key, dir_fd=self.checked)

    def list_chunks(self) -> dict[str, int]:
        """Return every chunk: key -> bytes."""
        return {
            name.removesuffix(SUFFIX): about.st_size for name, about in _scan(self.chunks) if _is_chunk(name, about)
        }

    def list_strays(self) -> list[str]:
        """Return the names of what lies among the chunks and is none."""
        return sorted(name for name, about in _scan(self.chunks) if not _is_chunk(name, about))

    def list_temporary(self) -> list[str]:
        """Return the names of files that are being written, or were when their writer was killed."""
        return [name for name, about in _scan(self.tmp) if not stat.S_ISDIR(about.st_mode)]

    def count_bytes(self) -> int:
        """Return the bytes of all chunks, those being written included."""
        # One that moves to its place meanwhile is in both listings, by one inode; the other way round, perhaps in none.
        listed = (about for fd in (self.tmp, self.chunks) for _, about in _scan(fd) if stat.S_ISREG(about.st_mode))
        return sum({about.st_ino: about.st_size for about in listed}.values())

    def changed_ns(self) -> int:
        """Return when a chunk last came or went."""
        return os.fstat(self.chunks).st_mtime_ns

    def list_datasets(self) -> list[str]:
        """Return the names of the files of data sets."""
        return sorted(name for name, about in _scan(self.datasets) if name.isalnum() and stat.S_ISREG(about.st_mode))

    def close(self) -> None:
        """Close what is open. Harmless when called again."""
        while self._fds:
            os.close(self._fds.pop())


def _is_chunk(name: str, about: os.stat_result) -> bool:
    return name.endswith(SUFFIX) and stat.S_ISREG(about.st_mode)


def version_of(about: os.stat_result) -> FileVersion:
    """Return which file was looked at."""
    return about.st_ino, about.st_mtime_ns, about.st_size


def _version_text(about: os.stat_result) -> str | None:
    boot = _boot_id()
    if boot is None:
        return None
    return f"{boot} {about.st_ino} {about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}"


@cache
def _boot_id() -> str | None:
    """Return what changes whenever the machine starts, None where the system does not tell."""
    try:
        return _BOOT_ID.read_text().strip() or None
    except OSError:
        return None


def is_cache(path: Path) -> bool:
    """Return whether a folder is a cache, of whatever version; nothing is made."""
    try:
        return stat.S_ISREG((path / _MARKER).lstat().st_mode)
    except OSError:
        return False


def _scan(folder: int) -> Iterator[tuple[str, os.stat_result]]:
    """Yield what is in a folder, links as themselves."""
    # Opened anew: descriptors of one opening share their place in the listing, with other threads and forks as well.
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        with os.scandir(fd) as items:
            for item in items:
                with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                    yield item.name, item.stat(follow_symlinks=False)
    finally:
        os.close(fd)


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name!r}"
    except KeyError:
        return f"user {uid}"


# ---------------------------------------------------------------------------------------------- locks

Lock: TypeAlias = contextlib.ExitStack

_KNOWS_DESCRIPTIONS = hasattr(fcntl, "F_OFD_SETLK")
_SET = getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK)
_SET_AND_WAIT = getattr(fcntl, "F_OFD_SETLKW", fcntl.F_SETLKW)
_GET = getattr(fcntl, "F_OFD_GETLK", fcntl.F_GETLK)

_PLACE_BITS = 62  # two names that share a place only wait for each other
_BUSY = (errno.EAGAIN, errno.EACCES)


def _flock(kind: int, place: int) -> bytes:
    """Return `struct flock` for one byte at `place`."""
    if _KNOWS_DESCRIPTIONS:
        return struct.pack("@hhqqi4x", kind, os.SEEK_SET, place, 1, 0)
    return struct.pack("@qqihh", place, 1, 0, kind, os.SEEK_SET)  # macOS and the BSDs


def _place(name: str) -> int:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _PLACE_BITS)


_USAGE = _place("")  # nothing else is called so
_counting = open_in_forks(threading.Lock())  # the threads of all stores: a descriptor is not locked against its own


class Locks:
    """The locks of one store, which the system drops when their holder dies; `close` gives them all back.

    A lock is one byte of the file, which stays empty, at a place that a hash of its name decides. Nothing has to be
    cleaned up after a process that was killed, and no lock file is ever left, because there is only the one.

        Linux      open-file-description locks: each store opens the file for itself, and is told from all others by it
        elsewhere  POSIX record locks, which a process has as a whole: two stores of one may build the same chunk

    Threads of a store share its descriptor, so a table tells which locks it has. A fork has none of them. On a disk
    that is read-only, and so not `is_writable`, shared locks still work.
    """

    def __init__(self, folder: Folder) -> None:
        self._path = folder.path / "locks"
        self._home, self._mutex = this_process(), threading.Lock()
        self._held: dict[int, int] = {}  # place -> how often it is held shared, or -1
        fd, self.is_writable = folder.open_own("locks")
        self._fd, self._is_closed = closed_in_forks(fd), False

    def try_lock(self, name: str, *, is_shared: bool = False) -> Lock | None:
        """Return the lock, or None where another thread, store or process holds it. Never waits.

        It is held until it is closed, or the process ends. A name is a chunk's key, a data set's fingerprint or a
        writer's name, none of which is like another. A `CacheError` says that the file system knows no locks.
        """
        if not (is_shared or self.is_writable):
            return None
        place, lock = _place(name), Lock()
        self._check_open()  # in a fork, a thread that it does not have may hold the mutex for ever
        with self._mutex:
            self._check_open()
            num = self._held.get(place, 0)
            if num < 0 or (num and not is_shared):
                return None
            if not num and not self._set(_SET, fcntl.F_RDLCK if is_shared else fcntl.F_WRLCK, place):
                return None
            self._held[place] = num + 1 if is_shared else -1
        lock.callback(self._release, place)
        return lock

    def is_held(self, name: str, *, elsewhere: bool = False) -> bool:
        """Return whether anyone holds the lock; or, elsewhere, anyone but this store."""
        place = _place(name)
        if place in self._held and not elsewhere:
            return True
        answer = fcntl.fcntl(self._fd, _GET, _flock(fcntl.F_WRLCK, place))
        kind: int = struct.unpack_from("@h", answer, 0 if _KNOWS_DESCRIPTIONS else 20)[0]
        return kind != fcntl.F_UNLCK

    @contextlib.contextmanager
    def usage(self) -> Iterator[None]:
        """Hold the one lock under which the bytes of all chunks are counted, and data sets begin to be in use.

        Blocks: while another thread or process holds it; nobody holds it while anything large is read or written.
        """
        self._check_open()
        with _counting:
            self._set(_SET_AND_WAIT, fcntl.F_WRLCK, _USAGE)
            try:
                yield
            finally:
                self._set(_SET, fcntl.F_UNLCK, _USAGE)

    def close(self) -> None:
        """Give all locks back. Harmless when called again, and in a fork."""
        if self._is_closed or not self._home.is_here:
            return
        with self._mutex:
            self._is_closed = True
            for place in self._held:
                self._set(_SET, fcntl.F_UNLCK, place)
            self._held.clear()
        if _KNOWS_DESCRIPTIONS:  # elsewhere other stores of this process would lose their locks with it
            close_here(self._fd)

    def _check_open(self) -> None:
        cache = self._path.parent
        self._home.check(f"the cache {cache}")
        if self._is_closed:
            raise CacheError(f"the cache {cache} was closed", path=cache)

    def _release(self, place: int) -> None:
        if not self._home.is_here:
            return
        with self._mutex:
            num = self._held.pop(place, 0)
            if num > 1:
                self._held[place] = num - 1
            elif num:
                self._set(_SET, fcntl.F_UNLCK, place)

    def _set(self, command: int, kind: int, place: int) -> bool:
        try:
            fcntl.fcntl(self._fd, command, _flock(kind, place))
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise CacheError(
                f"{self._path} cannot be locked ({error.strerror}); put the cache on a local disk", path=self._path
            ) from error
        return True
