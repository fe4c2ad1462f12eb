"""What fsspec opens, as storages: web servers, Hadoop's file system (by pyarrow), and whatever else it knows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

from stoker.errors import SourceError
from stoker.storage.retry import within
from stoker.storage.storage import NO_VERSION, BytesLike, ObjectInfo
from stoker.storage.urls import has_scheme

# These clients have no time limits of their own. How long they may take: for an answer, for a listing of millions of
# objects, and for a byte of what is read.
_ANSWER_S, _LISTING_S, _BYTE_S = 10.0, 600.0, 2e-6


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
        found = within(_LISTING_S, lambda: self._found(url))
        infos = [self._info(path, about) for path, about in found.items()]
        return sorted(infos, key=lambda info: info.url)

    def stat(self, url: str) -> ObjectInfo:
        """Return what the file system knows of the object `url`."""
        self._filesystem.invalidate_cache()
        about = within(self._answer_s, lambda: self._filesystem.info(self._path(url)))
        if about.get("type") == "directory":
            raise IsADirectoryError(url)
        return self._info(about["name"], about)

    def read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        """Return `num_bytes` of the object `url` from `offset` on."""
        read = partial(self._filesystem.cat_file, self._path(url), start=offset, end=offset + num_bytes)
        data: bytes = within(2 * self._answer_s + num_bytes * _BYTE_S, read)
        if len(data) > 2 * num_bytes:
            raise SourceError(
                f"{url}: the server gives whole objects where ranges are asked for: copy them to another place", url=url
            )
        return data

    def write(self, url: str, data: BytesLike) -> None:
        """Make the object `url`, in place of what has its name."""
        write = partial(self._filesystem.pipe_file, self._path(url), bytes(data))
        within(2 * self._answer_s + len(data) * _BYTE_S, write)

    def _found(self, url: str) -> dict[str, dict[str, Any]]:
        from fsspec.asyn import AsyncFileSystem
        from fsspec.spec import AbstractFileSystem

        self._filesystem.invalidate_cache()
        kind = type(self._filesystem)
        walks = kind.find is AbstractFileSystem.find or getattr(kind, "_find", None) is AsyncFileSystem._find
        # Unless told, a walk goes on without the folders that it could not list.
        errors = {"on_error": "raise"} if walks else {}
        try:
            found: dict[str, dict[str, Any]] = self._filesystem.find(self._path(url), detail=True, **errors)
        except FileNotFoundError:
            return {}
        # A web server lists names alone.
        return {
            path: self._filesystem.info(path) if about.get("size") is None else about for path, about in found.items()
        }

    def _path(self, url: str) -> str:
        return str(self._filesystem._strip_protocol(url))

    def _info(self, path: str, about: Mapping[str, Any]) -> ObjectInfo:
        value = next((about[name] for name in self._VERSIONS if about.get(name) not in (None, "")), NO_VERSION)
        # Some file systems give a time as datetime in one call and as seconds in another.
        version = repr(value.timestamp()) if isinstance(value, datetime) else str(value)
        if about.get("chksum") is not None or about.get("CRC") is not None:  # 32 bits, or of the header alone
            version += f" {about.get('date_time') or about.get('mtime')}"
        return ObjectInfo(url=self._url(path), size_bytes=int(about["size"] or 0), version=version)

    def _url(self, path: str) -> str:
        return path if has_scheme(path) else self._root_url + path

    def __repr__(self) -> str:
        return f"FsspecStorage({self._root_url!r})"
