"""From sources to files and partitions."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from stoker import SourceError, SourceMissingError
from stoker.dataset.listing import list_sources, partition_fields, partition_value, translate_glob
from stoker.storage.urls import place_of
from stoker.testing import MemoryStorage

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


def listed(sources, storage):
    return list_sources([place_of(source, is_local=False) for source in sources], storage)


def urls(*sources):
    return [file.info.url for file in listed(sources, MemoryStorage(dict.fromkeys(FILES, b"")))]


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
    ],
)
def test_a_source_that_names_nothing_is_an_error(source, says):
    with pytest.raises(SourceMissingError, match=re.escape(says)) as caught:
        urls(source)
    assert caught.value.url == source


def test_a_folder_without_parquet_says_what_it_holds():
    with pytest.raises(SourceMissingError, match=r"but 1 other file, such as other/e\.bin.*\*\.parquet"):
        urls("other")


def partitions(*paths):
    return listed(["t"], MemoryStorage({f"t/{path}/x.parquet": b"" for path in paths}))


def test_partitions_become_integers_where_all_are():
    files = partitions("year=2024/month=01", "year=2025/month=__HIVE_DEFAULT_PARTITION__")
    fields = partition_fields(files)
    assert fields == [pa.field("year", pa.int64()), pa.field("month", pa.int64())]
    assert [partition_value(file, fields[1]).as_py() for file in files] == [1, None]


def test_partitions_become_text_where_one_is():
    files = partitions("k=1", "k=one", "k=a%2Fb%20c")
    (field,) = partition_fields(files)
    assert field.type == pa.string()
    assert [partition_value(file, field).as_py() for file in files] == ["1", "a/b c", "one"]


def test_a_number_too_large_for_int64_stays_text():
    assert partition_fields(partitions(f"k={2**63}"))[0].type == pa.string()


def test_a_file_outside_of_any_partition_has_null():
    storage = MemoryStorage({"t/a.parquet": b"", "t/k=1/b.parquet": b""})
    files = listed(["t"], storage)
    (field,) = partition_fields(files)
    assert [partition_value(file, field).as_py() for file in files] == [None, 1]


def test_only_folders_below_the_named_one_are_partitions():
    storage = MemoryStorage({"t/k=1/j=2/b.parquet": b""})
    assert listed(["t/k=1"], storage)[0].partition == (("j", "2"),)
    assert listed(["t/k=*/j=2"], storage)[0].partition == (("k", "1"), ("j", "2"))
    assert listed(["t/k=1/j=2/b.parquet"], storage)[0].partition == ()


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("[[]a]", "[a]", "a"),
        ("a[b", "a[b", "ab"),
        ("a.b", "a.b", "axb"),
        ("[]x]", "]", "y"),
        ("[^a]", "^", "b"),
        ("a**b", "a/c/b", "a/c"),
    ],
)
def test_globs_mean_what_they_say(glob, yes, no):
    assert re.fullmatch(translate_glob(glob), yes)
    assert not re.fullmatch(translate_glob(glob), no)
