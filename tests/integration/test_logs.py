"""A folder with a log is not its files: it is refused, wherever a folder or a glob reaches into it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker
from stoker.testing import MemoryStorage

LOGS = {
    "Delta": "_delta_log/00000000000000000000.json",
    "Iceberg": "metadata/00001-3f6d2a8e.metadata.json",
    "Hudi": ".hoodie/hoodie.properties",
    "Databricks": "_committed_5093451234",
    "_started_": "_started_5093451234",
    "Spark": "_spark_metadata/0",
    "Hive": "delta_0000001_0000001_0000/000000_0",
    "Paimon": "snapshot/LATEST",
    "DuckLake": "ducklake-0197c2f3-7e2b-7d8a-9c67-2f9a6d6f7a01.parquet",
}


def parquet():
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [1, 2, 3]}), sink)
    return sink.getvalue().to_pybytes()


ROWS = parquet()


def folder(place, log, *parts):
    """A folder of two files, one of them in a partition, and a log; parts of it are returned by name."""
    for name in ("part-0.parquet", "day=1/part-1.parquet"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(ROWS)
    (place / log).parent.mkdir(parents=True, exist_ok=True)
    (place / log).write_bytes(ROWS if log.endswith(".parquet") else b"{}")
    return place


@pytest.mark.parametrize("kind", LOGS)
def test_a_folder_with_a_log_is_an_error_that_says_what_it_is_and_what_to_do(tmp_path, kind):
    table = folder(tmp_path / "lake" / "table", LOGS[kind])
    for source in (table, tmp_path / "lake", f"{table}/*.parquet", f"{tmp_path}/*/table", f"{table}/**/*.parquet"):
        with pytest.raises(stoker.SourceError, match=f"{kind}.* Instead, .*one by one") as caught:
            stoker.Dataset(source).open()
        assert str(table) in str(caught.value)


@pytest.mark.parametrize("kind", LOGS)
def test_a_remote_folder_with_a_log_is_refused_without_a_further_request(kind):
    storage = MemoryStorage({f"lake/table/{name}": ROWS for name in ("part-0.parquet", "day=1/part-1.parquet")})
    storage.put(f"lake/table/{LOGS[kind]}", ROWS if LOGS[kind].endswith(".parquet") else b"{}")
    for source in ("lake/table", "lake/", "lake/*/*.parquet"):
        storage.reset_counts()
        with pytest.raises(stoker.SourceError, match=kind):
            stoker.Dataset(source, storage=storage).open()
        assert storage.num_calls <= 2


@pytest.mark.parametrize("kind", ["Delta", "Iceberg", "Hudi", "Spark"])
@pytest.mark.parametrize("part", ["day=1", "day=1/*.parquet", "day=*/*", "data/day=1/hour=2/", "data"])
def test_a_part_of_a_table_is_refused_too(tmp_path, kind, part):
    table = folder(tmp_path / "table", LOGS[kind])
    (table / "data/day=1/hour=2").mkdir(parents=True)
    (table / "data/day=1/hour=2/part-2.parquet").write_bytes(ROWS)
    storage = MemoryStorage(
        {str(path.relative_to(tmp_path)): path.read_bytes() for path in table.rglob("*") if path.is_file()}
    )
    with pytest.raises(stoker.SourceError, match=kind):
        stoker.Dataset(f"{table}/{part}").open()
    with pytest.raises(stoker.SourceError, match=kind):
        stoker.Dataset(f"table/{part}", storage=storage).open()


@pytest.mark.parametrize("log", ["_delta_log/00000000000000000100.checkpoint.parquet", "_spark_metadata/9.compact"])
def test_a_part_of_a_table_whose_first_log_entries_are_gone_is_refused_too(tmp_path, log):
    folder(tmp_path / "events", log)
    with pytest.raises(stoker.SourceError, match="reaches into"):
        stoker.Dataset(tmp_path / "events" / "day=1").open()


def test_the_way_out_of_delta_and_iceberg_names_the_table(tmp_path):
    for scheme, kind in (("delta", "Delta"), ("iceberg", "Iceberg")):
        table = folder(tmp_path / scheme, LOGS[kind])
        with pytest.raises(stoker.SourceError) as caught:
            stoker.Dataset(table / "day=1").open()
        assert f'Dataset("{scheme}://{table}")' in str(caught.value)


def test_a_table_is_found_behind_links(tmp_path):
    table = folder(tmp_path / "there/table", LOGS["Delta"])
    links = tmp_path / "links"
    (links / "deep").mkdir(parents=True)
    (links / "table").symlink_to(table)
    (links / "part").symlink_to(table / "day=1")
    (links / "deep/part").symlink_to(table / "day=1")
    (links / "files").mkdir()
    (links / "files/a.parquet").symlink_to(table / "part-0.parquet")
    for name in ("table", "part", "deep", "deep/*/*.parquet", "files", "files/*.parquet"):
        with pytest.raises(stoker.SourceError, match="Delta"):
            stoker.Dataset(f"{links}/{name}").open()


def test_files_that_are_named_one_by_one_are_read_as_they_are(tmp_path):
    table = folder(tmp_path / "table", LOGS["Delta"])
    files = [table / "part-0.parquet", table / "day=1/part-1.parquet"]
    assert int(stoker.Dataset(files).open().num_samples.sum()) == 6


def test_folders_that_only_look_like_it_are_read(tmp_path):
    plain = folder(tmp_path / "plain", "_SUCCESS")
    folder(plain / "base_20240101", "metadata/notes.json")
    folder(plain / "delta_20240101_20240131", "snapshot/other")
    (plain / "_delta_log").mkdir()
    folder(tmp_path / "beside", LOGS["Delta"])
    assert int(stoker.Dataset(plain).open().num_samples.sum()) == 18
    shutil.rmtree(tmp_path / "beside")


def test_a_part_of_a_plain_remote_folder_takes_a_few_requests_more_and_other_names_none():
    storage = MemoryStorage({"lake/events/day=1/a.parquet": ROWS})
    extra = {}
    for source in ("lake/events/", "lake/events/day=1/"):
        storage.reset_counts()
        stoker.Dataset(source, storage=storage).open()
        extra[source] = storage.num_calls
    assert extra["lake/events/day=1/"] - extra["lake/events/"] <= 5


def test_rows_beside_a_table_are_read(tmp_path):
    folder(tmp_path / "lake/table", LOGS["Delta"])
    plain = Path(folder(tmp_path / "lake/plain", "_SUCCESS"))
    assert int(stoker.Dataset(plain).open().num_samples.sum()) == 6
    assert int(stoker.Dataset(f"{tmp_path}/lake/pl*").open().num_samples.sum()) == 6
