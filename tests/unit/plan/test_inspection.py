"""What is said of a data set before it is loaded is what loading it gives."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.strategies import write_files

from stoker import Dataset, Field, FieldError, Loader


def dense_table(num_rows):
    return pa.table(
        {
            **{f"dense_{i}": np.arange(num_rows, dtype=np.float32) for i in range(5)},
            "id": np.arange(num_rows),
            "label": np.arange(num_rows) % 2 == 0,
        }
    )


def fill(dataset, cache):
    """Build all chunks, and return the bytes that they take."""
    with Loader(dataset, batch_size=100, cache=cache) as loader:
        for _ in loader:
            pass
    return sum(path.stat().st_size for path in (cache / "chunks").rglob("*.safetensors"))


def test_the_size_on_disk_of_fixed_width_fields_is_exact(tmp_path, told):
    for i in range(3):
        pq.write_table(dense_table(5000 + i), tmp_path / f"{i}.parquet", row_group_size=700)
    dataset = Dataset(tmp_path, fields={"dense": Field(columns="dense_*")}, chunk_size="40kB")
    found = told(dataset, "inspect")
    assert found["is_exact"]
    assert found["sample_bytes"] == found["record_bytes"] == 32
    assert found["cache_bytes"] == fill(dataset, tmp_path / "cache")


def test_the_size_on_disk_of_ragged_fields_is_estimated_from_footers(tmp_path, told):
    write_files(tmp_path / "data", [9000, 7000], row_group_size=1000)
    dataset = Dataset(tmp_path / "data", columns=["id", "history"])
    found = told(dataset, "inspect")
    assert not found["is_exact"]
    assert found["cache_bytes"] == pytest.approx(fill(dataset, tmp_path / "cache"), rel=0.15)


def test_text_in_paths_has_the_length_it_has_there(tmp_path, told):
    write_files(tmp_path / "data" / "day=2026-01-02", [10])
    found = told(Dataset(tmp_path / "data", columns=["day"]), "inspect")
    (day,) = found["columns"]
    assert (day["column"], day["is_exact"], day["sample_bytes"]) == ("day", False, 8 + 10)


def test_row_groups_and_rows_are_counted_before_the_filter_and_samples_behind_it(tmp_path, told):
    write_files(tmp_path / "data", [300, 100], row_group_size=64)
    found = told(Dataset(tmp_path / "data", filters=[("flag", "=", True)]), "inspect")
    assert (found["num_files"], found["num_rows"], found["num_row_groups"]) == (2, 400, 7)
    assert found["rows_a_row_group"] == {"min": 36, "median": 64, "max": 64}
    assert found["num_samples"] == 134


def test_every_reason_for_a_refusal_is_told(tmp_path, told):
    pq.write_table(
        pa.table({"a": [1, 2], "when": pa.array([[("k", 1)]] * 2, pa.map_(pa.string(), pa.int64()))}),
        tmp_path / "a.parquet",
    )
    found = told(Dataset(tmp_path), "inspect")
    assert found["spec"] is None
    (problem,) = found["problems"]
    assert "'when'" in problem


def test_nulls_that_footers_know_are_told_as_the_loader_would(tmp_path, told):
    pq.write_table(pa.table({"a": pa.array([1, None, 3])}), tmp_path / "a.parquet")
    found = told(Dataset(tmp_path), "inspect")
    assert found["columns"][0]["num_nulls"] == 1
    assert "column 'a' has 1 null" in found["problems"][0]
    assert not told(Dataset(tmp_path, fields={"a": Field(fill=0)}), "inspect")["problems"]


def test_names_that_no_chunk_can_keep_are_told_as_the_loader_would(tmp_path, told):
    lists = pa.array([[[1], []]] * 5, pa.list_(pa.list_(pa.int32())))
    pq.write_table(pa.table({"a": lists, "a.values": [[1, 2]] * 5}), tmp_path / "a.parquet")
    found = told(Dataset(tmp_path), "inspect")
    assert "the fields 'a' and 'a.values' would both be kept" in found["problems"][0]
    assert found["cache_bytes"] is None
    with pytest.raises(FieldError, match="would both be kept"):
        Loader(Dataset(tmp_path), batch_size=2)


def test_with_a_transform_the_cache_knows_what_a_sample_is(tmp_path, told):
    write_files(tmp_path / "data", [100])
    dataset, cache = Dataset(tmp_path / "data", transform=halves, transform_version="1"), tmp_path / "cache"
    found = told(dataset, "inspect", "--cache", cache)
    assert (found["spec"], found["num_present"]) == (None, 0)
    assert not cache.exists()
    fill(dataset, cache)
    found = told(dataset, "inspect", "--cache", cache)
    assert (found["record_bytes"], found["num_present"]) == (4, 1)


def halves(table):
    return {"half": table["half"].to_numpy()}


def test_a_folder_that_holds_something_else_is_no_cache(tmp_path, told):
    write_files(tmp_path / "data", [100])
    assert "no Stoker cache" in told(Dataset(tmp_path / "data"), "inspect", "--cache", tmp_path / "data")
