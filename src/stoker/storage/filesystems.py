"""What pyarrow and fsspec open, as storages."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow.fs as pafs

from stoker.errors import SourceError, SourceMissingError
from stoker.storage.clients import reach
from stoker.storage.failures import translated
from stoker.storage.storage import NOT_LISTED, UNKNOWN, BytesLike, ObjectInfo, exactly
from stoker.storage.urls import has_scheme

# Opened objects that one ArrowStorage remembers, a few kB each: opening one again asks a remote store for its size each
# time, and a data set of many small files comes back to each when all were looked up.
_MAX_OPEN_OBJECTS = 4096

# Asked for when a read was refused: enough for the store's words, which are a few hundred bytes.
_REFUSAL_BYTES = 4096
# Those of pyarrow's clients that have no time limits of their own, as fsspec's have none; and how long they may take:
# for an answer, for a listing of millions of objects, and for a byte of what is read.
_WITHOUT_LIMITS = ("gcs", "abfs")
_ANSWER_S, _LISTING_S, _BYTE_S = 10.0, 600.0, 2e-6
# What the end of the memory is marked with that a client reads into: nobody sends that by chance.
_MARK_BYTES = 16

_T = TypeVar("_T")


# Those of which pyarrow tells more about an opened object than in a listing, where it has size and time alone.
_WITH_METADATA = ("s3", "gcs", "abfs")
# What of it is another for each version of an object.
_IDENTITY = ("etag", "versionid", "generation", "contentmd5", "md5hash", "lastmodified", "updated")
_UNREADABLE = re.compile(r"/(?:\.{0,2})/|/\.{1,2}\Z")


def _version_of(metadata: Mapping[Any, Any] | None) -> str | None:
    """Return what an object's metadata say of its version, None where they say nothing."""
    found = {}
    for name, value in (metadata or {}).items():
        plain = "".join(c for c in _text(name).lower() if c.isalnum()).removeprefix("xamz")
        if plain in _IDENTITY and value:
            found[plain] = _text(value)
    return " ".join(f"{name}={found[name]}" for name in _IDENTITY if name in found) or None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class ArrowStorage:
    """Objects of a file system that pyarrow.fs opens.

    Args:
        filesystem: The file system.
        root_url: What a URL begins with, and ...
        root_path: ... what stands for it in a path of `filesystem`: "s3://" and "", "abfss://box@account.dfs..." and
            "box".
        address: Host and port of a store whose client would wait for minutes for a connection.
    """

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        *,
        root_url: str,
        root_path: str = "",
        address: tuple[str, int] | None = None,
    ) -> None:
        self._filesystem = filesystem
        self._root_url = root_url
        self._root_path = root_path
        self._address = address
        self._lock = threading.Lock()
        self._open: OrderedDict[str, Any] = OrderedDict()

    def list(self, url: str) -> list[ObjectInfo]:
        """Return every object under `url`."""
        selector = pafs.FileSelector(self._path(url), recursive=True, allow_not_found=True)
        with translated(url, doing="listing"):
            self._reach(url)
            infos = self._asked(lambda: self._filesystem.get_file_info(selector), _LISTING_S)
        is_told = self._filesystem.type_name not in _WITH_METADATA
        found = [self._info(info, is_told=is_told) for info in infos if info.type == pafs.FileType.File]
        return sorted(found, key=lambda info: info.url)

    def stat(self, url: str) -> ObjectInfo:
        """Return what the store knows of the object `url`; in one request, as opening it takes, and it stays open."""
        path = self._path(url)
        with translated(url, doing="looking up"):
            self._reach(url)
            kind = self._filesystem.type_name
            # Azure's client ends the process where opening an object finds no credentials: it is looked up first.
            info = self._looked_up(url) if kind == "abfs" else None
            is_file = "/" in path.strip("/") if info is None else info.type == pafs.FileType.File
            if kind in _WITH_METADATA and is_file:
                file, version = self._asked(lambda: self._opened_with_version(path), _ANSWER_S)
                if version is not None:
                    self._keep_open(url, file)
                    return ObjectInfo(url=url, size_bytes=file.size(), version=version)
            info = self._looked_up(url) if info is None else info
        if info.type != pafs.FileType.File:
            what = (
                "is a folder, not a file" if info.type == pafs.FileType.Directory else "does not exist: check the name"
            )
            raise SourceMissingError(f"{url} {what}", url=url)
        return self._info(info, is_told=True)

    def read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        """Return `num_bytes` of the object `url` from `offset` on."""
        with translated(url, doing="reading"):
            self._reach(url)
            data = self._asked(partial(self._read, url, offset, num_bytes), 2 * _ANSWER_S + num_bytes * _BYTE_S)
        return exactly(data, num_bytes, url=url, offset=offset)

    def write(self, url: str, data: BytesLike) -> None:
        """Make the object `url`, in place of what has its name: whole or not at all."""

        def write() -> None:
            with self._filesystem.open_output_stream(self._path(url)) as file:
                file.write(data)

        self._forget(url)
        with translated(url, doing="writing"):
            self._reach(url)
            self._asked(write, 2 * _ANSWER_S + len(data) * _BYTE_S)

    def _read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        file = self._opened(url)
        if offset + num_bytes > file.size():
            # It may have been opened before a larger object took its place.
            self._forget(url)
            file = self._opened(url)
        if offset >= file.size():
            return b""
        try:
            return _read(file, offset, min(num_bytes, file.size() - offset))
        except OSError as error:
            self._forget(url)
            if "Failed to flush response stream" in str(error):
                # The store refused in more bytes than were asked for: its words had no room and are lost.
                self._opened(url).read_at(_REFUSAL_BYTES, 0)
                raise OSError(f"it gave more than the {num_bytes:,} bytes at {offset:,}") from error
            raise

    def _reach(self, url: str) -> None:
        """Find out whether anything answers, until something does."""
        if self._address is not None:
            reach(*self._address)
            self._looked_up(url)
            self._address = None

    def _opened_with_version(self, path: str) -> tuple[Any, str | None]:
        file = self._filesystem.open_input_file(path)
        return file, _version_of(file.metadata())

    def _looked_up(self, url: str) -> pafs.FileInfo:
        return self._asked(lambda: self._filesystem.get_file_info(self._path(url)), _ANSWER_S)

    def _asked(self, call: Callable[[], _T], limit_s: float) -> _T:
        return within(limit_s, call) if self._filesystem.type_name in _WITHOUT_LIMITS else call()

    def _forget(self, url: str) -> None:
        with self._lock:
            self._open.pop(url, None)

    def _opened(self, url: str) -> Any:
        with self._lock:
            file = self._open.get(url)
            if file is not None:
                self._open.move_to_end(url)
                return file
        file = self._filesystem.open_input_file(self._path(url))
        self._keep_open(url, file)
        return file

    def _keep_open(self, url: str, file: Any) -> None:
        with self._lock:
            self._open[url] = file
            self._open.move_to_end(url)
            while len(self._open) > _MAX_OPEN_OBJECTS:
                # Not closed here: another thread may be reading from it. The last reference closes it.
                self._open.popitem(last=False)

    def _path(self, url: str) -> str:
        path = (self._root_path + url.removeprefix(self._root_url)).rstrip("/")
        if _UNREADABLE.search(path) and self._filesystem.type_name == "s3":
            raise SourceError(
                f"{url}: pyarrow's client reads no key with '//', '/./' or '/../' in it: rename the object, or give "
                "storage=, an object of your own that reads it",
                url=url,
            )
        return path

    def _info(self, info: pafs.FileInfo, *, is_told: bool) -> ObjectInfo:
        return ObjectInfo(
            url=self._root_url + info.path.removeprefix(self._root_path),
            size_bytes=info.size or 0,
            version=(UNKNOWN if info.mtime_ns is None else str(info.mtime_ns)) if is_told else NOT_LISTED,
        )

    def __repr__(self) -> str:
        return f"ArrowStorage({self._filesystem.type_name!r})"


def within(limit_s: float, call: Callable[[], _T]) -> _T:
    """Return what a call of a client gives, which is made by another thread and left to itself after a while.

    Raises:
        TimeoutError: It gave nothing in time.
    """
    answer: Future[_T] = Future()

    def ask() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    # It ends when the client gives up, which nobody waits for.
    threading.Thread(target=ask, name="store-call", daemon=True).start()
    if not wait([answer], timeout=limit_s).done:
        raise TimeoutError(f"nothing answers at the store: not within {limit_s:.0f} s")
    return answer.result()


def _read(file: Any, offset: int, num_bytes: int) -> BytesLike:
    """Return so many bytes of a file that pyarrow opened.

    Its clients return as many as they were asked for, however short the answer was: what lies behind is whatever the
    memory held. So it lies in memory of ours, whose last bytes are marked. Where the mark is still there, or the store
    sent the same by chance, these bytes are read again, over others.

    Raises:
        OSError: Fewer came.
    """
    room = np.empty(num_bytes, np.uint8)
    end = room[-_MARK_BYTES:]
    end[:] = mark = np.frombuffer(os.urandom(len(end)), np.uint8)
    num_come = file.get_stream(offset, num_bytes).readinto(room)
    if num_come == num_bytes and num_bytes and end[-1] == mark[-1]:
        again = ~end
        file.get_stream(offset + num_bytes - len(end), len(end)).readinto(again)
        num_come -= not np.array_equal(again, end)
    if num_come != num_bytes:
        raise OSError(f"it gave fewer than the {num_bytes:,} bytes that were asked for at {offset:,}")
    return room.data


class FsspecStorage:
    """Objects of a file system of fsspec.

    Args:
        filesystem: The fsspec file system.
        root_url: What stands before a path of `filesystem` in a URL: "hf://".
        answer_s: How long the client may take for an answer.
    """

    # In the order of trust; the first one that the file system gives is the version.
    _VERSIONS = (
        *("ETag", "etag", "version_id", "VersionId", "generation"),  # s3fs, http, adlfs, gcsfs
        *("blob_id", "sha", "hex", "oid", "content_hash"),  # hf, github, git, dropbox: names made of the content
        *("md5", "Content-MD5", "content_md5", "md5Hash", "crc32c", "checksum", "Digest"),
        *("CRC", "chksum"),  # zip, tar
        *("mtime", "LastModified", "Last-Modified", "last_modified", "modificationTime", "modification_time"),
        *("modify", "modified", "modifiedTime", "updated", "last_commit", "created"),  # ftp, gdrive, hf, memory
    )

    def __init__(self, filesystem: Any, *, root_url: str, answer_s: float = _ANSWER_S) -> None:
        self._filesystem = filesystem
        self._root_url = root_url
        self._answer_s = answer_s

    def list(self, url: str) -> list[ObjectInfo]:
        """Return every object under `url`."""
        with translated(url, doing="listing"):
            found = within(_LISTING_S, lambda: self._found(url))
        infos = [self._info(path, about) for path, about in found.items()]
        return sorted(infos, key=lambda info: info.url)

    def stat(self, url: str) -> ObjectInfo:
        """Return what the file system knows of the object `url`."""
        with translated(url, doing="looking up"):
            self._filesystem.invalidate_cache()
            about = within(self._answer_s, lambda: self._filesystem.info(self._path(url)))
        if about.get("type") == "directory":
            raise SourceMissingError(f"{url} is a folder, not a file", url=url)
        return self._info(about["name"], about)

    def read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        """Return `num_bytes` of the object `url` from `offset` on."""
        with translated(url, doing="reading"):
            read = partial(self._filesystem.cat_file, self._path(url), start=offset, end=offset + num_bytes)
            data: bytes = within(2 * self._answer_s + num_bytes * _BYTE_S, read)
            if len(data) > num_bytes:
                raise SourceError(
                    f"{url}: the server gives whole objects where ranges are asked for: copy them to another place",
                    url=url,
                )
            if len(data) < num_bytes:
                raise OSError(f"it gave {len(data):,} of the {num_bytes:,} bytes that were asked for at {offset:,}")
        return data

    def write(self, url: str, data: BytesLike) -> None:
        """Make the object `url`, in place of what has its name."""
        with translated(url, doing="writing"):
            write = partial(self._filesystem.pipe_file, self._path(url), bytes(data))
            within(2 * self._answer_s + len(data) * _BYTE_S, write)

    def _found(self, url: str) -> dict[str, dict[str, Any]]:
        self._filesystem.invalidate_cache()
        try:
            found: dict[str, dict[str, Any]] = self._filesystem.find(self._path(url), detail=True)
        except FileNotFoundError:
            return {}
        # A web server lists names alone.
        return {
            path: self._filesystem.info(path) if about.get("size") is None else about for path, about in found.items()
        }

    def _path(self, url: str) -> str:
        return str(self._filesystem._strip_protocol(url))

    def _info(self, path: str, about: Mapping[str, Any]) -> ObjectInfo:
        value = next((about[name] for name in self._VERSIONS if about.get(name) not in (None, "")), UNKNOWN)
        # Some file systems give a time as datetime in one call and as seconds in another.
        version = repr(value.timestamp()) if isinstance(value, datetime) else str(value)
        if about.get("chksum") is not None or about.get("CRC") is not None:  # 32 bits, or of the header alone
            version += f" {about.get('date_time') or about.get('mtime')}"
        return ObjectInfo(url=self._url(path), size_bytes=int(about["size"] or 0), version=version)

    def _url(self, path: str) -> str:
        return path if has_scheme(path) else self._root_url + path

    def __repr__(self) -> str:
        return f"FsspecStorage({self._root_url!r})"
