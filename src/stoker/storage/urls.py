"""Names of objects: paths and URLs, and what of them is a pattern.

    Path("run[3]/a.parquet")          that file: a `pathlib.Path` is never a pattern
    "run[3]/a.parquet"                that file where it exists, else run3/a.parquet
    "file:///lake/run%5B3%5D"         the folder run[3]: file URLs are escaped, as `Path.as_uri` makes them
    "s3://lake/a%20b"                 the key with these three characters: keys of stores stand as they are

Every local file has one name, whatever the locale: its absolute path, read as UTF-8; a byte that is none is a lone
surrogate, as in Python's own `surrogateescape`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote

Source: TypeAlias = "str | Path"

# Schemes of the client of object stores, whose URLs may have options: see `clients.py`.
OWN_SCHEMES = frozenset({"s3", "gs", "gcs", "abfs", "abfss"})

GLOB = re.compile(r"[*?\[]")
# "file:/lake" is how Hadoop and Spark print what is "file:///lake".
# "simplecache::s3://lake" is a file system of fsspec's around another one, as is "zip://a.parquet::s3://lake/b.zip".
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)(?:://|::(?=.*://))|(file):(?=/)", re.IGNORECASE | re.DOTALL)
_FILE_HOST = re.compile(r"file:(?://([^/]*))?", re.IGNORECASE)
# pyarrow's own way to give options in a URL, s3://bucket/key?endpoint_override=...; a "?" without "name=" is a glob.
_QUERY = re.compile(r"\?(?=[A-Za-z_]\w*=)")
_LIKE_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/")
_ESCAPED_GLOB = re.compile("%(2A|3F|5B)", re.IGNORECASE)


class Location(NamedTuple):
    """What a source names, in the words of its storage."""

    name: str  # the whole source as the URL of one file or folder, each character as it is
    folder: str = ""  # that a pattern begins in, with "/" at its end
    pattern: str = ""  # the glob below that folder; "" where the source is none


def scheme_of(source: Source) -> str:
    """Return the scheme of a URL in lower case, "file" for a path."""
    match = None if isinstance(source, Path) else _SCHEME.match(source)
    return (match[1] or match[2]).lower() if match else "file"


def has_scheme(url: str) -> bool:
    """Whether `url` begins with a scheme, as plain paths do not."""
    return _SCHEME.match(url) is not None


def common_scheme(sources: Sequence[Source]) -> str:
    """Return the one scheme that all sources have, else raise a `ValueError`."""
    schemes = sorted({scheme_of(source) for source in sources})
    if len(schemes) > 1:
        raise ValueError(f"one data set lives in one storage, but the sources have the schemes {', '.join(schemes)}")
    return schemes[0]


def check_name(source: Source, *, what: str = "source") -> None:
    """Raise a `ValueError` where a source can name nothing, as far as that can be told without its storage."""
    if not str(source):
        raise ValueError(f"{what} is an empty text")
    if "\0" in str(source):
        raise ValueError(f"{what} {str(source)!r} holds a NUL, which no path and no URL does")
    if scheme_of(source) == "file":
        path_bytes(str(source))
        host = None if isinstance(source, Path) else _FILE_HOST.match(source)
        if host and host[1] not in (None, "", "localhost"):
            raise ValueError(
                f"{what} {source} names the machine {host[1]!r}: a file of this one is file:///{host[1]}/..."
            )


def split_query(url: str) -> tuple[str, str]:
    """Split `url` into the place and the options of its client: ("s3://b/k", "endpoint_override=...")."""
    if scheme_of(url) not in OWN_SCHEMES:
        return url, ""
    parts = _QUERY.split(url, maxsplit=1)
    return parts[0], parts[1] if len(parts) == 2 else ""


def without_chain(url: str) -> str:
    """Return a URL without the ones behind it, which say where the store of the first one lies."""
    first, _, _ = url.partition("::")
    return first if "://" in first else url


def place_of(source: Source, *, is_local: bool) -> Location:
    """Return what a source names, and whether it may be a pattern."""
    if is_local:
        return _local_place(source)
    if isinstance(source, Path):  # a storage of the user's
        return Location(source.as_posix())
    name = without_chain(split_query(source)[0])
    scheme = scheme_of(name)
    # The host of a URL may be [::1], and what stands behind the "?" of a web address is no name of a file.
    start = name.find("/", len(scheme) + 3) + 1 if has_scheme(name) else 0
    return Location(name) if scheme in ("http", "https") and "?" in name else _split(name, name, start)


def _split(name: str, text: str, start: int) -> Location:
    """Return `text` as a place, cut before the first part with a character of globs."""
    glob = GLOB.search(text, start)
    if glob is None:
        return Location(name)
    cut = text.rfind("/", 0, glob.start()) + 1
    return Location(name, text[:cut], text[cut:])


def _local_place(source: Source) -> Location:
    if isinstance(source, Path):
        return Location(local_path(source))
    if has_scheme(source):
        raw = _FILE_HOST.sub("", source, count=1)
        name = unquote(raw, errors="surrogateescape")
        if not os.path.lexists(path_bytes(name)) and os.path.lexists(path_bytes(raw)):
            name = raw  # a path with "file://" before it, not escaped
        text = unquote(_ESCAPED_GLOB.sub(lambda match: f"[{unquote(match[0])}]", raw), errors="surrogateescape")
        name = local_path(Path(name), ends=name)
    else:
        text, name = source, local_path(source)
    place = _split(name, text, 0)
    if not place.pattern:
        return place
    folder, pattern = local_path(place.folder or "./"), place.pattern
    if os.path.lexists(path_bytes(place.name)):
        return Location(place.name)
    # A folder on the way that exists is that folder, whatever its name.
    while "/" in pattern:
        first, _, rest = pattern.partition("/")
        if not rest or not os.path.lexists(path_bytes(folder + first)):
            break
        folder, pattern = f"{folder}{first}/", rest
    return Location(place.name, folder, pattern)


def local_path(path: Source, *, ends: str | None = None) -> str:
    """Return the one name of a local path; a trailing "/" of text stays, and "~" is a home unless a file has that name.

    ".." behind a link leads where the system goes: up from what the link leads to.
    """
    text = _with_home(str(path))
    ends = ends if ends is not None else text if isinstance(path, str) else ""
    parts: list[bytes] = []
    whole = path_bytes(text)
    for part in (whole if whole.startswith(b"/") else bytes(Path.cwd()) + b"/" + whole).split(b"/"):
        if part in (b"", b"."):
            continue
        if part == b"..":
            here = b"/" + b"/".join(parts)
            if os.path.islink(here):  # noqa: PTH114  Path has no names of bytes
                parts = os.path.realpath(here).split(b"/")[1:]
            parts = parts[:-1]
        else:
            parts.append(part)
    name = "/" + name_of(b"/".join(parts))
    return name + "/" if ends.endswith("/") and parts else name


def local_folder(given: str | os.PathLike[str], *, what: str) -> Path:
    """Return the folder of this machine that a path or a file:// URL names; a `ValueError` says `what` it is not."""
    text = os.fspath(given)
    # Path("s3://lake") is the local folder "s3:/lake", which nobody has.
    if scheme_of(given) != "file" if isinstance(given, str) else _LIKE_URL.match(text):
        raise ValueError(f"{what} must be a folder of this machine, on a fast disk, not {text!r}")
    check_name(text, what=what)
    if isinstance(given, str) and has_scheme(text):
        text = unquote(_FILE_HOST.sub("", text, count=1), errors="surrogateescape")
    return Path(_with_home(text))


def _with_home(path: str) -> str:
    if path.startswith("~") and not os.path.lexists(path_bytes(path.split("/", 1)[0])):
        return os.path.expanduser(path)  # noqa: PTH111  Path's own raises for "~x.parquet"
    return path


def path_bytes(path: str) -> bytes:
    """Return the bytes by which the system knows a path that Python, or a user, gave as text.

    A `ValueError` says that it holds what no file name does: half of a pair that is not one of Python's escapes.
    """
    try:
        return os.fsencode(path)
    except UnicodeEncodeError:  # the locale knows fewer characters than UTF-8
        try:
            return path.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise ValueError(f"{path!r} can be the name of no file: {error.reason}") from error


def name_bytes(url: str) -> bytes:
    """Return the bytes of a name that Stoker has made: see `local_path`."""
    return url.encode("utf-8", "surrogateescape")


def name_of(name: bytes) -> str:
    """Return the name that has these bytes."""
    return name.decode("utf-8", "surrogateescape")
