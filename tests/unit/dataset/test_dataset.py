"""The description of a data set: what is refused at once, and what identifies it."""

from __future__ import annotations

import functools
import sys
import types
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import Dataset, Field
from stoker.testing import MemoryStorage, write_parquet


def double(table):
    return table


def scale(table, by):
    return table


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"source": 3}, TypeError, "path, a URL"),
        ({"source": b"a"}, TypeError, "path, a URL"),
        ({"source": []}, ValueError, "empty list"),
        ({"source": ""}, ValueError, "empty text"),
        ({"source": ["a", 3]}, TypeError, "paths and URLs"),
        ({"source": ["s3://a", "b"]}, ValueError, "one storage"),
        ({"columns": 3}, TypeError, "list of names"),
        ({"columns": [3]}, TypeError, "holds 3"),
        ({"columns": []}, ValueError, "empty"),
        ({"columns": ["a", "b", "a"]}, ValueError, "'a' twice"),
        ({"filters": "a > 3"}, TypeError, "filters"),
        ({"filters": [("a", "~", 3)]}, ValueError, "unknown operator"),
        ({"fields": ["a"]}, TypeError, "mapping"),
        ({"fields": {3: "float32"}}, TypeError, "named by a text"),
        ({"fields": {"a": 3}}, TypeError, "stoker.Field"),
        ({"fields": {"a": "nope"}}, ValueError, "NumPy dtype"),
        ({"transform": double}, ValueError, "version"),
        ({"transform_version": "1"}, ValueError, "transform"),
        ({"transform": "double", "transform_version": "1"}, TypeError, "function"),
        ({"transform": double, "transform_version": 1}, TypeError, "text"),
        ({"transform": double, "transform_version": ""}, TypeError, "text"),
        ({"chunk_size": 0}, ValueError, "positive"),
        ({"chunk_size": "much"}, ValueError, "chunk_size"),
        ({"chunk_size": 1.5}, TypeError, "chunk_size"),
        ({"storage": object()}, TypeError, "list, stat and read"),
        ({"storage": MemoryStorage(), "storage_options": {}}, ValueError, "your own storage"),
        ({"storage_options": {"key": "x"}}, ValueError, "local files"),
        ({"refresh": 1}, TypeError, "refresh"),
    ],
)
def test_a_wrong_argument_is_refused_before_any_io(arguments, error, says):
    with pytest.raises(error, match=says):
        Dataset(**{"source": "/nowhere/at/all", **arguments})


def test_a_column_without_a_name_can_be_asked_for():
    storage = MemoryStorage()
    write_parquet(storage, {"": [1, 2], "a": [3, 4]}, url="t/0.parquet")
    assert Dataset("t", storage=storage, columns=["", "a"]).open().schema.names == ["", "a"]


def test_a_description_reads_nothing():
    storage = MemoryStorage()
    Dataset("nowhere", storage=storage)
    assert storage.num_calls == 0


def test_a_dtype_alone_is_a_field():
    assert Dataset("a", fields={"x": "float32"}).fields == {"x": Field("float32")}


def test_the_repr_says_what_was_asked_for():
    dataset = Dataset(
        ["a", Path("b")],
        columns=["x"],
        filters=[("x", ">", 3), ("y", "in", ["p"])],
        transform=double,
        transform_version="2",
        chunk_size="1MiB",
    )
    assert repr(dataset) == (
        "Dataset(['a', 'b'], columns=['x'], filters=\"x > 3 and y in ('p',)\", "
        f"transform={__name__}.double, transform_version='2', chunk_size='1MiB')"
    )


def test_the_name_of_a_transform_looks_through_partials():
    dataset = Dataset("a", transform=functools.partial(scale, by=2), transform_version="1")
    assert f"transform={__name__}.scale," in repr(dataset)


def test_a_script_has_the_same_name_run_and_imported(monkeypatch):
    main = types.ModuleType("__main__")
    main.__file__ = "/somewhere/train.py"
    monkeypatch.setitem(sys.modules, "__main__", main)

    def add(table):
        return table

    add.__qualname__ = "add"
    for module in ("__main__", "__mp_main__", "train"):  # the second: in a spawned process
        add.__module__ = module
        assert "transform=train.add," in repr(Dataset("a", transform=add, transform_version="1"))


def test_no_thread_at_all_is_refused():
    with pytest.raises(ValueError, match="num_threads"):
        Dataset("nowhere", storage=MemoryStorage()).open(num_threads=0)


@pytest.mark.parametrize("filters", [None, [("v", "!=", 5)], [("day", "=", "b")]])
def test_a_sample_of_a_catalogue_answers_every_question_as_its_fragments_do(tmp_path, filters):
    for day in "ab":
        (tmp_path / f"day={day}").mkdir()
        table = pa.table({"v": np.arange(500) + 1000 * (day == "b")})
        pq.write_table(table, tmp_path / f"day={day}" / "x.parquet", row_group_size=100)
    catalogue = Dataset(tmp_path, filters=filters, chunk_size=300).open()  # row groups are cut into parts
    units = [catalogue.unit(number) for number in (len(catalogue) - 1, 0)]
    numbers = [i for unit in units for i in unit] * 2
    for is_new in (True, False):
        sample = catalogue.sampled(units, num_times=2, is_new=is_new)
        assert [sample.fragments[i] for i in range(len(sample))] == [catalogue.fragments[i] for i in numbers]
        assert sample.count(num_threads=2).tolist() == catalogue.num_samples[numbers].tolist()
        rows: dict[int, list[int]] = {}
        sample.read_every(
            sample.types_of(["v"], num_threads=2),
            lambda j, table, _, rows=rows: rows.update({j: table["v"].to_pylist()}),
            num_threads=2,
        )
        read = {j: table["v"].to_pylist() for unit in units for j, table in catalogue.read(unit[0])}
        assert rows == {j: read[i] for j, i in enumerate(numbers)}
        again = [sample.key(i) for i in range(len(sample))]
        once = [catalogue.key(i) for i in numbers]
        assert again[: len(numbers) // 2] == once[: len(numbers) // 2]
        assert not is_new or not set(again[len(numbers) // 2 :]) & set(once)
        assert is_new or again == once
        assert sample.fingerprint != catalogue.fingerprint
