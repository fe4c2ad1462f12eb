"""Delta tables, through `deltalake`: it reads a copy of the log, so that every store is one that Stoker itself reads.

_delta_log/00..10.checkpoint.parquet  ┐
_delta_log/00..11.json                ├─► a temporary folder ─► deltalake ─► files, partitions, deleted rows
deletion_vector_*.bin                 ┘                                      at one version
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa

from stoker.dataset.listing import Listed
from stoker.dataset.tables.table import LakeTable, TableFile, TableSource, look_up, pack_rows, table_errors, tagged
from stoker.errors import SourceError, SourceMissingError
from stoker.parquet.naming import ID, NAMES
from stoker.storage.each import map_each
from stoker.storage.storage import ObjectInfo, Storage
from stoker.storage.urls import has_scheme

_PHYSICAL = b"delta.columnMapping.physicalName"
_ID = b"delta.columnMapping.id"
# What a reader of a table must know. Of `catalogManaged` tables the newest commits are not in the folder at all.
_KNOWN = {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "v2Checkpoint",
    "vacuumProtocolCheck",
    "variantType",
    "variantType-preview",
    "variantShredding-preview",
}
_HINTS = {
    "Forked process": "deltalake does not work in a process forked from one that has used it: give version=, and a "
    "cache folder in which the table was opened before; or start processes by spawn"
}
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)")
_VECTOR = re.compile(r"/deletion_vector_[^/]*\.bin\Z")


def open_delta(
    source: TableSource, place: str, storage: Storage, *, num_threads: int
) -> tuple[LakeTable, list[Listed]]:
    """Return a Delta table at the version that is asked for, and its files, by URL.

    Raises:
        ValueError: deltalake is not installed.
        SourceMissingError: There is no table, no such version, or one of its files is gone.
        SourceError: The log cannot be read, or has what Stoker does not apply.
    """
    try:
        import deltalake
    except ImportError:
        raise ValueError("delta:// tables are read through deltalake: pip install stoker[delta]") from None
    root = place.rstrip("/") + "/"
    with tempfile.TemporaryDirectory(prefix="stoker-delta-") as temporary:
        # As deltalake sees it.
        folder = Path(os.path.realpath(temporary))
        infos = _copy_log(source, root, storage, folder, num_threads=num_threads)
        with table_errors("the log of the Delta table", place, _HINTS):
            pin = _version_at(source.pin, folder, infos, place) if isinstance(source.pin, datetime) else source.pin
            log = deltalake.DeltaTable(str(folder), version=pin)
            features = set(log.protocol().reader_features or ())
            _check_features(log, features, place)
            schema, metadata = pa.schema(log.schema().to_arrow()), log.metadata()
            actions = pa.table(log.get_add_actions()).to_pylist()
        deleted = {}
        if "deletionVectors" in features:
            vectors = [info for info in storage.list(root) if _VECTOR.search(info.url)]
            _copy(vectors, root, storage, folder, num_threads=num_threads)
            with table_errors("the log of the Delta table", place, _HINTS):
                deleted = _deleted_rows(log, folder, root)
    # Without the feature, a mode means nothing.
    is_mapped = log.protocol().min_reader_version == 2 or "columnMapping" in features
    mode = metadata.configuration.get("delta.columnMapping.mode", "none") if is_mapped else "none"
    table = LakeTable(
        version=int(log.version()),
        schema=_schema(schema, mode),
        schema_id=None,
        partitions=tuple(metadata.partition_columns),
        by_id=mode == "id",
    )
    files: dict[str, TableFile] = {}
    for action in actions:
        url, values = _url_of(action["path"], root), action.get("partition") or {}
        told = {name: values.get(name) for name in table.partitions}
        files[url] = action["size_bytes"], told, deleted.pop(url, b"")
    if deleted:
        raise SourceError(f"{place} has a deletion vector for {min(deleted)}, which is none of its files", url=place)
    return table, look_up(table, files, storage, place=place, num_threads=num_threads)


def _check_features(log: Any, features: set[str], place: str) -> None:
    if unknown := sorted(features - _KNOWN):
        raise SourceError(
            f"the Delta table {place} has the reader features {', '.join(unknown)}, which Stoker does not know: write "
            "its rows to a table without them",
            url=place,
        )
    for field in json.loads(log.schema().to_json())["fields"]:
        if '"variant"' in json.dumps(field["type"]):
            raise SourceError(
                f"column {field['name']!r} of the Delta table {place} is a variant, which Stoker does not read",
                url=place,
            )


def _schema(schema: pa.Schema, mode: str) -> pa.Schema:
    """Return the columns of a table, with what they are found by in files."""

    def tags(field: pa.Field) -> dict[bytes, bytes]:
        about = field.metadata or {}
        if mode == "id" and _ID in about:
            return {ID: about[_ID]}
        if mode == "name" and _PHYSICAL in about:
            return {NAMES: json.dumps([about[_PHYSICAL].decode()]).encode()}
        return {}

    return tagged(list(schema), tags)


def _url_of(path: str, root: str) -> str:
    """Return where a file of the log is: `path` is a relative or whole URL, percent-encoded."""
    if path.startswith("file:"):
        return unquote(urlsplit(path).path)
    if has_scheme(path):
        return unquote(re.sub(r"^s3[an]://", "s3://", path))
    return unquote(path) if path.startswith("/") else root + unquote(path)


def _deleted_rows(log: Any, folder: Path, root: str) -> dict[str, bytes]:
    """Return URL -> rows that are deleted in it."""
    found = {}
    vectors = pa.table(log.deletion_vectors().read_all())
    for url, keeps in zip(vectors["filepath"].to_pylist(), vectors["selection_vector"], strict=True):
        path = unquote(urlsplit(url).path) if url.startswith("file:") else unquote(url)
        path = root + path[len(str(folder)) + 1 :] if path.startswith(f"{folder}/") else _url_of(url, root)
        found[path] = pack_rows(np.flatnonzero(~keeps.values.to_numpy(zero_copy_only=False)))
    return found


def _copy_log(
    source: TableSource, root: str, storage: Storage, folder: Path, *, num_threads: int
) -> dict[str, ObjectInfo]:
    """Copy the newest checkpoint of a table up to the version that is asked for, and the commits behind it.

    Returns:
        All that the log has in its store, by names.
    """
    prefix = root + "_delta_log/"
    infos = {info.url[len(prefix) :]: info for info in storage.list(prefix)}
    last = source.pin if isinstance(source.pin, int) else None
    checkpoints: dict[int, list[str]] = {}
    for name in infos:
        match = _CHECKPOINT.fullmatch(name)
        if match is not None and (last is None or int(match[1]) <= last):
            checkpoints.setdefault(int(match[1]), []).append(name)
    whole = [version for version, names in checkpoints.items() if _is_whole(names)]
    # By a time, any version may be the one.
    first = -1 if isinstance(source.pin, datetime) else max(whole, default=-1)
    names = [name for name in infos if (match := _COMMIT.fullmatch(name)) and int(match[1]) >= first]
    names += [name for version in whole if version >= first for name in checkpoints[version]]
    names += [name for name in infos if name.startswith("_sidecars/")]
    if not names:
        place = root.rstrip("/")
        raise SourceMissingError(f"no Delta table lies at {place}: it has no _delta_log", url=place)
    _copy([infos[name] for name in names], root, storage, folder, num_threads=num_threads)
    return infos


def _version_at(asked: datetime, folder: Path, infos: Mapping[str, ObjectInfo], place: str) -> int:
    """Return the version that was the newest one at a time: what a commit says of its own, else when it was written."""
    names = [path.name for path in (folder / "_delta_log").iterdir()]
    commits = sorted(int(match[1]) for name in names if (match := _COMMIT.fullmatch(name)))
    checkpoints = [int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))]
    first = 0 if 0 in commits else min(checkpoints, default=0)  # what lies before it cannot be put together any more
    asked_us, when = round(asked.timestamp() * 1e6), asked.isoformat()
    newest = untold = -1  # the newest version by then, and the last one before the next that tells no time
    oldest: tuple[int, int] | None = None
    time_ms, latest_ms = 0, math.inf
    written_ms: dict[int, float | None] = {}
    for version in reversed([version for version in commits if version >= first]):
        name = f"{version:020}.json"
        told_ms: float | None = _told_ms(folder / "_delta_log" / name)
        if told_ms is not None:
            latest_ms = told_ms
        # The file of a log that was copied is younger than its commit, which is no younger than the next one.
        elif (file_s := infos[name].written_s) is not None:
            told_ms = min(file_s * 1000, latest_ms)
        written_ms[version] = told_ms
    for version, about_ms in reversed(written_ms.items()):
        if about_ms is None:
            untold = version
            continue
        time_ms = max(time_ms, int(about_ms))  # clocks of writers differ, and versions follow each other
        oldest = oldest or (time_ms, version)
        if time_ms * 1000 > asked_us:
            break
        newest = version
    if 0 <= newest < untold:
        raise SourceError(
            f"nobody tells when version {untold} of the Delta table {place} was written, and it may be the newest one "
            f"at {when}: give the number of a version",
            url=place,
        )
    if newest >= 0:
        return newest
    way_out = "does not tell when any was written: give the number of a version"
    if oldest is not None:
        since = datetime.fromtimestamp(oldest[0] / 1000, UTC).isoformat()
        way_out = f"goes back to version {oldest[1]}: give a time from {since} on, or the number of a version"
    raise SourceMissingError(f"the Delta table {place} has no version as old as {when}: its log {way_out}", url=place)


def _told_ms(commit: Path) -> int | None:
    """Return when a commit was made, in milliseconds since 1970, where it says so."""
    with commit.open("rb") as file:
        line = next((line for line in file if b'"commitInfo"' in line[:16]), b"{}")
    about = json.loads(line).get("commitInfo", {})
    time_ms = about.get("inCommitTimestamp", about.get("timestamp"))
    return time_ms if isinstance(time_ms, int) else None


def _copy(infos: Sequence[ObjectInfo], root: str, storage: Storage, folder: Path, *, num_threads: int) -> None:
    def copy(info: ObjectInfo) -> None:
        path = folder / info.url[len(root) :]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(storage.read(info.url, 0, info.size_bytes) if info.size_bytes else b"")

    map_each(infos, copy, num_threads=num_threads)


def _is_whole(names: Sequence[str]) -> bool:
    parts = [match for name in names if (match := _CHECKPOINT.fullmatch(name)) and match[2]]
    return len(parts) < len(names) or len(parts) == int(parts[0][3])
