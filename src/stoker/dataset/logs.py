"""Folders with a log: which of their files hold rows that count is known to the log alone.

    events/_delta_log/00000000000000000001.json     "a.parquet was replaced by b.parquet"
    events/a.parquet                                read as a folder, both are rows: the old ones and the new ones
    events/b.parquet

So such a folder, or a glob that reaches into one, is refused. Files that are named one by one are the user's own word.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeAlias

from stoker.errors import SourceError
from stoker.storage.storage import ObjectInfo, Storage
from stoker.storage.urls import name_bytes, name_of

# Of a kind of log: what a folder with it is, what is wrong with all of its files, and what to do; "{}" is the folder.
_Log: TypeAlias = tuple[str, str, str]

_OLD_ROWS = "holds rows that were deleted or replaced, too"
_UNFINISHED = "holds files of writes that failed or are not finished, too"
_WRITE = "read it with {} and write its rows to a folder of their own"
_LOGS: dict[str, _Log] = {
    "delta": ("a Delta table", _OLD_ROWS, 'read the table, Dataset("delta://{}")'),
    "iceberg": ("an Iceberg table", _OLD_ROWS, 'read the table, Dataset("iceberg://{}")'),
    "hudi": ("a Hudi table", _OLD_ROWS, _WRITE.format("Hudi")),
    "paimon": ("a Paimon table", _OLD_ROWS, _WRITE.format("Paimon")),
    "acid": ("a transactional Hive table", _OLD_ROWS, _WRITE.format("Hive")),
    "stream": ("what a Spark stream writes", _UNFINISHED, _WRITE.format("Spark")),
    "dbio": (
        "what Databricks commits with _started_* and _committed_*",
        _UNFINISHED,
        "run VACUUM there, copy the folder",
    ),
    "ducklake": ("data of a DuckLake", _OLD_ROWS, _WRITE.format("DuckDB")),
}

# What of a path below a folder says that there is a log, and of which kind; what stands before it is the table.
_MARKS = re.compile(
    r"(?P<root>(?:.*?/)?)(?:"
    r"(?P<delta>_delta_log/)"
    r"|(?P<iceberg>metadata/[^/]*\.metadata\.json(?:\.gz)?\Z)"
    r"|(?P<hudi>\.hoodie/|\.hoodie_partition_metadata)"
    r"|(?P<stream>_spark_metadata/)"
    r"|(?P<paimon>snapshot/(?:LATEST|EARLIEST)\Z)"
    r"|(?P<dbio>_(?:committed|started)_[^/]*\Z)"
    r"|(?P<acid>(?:base|(?:delete_)?delta_0\d{6})_0\d{6}(?:_\d{4})?(?:_v\d+)?/)"
    r"|(?P<ducklake>ducklake-[0-9a-f]{8}-[0-9a-f-]+\.parquet\Z)"
    r")",
    re.DOTALL,
)
# One of them is there for as long as the log is.
_FILES = {
    "_delta_log/_last_checkpoint": _LOGS["delta"],
    "_delta_log/00000000000000000000.json": _LOGS["delta"],
    ".hoodie/hoodie.properties": _LOGS["hudi"],
    "_spark_metadata/0": _LOGS["stream"],
}
# Folders that tables have below them: of partitions, Iceberg's data, and prefixes that spread files over a store.
_INSIDE = re.compile(r"[^/]*=[^/]*|data|bucket-\d+|[0-9a-f]{2}|[01]{4,}")


def check_no_log(
    source: str, folder: str, infos: Iterable[ObjectInfo], found: Sequence[str], storage: Storage, *, is_local: bool
) -> None:
    """Raise a SourceError where files that a folder or a glob gives are those of a folder with a log.

    Local folders are looked at up to the root, and through links. Of a remote store, what the listing shows is enough
    but where the name looks like a part of a table, `events/date=1/`: then the folders above are asked for their logs.
    """
    roots: dict[str, _Log] = {}
    for info in infos:
        mark = _MARKS.match(info.url, len(folder))
        if mark is not None and mark.lastgroup is not None:
            roots.setdefault(folder + mark["root"], _LOGS[mark.lastgroup])
    for root in sorted(roots):
        if root == folder or any(url.startswith(root) for url in found):
            _refuse(source, root, roots[root])
    for root in _local_roots(folder, found) if is_local else _remote_roots(folder):
        log = _log_in(root, storage, is_local=is_local)
        if log is not None:
            _refuse(source, root, log)


def _refuse(source: str, root: str, log: _Log) -> None:
    place, (name, why, way_out) = root.rstrip("/") or "/", log
    what = f"{source} is {name}" if place == source.rstrip("/") else f"{source} reaches into {place}, {name}"
    raise SourceError(
        f"{what}: its folder {why}. Instead, {way_out.format(place)}; or name files one by one, as a list, to read "
        "them as they are",
        url=source,
    )


def _local_roots(folder: str, found: Sequence[str]) -> Iterator[str]:
    """Yield the folders above `folder`, and those above what links below it lead to."""
    seen = {folder}
    real = {parent: _real(parent) for parent in {_above(url) for url in found}}
    links = [_above(_real(url)) for url in found if os.path.islink(name_bytes(url))]  # noqa: PTH114  names are any bytes
    for start in (_above(folder), _real(folder), *real.values(), *links):
        while start not in seen:
            seen.add(start)
            yield start
            start = _above(start)


def _real(path: str) -> str:
    return name_of(os.path.realpath(name_bytes(path))).rstrip("/") + "/"


def _above(path: str) -> str:
    return path.rstrip("/").rpartition("/")[0] + "/"


def _remote_roots(folder: str) -> Iterator[str]:
    """Yield the folders above `folder` that may be a table which it is a part of, the nearest first."""
    scheme, separator, path = folder.rstrip("/").rpartition("://")
    parts = path.split("/")
    while len(parts) > 1 and _INSIDE.fullmatch(parts.pop()):
        if "=" not in parts[-1]:
            yield f"{scheme}{separator}{'/'.join(parts)}/"


def _log_in(root: str, storage: Storage, *, is_local: bool) -> _Log | None:
    below: list[str] = []
    if is_local:
        for folder in ("_delta_log", ".hoodie", "_spark_metadata", "metadata"):
            with suppress(OSError):
                below += [f"{folder}/{name_of(name)}" for name in os.listdir(name_bytes(root + folder))]  # noqa: PTH208
    else:
        for name, log in _FILES.items():
            # Who may read a part of a table alone is refused above it, and is not kept from the part.
            with suppress(SourceError):
                storage.stat(root + name)
                return log
        with suppress(SourceError):
            below = [info.url[len(root) :] for info in storage.list(root + "metadata/")]
    marks = [mark for mark in map(_MARKS.match, below) if mark is not None and not mark["root"]]
    return _LOGS[str(marks[0].lastgroup)] if marks else None
