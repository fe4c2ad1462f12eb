"""Which storage opens a URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stoker.storage.clients import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, checked_options
from stoker.storage.failures import WrongArgumentError
from stoker.storage.filesystems import FsspecStorage
from stoker.storage.local import LocalStorage
from stoker.storage.object_store import ObjectStorage
from stoker.storage.storage import WritableStorage
from stoker.storage.urls import OWN_SCHEMES, scheme_of, split_query, without_chain


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
        Exception: Whatever a client raises that cannot be set up.
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
            options = _with_time_limits(options)
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


def _with_time_limits(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of fsspec's client of web servers, whose own time limit is five minutes."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=READ_TIMEOUT_S)
    return {**options, "client_kwargs": {"timeout": timeout, **options.get("client_kwargs", {})}}
