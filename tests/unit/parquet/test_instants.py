"""INT96 timestamps: right or refused, never wrapped around."""

import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.delivered import read

from stoker import Dataset, FieldError

US = pa.timestamp("us")
SOUND = [
    dt.datetime(1677, 9, 21, 0, 12, 43, 145_225),  # the first and last that pandas and nanoseconds know
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    None,
    dt.datetime(2024, 1, 1, 12, 34, 56, 123_456),
    dt.datetime(2262, 4, 11, 23, 47, 16, 854_775),
]
FAR = dt.datetime(9999, 12, 31)


def written(path, columns, **options):
    pq.write_table(pa.table(columns), path, use_deprecated_int96_timestamps=True, store_schema=False, **options)
    return path


@pytest.mark.parametrize("chunk_size", ["32MiB", 16])
def test_instants_that_nanoseconds_can_say_are_exact(tmp_path, chunk_size):
    path = written(tmp_path / "a.parquet", {"t": pa.array(SOUND * 20, US), "n": list(range(100))})
    found = read(Dataset(path, chunk_size=chunk_size))
    assert found["t"].type == pa.timestamp("ns")
    assert found["t"].cast(US).to_pylist() == SOUND * 20
    assert found["n"].to_pylist() == list(range(100))


@pytest.mark.parametrize("chunk_size", ["32MiB", 16])
@pytest.mark.parametrize(
    ("column", "name"),
    [
        (pa.array([*SOUND, FAR] * 20, US), "t"),
        (pa.array([*SOUND, dt.datetime(1600, 1, 1)] * 20, US), "t"),
        (pa.array([[], None, [*SOUND, FAR]] * 20, pa.list_(US)), "t"),
        (pa.array([None, {"x": 1, "at": FAR}] * 20, pa.struct([("x", pa.int32()), ("at", US)])), "t.at"),
    ],
    ids=["after", "before", "in lists", "in structs"],
)
def test_instants_beyond_nanoseconds_are_refused_instead_of_wrapped_around(tmp_path, chunk_size, column, name):
    path = written(tmp_path / "a.parquet", {"n": list(range(len(column))), "t": column})
    with pytest.raises(FieldError, match="1677 to 2262") as caught:
        read(Dataset(path, chunk_size=chunk_size))
    assert caught.value.columns == (name,)
    assert f"column {name!r}" in str(caught.value)
    assert str(path) in str(caught.value)
    assert read(Dataset(path, chunk_size=chunk_size, columns=["n"]))["n"].to_pylist() == list(range(len(column)))


def test_a_filter_on_instants_beyond_nanoseconds_is_refused(tmp_path):
    path = written(tmp_path / "a.parquet", {"n": [1, 2], "t": pa.array([FAR, SOUND[0]], US)})
    with pytest.raises(FieldError, match="column 't'"):
        Dataset(
            path, columns=["n"], filters=pc.field("t") > pa.scalar(dt.datetime(2000, 1, 1), pa.timestamp("ns"))
        ).open()
