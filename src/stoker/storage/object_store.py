"""Object stores (S3, Google's, Azure's) through one client, obstore: one request a range, a look-up, a page.

    list   ── 1 request for 1,000 objects: size and ETag of each
    read   ── 1 request: the answer says which version its bytes are of, before they are taken

The client tries nothing twice by itself: that is done in one place, `retry.py`.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from stoker.errors import SourceError, SourceMissingError
from stoker.host.forks import open_in_forks
from stoker.storage.clients import WrongArgumentError, client_of
from stoker.storage.failures import StoreError, translated
from stoker.storage.storage import BytesLike, ObjectInfo, check_same

# Objects of a listing that cross from Rust to Python at once: a page of every store.
_PAGE_OBJECTS = 1000
_NO_RETRY = {"max_retries": 0}
_STATUS = re.compile(r"status code: (\d{3})")
# What a message has beyond what went wrong: kinds of errors, and queries of URLs, which may hold a signature.
_NOISE = re.compile(r"^Generic \w+ error: |HTTP error: | in [\d.]+\S?s(?= - )|\?[^\s]*|\n.*", re.S)
_WORDS = re.compile(r"<(?:Code|Message|AuthenticationErrorDetail)>([^<]*)<")

# Process -> its obstore; and where the library lies.
_modules: dict[int, ModuleType] = {}
_library: dict[str, Path] = {}
_loading = open_in_forks(threading.Lock())


class ObjectStorage:
    """The buckets of one kind of object store.

    Args:
        scheme: Such as "s3".
        given: Options, as `clients.checked_options` returns them.
        environment: The variables of the environment.
    """

    def __init__(self, scheme: str, *, given: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._scheme = scheme
        self._given = given
        self._environment = environment
        self._lock = open_in_forks(threading.Lock())
        self._stores: dict[tuple[int, str], Any] = {}

    def list(self, url: str) -> list[ObjectInfo]:
        """Return every object under `url`, in one request for each thousand."""
        place, key = self._split(url)
        with translated(url, doing="listing"), _in_plain_words(url):
            obstore, store = self._client(place)
            prefix = key.strip("/") + "/" if key.strip("/") else ""
            pages = obstore.list(store, prefix=prefix or None, chunk_size=_PAGE_OBJECTS)
            found = [meta for page in pages for meta in page if meta["path"].startswith(prefix)]
        # What consoles and writers leave for a folder: "day=1/", of which the client tells "day=1".
        folders = {path[: i + 1] for meta in found for path in (meta["path"],) for i in _slashes(path)}
        found = [meta for meta in found if meta["size"] or meta["path"] + "/" not in folders]
        root = f"{url.partition('://')[0]}://{place}/"
        infos = [ObjectInfo(url=root + m["path"], size_bytes=m["size"], version=_version(m)) for m in found]
        return sorted(infos, key=lambda info: info.url)

    def stat(self, url: str) -> ObjectInfo:
        """Return what the store knows of the object `url`."""
        place, key = self._split(url)
        if not key.strip("/"):
            raise SourceMissingError(f"{url} is a folder, not a file", url=url)
        with translated(url, doing="looking up"), _in_plain_words(url):
            obstore, store = self._client(place)
            meta = obstore.head(store, key)
        return ObjectInfo(url=url, size_bytes=meta["size"], version=_version(meta))

    def read(self, url: str, offset: int, num_bytes: int) -> BytesLike:
        """Return `num_bytes` of the object `url` from `offset` on."""
        return self._read(url, offset, num_bytes, None)

    def read_version(self, info: ObjectInfo, offset: int, num_bytes: int) -> BytesLike:
        """Return `num_bytes` from `offset` on of the object as `info` describes it.

        Raises:
            SourceChangedError: It is another one by now.
        """
        return self._read(info.url, offset, num_bytes, info)

    def write(self, url: str, data: BytesLike) -> None:
        """Make the object `url`, in place of what has its name: whole or not at all."""
        place, key = self._split(url)
        with translated(url, doing="writing"), _in_plain_words(url):
            obstore, store = self._client(place)
            obstore.put(store, key, memoryview(data), use_multipart=False)

    def _read(self, url: str, offset: int, num_bytes: int, info: ObjectInfo | None) -> BytesLike:
        place, key = self._split(url)
        if not num_bytes:
            return b""
        with translated(url, doing="reading"), _in_plain_words(url):
            obstore, store = self._client(place)
            answer = obstore.get(store, key, options={"range": (offset, offset + num_bytes)})
            if info is not None:
                now = ObjectInfo(url=url, size_bytes=answer.meta["size"], version=_version(answer.meta))
                check_same(info, now)
            if answer.range[0] != offset:
                raise OSError(f"it gave the bytes at {answer.range[0]:,}, not at {offset:,}")
            data = memoryview(answer.bytes())
            if len(data) != num_bytes:
                raise OSError(f"it gave {len(data):,} of the {num_bytes:,} bytes that were asked for at {offset:,}")
        return data

    def _split(self, url: str) -> tuple[str, str]:
        """Return the bucket and the key of a URL."""
        place, _, key = url.partition("://")[2].partition("/")
        return place, key

    def _client(self, place: str) -> tuple[ModuleType, Any]:
        """Return obstore and its client of a bucket, of this process."""
        obstore = _obstore()
        with self._lock:
            store = self._stores.get((os.getpid(), place))
        if store is None:
            client = client_of(self._scheme, authority=place, given=self._given, environment=self._environment)
            credentials = _credentials(client.role, client.profile)
            try:
                store = getattr(importlib.import_module("obstore.store"), client.kind)(
                    config=client.config,
                    client_options=client.limits,
                    retry_config=_NO_RETRY,
                    **({"credential_provider": credentials} if credentials else {}),
                )
            except (TypeError, ValueError) as error:
                raise WrongArgumentError(f"storage_options for {self._scheme}: {error}") from None
            with self._lock:
                store = self._stores.setdefault((os.getpid(), place), store)
        return obstore, store

    def __repr__(self) -> str:
        return f"ObjectStorage({self._scheme!r})"


def _slashes(path: str) -> Iterator[int]:
    return (match.start() for match in re.finditer("/", path))


def _version(meta: Mapping[str, Any]) -> str:
    """Return what tells the object from others of its name: its ETag, which listings and answers quote differently."""
    tag = (meta["e_tag"] or "").removeprefix("W/").strip('"')
    return tag or str(int(meta["last_modified"].timestamp()))


def _credentials(role: Mapping[str, str] | None, profile: str | None) -> Any:
    """Return what gets credentials by a role or a profile's sign-in; None where the client gets them itself."""
    if role is None and profile is None:
        return None
    try:
        import boto3  # type: ignore[import-untyped]
        from obstore.auth.boto3 import Boto3CredentialProvider, StsCredentialProvider
    except ImportError:
        what = "role_arn in storage_options" if role else f"the profile {profile!r} of Amazon's configuration"
        raise WrongArgumentError(f"{what} needs boto3 to sign in: pip install boto3") from None
    if role is not None:
        return StsCredentialProvider(**role)  # type: ignore[arg-type]
    return Boto3CredentialProvider(boto3.Session(profile_name=profile))


@contextmanager
def _in_plain_words(url: str) -> Iterator[None]:
    """Turn what obstore raises into what the store said, its status, and nothing of the request's address."""
    try:
        yield
    except (SourceError, WrongArgumentError):
        raise
    except Exception as error:
        text = str(error).partition("\n\nDebug source")[0]
        if "parsing path" in text or "path segment" in text or "object with invalid path" in text:
            found = re.search(r'"([^"]*)"', text)
            raise SourceError(
                f"{url}: the client reads no key with '//', '/./', '/../' or control characters in it, such as "
                f"{(found[1] if found else url)!r}: rename the object, or give storage=, an object of your own that "
                "reads it",
                url=url,
            ) from None
        status = _STATUS.search(text)
        plain = _NOISE.sub("", text).strip()
        if status and "token request" not in text:
            said = ": ".join(_WORDS.findall(text))
            plain = f"{status[1]} {said}" if said else plain.rpartition("status code: ")[2].strip(" :")
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(plain) from None
        if "Debug source" in str(error):
            plain += _cause(str(error))
            raise StoreError(plain, status=int(status[1]) if status else None) from None
        raise


def _cause(text: str) -> str:
    """Return why a request failed that got no answer: of the causes that obstore prints, what says something."""
    if "TimedOut" in text or "kind: Timeout" in text:
        return ": nothing came within the time limit"
    if found := re.search(r"message: \"([^\"]*)\"|ConnectionRefused|dns error|ConnectionReset|UnexpectedEof", text):
        return f": {found[1] or found[0]}"
    return ""


def _obstore() -> ModuleType:
    """Return obstore, which is alive in this process.

    Its threads, which do all the work, are started once and are not in a process forked after that: a request would
    wait there for ever. Such a process loads a second copy of the library, whose threads are its own (80 ms).
    """
    pid = os.getpid()
    found = _modules.get(pid)
    if found is not None:
        return found
    with _loading:
        if pid not in _modules:
            if _modules:
                _load_again()
            _modules[pid] = importlib.import_module("obstore")
            _library.setdefault("path", Path(sys.modules["obstore._obstore"].__file__ or ""))
        return _modules[pid]


def _load_again() -> None:
    """Let `import obstore` give a copy of it that has not been used."""
    # The system takes a file of the same place, or the same number, for the library that it has loaded already.
    fd = os.memfd_create("obstore")
    os.write(fd, _library["path"].read_bytes())
    for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
        del sys.modules[name]
    copy = f"/proc/self/fd/{fd}"
    loader = importlib.machinery.ExtensionFileLoader("obstore._obstore", copy)
    spec = importlib.util.spec_from_file_location("obstore._obstore", copy, loader=loader)
    assert spec is not None
    sys.modules["obstore._obstore"] = module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    os.close(fd)
