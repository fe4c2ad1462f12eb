"""Which storage opens a URL; and what fsspec opens, as one: web servers, Hadoop's file system (by pyarrow), others."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

from stoker.errors import SourceError
from stoker.storage.clients import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, REQUEST_TIMEOUT_S, checked_options
from stoker.storage.failures import WrongArgumentError, within
from stoker.storage.object_store import ObjectStorage
from stoker.storage.storage import NO_VERSION, BytesLike, LocalStorage, ObjectInfo, Storage
from stoker.storage.urls import OWN_SCHEMES, has_scheme, scheme_of, without_chain

# These clients have no time limits of their own. How long they may take: for an answer, for a listing of millions of
# objects, and for a byte of what is read.
_ANSWER_S, _LISTING_S, _BYTE_S = 10.0, 600.0, 2e-6

# Of a web server's answer: a listing of half a million files, and what it says of an error.
_MOST_PAGE_BYTES, _MOST_WORDS_BYTES = 32 << 20, 1 << 20


def storage_for(
    url: str, *, storage_options: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None
) -> Storage:
    """Return the storage that opens a path or a URL, with the options that its client takes.

    The variables of the environment are those of now, unless given. A `ValueError` says what to install where nothing
    that is there knows the scheme, and which options exist; clients that cannot be set up raise what they like.
    """
    scheme = scheme_of(url)
    options = dict(storage_options or {})
    if scheme == "file":
        if options:
            raise ValueError(f"storage_options mean nothing for local files, got {sorted(options)}")
        return LocalStorage()
    if scheme in OWN_SCHEMES:
        given = checked_options(url, options)
        return ObjectStorage(scheme, given=given, environment=os.environ if environment is None else environment)
    return _through_fsspec(url, scheme, options)


def _through_fsspec(url: str, scheme: str, options: Mapping[str, Any]) -> FsspecStorage:
    try:
        import fsspec.core
    except ImportError:
        raise WrongArgumentError(
            f"{url}: the scheme {scheme!r} is opened through fsspec, which is not installed: pip install stoker[fsspec]"
        ) from None
    address = url
    try:
        if scheme in ("http", "https"):
            options = _with_limits(options)
        if scheme == "viewfs":  # Hadoop's own name for several of its file systems as one: its client needs the host
            host, _, rest = url.partition("://")[2].partition("/")
            address, options = f"hdfs:///{rest}", {"host": f"viewfs://{host}", "port": 0, **options}
        filesystem, path = fsspec.core.url_to_fs(address, **options)
    except (ValueError, TypeError, ImportError) as error:
        raise WrongArgumentError(f"{url}: no client for the scheme {scheme!r}: {error}") from error
    place, path = without_chain(url).rstrip("/"), str(path).rstrip("/")
    return FsspecStorage(
        filesystem, root_url=place.removesuffix(path) if path and place.endswith(path) else f"{scheme}://"
    )


def _with_limits(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of fsspec's client of web servers, which waits five minutes, and takes whatever is sent."""
    import aiohttp

    class Bounded(aiohttp.ClientResponse):
        """An answer of which is read what was asked for and, of one that goes on and on, enough to be refused."""

        async def read(self) -> bytes:
            first, _, last = self.request_info.headers.get("Range", "").removeprefix("bytes=").partition("-")
            asked = int(last) - int(first) + 1 if first and last else _MOST_PAGE_BYTES
            try:
                self._body = await self.content.readexactly(2 * asked + _MOST_WORDS_BYTES)
            except asyncio.IncompleteReadError as error:  # it has ended, as it should
                self._body = error.partial
                return self._body
            self.close()
            if not last:  # a part of a listing would be taken for all of it
                url = str(self.url)
                raise SourceError(
                    f"{url}: the server's list of what is there has more than {len(self._body):,} bytes: name the "
                    "files, or copy them to another place",
                    url=url,
                )
            return self._body

    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S, sock_read=READ_TIMEOUT_S)
    ours = {"timeout": timeout, "response_class": Bounded}
    return {**options, "client_kwargs": {**ours, **options.get("client_kwargs", {})}}


class FsspecStorage:
    """Objects of a file system of fsspec, before whose paths URLs have `root_url`, such as "hf://"."""

    _TIMES = ("mtime", "LastModified", "Last-Modified", "last_modified", "modificationTime", "modification_time")
    # In the order of trust; the first one that the file system gives is the version.
    _VERSIONS = (
        *("ETag", "etag", "version_id", "VersionId", "generation"),  # s3fs, http, adlfs, gcsfs
        *("blob_id", "sha", "hex", "oid", "content_hash"),  # hf, github, git, dropbox: names made of the content
        *("md5", "Content-MD5", "content_md5", "md5Hash", "crc32c", "checksum", "Digest"),
        *("CRC", "chksum"),  # zip, tar
        *_TIMES,
        *("modify", "modified", "modifiedTime", "updated", "last_commit", "created"),  # ftp, gdrive, hf, memory
    )

    def __init__(self, filesystem: Any, *, root_url: str, answer_s: float = _ANSWER_S) -> None:
        from fsspec.implementations.arrow import ArrowFSWrapper

        self._filesystem, self._root_url, self._answer_s = filesystem, root_url, answer_s
        # Of pyarrow's file systems, such as Hadoop's, fsspec opens a file that is read from its beginning as a stream,
        # and then asks where in it it is, which streams do not tell.
        self._read_options = {"seekable": True} if isinstance(filesystem, ArrowFSWrapper) else {}

    def list(self, url: str) -> list[ObjectInfo]:
        """Return every object under `url`."""
        found = within(_LISTING_S, lambda: self._found(url))
        return [self._info(path, about) for path, about in found.items()]

    def stat(self, url: str) -> ObjectInfo:
        """Return what the file system knows of the object `url`."""
        self._filesystem.invalidate_cache()
        about = within(self._answer_s, lambda: self._filesystem.info(self._path(url)))
        if about.get("type") == "directory":
            raise IsADirectoryError(url)
        return self._info(about["name"], about)

    def read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        """Return `num_bytes` of the object `url` from `offset` on."""
        options = {"start": offset, "end": offset + num_bytes, **self._read_options}
        read = partial(self._filesystem.cat_file, self._path(url), **options)
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
        url, written_s = path if has_scheme(path) else self._root_url + path, None
        times = (about[name] for name in self._TIMES if isinstance(about.get(name), datetime))
        with suppress(ValueError, OverflowError, OSError):  # a year that no clock has
            written_s = next((time.timestamp() for time in times), None)
        return ObjectInfo(url=url, size_bytes=int(about["size"] or 0), version=version, written_s=written_s)
