"""Which storage opens a URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pyarrow.fs as pafs

from stoker.storage.clients import OWN_SCHEMES, WrongArgumentError, checked_options, web_options
from stoker.storage.failures import translated
from stoker.storage.filesystems import ArrowStorage, FsspecStorage
from stoker.storage.local import LocalStorage
from stoker.storage.object_store import ObjectStorage
from stoker.storage.storage import WritableStorage
from stoker.storage.urls import scheme_of, split_query, without_chain


def storage_for(
    url: str, *, storage_options: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None
) -> WritableStorage:
    """Return the storage that opens `url`.

    Args:
        url: A path, a file:// URL, or a URL of a store.
        storage_options: What the client of the store takes: see `clients.py`, or the fsspec file system.
        environment: The variables of the environment, as they were when the data set was opened; None: as they are.

    Raises:
        ValueError: No installed client knows the scheme, and the message says what to install; or the client does not
            take these options, and it names those that exist.
        SourceError: The client could not be set up.
    """
    scheme = scheme_of(url)
    options = dict(storage_options or {})
    if scheme == "file":
        if options:
            raise ValueError(f"storage_options mean nothing for local files, got {sorted(options)}")
        return LocalStorage()
    if scheme in OWN_SCHEMES:
        place, query = split_query(url)
        authority = place[len(scheme) + 3 :].split("/", 1)[0]
        given = checked_options(scheme, authority=authority, query=query, options=options)
        if scheme in ("hdfs", "viewfs"):
            with translated(place, doing="connecting to"):
                return ArrowStorage(_hadoop(scheme, authority, given), root_url=f"{scheme}://{authority}")
        return ObjectStorage(scheme, given=given, environment=os.environ if environment is None else environment)
    try:
        import fsspec.core
    except ImportError:
        raise WrongArgumentError(
            f"{url}: the scheme {scheme!r} is opened through fsspec, which is not installed: pip install stoker[fsspec]"
        ) from None
    if scheme in ("http", "https"):
        options = web_options(options)
    try:
        filesystem, path = fsspec.core.url_to_fs(url, **options)
    except (ValueError, ImportError) as error:
        raise WrongArgumentError(f"{url}: no client for the scheme {scheme!r}: {error}") from error
    place = without_chain(url).rstrip("/")
    path = str(path).rstrip("/")
    return FsspecStorage(
        filesystem, root_url=place.removesuffix(path) if path and place.endswith(path) else f"{scheme}://"
    )


def _hadoop(scheme: str, authority: str, given: Mapping[str, Any]) -> pafs.FileSystem:
    if not given:
        return pafs.FileSystem.from_uri(f"{scheme}://{authority}/")[0]
    host, _, port = authority.partition(":")
    return pafs.HadoopFileSystem(**{"host": host or "default", "port": int(port or 0), **given})
