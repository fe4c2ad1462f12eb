"""Names of objects: URLs and paths, taken apart."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from stoker.source.clients import ARROW_SCHEMES

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
# pyarrow's own way to give options in a URL, s3://bucket/key?endpoint_override=...; a "?" without "name=" is a glob.
_QUERY = re.compile(r"\?(?=[A-Za-z_]\w*=)")


def scheme_of(url: str) -> str:
    """Return the scheme of `url` in lower case, "file" for a plain path."""
    match = _SCHEME.match(url)
    return match[1].lower() if match else "file"


def has_scheme(url: str) -> bool:
    """Whether `url` begins with a scheme, as plain paths do not."""
    return _SCHEME.match(url) is not None


def local_path(url: str) -> str:
    """Return the absolute path that a path or a file:// URL names; a trailing "/" stays."""
    path = url
    if scheme_of(url) == "file" and has_scheme(url):
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


def common_scheme(urls: Sequence[str]) -> str:
    """Return the one scheme that all `urls` have.

    Raises:
        ValueError: They have several; one data set lives in one storage.
    """
    schemes = sorted({scheme_of(url) for url in urls})
    if len(schemes) > 1:
        raise ValueError(f"one data set lives in one storage, but the sources have the schemes {', '.join(schemes)}")
    return schemes[0]
