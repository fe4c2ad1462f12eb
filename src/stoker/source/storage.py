"""The one seam to the outside: objects are listed, looked up and read in ranges.

    Storage            what Stoker asks of a store: list, stat, read
    ├── LocalStorage   files of this machine, by plain reads
    ├── ArrowStorage   s3, gs, abfss, hdfs: what pyarrow.fs opens
    └── FsspecStorage  any other scheme, where fsspec is installed

All of them turn what goes wrong below into `SourceError` in one place, `translated`.
"""

from __future__ import annotations

import errno
import os
import re
import stat as stat_modes
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa
import pyarrow.fs as pafs

from stoker.errors import SourceError, SourceMissingError
from stoker.source.clients import ARROW_SCHEMES, WrongArgumentError, filesystem_for

BytesLike: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
# pyarrow's own way to give options in a URL, s3://bucket/key?endpoint_override=...; a "?" without "name=" is a glob.
_QUERY = re.compile(r"\?(?=[A-Za-z_]\w*=)")

# Opened objects that one ArrowStorage remembers: opening one again asks a remote store for its size each time.
_MAX_OPEN_OBJECTS = 64

# Asked for when a read was refused: enough for the store's words, which are a few hundred bytes.
_REFUSAL_BYTES = 4096

_HOPELESS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)
# What stores say, in the words of pyarrow's clients and of their own.
_MISSING = re.compile(r"NO_SUCH_KEY|NO_SUCH_BUCKET|NoSuchKey|NoSuchBucket|HTTP status 404\b")
_WAYS_OUT = (
    (
        re.compile(
            r"ACCESS_DENIED|AccessDenied|INVALID_ACCESS_KEY_ID|InvalidAccessKeyId|SIGNATURE_DOES_NOT_MATCH|"
            r"SignatureDoesNotMatch|INVALID_CLIENT_TOKEN_ID|ExpiredToken|InvalidToken|Forbidden|HTTP status 40[13]\b"
        ),
        "check the credentials or storage_options",
    ),
    (
        re.compile(r"PermanentRedirect|AuthorizationHeaderMalformed|HTTP status 301\b"),
        "the bucket is in another region: name it in storage_options, as region",
    ),
    (
        # An answer to HEAD has no words, only a number.
        re.compile(r"HTTP status 400\b.*No response body"),
        "check the credentials, which may have expired, and the region, in storage_options",
    ),
)
_UNREACHABLE = re.compile(r"NETWORK_CONNECTION")


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectInfo:
    """One object of a store, as it was when it was looked at.

    Attributes:
        url: Where it is; for a local file its absolute path.
        size_bytes: Its size.
        version: A text that changes when the object does: its etag, or its time of modification in nanoseconds.
    """

    url: str
    size_bytes: int
    version: str


@runtime_checkable
class Storage(Protocol):
    """Where objects come from. Every method is called from several threads at once.

    An implementation may raise what it likes: `OSError` and its kin are tried again and reach the user as a
    `SourceError`.
    """

    def list(self, url: str) -> list[ObjectInfo]:
        """Return every object under the folder `url`, at any depth, sorted by URL; an empty list if there is none."""
        ...

    def stat(self, url: str) -> ObjectInfo:
        """Return what is known of one object.

        Raises:
            SourceMissingError: Nothing, or only a folder, is there.
        """
        ...

    def read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        """Return exactly `num_bytes` from `offset` on.

        Raises:
            SourceError: The object ends before, or cannot be read.
        """
        ...


@contextmanager
def translated(url: str, *, doing: str) -> Iterator[None]:
    """Turn whatever a file system raises inside the block into a `SourceError` that names `url` and a way out."""
    try:
        yield
    except (SourceError, WrongArgumentError):
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceMissingError(f"nothing is stored at {url}: check the name", url=url) from error
    except IsADirectoryError as error:
        raise SourceMissingError(f"{url} is a folder, not a file", url=url) from error
    except PermissionError as error:
        raise SourceError(
            f"no permission while {doing} {url} ({_first_line(error)}): check the credentials or storage_options",
            url=url,
        ) from error
    except Exception as error:
        # Clients of stores raise whatever they like, from botocore's own trees to bare Exception.
        reason = _first_line(error)
        if _MISSING.search(reason):
            raise SourceMissingError(f"nothing is stored at {url} ({reason}): check the name", url=url) from error
        way_out = _way_out(error)
        if way_out is None and _UNREACHABLE.search(reason):
            way_out = "check the network, and endpoint_override in storage_options"
        raise SourceError(f"{doing} {url} failed: {reason}{'; ' + way_out if way_out else ''}", url=url) from error


def _way_out(error: BaseException) -> str | None:
    """Return what the user can do about a store that refuses for good; None where it does not, or says no more."""
    if getattr(error, "status", None) in (401, 403):
        return _WAYS_OUT[0][1]
    text = str(error)
    return next((way_out for pattern, way_out in _WAYS_OUT if pattern.search(text)), None)


def is_transient(error: BaseException) -> bool:
    """Whether trying again may help: a failure of the way there, not of the object or the permissions."""
    seen = error.__cause__ if isinstance(error, SourceError) else error
    if seen is None or isinstance(error, SourceMissingError) or isinstance(seen, _HOPELESS):
        return False
    if _way_out(seen) is not None or _MISSING.search(str(seen)):
        return False
    if isinstance(seen, OSError):
        return seen.errno not in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.EINVAL, errno.EMFILE)
    return not isinstance(seen, ValueError | TypeError | NotImplementedError | AttributeError | KeyError | MemoryError)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def scheme_of(url: str) -> str:
    """Return the scheme of `url` in lower case, "file" for a plain path."""
    match = _SCHEME.match(url)
    return match[1].lower() if match else "file"


def local_path(url: str) -> str:
    """Return the absolute path that a path or a file:// URL names; a trailing "/" stays."""
    path = url
    if scheme_of(url) == "file" and _SCHEME.match(url):
        path = url[len("file://") :]
        if path.startswith("localhost/"):
            path = path[len("localhost") :]
    absolute = os.path.normpath(Path(path).expanduser().absolute())
    return absolute + "/" if path.endswith("/") and absolute != "/" else absolute


def split_query(url: str) -> tuple[str, str]:
    """Split `url` into the place and the options pyarrow reads from it: ("s3://b/k", "endpoint_override=...")."""
    if scheme_of(url) not in ARROW_SCHEMES:
        return url, ""
    parts = _QUERY.split(url, maxsplit=1)
    return parts[0], parts[1] if len(parts) == 2 else ""


class LocalStorage:
    """Files of this machine. URLs are absolute paths."""

    def list(self, url: str) -> list[ObjectInfo]:
        """Return every regular file under the folder `url`; links are followed, hidden folders are not entered."""
        found: list[ObjectInfo] = []
        with translated(url, doing="listing"):
            # A link that leads back up would never end: real folders are visited once.
            seen: set[tuple[int, int]] = set()
            _walk(url.rstrip("/") or "/", found, seen)
        found.sort(key=lambda info: info.url)
        return found

    def stat(self, url: str) -> ObjectInfo:
        """Return size and modification time of the file `url`."""
        with translated(url, doing="looking up"):
            status = Path(url).stat()
        if stat_modes.S_ISDIR(status.st_mode):
            raise SourceMissingError(f"{url} is a folder, not a file", url=url)
        if not stat_modes.S_ISREG(status.st_mode):
            raise SourceError(f"{url} is no regular file", url=url)  # a pipe would block for ever
        return _local_info(url, status)

    def read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        """Return `num_bytes` of the file `url` from `offset` on."""
        with translated(url, doing="reading"):
            fd = os.open(url, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = os.pread(fd, num_bytes, offset)
                if len(data) < num_bytes:
                    data = self._rest(fd, data, offset, num_bytes)
            finally:
                os.close(fd)
        return exactly(data, num_bytes, url=url, offset=offset)

    @staticmethod
    def _rest(fd: int, data: bytes, offset: int, num_bytes: int) -> bytes:
        """Go on after a short read: one call of the system gives at most 2 GiB."""
        parts = [data]
        done = len(data)
        while done < num_bytes and parts[-1]:
            parts.append(os.pread(fd, num_bytes - done, offset + done))
            done += len(parts[-1])
        return b"".join(parts)

    def __repr__(self) -> str:
        return "LocalStorage()"


def _walk(folder: str, found: list[ObjectInfo], seen: set[tuple[int, int]]) -> None:
    try:
        here = Path(folder).stat()
    except FileNotFoundError:
        return
    if not stat_modes.S_ISDIR(here.st_mode) or (here.st_dev, here.st_ino) in seen:
        return
    seen.add((here.st_dev, here.st_ino))
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                if entry.is_dir():
                    if not entry.name.startswith("."):
                        _walk(entry.path, found, seen)
                    continue
                status = entry.stat()
            except FileNotFoundError:
                continue  # removed while listing, or a link to nowhere
            if stat_modes.S_ISREG(status.st_mode):
                found.append(_local_info(entry.path, status))


def _local_info(path: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(url=path, size_bytes=status.st_size, version=str(status.st_mtime_ns))


def exactly(data: BytesLike, num_bytes: int, *, url: str, offset: int) -> BytesLike:
    """Return `data` if it has `num_bytes`.

    Raises:
        SourceError: It has not: the object ends early.
    """
    size = len(data)
    if size != num_bytes:
        raise SourceError(
            f"{url} gave {size:,} bytes where {num_bytes:,} were asked for at {offset:,}: it was cut off or replaced",
            url=url,
        )
    return data


class ArrowStorage:
    """Objects of a file system that pyarrow.fs opens.

    Args:
        filesystem: The file system.
        root_url: What a URL begins with, and ...
        root_path: ... what stands for it in a path of `filesystem`: "s3://" and "", "abfss://box@account.dfs..." and
            "box".
    """

    def __init__(self, filesystem: pafs.FileSystem, *, root_url: str, root_path: str = "") -> None:
        self._filesystem = filesystem
        self._root_url = root_url
        self._root_path = root_path
        self._lock = threading.Lock()
        self._open: OrderedDict[str, Any] = OrderedDict()

    def list(self, url: str) -> list[ObjectInfo]:
        """Return every object under `url`."""
        selector = pafs.FileSelector(self._path(url), recursive=True, allow_not_found=True)
        with translated(url, doing="listing"):
            infos = self._filesystem.get_file_info(selector)
        found = [self._info(info) for info in infos if info.type == pafs.FileType.File]
        return sorted(found, key=lambda info: info.url)

    def stat(self, url: str) -> ObjectInfo:
        """Return size and modification time of the object `url`."""
        with translated(url, doing="looking up"):
            info = self._filesystem.get_file_info(self._path(url))
        if info.type != pafs.FileType.File:
            what = (
                "is a folder, not a file" if info.type == pafs.FileType.Directory else "does not exist: check the name"
            )
            raise SourceMissingError(f"{url} {what}", url=url)
        return self._info(info)

    def read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        """Return `num_bytes` of the object `url` from `offset` on."""
        data: BytesLike = b""
        with translated(url, doing="reading"):
            file = self._opened(url)
            if offset + num_bytes > file.size():
                # It may have been opened before a larger object took its place.
                self._forget(url)
                file = self._opened(url)
            try:
                if offset < file.size():
                    data = file.read_at(num_bytes, offset)
            except OSError as error:
                self._forget(url)
                if "Failed to flush response stream" in str(error):
                    # The store refused in more bytes than were asked for: its words had no room and are lost.
                    self._opened(url).read_at(_REFUSAL_BYTES, 0)
                raise
        return exactly(data, num_bytes, url=url, offset=offset)

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
        with self._lock:
            self._open[url] = file
            while len(self._open) > _MAX_OPEN_OBJECTS:
                # Not closed here: another thread may be reading from it. The last reference closes it.
                self._open.popitem(last=False)
        return file

    def _path(self, url: str) -> str:
        return (self._root_path + url.removeprefix(self._root_url)).rstrip("/")

    def _info(self, info: pafs.FileInfo) -> ObjectInfo:
        modified_ns = info.mtime_ns
        if self._filesystem.type_name == "s3" and modified_ns is not None:
            # MinIO and Ceph give milliseconds in a listing, and seconds when one object is looked up.
            modified_ns -= modified_ns % 1_000_000_000
        return ObjectInfo(
            url=self._root_url + info.path.removeprefix(self._root_path),
            size_bytes=info.size or 0,
            version=str(modified_ns),
        )

    def __repr__(self) -> str:
        return f"ArrowStorage({self._filesystem.type_name!r})"


class FsspecStorage:
    """Objects of a file system of fsspec.

    Args:
        filesystem: The fsspec file system.
        root_url: What stands before a path of `filesystem` in a URL: "hf://".
    """

    # In the order of trust; the first one that the file system gives is the version.
    _VERSIONS = (
        "ETag",
        "etag",
        "version_id",
        "generation",
        "md5",
        "checksum",
        "mtime",
        "LastModified",
        "Last-Modified",
        "last_modified",
    )

    def __init__(self, filesystem: Any, *, root_url: str) -> None:
        self._filesystem = filesystem
        self._root_url = root_url

    def list(self, url: str) -> list[ObjectInfo]:
        """Return every object under `url`."""
        with translated(url, doing="listing"):
            self._filesystem.invalidate_cache()
            try:
                found = self._filesystem.find(self._path(url), detail=True)
            except FileNotFoundError:
                found = {}
            for path, about in found.items():
                if about.get("size") is None:  # a web server lists names alone
                    found[path] = self._filesystem.info(path)
        infos = [self._info(path, about) for path, about in found.items()]
        return sorted(infos, key=lambda info: info.url)

    def stat(self, url: str) -> ObjectInfo:
        """Return what the file system knows of the object `url`."""
        with translated(url, doing="looking up"):
            self._filesystem.invalidate_cache()
            about = self._filesystem.info(self._path(url))
        if about.get("type") == "directory":
            raise SourceMissingError(f"{url} is a folder, not a file", url=url)
        return self._info(about["name"], about)

    def read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        """Return `num_bytes` of the object `url` from `offset` on."""
        with translated(url, doing="reading"):
            data: bytes = self._filesystem.cat_file(self._path(url), start=offset, end=offset + num_bytes)
        if len(data) > num_bytes:
            raise SourceError(
                f"{url}: the server gives whole objects where ranges are asked for: copy them to another place", url=url
            )
        return exactly(data, num_bytes, url=url, offset=offset)

    def _path(self, url: str) -> str:
        return str(self._filesystem._strip_protocol(url))

    def _info(self, path: str, about: Mapping[str, Any]) -> ObjectInfo:
        value = next((about[name] for name in self._VERSIONS if about.get(name) is not None), "unknown")
        # Some file systems give a time as datetime in one call and as seconds in another.
        version = repr(value.timestamp()) if isinstance(value, datetime) else str(value)
        return ObjectInfo(url=self._url(path), size_bytes=int(about["size"] or 0), version=version)

    def _url(self, path: str) -> str:
        return path if _SCHEME.match(path) else self._root_url + path

    def __repr__(self) -> str:
        return f"FsspecStorage({self._root_url!r})"


def storage_for(url: str, *, storage_options: Mapping[str, Any] | None = None) -> Storage:
    """Return the storage that opens `url`.

    Args:
        url: A path, a file:// URL, or a URL of a store.
        storage_options: What the client of the store takes: the arguments of `pyarrow.fs.S3FileSystem`,
            `GcsFileSystem` and `AzureFileSystem`, or those of the fsspec file system.

    Raises:
        ValueError: No installed client knows the scheme, and the message says what to install; or the client does not
            take these options, and it names those that exist.
        SourceMissingError: There is no such bucket.
        SourceError: The client could not be set up.
    """
    scheme = scheme_of(url)
    options = dict(storage_options or {})
    if scheme == "file":
        if options:
            raise ValueError(f"storage_options mean nothing for local files, got {sorted(options)}")
        return LocalStorage()
    if scheme in ARROW_SCHEMES:
        return _arrow_storage(url, scheme, options)
    try:
        import fsspec.core
    except ImportError:
        raise WrongArgumentError(
            f"{url}: the scheme {scheme!r} is opened through fsspec, which is not installed: pip install stoker[fsspec]"
        ) from None
    try:
        filesystem, path = fsspec.core.url_to_fs(url, **options)
    except (ValueError, ImportError) as error:
        raise WrongArgumentError(f"{url}: no client for the scheme {scheme!r}: {error}") from error
    place = url.rstrip("/")
    path = str(path).rstrip("/")
    return FsspecStorage(filesystem, root_url=place.removesuffix(path) if place.endswith(path) else f"{scheme}://")


def _arrow_storage(url: str, scheme: str, options: Mapping[str, Any]) -> ArrowStorage:
    place, query = split_query(url)
    authority = place[len(scheme) + 3 :].split("/", 1)[0]
    root_url, root_path = f"{place[: len(scheme)]}://", ""
    if scheme in ("hdfs", "viewfs"):
        root_url += authority
    elif scheme in ("abfs", "abfss") and "@" in authority:
        root_url, root_path = root_url + authority, authority.split("@", 1)[0]
    with translated(place, doing="connecting to"):
        filesystem = filesystem_for(scheme, authority=authority, query=query, options=options, environment=os.environ)
    return ArrowStorage(filesystem, root_url=root_url, root_path=root_path)


def common_scheme(urls: Sequence[str]) -> str:
    """Return the one scheme that all `urls` have.

    Raises:
        ValueError: They have several; one data set lives in one storage.
    """
    schemes = sorted({scheme_of(url) for url in urls})
    if len(schemes) > 1:
        raise ValueError(f"one data set lives in one storage, but the sources have the schemes {', '.join(schemes)}")
    return schemes[0]
