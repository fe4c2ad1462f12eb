"""Delta tables are what deltalake scans, at every version."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import struct
import uuid
import zlib
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.tables import expected_of, rows_of

import stoker
from stoker.testing import MemoryStorage

ROWS = 40


def rows(first=0, num=ROWS, **columns):
    ids = list(range(first, first + num))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "word": [f"w{i % 7}" if i % 5 else None for i in ids],
            "user": [{"age": i, "tags": [{"t": i}] * (i % 3)} for i in ids],
            **columns,
        }
    )


def scanned(place, version=None):
    return expected_of(pa.table(DeltaTable(str(place), version=version).scan().read_all()))


def same(place, version=None, **options):
    """Whether the table is what deltalake scans, and not empty."""
    found, expected = rows_of(f"delta://{place}", version=version, **options), scanned(place, version)
    assert found == expected
    assert found
    return found


def in_memory(place, root="lake/table"):
    """A folder as another store."""
    files = (path for path in place.rglob("*") if path.is_file())
    return MemoryStorage({f"{root}/{path.relative_to(place)}": path.read_bytes() for path in files})


@pytest.fixture(params=["none", "name", "id"])
def history(request, tmp_path):
    """A table that was appended to, deleted from, replaced, and given columns; and its newest version."""
    place = tmp_path / ("a table% [1]" if request.param == "none" else "named")
    source = tmp_path / "made"
    mode = {"delta.columnMapping.mode": request.param} if request.param != "none" else None
    write_deltalake(source, rows(), configuration=mode)
    write_deltalake(source, rows(ROWS), mode="append")
    DeltaTable(source).delete("id % 3 = 1")
    DeltaTable(source).update(updates={"word": "'new'"}, predicate="id = 3")
    if request.param == "none":
        write_deltalake(source, rows(200, score=[0.5] * ROWS), mode="append", schema_mode="merge")
        write_deltalake(source, rows(500, num=5), mode="overwrite", schema_mode="overwrite")
    else:
        rename_columns(source)
        table = rows(200).rename_columns(["id", "text", "user"]).append_column("word", pa.array([1.5] * ROWS))
        table = table.set_column(2, "user", pa.array([{"labels": [{"t": 1}]}] * ROWS))
        write_deltalake(source, table, mode="append")
    source.rename(place)
    return place, 5


def rename_columns(place):
    """Call `word` text and `user.tags` labels, drop `user.age`, and add another `word`, as Spark does in a commit."""
    first = (place / "_delta_log/00000000000000000000.json").read_text().splitlines()
    metadata = next(json.loads(line) for line in first if "metaData" in line)
    schema = json.loads(metadata["metaData"]["schemaString"])
    id_, word, user = schema["fields"]
    word["name"] = "text"
    user["type"]["fields"] = [dict(user["type"]["fields"][1], name="labels")]
    about = {"delta.columnMapping.id": 99, "delta.columnMapping.physicalName": "col-99"}
    schema["fields"] = [id_, word, user, {"name": "word", "type": "double", "nullable": True, "metadata": about}]
    metadata["metaData"]["schemaString"] = json.dumps(schema)
    metadata["metaData"]["configuration"]["delta.columnMapping.maxColumnId"] = "99"
    version = DeltaTable(place).version() + 1
    (place / f"_delta_log/{version:020}.json").write_text(json.dumps(metadata) + "\n")


def test_every_version_is_what_deltalake_scans(history):
    place, last = history
    link = place.parent / "linked"
    link.symlink_to(place)
    for version in (*range(last + 1), None):
        found = rows_of(f"delta://{place}", version=version)
        assert found == scanned(link if "%" not in str(place) else copied(place), version)
    assert len(found) == 5 or {row["word"] for row in found.values()} == {None, 1.5}


def copied(place):
    """The same table under a name that deltalake takes."""
    other = place.parent / "plain"
    if not other.exists():
        other.symlink_to(place)
    return other


def test_a_version_by_its_time_and_errors_where_there_is_none(tmp_path):
    place = tmp_path / "table"
    write_deltalake(place, rows())
    write_deltalake(place, rows(ROWS), mode="append")
    times = [one["timestamp"] for one in DeltaTable(place).history()]
    between = dt.datetime.fromtimestamp(max(times) / 1000 + 3600, tz=dt.UTC)
    assert len(rows_of(f"delta://{place}", version=between)) == 2 * ROWS
    assert len(rows_of(f"delta://{place}", version=between.isoformat())) == 2 * ROWS
    first = dt.datetime.fromtimestamp(min(times) / 1000, tz=dt.UTC)
    for same in (first, first.replace(tzinfo=None), first.replace(tzinfo=None).isoformat(), np.int64(0)):
        assert len(rows_of(f"delta://{place}", version=same)) == ROWS
    with pytest.raises(stoker.SourceMissingError, match="no version as old as"):
        stoker.Dataset(f"delta://{place}", version=first - dt.timedelta(milliseconds=1)).open()
    with pytest.raises(stoker.SourceError, match="cannot be read"):
        stoker.Dataset(f"delta://{place}", version=7).open()
    with pytest.raises(stoker.SourceMissingError, match="no Delta table lies at"):
        stoker.Dataset(f"delta://{tmp_path}/nothing").open()


def test_partition_values_are_those_of_the_log(tmp_path):
    place = tmp_path / "table"
    odd = ["a b", "ä/=%", "x:y", "*?[1]", None, "é\n", "z", "+", "a%20b", "#"]
    table = rows(num=10).drop_columns("user").append_column("part", pa.array(odd))
    typed = {
        "day": pa.array([dt.date(2024, 1, 1 + i) for i in range(9)] + [None]),
        "at": pa.array([dt.datetime(2024, 1, 1, 2, 3, 4, 50 * i) for i in range(10)], pa.timestamp("us", "UTC")),
        "price": pa.array([Decimal("1.50") * i for i in range(10)], pa.decimal128(9, 2)),
        "is_new": pa.array([True, False] * 5),
        "number": pa.array([-5, 0, None, *range(7)], pa.int32()),
    }
    for name, column in typed.items():
        table = table.append_column(name, column)
    for k, by in enumerate((["part"], ["day", "at"], ["price", "is_new", "number"])):
        write_deltalake(place / str(k), table, partition_by=by)
        found = same(place / str(k))
        assert len(found) == 10
    picked = rows_of(f"delta://{place}/2", filters=[("price", ">", Decimal("6.00")), ("is_new", "=", True)])
    assert sorted(picked) == [6, 8]


def test_columns_and_filters_go_by_the_names_of_the_table(tmp_path):
    place = tmp_path / "table"
    write_deltalake(place, rows(num=20), configuration={"delta.columnMapping.mode": "name"})
    write_deltalake(place, rows(20, num=20), mode="append")
    found = rows_of(
        f"delta://{place}", columns=["id", "user.age"], filters=[("user.age", ">=", 25), ("word", "=", "w6")]
    )
    assert found == {27: {"id": 27, "user.age": 27}, 34: {"id": 34, "user.age": 34}}
    with pytest.raises(stoker.FieldError, match="col"):
        stoker.Dataset(f"delta://{place}", columns=["col"]).open()


def test_every_type_of_column_is_what_deltalake_scans(tmp_path):
    far = [dt.datetime(1, 1, 1), None, dt.datetime(9999, 12, 31)]
    columns = {
        "tiny": pa.array([1, None, -128], pa.int8()),
        "short": pa.array([1, None, 2], pa.int16()),
        "small": pa.array([1.5, None, -0.0], pa.float32()),
        "price": pa.array([Decimal("1.25"), None, Decimal("-3.50")], pa.decimal128(20, 2)),
        "content": pa.array([b"\xff", None, b""]),
        "is_new": [True, None, False],
        "day": pa.array([dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
        "at": pa.array(far, pa.timestamp("us", "UTC")),
        "local": pa.array(far, pa.timestamp("us")),
        "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
        "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        "deep": pa.array([{"x": {"y": 1}}, None, {"x": None}], pa.struct([("x", pa.struct([("y", pa.int64())]))])),
        "large": pa.array([["a"], [None], None], pa.large_list(pa.large_string())),
        "view": pa.array(["a", None, ""], pa.string_view()),
    }
    for mode in ("none", "name"):
        place = tmp_path / mode
        configuration = {"delta.columnMapping.mode": mode}
        write_deltalake(place, pa.table({"id": pa.array(range(3)), **columns}), configuration=configuration)
        assert len(same(place)) == 3


def test_groups_of_rows_are_those_of_the_rows_that_are_left(tmp_path):
    place = tmp_path / "table"
    groups = pa.table({"id": pa.array(range(300)), "query": pa.array([i // 7 for i in range(300)])})
    write_deltalake(place, groups, configuration={"delta.enableDeletionVectors": "true"})
    delete_by_vector(place, [0, 1, 5, *range(49, 57), 299])
    expected = DeltaTable(place).scan().read_all()
    for chunk_size in (500, "32MiB"):
        dataset = stoker.Dataset(f"delta://{place}", chunk_size=chunk_size)
        with stoker.Loader(dataset, batch_size=3, group_by="query", remainder="keep") as loader:
            batches = [list(zip(batch["id"].tolist(), batch["query"].tolist(), strict=True)) for batch in loader]
        assert sorted(i for batch in batches for i, _ in batch) == sorted(pa.table(expected)["id"].to_pylist())
        assert all(len({query for _, query in batch}) <= 3 for batch in batches)


Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def z85(content):
    words = [int.from_bytes(content[i : i + 4], "big") for i in range(0, len(content), 4)]
    return "".join(Z85[word // 85**power % 85] for word in words for power in (4, 3, 2, 1, 0))


def delete_by_vector(place, deleted, *, inline=False):
    """Mark rows of every file as deleted, as the protocol of Delta says, in a new version."""
    from pyroaring import BitMap

    version = DeltaTable(place).version() + 1
    commit = []
    adds = {}
    for path in sorted((place / "_delta_log").glob("*.json")):
        for action in map(json.loads, path.read_text().splitlines()):
            if "add" in action:
                adds[action["add"]["path"]] = action["add"]
    for add in adds.values():
        data = struct.pack("<iqI", 1681511377, 1, 0) + BitMap(deleted).serialize()
        identity = uuid.uuid4()
        vector = {"storageType": "i", "pathOrInlineDv": z85(data + bytes(-len(data) % 4))}
        if not inline:
            folder = place / "dv"
            folder.mkdir(exist_ok=True)
            content = b"\1" + struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
            (folder / f"deletion_vector_{identity}.bin").write_bytes(content)
            vector = {"storageType": "u", "pathOrInlineDv": "dv" + z85(identity.bytes), "offset": 1}
        about = {"sizeInBytes": len(data), "cardinality": len(deleted)}
        remove = {"path": add["path"], "dataChange": True, "deletionTimestamp": 1, "size": add["size"]}
        commit += [{"remove": remove}, {"add": {**add, "deletionVector": {**vector, **about}}}]
    text = "".join(json.dumps(action) + "\n" for action in [{"commitInfo": {"timestamp": 1}}, *commit])
    (place / "_delta_log" / f"{version:020}.json").write_text(text)
    return version


@pytest.fixture(params=[False, True], ids=["file", "inline"])
def with_vectors(request, tmp_path):
    place = tmp_path / "table"
    write_deltalake(place, rows(), configuration={"delta.enableDeletionVectors": "true"})
    write_deltalake(place, rows(100), mode="append")
    delete_by_vector(place, [0, 3, 4, 5, 39], inline=request.param)
    return place


def test_deletion_vectors_are_applied(with_vectors):
    assert len(same(with_vectors)) == 2 * (ROWS - 5)
    assert len(same(with_vectors, version=1)) == 2 * ROWS
    DeltaTable(with_vectors).create_checkpoint()
    assert len(same(with_vectors)) == 2 * (ROWS - 5)


def test_deletion_vectors_filters_parts_and_resume_go_together(with_vectors, tmp_path):
    expected = scanned(with_vectors)
    word = {i for i, row in expected.items() if row["word"] == "w6"}
    assert set(rows_of(f"delta://{with_vectors}", filters=[("word", "=", "w6")])) == word
    for chunk_size in (100, 400, 2000):  # row groups are read by parts
        assert rows_of(f"delta://{with_vectors}", chunk_size=chunk_size) == expected
    dataset = stoker.Dataset(f"delta://{with_vectors}", columns=["id"])
    options = {"batch_size": 9, "seed": 3, "cache": tmp_path / "cache"}
    with stoker.Loader(dataset, **options) as loader:
        batches = iter(loader)
        ids = [int(i) for _ in range(3) for i in next(batches)["id"]]
        for step in range(3):
            for sample, i in zip(loader.explain(step), ids[9 * step :], strict=False):
                assert pq.ParquetFile(sample.url).read_row_group(sample.row_group)["id"][sample.row].as_py() == i
        state = loader.state_dict()
    with stoker.Loader(dataset, **options) as loader:
        loader.load_state_dict(state)
        ids += [int(i) for batch in loader for i in batch["id"]]
    assert sorted(ids) == sorted(expected)


def test_a_table_in_another_store_is_the_same(with_vectors, history):
    for place in (with_vectors, history[0]):
        storage = in_memory(place)
        last = DeltaTable(copied(place)).version()
        for version in (*range(last + 1), None):
            local = rows_of(f"delta://{place}", version=version)
            assert rows_of("delta://lake/table", version=version, storage=storage) == local
    with pytest.raises(stoker.SourceMissingError, match="lake/other"):
        stoker.Dataset("delta://lake/other", storage=storage).open()


def test_a_remote_log_is_read_from_its_last_checkpoint_on(tmp_path):
    place = tmp_path / "table"
    for k in range(6):
        write_deltalake(place, rows(100 * k, num=5), mode="append")
    DeltaTable(place).create_checkpoint()
    write_deltalake(place, rows(900, num=5), mode="append")
    storage = in_memory(place)
    for version in range(5):
        storage.delete(f"lake/table/_delta_log/{version:020}.json")
    assert len(rows_of("delta://lake/table", storage=storage)) == 35
    assert len(rows_of("delta://lake/table", storage=storage, version=5)) == 30


def test_a_time_before_the_oldest_commit_that_is_still_there_is_refused_with_the_times_that_can_be_had(tmp_path):
    place = tmp_path / "table"
    for k in range(5):
        write_deltalake(place, rows(100 * k, num=5), mode="append")
        if k == 2:
            DeltaTable(place).create_checkpoint()
    for version in range(5):  # as if an hour lay between two
        path = place / f"_delta_log/{version:020}.json"
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for about in (action["commitInfo"] for action in actions if "commitInfo" in action):
            about["timestamp"] = 3_600_000 * version
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))
        if version < 3:  # its cleaner leaves the checkpoint
            path.unlink()
    source, hour = f"delta://{place}", dt.timedelta(hours=1)
    start = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    for late in (0, 1.5, 2.9):
        with pytest.raises(stoker.SourceMissingError, match=r"goes back to version 3: give a time from 1970-01-01T03"):
            stoker.Dataset(source, version=start + late * hour).open()
    assert len(rows_of(source, version=start + 3 * hour)) == len(rows_of(source, version=start + 3.9 * hour)) == 20
    assert len(rows_of(source, version=start + 4 * hour)) == len(rows_of(source, version=start + 9 * hour)) == 25
    assert len(rows_of(source, version=2)) == 15


def test_a_commit_that_tells_no_time_is_as_old_as_its_file(tmp_path):
    place = tmp_path / "table"
    for version in range(4):
        write_deltalake(place, rows(100 * version, num=5), mode="append")
        path = place / f"_delta_log/{version:020}.json"
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        told = [{"commitInfo": {"timestamp": 3_600_000 * version}}] if version % 2 == 0 else []
        actions = told + [action for action in actions if "commitInfo" not in action]
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))
        os.utime(path, (3600 * version, 3600 * version))
    start, hour = dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.timedelta(hours=1)
    for late, num_rows in ((0, 5), (0.9, 5), (1, 10), (1.9, 10), (2, 15), (3, 20), (9, 20)):
        assert len(rows_of(f"delta://{place}", version=start + late * hour)) == num_rows
    os.utime(place / f"_delta_log/{1:020}.json", (1e6, 1e6))  # copied since, but no younger than the next commit
    for late, num_rows in ((1.9, 5), (2, 15), (9, 20)):
        assert len(rows_of(f"delta://{place}", version=start + late * hour)) == num_rows
    storage = in_memory(place)  # tells no time
    for late, version in ((0, 1), (1.9, 1), (2, 3), (9, 3)):
        with pytest.raises(stoker.SourceError, match=f"when version {version} of the Delta table"):
            stoker.Dataset("delta://lake/table", version=start + late * hour, storage=storage).open()


def test_the_version_is_settled_when_a_loader_is_made(tmp_path):
    place, cache = tmp_path / "table", tmp_path / "cache"
    write_deltalake(place, rows())
    dataset = stoker.Dataset(f"delta://{place}", columns=["id"])
    with stoker.Loader(dataset, batch_size=4, cache=cache) as loader:
        batches = iter(loader)
        first = next(batches)["id"].tolist()
        state = loader.state_dict()
        write_deltalake(place, rows(100), mode="append")
        assert len(first) + sum(len(batch["id"]) for batch in batches) == ROWS
    with stoker.Loader(dataset, batch_size=4, cache=cache) as loader:
        assert len(loader) == 2 * ROWS // 4
        with pytest.raises(stoker.ResumeError):
            loader.load_state_dict(state)
    pinned = stoker.Dataset(f"delta://{place}", version=0, columns=["id"])
    with stoker.Loader(pinned, batch_size=4, cache=cache) as loader:
        loader.load_state_dict(state)
        rest = [int(i) for batch in loader for i in batch["id"]]
    assert sorted(first + rest) == list(range(ROWS))


def test_a_file_that_is_not_what_the_log_says_is_an_error(tmp_path):
    place = tmp_path / "table"
    write_deltalake(place, rows())
    file = next(place.glob("*.parquet"))
    content = file.read_bytes()
    file.write_bytes(content + b"x")
    with pytest.raises(stoker.SourceError, match="it was replaced"):
        stoker.Dataset(f"delta://{place}").open()
    file.unlink()
    with pytest.raises(stoker.SourceMissingError, match=rf"{file.name} is gone, and version 0 of {place} needs it"):
        stoker.Dataset(f"delta://{place}").open()


def test_what_a_reader_must_know_and_stoker_does_not_is_refused_by_name(tmp_path):
    place = tmp_path / "table"
    write_deltalake(place, rows(num=5), configuration={"delta.enableDeletionVectors": "true"})
    first = place / "_delta_log/00000000000000000000.json"
    first.write_text(first.read_text().replace('"deletionVectors"', '"deletionVectors","catalogManaged"'))
    with pytest.raises(stoker.SourceError, match="catalog-managed"):
        stoker.Dataset(f"delta://{place}").open()


@pytest.mark.torch
@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_workers_read_the_version_that_their_owner_found(tmp_path, start):
    torch_data = pytest.importorskip("torch.utils.data")
    import stoker.torch

    place = tmp_path / "table"
    write_deltalake(place, rows())
    data = stoker.torch.TorchDataset(
        stoker.Dataset(f"delta://{place}", columns=["id"]), batch_size=4, cache=tmp_path / "cache"
    )
    write_deltalake(place, rows(100), mode="append")
    batches = torch_data.DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context=start)
    assert sorted(int(i) for batch in batches for i in batch["id"]) == list(range(ROWS))


def test_a_table_in_s3_is_read_with_the_options_of_its_store(with_vectors, server):
    s3_bucket = server.make_bucket("tables")
    for path in with_vectors.rglob("*"):
        if path.is_file():
            server.put(f"{s3_bucket}/lake/t/{path.relative_to(with_vectors)}", path.read_bytes())
    found = rows_of(f"delta://{s3_bucket}/lake/t", storage_options=server.options())
    assert found == scanned(with_vectors)
    for part in ("", "/*.parquet"):
        with pytest.raises(stoker.SourceError, match=r"Delta table.*delta://s3://tables/lake/t"):
            stoker.Dataset(f"{s3_bucket}/lake/t{part}", storage_options=server.options()).open()


def test_a_remote_table_that_was_opened_before_is_asked_again_only_by_refresh(tmp_path):
    place = tmp_path / "table"
    write_deltalake(place, rows())
    storage = in_memory(place)

    def opened(**options):
        storage.reset_counts()
        dataset = stoker.Dataset("delta://lake/table", storage=storage, columns=["id"], **options)
        return int(dataset.open(tmp_path / "cache").num_samples.sum()), storage.num_calls > 0

    assert [opened(), opened()] == [(ROWS, True), (ROWS, False)]
    write_deltalake(place, rows(100), mode="append")
    for path in place.rglob("*"):
        if path.is_file():
            storage.put(f"lake/table/{path.relative_to(place)}", path.read_bytes())
    assert opened() == (ROWS, False)
    assert opened(refresh=True) == (2 * ROWS, True)
    assert [opened(), opened(version=0), opened(version=1)] == [(2 * ROWS, False), (ROWS, False), (2 * ROWS, False)]


def test_a_table_that_was_read_in_groups_is_known_by_its_version_too(tmp_path):
    place = tmp_path / "table"
    write_deltalake(place, rows())
    storage = in_memory(place)

    def opened(**options):
        storage.reset_counts()
        dataset = stoker.Dataset("delta://lake/table", storage=storage, columns=["id"], **options)
        with stoker.Loader(dataset, batch_size=4, group_by="id", cache=tmp_path / "cache") as loader:
            return loader.units.num_rows, storage.num_calls > 0

    assert [opened(), opened(), opened(version=0)] == [(ROWS, True), (ROWS, False), (ROWS, False)]


def test_the_way_out_that_a_bare_folder_names_is_a_way(with_vectors):
    with pytest.raises(stoker.SourceError) as caught:
        stoker.Dataset(with_vectors).open()
    source = re.search(r'Dataset\("(.*?)"\)', str(caught.value))[1]
    assert rows_of(source) == scanned(with_vectors)


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        ("lake", {"version": 1}, ValueError, "transform_version"),
        ("lake", {"snapshot": 1}, ValueError, "iceberg://"),
        ("delta://lake", {"snapshot": 1}, ValueError, "iceberg://"),
        ("delta://lake", {"version": -1}, ValueError, "negative"),
        ("delta://lake", {"version": 1.5}, TypeError, "number or a time"),
        ("delta://lake", {"version": True}, TypeError, "number or a time"),
        ("delta://lake", {"version": "yesterday"}, ValueError, "ISO 8601"),
        ("delta://", {}, ValueError, "names no table"),
        (["delta://a", "delta://b"], {}, ValueError, "Mixture"),
        ("delta://lake", {"storage_options": {"a": 1}}, ValueError, "local files"),
    ],
)
def test_wrong_arguments_are_errors_at_once(source, options, error, message):
    with pytest.raises(error, match=message):
        stoker.Dataset(source, **options)


def test_a_data_set_says_its_version():
    assert repr(stoker.Dataset("delta://lake/t", version=3)) == "Dataset('delta://lake/t', version=3)"
