"""From what the user names to objects: files, folders, globs, and the hive partitions in their paths.

"lake/a.parquet"            that file, whatever its name
"lake/2026/"                every Parquet file below, by its name; key=value folders become columns
"lake/date=2026-*/"         the same for every folder that matches
"lake/**/part-*.parquet"    every file that matches
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

import pyarrow as pa

from stoker.errors import SourceError, SourceMissingError
from stoker.source.logs import check_no_log
from stoker.source.storage import ObjectInfo, Storage
from stoker.source.urls import split_query

# In a folder, what else lies there (CSV, logs, checksums) is left alone; a file that is named is read as it is.
SUFFIXES = (".parquet", ".parq", ".pq", ".pqt")
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_GLOB = re.compile(r"[*?\[]")
_INT = re.compile(r"-?\d{1,19}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """An object, and the partition its path says it is in: key -> text, None for hive's null."""

    info: ObjectInfo
    partition: tuple[tuple[str, str | None], ...] = ()


def list_sources(sources: Sequence[str], storage: Storage, *, is_local: bool = False) -> list[Listed]:
    """Return every file that `sources` name, sorted by URL, each once however often it is named.

    Args:
        sources: What the user named, as the storage knows it.
        storage: Where it is.
        is_local: Whether these are paths of this machine, whose links can be followed.

    Raises:
        SourceMissingError: One of them names nothing.
        SourceError: The storage fails, one file is named twice with different partitions, or a folder has a log that
            says which of its files count.
    """
    found: dict[str, Listed] = {}
    for source in sources:
        for listed in _find(split_query(source)[0], storage, is_local=is_local):
            known = found.setdefault(listed.info.url, listed)
            if known.partition != listed.partition:
                raise SourceError(
                    f"{listed.info.url} is named by two sources, with the partitions {dict(known.partition)} and "
                    f"{dict(listed.partition)}: name it once",
                    url=listed.info.url,
                )
    return [found[url] for url in sorted(found)]


def names_below(files: Sequence[Listed]) -> tuple[str, tuple[str, ...]]:
    """Return the folder that files have in common, with its slash, and their names below it: what a move leaves alone.

    A partition's folder is a part of the name, though all files may lie in it.
    """
    folders = {file.info.url[: file.info.url.rfind("/") + 1] for file in files}
    common = os.path.commonprefix(sorted(folders))  # noqa: RUF071  cut at a slash right after
    root = common[: common.rfind("/") + 1]
    parts = root.split("/")
    keys = {f"{quoted}=" for file in files[:1] for key, _ in file.partition for quoted in (key, quote(key, safe=""))}
    within = [i for i, part in enumerate(parts) if part[: part.find("=") + 1] in keys]
    root = "".join(f"{part}/" for part in parts[: within[0]]) if within else root
    return root, tuple(file.info.url[len(root) :] for file in files)


def _find(source: str, storage: Storage, *, is_local: bool) -> list[Listed]:
    if glob := _GLOB.search(source):
        folder = source[: source.rfind("/", 0, glob.start()) + 1]
        pattern = source[len(folder) :].rstrip("/")
        file = re.compile(translate_glob(pattern), re.DOTALL)
        below = re.compile(translate_glob(pattern) + "/(?P<rest>.+)", re.DOTALL)
        names_hidden = any(part[:1] in ("_", ".") for part in pattern.split("/"))
        infos = storage.list(folder)
        found = []
        for info in infos:
            path = info.url[len(folder) :]
            inside = below.fullmatch(path)
            if (file.fullmatch(path) and not source.endswith("/") and (names_hidden or not _is_hidden(path))) or (
                inside is not None and _is_parquet(inside["rest"]) and (names_hidden or not _is_hidden(path))
            ):
                found.append(Listed(info=info, partition=_partition(path)))
        check_no_log(source, folder, infos, [file.info.url for file in found], storage, is_local=is_local)
        if not found:
            raise SourceMissingError(
                f"no file matches {source} ({len(infos):,} objects lie below {folder})", url=source
            )
        return found
    if not source.endswith("/"):
        try:
            return [Listed(info=storage.stat(source))]
        except SourceMissingError:
            pass  # then it is a folder, or nothing
    folder = source.rstrip("/") + "/"
    infos = storage.list(source)
    paths = [(info, info.url[len(folder) :]) for info in infos]
    found = [Listed(info=info, partition=_partition(path)) for info, path in paths if _is_parquet(path)]
    check_no_log(source, folder, infos, [file.info.url for file in found], storage, is_local=is_local)
    if not found:
        if not infos:
            raise SourceMissingError(f"nothing is stored at {source}: check the name", url=source)
        raise SourceMissingError(
            f"no Parquet file lies below {source}: {len(infos):,} other objects do, such as {infos[0].url}; "
            f"in a folder the names {', '.join('*' + end for end in SUFFIXES)} are read, others when they are named",
            url=source,
        )
    return found


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in path.split("/"))


def _is_parquet(path: str) -> bool:
    return path.lower().endswith(SUFFIXES) and not _is_hidden(path)


def _partition(path: str) -> tuple[tuple[str, str | None], ...]:
    """Return the key=value folders of a path below the folder that was named."""
    found = {}
    for part in path.split("/")[:-1]:
        key, equals, value = part.partition("=")
        if equals and key:
            found[unquote(key)] = None if value == _HIVE_NULL else unquote(value)
    return tuple(found.items())


def translate_glob(pattern: str) -> str:
    """Return the regular expression of a glob: `*`, `?` and `[]` stay in one folder, `**` goes through any number."""
    parts = []
    i = 0
    while i < len(pattern):
        if pattern.startswith("**/", i) and (i == 0 or pattern[i - 1] == "/"):
            parts.append("(?:[^/]+/)*")
            i += 3
        elif pattern.startswith("**", i):
            parts.append(".*")
            i += 2
        elif pattern[i] == "*":
            parts.append("[^/]*")
            i += 1
        elif pattern[i] == "?":
            parts.append("[^/]")
            i += 1
        elif pattern[i] == "[" and (end := pattern.find("]", i + 2 + pattern.startswith("[!", i))) > 0:
            inside = pattern[i + 1 : end]
            negated = inside.startswith("!")
            chosen = inside[negated:].replace("\\", r"\\").replace("]", r"\]").replace("^", r"\^").replace("[", r"\[")
            parts.append(f"(?!/)[{'^' if negated else ''}{chosen}]")
            i = end + 1
        else:
            parts.append(re.escape(pattern[i]))
            i += 1
    return "".join(parts)


def partition_fields(files: Sequence[Listed]) -> list[pa.Field]:
    """Return one field a partition key, in the order the keys appear: int64 where every value is one, else string."""
    values: dict[str, set[str | None]] = {}
    for file in files:
        for key, text in file.partition:
            values.setdefault(key, set()).add(text)
    return [pa.field(key, pa.int64() if _are_ints(texts) else pa.string()) for key, texts in values.items()]


def _are_ints(texts: set[str | None]) -> bool:
    known = [text for text in texts if text is not None]
    return bool(known) and all(_INT.fullmatch(text) and -(2**63) <= int(text) < 2**63 for text in known)


def partition_value(file: Listed, field: pa.Field) -> pa.Scalar:
    """Return the value of one partition column for one file; null where the path does not say."""
    text = dict(file.partition).get(field.name)
    if text is None:
        return pa.scalar(None, field.type)
    return pa.scalar(int(text) if pa.types.is_integer(field.type) else text, field.type)
