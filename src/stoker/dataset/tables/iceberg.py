"""Iceberg tables, through `pyiceberg`: it reads metadata and manifests from whatever store Stoker reads.

catalogue ── or a folder ──► metadata.json ──► snapshot ──► manifests ──► files, partitions, delete files
                                                                                 └──► deleted rows
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from datetime import UTC
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.dataset.listing import Listed
from stoker.dataset.tables.table import LakeTable, TableSource, look_up, pack_rows, table_errors, tagged
from stoker.errors import SourceError, SourceMissingError
from stoker.parquet.naming import DEFAULT, ID, NAMES
from stoker.storage.each import map_each
from stoker.storage.storage import Storage

# What table properties of the catalogue are called among the options of Stoker's client for S3.
_S3_OPTIONS = {
    "s3.endpoint": "endpoint_override",
    "s3.access-key-id": "access_key",
    "s3.secret-access-key": "secret_key",
    "s3.session-token": "session_token",
    "s3.region": "region",
}
_HINTS = {
    "equality deletes": "it has equality deletes, which pyiceberg does not apply: rewrite its files "
    "(rewrite_data_files)"
}
_METADATA = re.compile(r"(?:v(\d+)|(\d+)-[^/]*)(?:\.gz)?\.metadata\.json(?:\.gz)?")


def open_iceberg(
    source: TableSource, place: str, storage: Storage, *, num_threads: int
) -> tuple[LakeTable, list[Listed]]:
    """Return an Iceberg table at a snapshot, and its files, by URL. Arguments and errors as for `open_delta`."""
    _library()
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.serializers import FromInputFile
    from pyiceberg.table import StaticTable

    at = _metadata_at(place, storage)
    with table_errors("the Iceberg table", place, _HINTS):
        files_io = _make_io(storage)
        metadata = FromInputFile.table_metadata(files_io.new_input(at))
        table = StaticTable(
            identifier=("stoker", place),
            metadata_location=at,
            metadata=metadata,
            io=files_io,
            catalog=NoopCatalog("stoker"),
        )
        snapshot = _snapshot(table, source, place)
        # The newest schema where no snapshot is asked for, else the one that it was written with.
        wanted: Any = snapshot.schema_id if source.schema_id is None and source.pin is not None else source.schema_id
        schema = table.schemas().get(wanted, table.schema())
        tasks = sorted(table.scan(snapshot_id=snapshot.snapshot_id).plan_files(), key=lambda task: task.file.file_path)
        specs = table.specs()
        identities = [_identities(task, specs[task.file.spec_id], schema) for task in tasks]
        found = LakeTable(
            version=snapshot.snapshot_id,
            schema=_arrow_schema(schema, table.name_mapping()),
            schema_id=schema.schema_id,
            # Where not every file is so, the files have these columns as any other.
            partitions=tuple(name for name in schema.column_names if tasks and all(name in one for one in identities)),
            by_id=True,
        )
        for task in tasks:
            if task.file.file_format.value.upper() != "PARQUET":
                raise SourceError(
                    f"{task.file.file_path} of the Iceberg table {place} is {task.file.file_format.value}, and Stoker "
                    "reads Parquet: rewrite the table's files",
                    url=place,
                )
        deleted = _deleted_rows(tasks, storage, place, num_threads=num_threads)
    files = {
        _url_of(task.file.file_path): (task.file.file_size_in_bytes, values, deleted.get(task.file.file_path, b""))
        for values, task in zip(identities, tasks, strict=True)
    }
    return found, look_up(found, files, storage, place=place, num_threads=num_threads)


def find_in_catalog(name: str) -> tuple[str, dict[str, Any]]:
    """Return where the metadata of a table, "prod/web.events", lies that a catalogue knows, and options for its store.

    Raises:
        ValueError: pyiceberg is not installed, or no such catalogue is configured.
    """
    _library()
    from pyiceberg.catalog import load_catalog
    from pyiceberg.utils.config import Config

    catalog, _, table = name.partition("/")
    properties: Any = Config().get_catalog_config(catalog)
    if properties is None or "." not in table:
        raise ValueError(
            f"iceberg://{name} is neither a folder nor a file here, nor the table of a catalogue: write "
            "iceberg://catalogue/namespace.table, with a catalogue that pyiceberg's configuration has "
            f"(.pyiceberg.yaml, PYICEBERG_CATALOG__{catalog.upper()}__URI); or the place of its folder or metadata.json"
        )
    with table_errors("the Iceberg table", name, _HINTS):
        with load_catalog(catalog, **properties) as known:
            found = known.load_table(table)
        options = {ours: found.io.properties[name] for name, ours in _S3_OPTIONS.items() if name in found.io.properties}
        return _url_of(str(found.metadata_location)), options


def _library() -> None:
    try:
        import pyiceberg  # noqa: F401  # asked for here, so that the error is one
    except ImportError:
        raise ValueError("iceberg:// tables are read through pyiceberg: pip install stoker[iceberg]") from None


def _make_io(storage: Storage) -> Any:
    """Return a storage with as much of pyiceberg's FileIO as reading a table's metadata calls."""

    def new_input(location: str) -> SimpleNamespace:
        return SimpleNamespace(location=location, open=lambda: io.BytesIO(_read(storage, location)))

    return SimpleNamespace(new_input=new_input)


def _read(storage: Storage, location: str) -> bytes:
    url = _url_of(location)
    return bytes(memoryview(storage.read(url, 0, storage.stat(url).size_bytes)).cast("B"))


def _url_of(location: str) -> str:
    """Return where a file is that the metadata names: as it is written there, never decoded."""
    return re.sub(r"^s3[an]://", "s3://", re.sub(r"^file:(?://)?(?=/)", "", location))


def _metadata_at(place: str, storage: Storage) -> str:
    """Return the metadata file of a table's folder: what its hint says, or the one with the highest number."""
    if place.endswith((".metadata.json", ".metadata.json.gz")):
        return place
    folder = place.rstrip("/") + "/metadata/"
    names = [info.url[len(folder) :] for info in storage.list(folder)]
    numbers = {name: int(match[1] or match[2]) for name in names if (match := _METADATA.fullmatch(name))}
    if not numbers:
        raise SourceMissingError(f"no Iceberg table lies at {place}: it has no metadata/*.metadata.json", url=place)
    if "version-hint.text" in names:
        hint = _read(storage, folder + "version-hint.text").decode().strip()
        for name in (hint, f"v{hint}.metadata.json", f"v{hint}.gz.metadata.json", f"{hint}.metadata.json"):
            if name in numbers:
                return folder + name
    newest = [name for name, number in numbers.items() if number == max(numbers.values())]
    if len(newest) > 1:
        raise SourceError(
            f"which metadata of the Iceberg table {place} is the newest, only its catalogue knows: "
            f"{' and '.join(newest)} have the same number; name the file, or the table in its catalogue "
            "(iceberg://catalogue/namespace.table)",
            url=place,
        )
    return folder + newest[0]


def _snapshot(table: Any, source: TableSource, place: str) -> Any:
    pin = source.pin
    if pin is None:
        found = table.current_snapshot()
        if found is None:
            raise SourceMissingError(
                f"the Iceberg table {place} has no snapshot yet: nothing was written to it", url=place
            )
        return found
    if isinstance(pin, int):
        found = table.snapshot_by_id(pin)
    elif isinstance(pin, str):
        found = table.snapshot_by_name(pin)
    else:
        time = pin if pin.tzinfo is not None else pin.replace(tzinfo=UTC)
        found = table.snapshot_as_of_timestamp(int(time.timestamp() * 1000))
    if found is None:
        names = ", ".join(sorted(table.metadata.refs)) or "none"
        last = ", ".join(str(one.snapshot_id) for one in table.snapshots()[-8:])
        raise SourceMissingError(
            f"the Iceberg table {place} has no snapshot {pin!r}. Its branches and tags: {names}; its last snapshots: "
            f"{last}",
            url=place,
        )
    return found


def _arrow_schema(schema: Any, mapping: Any) -> pa.Schema:
    """Return the columns of a table, with their ids, names in files without ids, and defaults."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    names: dict[int, list[str]] = {}

    def add(fields: Sequence[Any]) -> None:
        for field in fields:
            if field.field_id is not None:
                names[field.field_id] = list(field.names)
            add(field.fields)

    add([] if mapping is None else mapping.root)

    def tags(field: pa.Field) -> dict[bytes, bytes]:
        number = int((field.metadata or {})[ID])
        about = {ID: str(number).encode()}
        if number in names:
            about[NAMES] = json.dumps(names[number]).encode()
        if getattr(schema.find_field(number), "initial_default", None) is not None:
            about[DEFAULT] = b"1"
        return about

    return tagged(list(schema_to_pyarrow(schema, include_field_ids=True)), tags)


def _identities(task: Any, spec: Any, schema: Any) -> dict[str, Any]:
    """Return the values of those columns that a file is partitioned by as they are."""
    from pyiceberg.transforms import IdentityTransform

    tops = {field.field_id: field.name for field in schema.fields}
    return {
        tops[field.source_id]: task.file.partition[i]
        for i, field in enumerate(spec.fields)
        if isinstance(field.transform, IdentityTransform) and field.source_id in tops
    }


def _deleted_rows(tasks: Sequence[Any], storage: Storage, place: str, *, num_threads: int) -> dict[str, bytes]:
    """Return the path of a data file -> rows that are deleted in it."""
    needed = {one.file_path: one for task in tasks for one in task.delete_files}
    found = map_each([*needed.values()], lambda one: _positions(one, storage, place), num_threads=num_threads)
    read = dict(zip(needed, found, strict=True))
    deleted = {}
    for task in tasks:
        path = task.file.file_path
        rows = [read[one.file_path][path] for one in task.delete_files if path in read[one.file_path]]
        if rows:
            deleted[path] = pack_rows(np.concatenate(rows))
    return deleted


def _positions(delete_file: Any, storage: Storage, place: str) -> dict[str, npt.NDArray[np.int64]]:
    """Return the path of each data file that a delete file speaks of -> its rows there."""
    from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
    from pyiceberg.table.puffin import PuffinFile

    content = _read(storage, delete_file.file_path)
    kind = delete_file.file_format.value.upper()
    if kind == "PUFFIN":
        vectors = deletion_vectors_from_puffin_file(PuffinFile(content))
        return {one.referenced_data_file: one.to_vector().to_numpy().astype(np.int64) for one in vectors}
    if kind != "PARQUET":
        raise SourceError(
            f"the deletes in {delete_file.file_path} of the Iceberg table {place} are {kind}, and Stoker reads those "
            "in Parquet and Puffin: rewrite the table's files",
            url=place,
        )
    table = pq.read_table(pa.BufferReader(content), columns=["file_path", "pos"])
    codes = table["file_path"].combine_chunks().dictionary_encode()
    rows, of = table["pos"].to_numpy().astype(np.int64), codes.indices.to_numpy()
    return {path: rows[of == k] for k, path in enumerate(codes.dictionary.to_pylist())}
