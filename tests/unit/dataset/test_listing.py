"""From sources to files and partitions."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from stoker import Dataset, SourceError, SourceMissingError
from stoker.testing import MemoryStorage, write_parquet

FILES = [
    "lake/_SUCCESS",
    "lake/_metadata",
    "lake/_temporary/x.parquet",
    "lake/.hidden/x.parquet",
    "lake/a.parquet",
    "lake/b.PQ",
    "lake/notes.csv",
    "lake/date=1/c.parquet",
    "lake/date=1/.c.parquet.crc",
    "lake/date=2/deep/d.parq",
    "other/e.bin",
]


def opened(source, names):
    """Open a data set of a store that has a file of one row under each name."""
    storage = MemoryStorage()
    for name in names:
        write_parquet(storage, {"v": [1]}, url=name)
    return Dataset(source, storage=storage).open()


def urls(*sources, names=FILES):
    return [fragment.url for fragment in opened(list(sources), names).fragments]


def test_a_folder_gives_its_parquet_files_and_nothing_hidden():
    everything = ["lake/a.parquet", "lake/b.PQ", "lake/date=1/c.parquet", "lake/date=2/deep/d.parq"]
    assert urls("lake") == everything
    assert urls("lake/") == everything


def test_a_named_file_is_read_whatever_its_name():
    assert urls("other/e.bin") == ["other/e.bin"]
    assert urls("lake/_temporary/x.parquet") == ["lake/_temporary/x.parquet"]


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("lake/*.parquet", ["lake/a.parquet"]),
        ("lake/?.*", ["lake/a.parquet", "lake/b.PQ"]),
        ("lake/**/*.parquet", ["lake/a.parquet", "lake/date=1/c.parquet"]),
        ("lake/date=*", ["lake/date=1/c.parquet", "lake/date=2/deep/d.parq"]),
        ("lake/date=[!1]/", ["lake/date=2/deep/d.parq"]),
        ("other/*", ["other/e.bin"]),
        ("lake/_temporary/*", ["lake/_temporary/x.parquet"]),
        ("lake/_temp*/*", ["lake/_temporary/x.parquet"]),
        ("*/*.csv", ["lake/notes.csv"]),
    ],
)
def test_a_glob_gives_what_matches(glob, expected):
    assert urls(glob) == expected


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("t/[[]a]", "t/[a]", "t/a"),
        ("t/a[b*", "t/a[b", "t/ab"),
        ("t/?.b", "t/a.b", "t/axb"),
        ("t/[]x]", "t/]", "t/y"),
        ("t/[^a]", "t/^", "t/b"),
        ("t/a**b", "t/a/c/b", "t/a/c"),
    ],
)
def test_globs_mean_what_they_say(glob, yes, no):
    assert urls(glob, names=[yes, no]) == [yes]


def test_a_list_is_sorted_and_names_each_file_once():
    assert urls("other/e.bin", "lake/*.parquet", "lake/a.parquet") == ["lake/a.parquet", "other/e.bin"]


def test_a_file_in_two_partitions_at_once_is_an_error():
    with pytest.raises(SourceError, match=r"c\.parquet is named by two sources"):
        urls("lake", "lake/date=1")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("nope", "nothing is stored at nope"),
        ("lake/*.orc", "no file matches"),
        ("lake/.hidden/y/", "nothing is stored"),
        ("other", "but 1 other file, such as other/e.bin"),
    ],
)
def test_a_source_that_names_nothing_is_an_error(source, says):
    with pytest.raises(SourceMissingError, match=re.escape(says)) as caught:
        urls(source)
    assert caught.value.url == source


@pytest.mark.parametrize(
    ("folders", "kind", "values"),
    [
        (["k=01", "k=__HIVE_DEFAULT_PARTITION__"], pa.int64(), [1, None]),
        (["k=1", "k=one", "k=a%2Fb%20c"], pa.string(), ["1", "a/b c", "one"]),
        ([f"k={2**63 - 1}"], pa.int64(), [2**63 - 1]),
        ([f"k={2**63}"], pa.string(), [str(2**63)]),
        (["j=1", "k=1"], pa.int64(), [None, 1]),
    ],
)
def test_a_partition_is_an_integer_where_all_are_and_null_where_the_path_does_not_say(folders, kind, values):
    catalogue = opened("t", [f"t/{folder}/x.parquet" for folder in folders])
    assert catalogue.schema.field("k").type == kind
    tables = [table for i in range(len(folders)) for _, table in catalogue.read(i)]
    assert [table["k"][0].as_py() for table in tables] == values


@pytest.mark.parametrize(
    ("source", "keys"), [("t", "kj"), ("t/k=1", "j"), ("t/k=*/j=2", "kj"), ("t/k=1/j=2/b.parquet", "")]
)
def test_only_folders_below_the_named_one_are_partitions(source, keys):
    assert opened(source, ["t/k=1/j=2/b.parquet"]).schema.names == ["v", *keys]
