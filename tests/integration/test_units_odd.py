"""What the order counts, by columns of odd types: counted, or refused with the way out."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.batches import ids_of

import stoker


def written(folder, *, chunk_size: int = 40, **columns) -> stoker.Dataset:
    """Return a data set of one file with `id` and these columns; only `id` is delivered."""
    table = pa.table(columns)
    pq.write_table(table.append_column("id", [np.arange(table.num_rows)]), folder / "a.parquet", row_group_size=4)
    return stoker.Dataset(folder / "a.parquet", columns=["id"], chunk_size=chunk_size)


@pytest.mark.parametrize(
    "kind",
    [pa.string_view(), pa.binary_view(), pa.dictionary(pa.int8(), pa.string())],
    ids=["string", "binary", "dict"],
)
def test_keys_without_a_plain_layout_make_groups(tmp_path, kind):
    words = ["a", "a", "b", None, None, "a", "c", "c"]
    values = [word if word is None or not pa.types.is_binary_view(kind) else word.encode() for word in words]
    dataset = written(tmp_path, key=pa.array(values, kind), chunk_size=30)
    with stoker.Loader(dataset, batch_size=1, group_by="key") as loader:
        assert [batch["id"].tolist() for batch in loader] == [[0, 1], [2], [3], [4], [5], [6, 7]]
        assert loader.units.num_cut == 1
        assert loader.units.num_reappearing == 0


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
def test_views_of_bytes_are_packed(tmp_path, kind):
    values = [b"abc", b"", b"defgh"]
    values = values if pa.types.is_binary_view(kind) else [value.decode() for value in values]
    pq.write_table(pa.table({"text": pa.array(values, kind)}), tmp_path / "a.parquet")
    with stoker.Loader(
        stoker.Dataset(tmp_path / "a.parquet"), batch_size=9, sequence=stoker.Pack("text", length=4)
    ) as loader:
        assert b"".join(batch["text"].tobytes() for batch in loader) == b"abcdefgh"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_by": "user"}, r"'user' is 2 columns: user\.name, user\.age; name those that count"),
        ({"group_by": ["id", "user"]}, r"'user' is 2 columns"),
        ({"sequence": stoker.NGram(length=2, timestamp="user")}, r"'user' is 2 columns"),
    ],
)
def test_a_struct_is_no_key_but_its_parts_are(tmp_path, options, message):
    users = [{"name": "a", "age": 1}, {"name": "a", "age": 1}, {"name": "a", "age": 2}]
    dataset = written(tmp_path, chunk_size=4000, user=users)
    with pytest.raises(stoker.FieldError, match=message):
        stoker.Loader(dataset, batch_size=1, **options)
    with stoker.Loader(dataset, batch_size=1, group_by=["user.name", "user.age"]) as loader:
        assert [batch["id"].tolist() for batch in loader] == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("times", "kind", "gap"),
    [
        ([2**64 - 9, 2**64 - 7, 2**64 - 6, 2**64 - 1], pa.uint64(), 2),
        ([2**63 - 2, 2**63, 2**63 + 1, 2**63 + 9], pa.uint64(), 2),
        ([-(2**63), -(2**63) + 1, -(2**63) + 3, 2**63 - 1], pa.int64(), 2),
        ([-(2**63) + 1, -(2**63) + 2, -(2**63) + 4, 2**63 - 1], pa.timestamp("ns"), timedelta(microseconds=1)),
    ],
    ids=["uint64", "across", "int64", "ns"],
)
def test_times_at_the_ends_of_their_type_are_no_step_back(tmp_path, times, kind, gap):
    times = pa.array(times, pa.uint64() if kind == pa.uint64() else pa.int64())
    dataset = written(tmp_path, time=times.cast(kind))
    with stoker.Loader(dataset, batch_size=9, sequence=stoker.NGram(length=3, timestamp="time", max_gap=gap)) as loader:
        assert ids_of(loader) == [[0, 1, 2]]


def test_a_step_back_from_one_end_of_a_type_to_the_other_is_found(tmp_path):
    dataset = written(tmp_path, time=pa.array([2**63 - 1, -(2**63)]))
    with pytest.raises(stoker.SourceError, match=r"row 1: 'time' is earlier"):
        stoker.Loader(dataset, batch_size=9, sequence=stoker.NGram(length=2, timestamp="time"))


def test_windows_longer_than_any_run_leave_empty_epochs_and_a_warning(tmp_path, caplog):
    dataset = written(tmp_path, key=[1, 1, 2, 2])
    with stoker.Loader(dataset, batch_size=9, sequence=stoker.NGram(length=3, keys="key")) as loader:
        assert len(loader) == len(list(loader)) == 0
    assert "every epoch is empty: 0 windows of 3 rows of key, made of 4 rows" in caplog.text
