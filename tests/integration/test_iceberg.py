"""Iceberg tables are what pyiceberg scans, at every snapshot."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import struct
import uuid
import zlib
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestWriterV2
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, LongType, StringType
from pyroaring import BitMap
from tests.tables import expected_of, rows_of

import stoker
from stoker.testing import MemoryStorage

ROWS = 40


def rows(first=0, num=ROWS):
    ids = list(range(first, first + num))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "word": [f"w{i % 7}" if i % 5 else None for i in ids],
            "user": [{"age": i, "tags": [{"t": i}] * (i % 3)} for i in ids],
            "small": pa.array(ids, pa.int32()),
        }
    )


@pytest.fixture
def catalog(tmp_path):
    (tmp_path / "warehouse").mkdir()
    made = SqlCatalog("mine", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    made.create_namespace("web")
    yield made
    made.close()


def made(catalog, data, name="web.events", **options):
    table = catalog.create_table(name, schema=data.schema, **options)
    table.append(data)
    return table


def place_of(table):
    return table.location().removeprefix("file://")


def scanned(table, snapshot_id=None):
    return expected_of(table.scan(snapshot_id=snapshot_id).to_arrow())


def test_every_snapshot_is_what_pyiceberg_scans(catalog):
    table = made(catalog, rows())
    table.append(rows(100))
    table.delete("id >= 10 and id < 13")
    table.overwrite(rows(200, num=7), overwrite_filter="id > 110")
    for snapshot in table.snapshots():
        found = rows_of(f"iceberg://{table.metadata_location}", snapshot=snapshot.snapshot_id)
        assert found == scanned(table, snapshot.snapshot_id)
    place = place_of(table)
    assert rows_of(f"iceberg://{place}") == rows_of(f"iceberg://{table.location()}") == scanned(table)
    with pytest.raises(stoker.SourceError, match="Iceberg"):
        stoker.Dataset(place).open()
    with pytest.raises(stoker.SourceError, match="Iceberg"):
        stoker.Dataset(f"{place}/data").open()
    with pytest.raises(stoker.SourceMissingError, match="has no snapshot 17"):
        stoker.Dataset(f"iceberg://{place}", snapshot=17).open()
    with pytest.raises(stoker.SourceMissingError, match="no Iceberg table"):
        stoker.Dataset(f"iceberg://{place}/data").open()


def test_branches_tags_and_times_name_a_snapshot(catalog):
    table = made(catalog, rows())
    first = table.current_snapshot()
    table.manage_snapshots().create_tag(first.snapshot_id, "first").create_branch(first.snapshot_id, "side").commit()
    table.append(rows(100))
    source = f"iceberg://{place_of(table)}"
    assert rows_of(source, snapshot="first") == rows_of(source, snapshot="side") == scanned(table, first.snapshot_id)
    time = dt.datetime.fromtimestamp(first.timestamp_ms / 1000, tz=dt.UTC)
    assert rows_of(source, snapshot=time) == scanned(table, first.snapshot_id)
    assert rows_of(source, snapshot=time + dt.timedelta(hours=1)) == scanned(table)
    with pytest.raises(stoker.SourceMissingError, match="first, main, side"):
        stoker.Dataset(source, snapshot="other").open()


def test_columns_that_were_renamed_moved_added_and_dropped_are_those_of_the_schema(catalog):
    table = made(catalog, rows())
    before = table.current_snapshot().snapshot_id
    with table.update_schema() as update:
        update.rename_column("word", "text")
        update.rename_column("user.age", "years")
        update.delete_column("small")
        update.add_column(("user", "extra"), LongType())
        update.add_column("later", LongType())
        update.move_first("user")
    with table.update_schema() as update:
        update.add_column("word", StringType())
        update.add_column("small", StringType())
    new = pa.table(
        {
            "id": pa.array([100, 101], pa.int64()),
            "word": ["x", None],
            "later": pa.array([None, 5], pa.int64()),
            "text": ["y", "z"],
            "user": pa.array(
                [{"years": 3, "tags": None, "extra": 4}, None],
                pa.struct(
                    [
                        ("years", pa.int64()),
                        ("tags", pa.list_(pa.struct([("t", pa.int64())]))),
                        ("extra", pa.int64()),
                    ]
                ),
            ),
            "small": ["s", None],
        }
    )
    source = f"iceberg://{place_of(table)}"
    assert rows_of(source) == scanned(table)
    table.append(new)
    found = rows_of(source)
    assert found == scanned(table)
    assert found[3]["text"] == "w3"
    assert found[3]["word"] is None
    assert rows_of(source, snapshot=before) == scanned(table, before)
    picked = rows_of(source, columns=["id", "text"], filters=[("text", "in", ["w3", "z"]), ("user.years", "<", 9)])
    assert picked == {3: {"id": 3, "text": "w3"}}
    assert set(rows_of(source, filters=[("word", "=", "x")])) == {100}


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.int64())], ids=str)
def test_columns_that_swapped_their_names_are_those_of_the_schema(catalog, kind):
    def values(first):
        return pa.array([[first + i] * (i % 3) if pa.types.is_list(kind) else first + i for i in range(ROWS)], kind)

    table = made(catalog, rows().append_column("one", values(0)).append_column("two", values(1000)))
    for old, new in (("one", "tmp"), ("two", "one"), ("tmp", "two")):
        with table.update_schema() as update:
            update.rename_column(old, new)
    found = rows_of(f"iceberg://{place_of(table)}")
    assert found == scanned(table)
    assert [row["one"] for row in found.values()] == values(1000).to_pylist()


def test_types_that_were_widened_are_those_of_the_schema(catalog):
    table = made(catalog, rows().append_column("x", pa.array([0.1] * ROWS, pa.float32())))
    with table.update_schema() as update:
        update.update_column("small", LongType())
        update.update_column("x", DoubleType())
    found = rows_of(f"iceberg://{place_of(table)}", filters=[("small", "<", 2**40)])
    assert found == scanned(table)


@pytest.mark.parametrize("where", ["", "user", "user.tags"])
def test_a_default_that_files_lack_is_refused_wherever_the_column_is(catalog, where):
    table = made(catalog, rows())
    place = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(place.read_text())
    schema = {**json.loads(json.dumps(metadata["schemas"][0])), "schema-id": 1}
    fields = schema["fields"]
    for name in where.split("."):
        inside = next((one["type"] for one in fields if one["name"] == name), {"fields": fields})
        fields = inside.get("element", inside)["fields"]
    fields.append({"id": 90, "name": "added", "required": False, "type": "int", "initial-default": 7})
    metadata |= {"format-version": 3, "next-row-id": 0, "current-schema-id": 1, "last-column-id": 90}
    metadata["schemas"].append(schema)
    place.with_name("9-changed.metadata.json").write_text(json.dumps(metadata))
    name = f"{where}.added" if where else "added"
    with pytest.raises(stoker.FieldError, match=f"lacks the column '{name}', whose value is the column's default"):
        stoker.Dataset(f"iceberg://{place.with_name('9-changed.metadata.json')}").open()


@pytest.mark.parametrize("version", ["1", "2"])
def test_every_type_of_column_is_what_pyiceberg_scans(catalog, version):
    far = [dt.datetime(1, 1, 1), None, dt.datetime(9999, 12, 31)]
    columns = {
        "id": pa.array(range(3), pa.int64()),
        "small": pa.array([1.5, None, -0.0], pa.float32()),
        "price": pa.array([Decimal("1.25"), None, Decimal("-3.50")], pa.decimal128(20, 2)),
        "content": pa.array([b"\xff", None, b""]),
        "fixed": pa.array([b"abcd", None, b"efgh"], pa.binary(4)),
        "key": pa.array([bytes(range(16)), None, bytes(16)], pa.uuid()),
        "is_new": pa.array([True, None, False]),
        "day": pa.array([dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
        "time": pa.array([dt.time(1, 2, 3, 4), None, dt.time(0)], pa.time64("us")),
        "at": pa.array(far, pa.timestamp("us", "UTC")),
        "local": pa.array(far, pa.timestamp("us")),
        "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
        "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        "deep": pa.array([{"x": {"y": 1}}, None, {"x": None}], pa.struct([("x", pa.struct([("y", pa.int64())]))])),
    }
    table = made(catalog, pa.table(columns), properties={"format-version": version})
    found = rows_of(f"iceberg://{place_of(table)}")
    assert found == scanned(table)
    assert len(found) == 3


def test_partition_values_are_those_of_the_metadata(catalog):
    odd = ["a b", "ä/=%", "x:y", "*?[1]", None, "é\n", "z", "+", "a%20b", "#"]
    data = rows(num=10).append_column("part", pa.array(odd))
    data = data.append_column("day", pa.array([dt.date(2024, 1, 1 + i) for i in range(9)] + [None]))
    data = data.append_column("at", pa.array([dt.time(1, 2, i, 4) for i in range(9)] + [None], pa.time64("us")))
    table = catalog.create_table("web.parts", schema=data.schema)
    with table.update_spec() as update:
        update.add_identity("part")
        update.add_identity("at")
        update.add_identity("day")
    table.append(data)
    source = f"iceberg://{place_of(table)}"
    assert rows_of(source) == scanned(table)
    assert set(rows_of(source, filters=[("part", "in", ["x:y", "#"]), ("day", "<", dt.date(2024, 1, 9))])) == {2}
    with table.update_spec() as update:
        update.remove_field("part")
    table.append(data.set_column(0, "id", pa.array(range(20, 30), pa.int64())))
    found = rows_of(source)
    assert found == scanned(table)
    assert len(found) == 20


def test_a_partition_value_that_is_a_uuid_is_that_of_the_metadata(catalog):
    keys = [uuid.UUID(int=2**127 + 5), uuid.UUID(int=7), None]
    schema = pa.schema([("id", pa.int64()), ("key", pa.uuid())])
    table = catalog.create_table("web.keys", schema=schema)
    with table.update_spec() as update:
        update.add_identity("key")
    for i, key in enumerate(keys):
        path = Path(f"{place_of(table)}/data/{i}.parquet")
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": [i]}), path)
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"file://{path}",
            file_format=FileFormat.PARQUET,
            partition=Record(key),
            record_count=1,
            file_size_in_bytes=path.stat().st_size,
        )
        file.spec_id = table.spec().spec_id
        with table.transaction() as transaction:
            _FastAppendFiles(Operation.APPEND, transaction, table.io).append_data_file(file).commit()
    with table.transaction() as transaction:
        transaction.set_properties({"schema.name-mapping.default": json.dumps([{"field-id": 1, "names": ["id"]}])})
    found = rows_of(f"iceberg://{place_of(table)}")
    assert [row["key"] for row in found.values()] == keys


def test_files_that_were_added_from_folders_have_their_partition_values(catalog, tmp_path):
    plain = rows(num=6).drop_columns(["user"])
    table = catalog.create_table("web.added", schema=plain.append_column("part", pa.array(["a"] * 6)).schema)
    with table.update_spec() as update:
        update.add_identity("part")
    paths = []
    for part in ("a", "b"):
        path = tmp_path / f"hive/part={part}/f.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(plain.append_column("part", pa.array([part] * 6)), path)
        plain = plain.set_column(0, "id", pa.array(range(10, 16), pa.int64()))
        paths.append(str(path))
    table.add_files(paths)
    found = rows_of(f"iceberg://{place_of(table)}")
    assert found == scanned(table)
    assert found[12]["part"] == "b"


class DeleteManifest(ManifestWriterV2):
    def content(self):
        return ManifestContent.DELETES

    @property
    def _meta(self):
        return {**super()._meta, "content": "deletes"}


class AppendDeletes(_FastAppendFiles):
    """Commits delete files, of which pyiceberg writes none of its own."""

    def new_manifest_writer(self, spec):
        return DeleteManifest(
            spec, self._transaction.table_metadata.schema(), self.new_manifest_output(), self._snapshot_id, "null"
        )


def delete_rows(table, data, *, content=DataFileContent.POSITION_DELETES, format_=FileFormat.PARQUET):
    """Commit a file of deletes: an Arrow table, or the bytes of a file."""
    location = Path(f"{place_of(table)}/data/deletes-{len(table.snapshots())}")
    if isinstance(data, bytes):
        location.write_bytes(data)
    else:
        pq.write_table(data, location)
    file = DataFile.from_args(
        content=content,
        file_path=f"file://{location}",
        file_format=format_,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=location.stat().st_size,
        equality_ids=[1] if content is DataFileContent.EQUALITY_DELETES else None,
    )
    file.spec_id = table.spec().spec_id
    with table.transaction() as transaction:
        AppendDeletes(Operation.DELETE, transaction, table.io).append_data_file(file).commit()


def paths_of(table):
    return sorted(task.file.file_path for task in table.scan().plan_files())


def positions(pairs):
    pairs = sorted(pairs)
    return pa.table({"file_path": [path for path, _ in pairs], "pos": pa.array([pos for _, pos in pairs], pa.int64())})


def test_position_deletes_are_applied(catalog):
    table = made(catalog, rows())
    table.append(rows(100))
    first, second = paths_of(table)
    delete_rows(table, positions([(first, 0), (first, 7), (second, 39)]))
    delete_rows(table, positions([(first, 7), (first, 8)]))
    expected = scanned(table)
    assert len(expected) == 2 * ROWS - 4
    table.append(rows(200))  # newer than the deletes
    source = f"iceberg://{place_of(table)}"
    assert rows_of(source) == scanned(table)
    for snapshot in table.snapshots():
        assert rows_of(source, snapshot=snapshot.snapshot_id) == scanned(table, snapshot.snapshot_id)
    assert rows_of(source, chunk_size=300) == scanned(table)
    words = rows_of(source, filters=[("word", "=", "w1")])
    assert words == {i: row for i, row in scanned(table).items() if row["word"] == "w1"}


def test_deletion_vectors_in_puffin_files_are_applied(catalog):
    table = made(catalog, rows())
    (path,) = paths_of(table)
    delete_rows(table, puffin(path, [2, 3, 11]), format_=FileFormat.PUFFIN)
    found = rows_of(f"iceberg://{place_of(table)}")
    assert found == scanned(table)
    assert len(found) == ROWS - 3


def puffin(path, deleted):
    """A Puffin file with one deletion vector, as Iceberg's specification says."""
    bitmap = struct.pack("<qI", 1, 0) + BitMap(deleted).serialize()
    vector = b"\xd1\xd3\x39\x64" + bitmap
    blob = struct.pack(">i", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
    about = {"type": "deletion-vector-v1", "fields": [], "snapshot-id": -1, "sequence-number": -1, "offset": 4}
    about |= {"length": len(blob), "properties": {"referenced-data-file": path, "cardinality": str(len(deleted))}}
    footer = json.dumps({"blobs": [about]}).encode()
    return b"PFA1" + blob + b"PFA1" + footer + struct.pack("<i", len(footer)) + bytes(4) + b"PFA1"


def test_equality_deletes_and_other_formats_are_refused_by_name(catalog):
    table = made(catalog, rows())
    field = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    before = table.current_snapshot().snapshot_id
    equal = pa.table([pa.array([3], pa.int64())], schema=pa.schema([field]))
    delete_rows(table, equal, content=DataFileContent.EQUALITY_DELETES)
    source = f"iceberg://{place_of(table)}"
    with pytest.raises(stoker.SourceError, match=r"equality deletes.*rewrite"):
        stoker.Dataset(source).open()
    assert len(rows_of(source, snapshot=before)) == ROWS
    table = made(catalog, rows(), name="web.avro")
    delete_rows(table, b"", format_=FileFormat.AVRO)
    with pytest.raises(stoker.SourceError, match="AVRO"):
        stoker.Dataset(f"iceberg://{place_of(table)}").open()


def test_a_table_in_another_store_is_the_same(catalog, tmp_path):
    table = made(catalog, rows())
    with table.update_schema() as update:
        update.rename_column("word", "text")
    delete_rows(table, positions([(paths_of(table)[0], 4)]))
    files = (path for path in Path(place_of(table)).rglob("*") if path.is_file())
    storage = MemoryStorage({str(path): path.read_bytes() for path in files})
    found = rows_of(f"iceberg://{place_of(table)}", storage=storage)
    assert found == scanned(table)
    assert len(found) == ROWS - 1


def test_a_table_is_found_by_its_name_in_a_catalogue(catalog, tmp_path, monkeypatch):
    table = made(catalog, rows())
    table.append(rows(100))
    monkeypatch.setenv("PYICEBERG_CATALOG__MINE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__MINE__TYPE", "sql")
    assert rows_of("iceberg://mine/web.events", cache=tmp_path / "cache") == scanned(table)
    table.append(rows(200))
    assert rows_of("iceberg://mine/web.events") == scanned(table)
    with stoker.Loader(
        stoker.Dataset("iceberg://mine/web.events", columns=["id"]), batch_size=4, cache=tmp_path / "cache"
    ) as loader:
        assert loader.num_samples == 3 * ROWS
    first = table.snapshots()[0].snapshot_id
    assert len(rows_of("iceberg://mine/web.events", snapshot=first)) == ROWS
    with pytest.raises(stoker.SourceMissingError, match=r"web\.other"):
        stoker.Dataset("iceberg://mine/web.other").open()
    with pytest.raises(ValueError, match="PYICEBERG_CATALOG__YOURS__URI"):
        stoker.Dataset("iceberg://yours/web.events").open()


def test_metadata_of_which_only_the_catalogue_knows_the_newest_is_an_error(catalog):
    table = made(catalog, rows())
    newest = Path(table.metadata_location.removeprefix("file://"))
    number = newest.name.partition("-")[0]
    shutil.copy(newest, newest.with_name(f"{number}-lost.metadata.json"))
    with pytest.raises(stoker.SourceError, match=r"only its catalogue knows.*lost"):
        stoker.Dataset(f"iceberg://{place_of(table)}").open()
    (newest.parent / "version-hint.text").write_text(newest.name)
    assert rows_of(f"iceberg://{place_of(table)}") == scanned(table)


def test_a_table_without_rows_says_so(catalog):
    table = catalog.create_table("web.empty", schema=rows().schema)
    with pytest.raises(stoker.SourceMissingError, match="no snapshot yet"):
        stoker.Dataset(f"iceberg://{place_of(table)}").open()
    table.append(rows())
    table.delete("id >= 0")
    with pytest.raises(stoker.SourceMissingError, match="no rows"):
        stoker.Dataset(f"iceberg://{place_of(table)}").open()


def test_the_snapshot_is_settled_when_a_loader_is_made(catalog, tmp_path):
    table = made(catalog, rows())
    dataset = stoker.Dataset(f"iceberg://{place_of(table)}", columns=["id"])
    with stoker.Loader(dataset, batch_size=4, cache=tmp_path / "cache") as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        table.append(rows(100))
        assert 4 + sum(len(batch["id"]) for batch in batches) == ROWS
    with (
        stoker.Loader(dataset, batch_size=4, cache=tmp_path / "cache") as loader,
        pytest.raises(stoker.ResumeError),
    ):
        loader.load_state_dict(state)
