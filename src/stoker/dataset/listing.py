"""From what the user names to objects: files, folders, globs, and the hive partitions in their paths.

"lake/a.parquet"            that file, whatever its name
"lake/2026/"                every Parquet file below, by its name; key=value folders become columns
"lake/date=2026-*/"         the same for every folder that matches
"lake/**/part-*.parquet"    every file that matches
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote, unquote

import pyarrow as pa

from stoker.arrow import unencoded
from stoker.dataset.logs import check_no_log
from stoker.errors import SourceError, SourceMissingError
from stoker.parquet.footers import way_out
from stoker.storage.storage import DANGLING, ObjectInfo, Storage
from stoker.storage.urls import GLOB, Location, name_bytes, scheme_of
from stoker.words import count_text

# In a folder, what else lies there (CSV, logs, checksums) is left alone; a file that is named is read as it is.
SUFFIXES = (".parquet", ".parq", ".pq", ".pqt")
_NAMES = ", ".join("*" + end for end in SUFFIXES)
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
# What becomes of a URL that is made a Path: s3:/lake.
_URL_INSIDE = re.compile(r"/[a-z][a-z0-9+.-]+:/")
_WILDCARDS = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_GLOB_PART = re.compile(r"(?:^|(?<=/))\*\*/|\*\*|[*?]|(?P<set>\[(?:!.|[^!])[^\]]*\])|.", re.DOTALL)
_INT = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Listed:
    """An object, and what is known of its rows without reading it.

    `partition` is what its path, or the log of its table, says of them: key and text, None for null. `deleted` are the
    rows that its table has no more, ascending, 8 bytes each.
    """

    info: ObjectInfo
    partition: tuple[tuple[str, str | None], ...] = ()
    deleted: bytes = b""


def list_sources(places: Sequence[Location], storage: Storage, *, is_local: bool = False) -> list[Listed]:
    """Return every file that `places` name, by the bytes of their URLs, each once however often it is named.

    Raises:
        SourceMissingError: One of them names nothing, or a link that leads nowhere.
        SourceError: One file is named twice with different partitions, or a folder has a log of which files count.
    """
    found: dict[str, Listed] = {}
    for place in places:
        for listed in _find(place, storage, is_local=is_local):
            if listed.info.size_bytes == DANGLING:
                raise SourceMissingError(
                    f"{listed.info.url} is a link that leads nowhere: mend or remove it", url=listed.info.url
                )
            known = found.setdefault(listed.info.url, listed)
            if known.partition != listed.partition:
                raise SourceError(
                    f"{listed.info.url} is named by two sources, with the partitions {dict(known.partition)} and "
                    f"{dict(listed.partition)}: name it once",
                    url=listed.info.url,
                )
    return [found[url] for url in sorted(found, key=name_bytes)]


def names_below(files: Sequence[Listed]) -> tuple[str, tuple[str, ...]]:
    """Return the folder that files have in common, with its slash, and their names below it: what a move leaves alone.

    A partition's folder is a part of the name, though all files may lie in it.
    """
    urls = [file.info.url for file in files]
    common = os.path.commonprefix(urls)  # noqa: RUF071  cut at a slash right after
    root = common[: common.rfind("/") + 1]
    if files and files[0].partition:
        keys = {f"{quoted}=" for key, _ in files[0].partition for quoted in (key, quote(key, safe=""))}
        parts = root.split("/")
        within = [i for i, part in enumerate(parts) if part[: part.find("=") + 1] in keys]
        root = "".join(f"{part}/" for part in parts[: within[0]]) if within else root
    return root, tuple(url[len(root) :] for url in urls)


def _find(place: Location, storage: Storage, *, is_local: bool) -> list[Listed]:
    name, folder, pattern = place.name, place.folder, place.pattern
    infos = storage.list(folder) if pattern else []
    # What exists is that file or folder, whatever its name: it is no pattern then.
    while pattern:
        first, slash, rest = pattern.partition("/")
        urls = (info.url for info in infos)
        if not any(url.startswith(f"{folder}{first}/") or (not slash and url == folder + first) for url in urls):
            break
        folder, pattern = folder + first + slash, rest
    if not GLOB.search(pattern):
        name, pattern = folder + pattern if place.pattern else name, ""
        if not name.endswith("/"):
            with suppress(SourceMissingError):  # then it is a folder, or nothing
                return [Listed(storage.stat(name))]
        infos = storage.list(name)
        folder = name.rstrip("/") + "/"
    is_meant = _matcher(pattern) if pattern else _is_wanted
    paths = [(info, info.url[len(folder) :]) for info in infos if info.url.startswith(folder)]
    found = [Listed(info, _partition(path, folder)) for info, path in paths if is_meant(info, path)]
    check_no_log(name, folder, infos, [file.info.url for file in found], storage, is_local=is_local)
    if not found and pattern:
        raise SourceMissingError(f"no file matches {name} ({len(infos):,} objects lie below {folder})", url=name)
    if not found:
        raise SourceMissingError(_why_none(name, infos, is_local=is_local), url=name)
    return found


def _why_none(name: str, infos: Sequence[ObjectInfo], *, is_local: bool) -> str:
    if infos:
        hint = way_out(name, [info.url for info in infos]) or f"; in a folder {_NAMES} are read, others when named"
        count = count_text(len(infos), "other file")
        return f"no Parquet file lies below {name}, but {count}, such as {infos[0].url}{hint}"
    if is_local and os.path.isdir(name):  # noqa: PTH112  names are any bytes
        return f"the folder {name} is empty: no Parquet file lies below it"
    what = f"nothing is stored at {name}: check the name"
    if _URL_INSIDE.search(name):
        return f"{what}; a Path is a file of this machine: give a URL as text"
    return f"{what}; a Path is no pattern: give a glob as text" if GLOB.search(name) else what


def _matcher(pattern: str) -> Callable[[ObjectInfo, str], bool]:
    """Return whether a glob means a file by its path: the file itself, or a folder above it."""
    glob = translate_glob(pattern.rstrip("/"))
    file, below = re.compile(glob, re.DOTALL), re.compile(f"{glob}/(?P<rest>.+)", re.DOTALL)
    names_hidden = any(part[:1] in ("_", ".") for part in pattern.split("/"))

    def is_meant(info: ObjectInfo, path: str) -> bool:
        if _is_hidden(path) and not names_hidden:
            return False
        if file.fullmatch(path) and not pattern.endswith("/"):
            return True
        inside = below.fullmatch(path)
        return inside is not None and _is_wanted(info, inside["rest"])

    return is_meant


def _is_wanted(info: ObjectInfo, path: str) -> bool:
    # A link that leads nowhere may have been a folder: it is only left alone where a folder would be.
    is_parquet = path.lower().endswith(SUFFIXES)
    return (is_parquet or info.size_bytes == DANGLING) and not _is_hidden(path)


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in path.split("/"))


def _partition(path: str, folder: str) -> tuple[tuple[str, str | None], ...]:
    """Return the key=value folders of a path below the folder that was named; one key may not have two values."""
    found: dict[str, str | None] = {}
    if scheme_of(folder) in ("http", "https"):  # a web address is escaped once more
        path = unquote(path, errors="surrogateescape")
    for part in path.split("/")[:-1]:
        key, equals, text = part.partition("=")
        if not equals or not key:
            continue
        # A byte that is no text stays one: two values that differ never become one.
        key = unquote(key, errors="surrogateescape")
        value = None if text == _HIVE_NULL else unquote(text, errors="surrogateescape")
        if found.setdefault(key, value) != value:
            raise SourceError(
                f"{folder}{path} is in two partitions at once, {key}={found[key]} and {key}={value}: rename a folder",
                url=folder + path,
            )
    return tuple(found.items())


def translate_glob(pattern: str) -> str:
    """Return the regular expression of a glob: `*`, `?` and `[]` stay in one folder, `**` goes through any number."""

    def translated(part: re.Match[str]) -> str:
        if part["set"]:
            # As `fnmatch` reads it, from "(?s:" to ")\Z": a range such as [9-0] holds nothing.
            return "(?!/)" + fnmatch.translate(part["set"])[4:-3]
        return _WILDCARDS.get(part[0]) or re.escape(part[0])

    return _GLOB_PART.sub(translated, pattern)


def partition_fields(files: Sequence[Listed]) -> list[pa.Field]:
    """Return one field a partition key, in the order the keys appear.

    int64 where every value is one, else string; binary where one is no text, as names of files may be.
    """
    values: dict[str, set[str | None]] = {}
    for file in files:
        for key, text in file.partition:
            if key not in values and not _is_text(key):
                raise SourceError(
                    f"{file.info.url}: {key!r} is no UTF-8 and cannot name a column: rename the folder",
                    url=file.info.url,
                )
            values.setdefault(key, set()).add(text)
    return [pa.field(key, _type_of([text for text in texts if text is not None])) for key, texts in values.items()]


def _type_of(texts: Sequence[str]) -> pa.DataType:
    if texts and all(_INT.fullmatch(text) and -(2**63) <= int(text) < 2**63 for text in texts):
        return pa.int64()
    return pa.string() if all(map(_is_text, texts)) else pa.binary()


def _is_text(name: str) -> bool:
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)


def partition_value(file: Listed, field: pa.Field) -> pa.Scalar:
    """Return the value of one partition column for one file; null where the path does not say."""
    text = dict(file.partition).get(field.name)
    if text is None:
        return pa.scalar(None, field.type)
    kind = unencoded(field.type)
    if pa.types.is_integer(kind) or pa.types.is_time(kind):
        return pa.scalar(int(text), field.type)
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.scalar(name_bytes(text), field.type)
    return pa.scalar(text).cast(field.type)
