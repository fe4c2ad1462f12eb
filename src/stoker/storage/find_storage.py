"""Which storage opens a URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stoker.storage.clients import ARROW_SCHEMES, WrongArgumentError, address_of, filesystem_for, web_options
from stoker.storage.failures import translated
from stoker.storage.filesystems import ArrowStorage, FsspecStorage
from stoker.storage.local import LocalStorage
from stoker.storage.storage import WritableStorage
from stoker.storage.urls import scheme_of, split_query, without_chain


def storage_for(
    url: str, *, storage_options: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None
) -> WritableStorage:
    """Return the storage that opens `url`.

    Args:
        url: A path, a file:// URL, or a URL of a store.
        storage_options: What the client of the store takes: the arguments of `pyarrow.fs.S3FileSystem`,
            `GcsFileSystem` and `AzureFileSystem`, or those of the fsspec file system.
        environment: The variables of the environment, as they were when the data set was opened; None: as they are.

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
        return _arrow_storage(url, scheme, options, os.environ if environment is None else environment)
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


def _arrow_storage(url: str, scheme: str, options: Mapping[str, Any], environment: Mapping[str, str]) -> ArrowStorage:
    place, query = split_query(url)
    authority = place[len(scheme) + 3 :].split("/", 1)[0]
    root_url, root_path = f"{place[: len(scheme)]}://", ""
    if scheme in ("hdfs", "viewfs"):
        root_url += authority
    elif scheme in ("abfs", "abfss") and "@" in authority:
        root_url, root_path = root_url + authority, authority.split("@", 1)[0]
    with translated(place, doing="connecting to"):
        filesystem = filesystem_for(scheme, authority=authority, query=query, options=options, environment=environment)
    address = address_of(scheme, authority=authority, options=options, environment=environment)
    return ArrowStorage(filesystem, root_url=root_url, root_path=root_path, address=address)
