"""Object stores (S3, Google's, Azure's) through one client, obstore: one request a range, a look-up, a page.

    list   ── 1 request for 1,000 objects: size and ETag of each
    read   ── 1 request: the answer says which version its bytes are of, before they are taken

The client tries nothing twice by itself: that is done in one place, `failures.py`.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from types import ModuleType
from typing import Any

from stoker.errors import SourceError
from stoker.host.forks import open_in_forks, this_process
from stoker.storage.clients import Client, client_of
from stoker.storage.failures import StoreError, WrongArgumentError
from stoker.storage.storage import BytesLike, ObjectInfo, check_same

# Objects of a listing that cross from Rust to Python at once: a page of every store.
_PAGE_OBJECTS = 1000
_STATUS = re.compile(r"status code: (\d{3})")
# What a message has beyond what went wrong: kinds of errors, and queries of URLs, which may hold a signature.
_NOISE = re.compile(r"^Generic \w+ error: |HTTP error: | in [\d.]+\S?s(?= - )|\?[^\s]*|\n.*", re.S)
_WORDS = re.compile(r"<(?:Code|Message|AuthenticationErrorDetail)>([^<]*)<")
# Why a request failed that got no answer, among the causes that obstore prints.
_CAUSE = re.compile(r"message: \"([^\"]*)\"|ConnectionRefused|dns error|ConnectionReset|UnexpectedEof")

_modules: dict[object, ModuleType] = {}  # process -> its obstore
_first = this_process()
_library = ""  # where the file of the first one is, once a copy was made
_loading = open_in_forks(threading.Lock())


class ObjectStorage:
    """The buckets of one kind of object store."""

    def __init__(self, scheme: str, *, given: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._scheme, self._given, self._environment = scheme, given, environment
        self._stores: dict[tuple[object, str], Any] = {}

    def list(self, url: str) -> list[ObjectInfo]:
        """Return every object under `url`, in one request for each thousand."""
        with self._opened(url) as (obstore, store, key):
            prefix = key.strip("/") + "/" if key.strip("/") else ""
            pages = obstore.list(store, prefix=prefix or None, chunk_size=_PAGE_OBJECTS)
            found = [(meta["path"], meta) for page in pages for meta in page if meta["path"].startswith(prefix)]
        # What consoles and writers leave for a folder: "day=1/", of which the client tells "day=1".
        folders = {path[: slash.start()] for path, _ in found for slash in re.finditer("/", path)}
        root = url[: len(url) - len(key)].rstrip("/") + "/"
        return [_info(root + path, meta) for path, meta in found if meta["size"] or path not in folders]

    def stat(self, url: str) -> ObjectInfo:
        """Return what the store knows of the object `url`."""
        with self._opened(url) as (obstore, store, key):
            if not key.strip("/"):
                raise IsADirectoryError(url)
            return _info(url, obstore.head(store, key))

    def read(self, url: str, offset: int, num_bytes: int, info: ObjectInfo | None = None) -> BytesLike:
        """Return `num_bytes` of the object `url` from `offset` on; as `info` describes it, where that is given."""
        if not num_bytes:
            return b""
        with self._opened(url) as (obstore, store, key):
            answer = obstore.get(store, key, options={"range": (offset, offset + num_bytes)})
            if info is not None:
                check_same(info, _info(url, answer.meta))
            if answer.range[0] != offset:
                raise OSError(f"it gave the bytes at {answer.range[0]:,}, not at {offset:,}")
            return memoryview(answer.bytes())

    def read_version(self, info: ObjectInfo, offset: int, num_bytes: int) -> BytesLike:
        """Return `num_bytes` from `offset` on of the object as `info` describes it, else raise `SourceChangedError`."""
        return self.read(info.url, offset, num_bytes, info)

    def write(self, url: str, data: BytesLike) -> None:
        """Make the object `url`, in place of what has its name: whole or not at all."""
        with self._opened(url) as (obstore, store, key):
            obstore.put(store, key, memoryview(data), use_multipart=False)

    @contextmanager
    def _opened(self, url: str) -> Iterator[tuple[ModuleType, Any, str]]:
        """Give obstore, its client of a bucket and the key; what they raise comes in plain words."""
        place, _, key = url.partition("://")[2].partition("/")
        try:
            obstore, of_process = _obstore(), (this_process(), place)
            store = self._stores.get(of_process)
            if store is None:
                store = self._stores.setdefault(of_process, self._connect(place))
            yield obstore, store, key
        except (SourceError, WrongArgumentError):
            raise
        except Exception as error:
            raise _in_plain_words(error, url) from None

    def _connect(self, place: str) -> Any:
        client = client_of(self._scheme, authority=place, given=self._given, environment=self._environment)
        credentials = _credentials(client)
        try:
            return getattr(importlib.import_module("obstore.store"), client.kind)(
                config=client.config,
                client_options=client.limits,
                retry_config={"max_retries": 0},
                **({"credential_provider": credentials} if credentials else {}),
            )
        except (TypeError, ValueError) as error:
            raise WrongArgumentError(f"storage_options for {self._scheme}: {error}") from None


def _info(url: str, meta: Mapping[str, Any]) -> ObjectInfo:
    # What tells the object from others of its name is its ETag, which listings and answers quote differently.
    tag = (meta["e_tag"] or "").removeprefix("W/").strip('"')
    written_s = meta["last_modified"].timestamp()
    return ObjectInfo(url=url, size_bytes=meta["size"], version=tag or str(int(written_s)), written_s=written_s)


def _credentials(client: Client) -> Any:
    """Return what gets credentials by a role or a profile's sign-in; None where the client gets them itself."""
    if client.role is None and client.profile is None:
        return None
    try:
        import boto3  # type: ignore[import-untyped]
        from obstore.auth.boto3 import Boto3CredentialProvider, StsCredentialProvider
    except ImportError:
        what = "role_arn in storage_options" if client.role else f"the profile {client.profile!r} of Amazon's settings"
        raise WrongArgumentError(f"{what} needs boto3 to sign in: pip install boto3") from None
    if client.role is not None:
        ask = StsCredentialProvider(**client.role)  # type: ignore[arg-type]
        # The time when they end is in a UTC of boto3's, and obstore knows Python's alone.
        return lambda: {**(found := ask()), "expires_at": found["expires_at"].astimezone(UTC)}  # type: ignore[union-attr]
    return Boto3CredentialProvider(boto3.Session(profile_name=client.profile))


def _in_plain_words(error: Exception, url: str) -> Exception:
    """Return what obstore raised as what the store said, its status, and nothing of the request's address."""
    said = str(error)
    text = said.partition("\n\nDebug source")[0]
    if "parsing path" in text or "path segment" in text or "object with invalid path" in text:
        key = re.search(r'"([^"]*)"', text)
        return SourceError(
            f"{url}: the client reads no key with '//', '/./', '/../' or control characters in it, such as "
            f"{(key[1] if key else url)!r}: rename the object, or give storage=, an object of your own that reads it",
            url=url,
        )
    status = _STATUS.search(text)
    plain = _NOISE.sub("", text).strip()
    if status and "token request" not in text:
        words = ": ".join(_WORDS.findall(text))
        plain = f"{status[1]} {words}" if words else plain.rpartition("status code: ")[2].strip(" :")
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(plain)
    if "Debug source" not in said:
        return error
    if "TimedOut" in said or "kind: Timeout" in said:
        plain += ": nothing came within the time limit"
    elif cause := _CAUSE.search(said):
        plain += f": {cause[1] or cause[0]}"
    return StoreError(plain, status=int(status[1]) if status else None)


def _obstore() -> ModuleType:
    """Return obstore, which is alive in this process.

    Its threads, which do all the work, are started once, by us or by the user, and are not in a process forked after
    that: a request would wait there for ever. Such a process loads a second copy of the library, whose threads are its
    own (80 ms).
    """
    here = this_process()
    if here not in _modules:
        with _loading:
            if here not in _modules:
                if here is not _first and "obstore" in sys.modules:
                    _load_again()
                _modules[here] = importlib.import_module("obstore")
    return _modules[here]


def _load_again() -> None:
    """Let `import obstore` give a copy of it that has not been used."""
    global _library
    _library = _library or str(sys.modules["obstore"]._obstore.__file__)
    # The system takes a file of the same place, or the same number, for the library that it has loaded already.
    is_linux = hasattr(os, "memfd_create")  # from memory, since folders of temporary files may not be run from
    with os.fdopen(os.memfd_create("obstore"), "wb") if is_linux else tempfile.NamedTemporaryFile() as copy:
        copy.write(Path(_library).read_bytes())
        copy.flush()
        for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
            del sys.modules[name]
        path = f"/proc/self/fd/{copy.fileno()}" if is_linux else str(copy.name)
        loader = importlib.machinery.ExtensionFileLoader("obstore._obstore", path)
        spec = importlib.util.spec_from_file_location("obstore._obstore", path, loader=loader)
        assert spec is not None
        sys.modules["obstore._obstore"] = module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
