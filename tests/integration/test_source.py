"""Data sets end to end: what is read back is what pyarrow reads."""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import json
import logging
import operator
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples
from tests.tables import flatten

from stoker import Dataset, FieldError, Loader, SourceChangedError, SourceError, SourceMissingError
from stoker.testing import FlakyStorage, MemoryStorage, write_parquet


def units(catalogue):
    """The first fragment of every unit."""
    return sorted({catalogue.unit(i)[0] for i in range(len(catalogue))})


def read(catalogue):
    """All rows, in order; every fragment checked against its counts on the way."""
    tables = []
    for i in units(catalogue):
        seen = []
        for j, table in catalogue.read(i):
            assert table.num_rows == catalogue.num_samples[j] <= catalogue.num_rows[j]
            assert table.schema.equals(catalogue.schema)
            seen.append(j)
            tables.append(table)
        assert seen == list(catalogue.unit(i))
    return pa.concat_tables(tables) if tables else catalogue.schema.empty_table()


def plain(table):
    return flatten(table).replace_schema_metadata(None).combine_chunks()


def same(found, expected):
    """Whether types and values are equal; a NaN equals a NaN, -0.0 is not 0.0."""
    expected = plain(expected)
    return found.schema.equals(expected.schema) and repr(found.to_pydict()) == repr(expected.to_pydict())


VALUES = {
    "i": (pa.int32(), st.integers(-5, 5)),
    "x": (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf"), -3.25])),
    "s": (pa.string(), st.sampled_from(["", "a", "b", "ab", "zebra"])),
    "d": (pa.date32(), st.dates(dt.date(2024, 1, 1), dt.date(2024, 1, 9))),
    "u": (
        pa.struct([("age", pa.int64()), ("home", pa.struct([("zip", pa.string())]))]),
        st.fixed_dictionaries(
            {
                "age": st.none() | st.integers(0, 9),
                "home": st.none() | st.fixed_dictionaries({"zip": st.sampled_from(["x", "y"])}),
            }
        ),
    ),
    "l": (pa.list_(pa.int16()), st.lists(st.none() | st.integers(0, 3), max_size=3)),
}


@st.composite
def tables(draw):
    num_rows = draw(st.integers(0, 60))
    rows = {}
    for name, (type_, values) in VALUES.items():
        cells = draw(st.lists(st.none() | values, min_size=num_rows, max_size=num_rows))
        rows[name] = pa.array(cells, type_)
    if draw(st.booleans()):  # sorted data is what statistics prune
        rows["i"] = rows["i"].sort()
    return pa.table(rows)


CONDITIONS = st.one_of(
    st.tuples(st.just("i"), st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), st.integers(-6, 6)),
    st.tuples(st.just("i"), st.sampled_from(["in", "not in"]), st.lists(st.integers(-6, 6), min_size=1, max_size=3)),
    st.tuples(st.just("x"), st.sampled_from(["=", "!=", "<", ">="]), st.sampled_from([0.0, 1.5, 2.0])),
    st.tuples(st.just("s"), st.sampled_from(["=", "!=", "<", ">"]), st.sampled_from(["", "a", "m"])),
    st.tuples(st.just("d"), st.sampled_from(["=", "<", ">="]), st.dates(dt.date(2024, 1, 1), dt.date(2024, 1, 9))),
)


def as_expression(filters):
    """Return conditions as an expression: of pyarrow's, but that no null passes `not in`, as in SQL."""
    alternatives = [filters] if isinstance(filters[0], tuple) else filters
    with_nulls = [
        [*all_of, *((name, "!=", values[0]) for name, op, values in all_of if op == "not in")]
        for all_of in alternatives
    ]
    return pq.filters_to_expression(with_nulls)


@given(table=tables(), row_group_size=st.integers(1, 30), chunk_size=st.integers(1, 3000), data=st.data())
def test_any_table_reads_back_as_pyarrow_reads_it(table, row_group_size, chunk_size, data):
    storage = MemoryStorage()
    write_parquet(storage, table, url="t/a.parquet", row_group_size=row_group_size)
    catalogue = Dataset("t", storage=storage, chunk_size=chunk_size).open()
    assert same(read(catalogue), table)
    assert catalogue.num_rows.sum() == table.num_rows
    flat = flatten(table)
    columns = data.draw(st.lists(st.sampled_from(flat.schema.names), min_size=1, unique=True))
    assert same(read(Dataset("t", storage=storage, columns=columns).open()), flat.select(columns))


@examples(18)
@given(
    table=tables(),
    row_group_size=st.integers(1, 30),
    chunk_size=st.integers(1, 3000),
    filters=st.lists(st.lists(CONDITIONS, min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_a_filter_gives_the_rows_that_pyarrow_gives(table, row_group_size, chunk_size, filters):
    storage = MemoryStorage()
    write_parquet(storage, table, url="t/a.parquet", row_group_size=row_group_size)
    expected = table.filter(as_expression(filters))
    catalogue = Dataset("t", storage=storage, chunk_size=chunk_size, filters=filters).open()
    assert same(read(catalogue), expected)
    assert catalogue.num_samples.sum() == expected.num_rows
    asked_as_expression = Dataset("t", storage=storage, filters=as_expression(filters), columns=["l"]).open()
    assert same(read(asked_as_expression), expected.select(["l"]))


@given(table=tables(), age=st.integers(0, 9), row_group_size=st.integers(1, 30))
def test_filters_reach_into_structs(table, age, row_group_size):
    storage = MemoryStorage()
    write_parquet(storage, table, url="t/a.parquet", row_group_size=row_group_size)
    for filters, expected in [
        ([("u.age", ">", age)], pc.field("u", "age") > age),
        ([("u.home.zip", "=", "x")], pc.field("u", "home", "zip") == "x"),
        (pc.field("u", "age") == age, pc.field("u", "age") == age),
        (pc.field("u.age") == age, pc.field("u", "age") == age),
        (pc.field("u").is_null(), pc.field("u").is_null()),
    ]:
        catalogue = Dataset("t", storage=storage, filters=filters, columns=["i", "u"]).open()
        assert same(read(catalogue), table.filter(expected).select(["i", "u"]))


@given(
    parts=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a b", "c/d", None]), st.integers(1, 20)), max_size=6),
    filters=st.sampled_from(
        [
            None,
            [("k", ">", 1)],
            [("name", "=", "a b"), ("v", "<", 10)],
            [[("k", "=", 0)], [("v", ">", 15)]],
            [("name", "not in", ["c/d"])],
        ]
    ),
)
def test_partitions_filter_and_read_like_columns(parts, filters):
    storage = MemoryStorage()
    write_parquet(storage, {"v": [100]}, url="t/k=9/name=z/0.parquet")
    rows = [(100, 9, "z")]
    for n, (k, name, size) in enumerate(parts):
        text = "__HIVE_DEFAULT_PARTITION__" if name is None else name.replace("/", "%2F").replace(" ", "%20")
        write_parquet(storage, {"v": range(size)}, url=f"t/k={k}/name={text}/{n}.parquet", row_group_size=7)
        rows += [(v, k, name) for v in range(size)]
    columns = zip(*rows, strict=True)
    types = (pa.int64(), pa.int64(), pa.string())
    table = pa.table(
        [pa.array(values, type_) for values, type_ in zip(columns, types, strict=True)], names=["v", "k", "name"]
    )
    if filters is not None:
        table = table.filter(as_expression(filters))
    catalogue = Dataset("t", storage=storage, filters=filters).open()
    order = [("k", "ascending"), ("name", "ascending"), ("v", "ascending")]
    assert catalogue.schema.names == ["v", "k", "name"]
    assert same(read(catalogue).sort_by(order), table.sort_by(order))


def test_a_filter_on_partitions_alone_reads_no_row():
    storage = MemoryStorage()
    for k in range(3):
        write_parquet(storage, {"v": range(10)}, url=f"t/k={k}/0.parquet")
    before = Dataset("t", storage=storage, filters=[("k", ">", 0)])
    storage.reset_counts()
    catalogue = before.open()
    assert catalogue.num_samples.tolist() == [10, 10]
    assert storage.num_reads == 3  # the footers
    assert [fragment.url for fragment in catalogue.fragments] == ["t/k=1/0.parquet", "t/k=2/0.parquet"]


def test_a_partition_column_can_be_all_that_is_read():
    storage = MemoryStorage()
    write_parquet(storage, {"v": range(10)}, url="t/k=5/0.parquet")
    catalogue = Dataset("t", storage=storage, columns=["k"], chunk_size=1).open()
    storage.reset_counts()
    assert read(catalogue)["k"].to_pylist() == [5] * 10
    assert storage.num_calls == 0


def test_a_partition_takes_the_place_of_a_column_of_its_name():
    storage = MemoryStorage()
    write_parquet(storage, {"k": [7, 8], "v": [1, 2]}, url="t/k=5/0.parquet")
    assert read(Dataset("t", storage=storage).open()).to_pydict() == {"v": [1, 2], "k": [5, 5]}


def test_files_of_different_schemas_read_as_one():
    storage = MemoryStorage()
    write_parquet(storage, pa.table({"a": pa.array([1], pa.int32()), "u": [{"x": 1}]}), url="t/1.parquet")
    write_parquet(storage, pa.table({"u": [{"y": "q", "x": 2}], "a": pa.array([2], pa.int64())}), url="t/2.parquet")
    write_parquet(storage, pa.table({"b": [0.5]}), url="t/3.parquet")
    found = read(Dataset("t", storage=storage).open())
    assert found.to_pydict() == {
        "a": [1, 2, None],
        "u.x": [1, 2, None],
        "u.y": [None, "q", None],
        "b": [None, None, 0.5],
    }
    for filters, values in [([("u.x", ">", 1)], [2]), ([("b", ">", 0)], [None]), (pc.field("a").is_null(), [None])]:
        filtered = read(Dataset("t", storage=storage, filters=filters, columns=["a"]).open())
        assert filtered["a"].to_pylist() == values


def test_files_that_contradict_each_other_are_an_error_at_open():
    storage = MemoryStorage()
    write_parquet(storage, {"a": [1]}, url="t/1.parquet")
    write_parquet(storage, {"a": ["x"]}, url="t/2.parquet")
    with pytest.raises(FieldError, match=r"'a' is string in t/2\.parquet and int64 in t/1\.parquet"):
        Dataset("t", storage=storage).open()


def test_an_unknown_column_is_an_error_at_open():
    storage = MemoryStorage()
    write_parquet(storage, {"label": [1]}, url="a.parquet")
    with pytest.raises(FieldError, match="did you mean 'label'"):
        Dataset("a.parquet", storage=storage, columns=["lable"]).open()
    with pytest.raises(ValueError, match="nope"):
        Dataset("a.parquet", storage=storage, filters=[("nope", "=", 1)]).open()
    with pytest.raises(ValueError, match="cannot be compared with 'x'"):
        Dataset("a.parquet", storage=storage, filters=[("label", "=", "x")]).open()


def test_only_the_bytes_of_the_needed_columns_are_fetched():
    storage = MemoryStorage()
    rng = np.random.default_rng(0)
    table = {f"c{k}": rng.random(400_000) for k in range(6)}
    write_parquet(storage, table, url="a.parquet", compression="none")
    catalogue = Dataset("a.parquet", storage=storage, columns=["c0", "c5"]).open()
    storage.reset_counts()
    assert read(catalogue).num_rows == 400_000
    assert 2 * 3_200_000 <= storage.bytes_read < 2 * 3_200_000 * 1.3
    assert storage.num_reads == 2


def test_statistics_spare_row_groups():
    storage = MemoryStorage()
    rng = np.random.default_rng(0)
    write_parquet(storage, {"t": range(100_000), "x": rng.random(100_000)}, url="a.parquet", row_group_size=10_000)
    catalogue = Dataset("a.parquet", storage=storage, filters=[("t", ">=", 95_000)]).open()
    storage.reset_counts()
    assert read(catalogue)["t"].to_pylist() == list(range(95_000, 100_000))
    assert storage.bytes_read < storage.stat("a.parquet").size_bytes / 5
    assert catalogue.num_rows.tolist() == [10_000]
    assert catalogue.fragments[0].row_groups == range(9, 10)


def test_null_counts_come_from_the_footers():
    storage = MemoryStorage()
    table = pa.table(
        {
            "a": pa.array([1, None, None, 4, 5, 6]),
            "u": pa.array([{"x": 1}, None, {"x": None}, {"x": 4}, {"x": 5}, {"x": 6}]),
            "l": [[1], [], [2], [3], [4], [5]],
            "r": pa.array([1, 2, 3, 4, 5, 6]),
        }
    )
    write_parquet(storage, table, url="t/a.parquet", row_group_size=3)
    write_parquet(storage, {"a": [1]}, url="t/b.parquet")
    catalogue = Dataset("t", storage=storage, chunk_size=120).open()
    assert catalogue.num_rows.tolist() == [3, 3, 1]
    assert {name: counts.tolist() for name, counts in catalogue.null_counts.items()} == {
        "a": [2, 0],
        "u.x": [2, 1],
        "l": [-1, 1],
        "r": [0, 1],
    }
    filtered = Dataset("t", storage=storage, chunk_size=120, filters=[("a", ">=", 1)]).open()
    assert filtered.null_counts["a"].tolist() == [-1, 0]


def test_a_second_start_asks_a_remote_store_nothing(tmp_path):
    storage = MemoryStorage()
    for k in range(20):
        write_parquet(storage, {"v": range(10)}, url=f"t/k={k}/{k}.parquet")
    dataset = Dataset("t", storage=storage, filters=[("v", ">", 4)], columns=["v", "k"])
    first = dataset.open(tmp_path)
    storage.reset_counts()
    second = dataset.open(tmp_path)
    assert storage.num_calls == 0
    assert second.fingerprint == first.fingerprint
    assert second.files == first.files
    assert list(second.fragments) == list(first.fragments)
    assert second.num_samples.tolist() == first.num_samples.tolist() == [5] * 20
    assert {name: c.tolist() for name, c in second.null_counts.items()} == {
        name: c.tolist() for name, c in first.null_counts.items()
    }
    assert [second.key(i) for i in range(20)] == [first.key(i) for i in range(20)]
    assert read(second).equals(read(first))
    (one,) = (p for p in (tmp_path / "source").iterdir() if p.name.startswith("catalogue"))
    assert one.stat().st_size < 10_000


def test_reading_after_a_second_start_fetches_no_footer_again(tmp_path):
    storage = MemoryStorage()
    write_parquet(storage, {"v": range(10)}, url="a.parquet")
    Dataset("a.parquet", storage=storage).open(tmp_path)
    catalogue = Dataset("a.parquet", storage=storage).open(tmp_path)
    storage.reset_counts()
    assert read(catalogue).num_rows == 10
    assert storage.num_reads == 1


def test_refresh_lists_again_and_reads_every_footer(tmp_path):
    storage = MemoryStorage()
    for k in range(5):
        write_parquet(storage, {"v": range(10)}, url=f"t/{k}.parquet")
    Dataset("t", storage=storage).open(tmp_path)
    write_parquet(storage, {"v": range(3)}, url="t/9.parquet")
    assert len(Dataset("t", storage=storage).open(tmp_path)) == 5
    storage.reset_counts()
    assert len(Dataset("t", storage=storage, refresh=True).open(tmp_path)) == 6
    assert storage.num_reads == 6
    assert len(Dataset("t", storage=storage).open(tmp_path)) == 6


class MeetingStorage(MemoryStorage):
    """Whose first two reads from when it is told to wait for each other."""

    turn = itertools.count(2)

    def read(self, url, offset, num_bytes):
        if next(self.turn) < 2:
            self.both.wait(20)
        return super().read(url, offset, num_bytes)

    def meet(self):
        self.both, self.turn = threading.Barrier(2), itertools.count()


def test_footers_that_tell_of_another_column_are_read_at_once(tmp_path):
    storage = MeetingStorage()
    for k in range(4):
        write_parquet(storage, {"v": range(10), "w": range(10)}, url=f"t/{k}.parquet")
    dataset = Dataset("t", storage=storage, columns=["v"])
    with Loader(dataset, batch_size=8, cache=tmp_path):
        pass
    (footers,) = (tmp_path / "source").glob("footers-*")
    footers.unlink()
    storage.meet()
    with Loader(dataset, batch_size=8, cache=tmp_path, weights="w", num_threads=2) as loader:
        assert len(loader) == 5
    assert next(storage.turn) >= 4  # each file is read once


def test_another_filter_reuses_the_footers(tmp_path):
    storage = MemoryStorage()
    for k in range(5):
        write_parquet(storage, {"v": range(10)}, url=f"t/k={k}/a.parquet")
    Dataset("t", storage=storage).open(tmp_path)
    storage.reset_counts()
    Dataset("t", storage=storage, filters=[("k", "=", 3)]).open(tmp_path)
    assert storage.num_reads == 0


def test_local_files_are_looked_at_every_time(tmp_path):
    write_parquet(tmp_path / "t" / "a.parquet", {"v": [1, 2]})
    write_parquet(tmp_path / "t" / "b.parquet", {"v": [3]})
    dataset = Dataset(tmp_path / "t")
    first = dataset.open(tmp_path / "kept")
    write_parquet(tmp_path / "t" / "b.parquet", {"v": [4, 5, 6]})
    second = dataset.open(tmp_path / "kept")
    assert read(second)["v"].to_pylist() == [1, 2, 4, 5, 6]
    assert second.key(0) == first.key(0)
    assert second.key(1) != first.key(1)
    assert second.fingerprint != first.fingerprint


def test_a_local_source_that_is_gone_goes_on_with_what_was_kept(tmp_path, caplog):
    path = write_parquet(tmp_path / "t" / "a.parquet", {"v": [1, 2]})
    first = Dataset(tmp_path / "t").open(tmp_path / "kept")
    Path(path).unlink()
    with caplog.at_level(logging.WARNING, logger="stoker"):
        second = Dataset(tmp_path / "t").open(tmp_path / "kept")
    assert "is gone" in caplog.text
    assert second.fingerprint == first.fingerprint
    with pytest.raises(SourceMissingError, match=r"a\.parquet"):
        read(second)
    with pytest.raises(SourceMissingError):
        Dataset(tmp_path / "t").open()


def test_a_part_of_a_list_that_is_gone_is_an_error(tmp_path):
    paths = [write_parquet(tmp_path / name, {"v": [1]}) for name in ("a.parquet", "b.parquet")]
    Dataset(paths).open(tmp_path / "kept")
    Path(paths[0]).unlink()
    with pytest.raises(SourceMissingError, match=r"a\.parquet"):
        Dataset(paths).open(tmp_path / "kept")


@pytest.mark.parametrize("name", ["catalogue", "footers"])
@pytest.mark.parametrize("damage", [b"", b"junk", None])
def test_damaged_keepsakes_are_made_again(tmp_path, caplog, name, damage):
    storage = MemoryStorage()
    write_parquet(storage, {"v": range(10)}, url="t/a.parquet")
    dataset = Dataset("t", storage=storage)
    first = dataset.open(tmp_path)
    for path in (tmp_path / "source").iterdir():
        if path.name.startswith(name):
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 255
            path.write_bytes(bytes(content) if damage is None else damage)
    again = dataset.open(tmp_path)
    assert again.fingerprint == first.fingerprint
    if name == "catalogue":
        assert "damaged" in caplog.text
        assert read(again).num_rows == 10


@pytest.mark.parametrize("num_bytes", [1, 100, 1 << 40])
def test_a_kept_footer_of_another_length_than_it_was_is_read_from_the_source(tmp_path, num_bytes):
    storage = MemoryStorage()
    write_parquet(storage, {"v": range(10)}, url="t/a.parquet")
    dataset = Dataset("t", storage=storage)
    dataset.open(tmp_path)
    for path in (tmp_path / "source").iterdir():
        if path.name.startswith("catalogue"):
            path.unlink()
        else:
            content = path.read_bytes()
            end = 8 + int.from_bytes(content[:8], "little")
            ((*info, _, _, checksum),) = json.loads(content[8:end])
            short = pa.Codec("lz4").compress(b"PAR1", asbytes=True)  # less comes of it than is said
            listed = json.dumps([[*info, len(short), num_bytes, checksum]]).encode()
            path.write_bytes(len(listed).to_bytes(8, "little") + listed + short)
    assert read(dataset.open(tmp_path))["v"].to_pylist() == list(range(10))


def test_a_folder_that_takes_nothing_is_a_warning(tmp_path, caplog):
    storage = MemoryStorage()
    write_parquet(storage, {"v": range(10)}, url="t/a.parquet")
    (tmp_path / "source").write_text("a file where a folder should be")
    catalogue = Dataset("t", storage=storage).open(tmp_path)
    assert "cannot be written" in caplog.text
    assert read(catalogue).num_rows == 10


def test_keys_name_everything_that_makes_a_chunk():
    storage = MemoryStorage()
    table = {"a": range(100), "b": range(100)}
    write_parquet(storage, table, url="t/x.parquet", row_group_size=20)

    def add(table):
        return table

    def keys(storage=storage, **arguments):
        catalogue = Dataset("t", storage=storage, **{"chunk_size": 400, **arguments}).open()
        return {catalogue.key(i) for i in range(len(catalogue))}

    variants = [
        keys(),
        keys(columns=["a"], chunk_size=200),
        keys(columns=["b", "a"]),
        keys(filters=[("a", ">", 3)]),
        keys(filters=[("a", ">", 4)]),
        keys(filters=pc.field("a") > 4),
        keys(fields={"a": "float32"}),
        keys(fields={"a": "float64"}),
        keys(transform=add, transform_version="1"),
        keys(transform=add, transform_version="2"),
        keys(transform=keys, transform_version="2"),
        keys(chunk_size="1MB"),
    ]
    everything = [key for variant in variants for key in variant]
    assert len(set(everything)) == len(everything)
    changed = MemoryStorage()
    write_parquet(changed, {"a": range(100), "b": range(1, 101)}, url="t/x.parquet", row_group_size=20)
    assert not keys(changed) & keys()
    assert keys() == variants[0]


def test_another_data_set_with_the_same_fragment_has_its_key():
    storage = MemoryStorage()
    for name in "ab":
        write_parquet(storage, {"v": range(10)}, url=f"t/{name}.parquet")
    folder, file = (Dataset(source, storage=storage).open() for source in ("t", "t/b.parquet"))
    assert folder.key(1) == file.key(0)
    assert folder.fingerprint != file.fingerprint


def test_a_file_that_changes_under_way_is_found_out(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", {"v": range(1000)}, row_group_size=100)
    for chunk_size in ("1MB", 40):
        write_parquet(path, {"v": range(1000)}, row_group_size=100)
        catalogue = Dataset(path, chunk_size=chunk_size).open()
        write_parquet(path, {"v": range(1, 1001)}, row_group_size=100)
        with pytest.raises(SourceChangedError, match="refresh=True") as caught:
            read(catalogue)
        assert caught.value.url == path


def test_a_store_that_fails_now_and_then_is_read_all_the_same():
    storage = MemoryStorage()
    for k in range(4):
        write_parquet(storage, {"v": range(1000)}, url=f"t/{k}.parquet", row_group_size=100)
    waits = []
    flaky = FlakyStorage(storage, every=3)
    catalogue = Dataset("t", storage=flaky, chunk_size=400, filters=[("v", ">", 3)]).open(wait=waits.append)
    assert read(catalogue).num_rows == 4 * 996
    assert flaky.num_failed == len(waits) > 0


def test_a_store_that_fails_for_good_gives_the_error_and_no_thread():
    storage = MemoryStorage()
    write_parquet(storage, {"v": np.random.default_rng(0).random(100_000)}, url="t/a.parquet")
    for chunk_size in ("8MB", "10kB"):
        catalogue = Dataset("t", storage=FlakyStorage(storage, reads=range(2, 100_000)), chunk_size=chunk_size).open(
            wait=lambda s: None
        )
        with pytest.raises(SourceError, match=r"reading t/a\.parquet failed: connection reset") as caught:
            read(catalogue)
        assert caught.value.url == "t/a.parquet"


def test_the_first_bad_file_among_many_is_named():
    storage = MemoryStorage({"t/005.parquet": b"PAR1 no parquet at all PAR1"})
    for k in range(10, 40):
        write_parquet(storage, {"v": range(10)}, url=f"t/{k:03}.parquet")
    with pytest.raises(SourceError, match=r"t/005\.parquet"):
        Dataset("t", storage=storage).open()


def test_a_huge_row_group_is_one_unit_of_equal_parts():
    storage = MemoryStorage()
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "v": range(10_000),
            "x": rng.random(10_000),
            "s": [str(k) * (k % 5) for k in range(10_000)],
            "u": [{"y": 1}] * 10_000,
        }
    )
    write_parquet(storage, {"v": [0]}, url="t/0.parquet")
    write_parquet(storage, table, url="t/1.parquet", row_group_size=8_000)
    for reader in (storage, FlakyStorage(storage, reads=[7])):
        catalogue = Dataset("t", storage=reader, chunk_size=30_000).open(wait=lambda s: None)
        unit = catalogue.unit(3)
        assert unit[0] == 1
        assert all(catalogue.unit(i) == unit for i in unit)
        assert len({int(n) for n in catalogue.num_rows[unit[0] : unit[-1]]}) == 1
        assert catalogue.fragments[1].rows == (0, int(catalogue.num_rows[1]))
        assert str(catalogue.fragments[1]).startswith("t/1.parquet row group 0 rows 0-")
        assert read(catalogue).slice(1).select(["v", "x", "s", "u.y"]).combine_chunks().equals(plain(table))


def test_a_column_of_a_huge_row_group_that_changes_its_encoding_halfway_is_read_to_its_end():
    # The dictionary of words overflows behind some parts: what began with our own loops ends with pyarrow.
    words = [f"word {k % 10}" if k < 6_000 else f"word {k}" for k in range(10_000)]
    table = pa.table({"v": range(10_000), "s": words})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, dictionary_pagesize_limit=2_000, data_page_size=1_000, write_batch_size=100)
    content = sink.getvalue()
    column = pq.read_metadata(pa.BufferReader(content)).row_group(0).column(1)
    assert set(column.encodings) >= {"PLAIN", "RLE_DICTIONARY"}
    storage = MemoryStorage({"t/0.parquet": content.to_pybytes()})
    for reader in (storage, FlakyStorage(storage, reads=[7])):
        catalogue = Dataset("t", storage=reader, chunk_size=30_000).open(wait=lambda s: None)
        assert len(catalogue.unit(0)) > 4
        assert read(catalogue).combine_chunks().equals(table.combine_chunks())


def test_leaving_a_huge_row_group_early_leaves_no_thread():
    storage = MemoryStorage()
    write_parquet(storage, {"x": np.random.default_rng(0).random(200_000)}, url="a.parquet")
    catalogue = Dataset("a.parquet", storage=storage, chunk_size=10_000).open()
    parts = catalogue.read(5)
    assert next(parts)[0] == 0
    assert any(thread.name.startswith("stoker") for thread in threading.enumerate())
    parts.close()
    assert not any(thread.name.startswith("stoker") for thread in threading.enumerate())


@pytest.mark.parametrize("chunk_size", ["1MB", 2000])
def test_stages_are_reported_one_after_the_other(chunk_size):
    storage = MemoryStorage()
    write_parquet(storage, {"x": np.random.default_rng(0).random(5_000)}, url="a.parquet", compression="none")
    catalogue = Dataset("a.parquet", storage=storage, chunk_size=chunk_size).open()
    storage.reset_counts()
    spans = []
    decoded = 0
    for i in units(catalogue):
        for _, table in catalogue.read(i, on_stage=lambda *span: spans.append(span)):
            decoded += table.nbytes
    assert {name for name, *_ in spans} == {"fetch", "decode"}
    assert all(start <= stop for _, start, stop, _ in spans)
    assert all(before[2] <= after[1] for before, after in itertools.pairwise(spans))
    assert sum(size for name, *_, size in spans if name == "fetch") == storage.bytes_read
    assert sum(size for name, *_, size in spans if name == "decode") == decoded


def test_many_threads_read_one_catalogue():
    storage = MemoryStorage()
    for k in range(60):
        write_parquet(storage, {"v": range(k * 100, k * 100 + 100)}, url=f"t/{k:02}.parquet", row_group_size=30)
    catalogue = Dataset("t", storage=storage, filters=[("v", ">", 50)]).open()

    def one(i):
        return [v for _, table in catalogue.read(i) for v in table["v"].to_pylist()]

    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            found = list(pool.map(one, range(len(catalogue))))
            assert functools.reduce(operator.iadd, found, []) == list(range(51, 6000))


def test_an_empty_data_set_has_a_schema_and_no_fragments():
    storage = MemoryStorage()
    write_parquet(storage, pa.table({"v": pa.array([], pa.int8())}), url="a.parquet")
    catalogue = Dataset("a.parquet", storage=storage).open()
    assert (len(catalogue), catalogue.schema.names, list(catalogue.fragments)) == (0, ["v"], [])
    assert read(catalogue).num_rows == 0


def test_globs_and_lists_read_together(tmp_path):
    for name in ("b", "a", "c"):
        write_parquet(tmp_path / f"{name}.parquet", {"v": [name]})
    assert read(Dataset([tmp_path / "c.parquet", f"{tmp_path}/[ab].*"]).open())["v"].to_pylist() == ["a", "b", "c"]


def test_paths_may_be_relative_and_file_urls(tmp_path, monkeypatch):
    write_parquet(tmp_path / "a.parquet", {"v": [1]})
    monkeypatch.chdir(tmp_path)
    catalogues = [Dataset(s).open() for s in ("a.parquet", f"file://{tmp_path}/a.parquet", tmp_path / "a.parquet")]
    assert len({catalogue.key(0) for catalogue in catalogues}) == 1


def test_a_metadata_file_beside_the_data_is_left_alone(tmp_path):
    table = pa.table({"k": [1, 1, 2], "v": [1, 2, 3]})
    collected = []
    pq.write_to_dataset(table, tmp_path / "t", partition_cols=["k"], metadata_collector=collected)
    schema = table.schema.remove(0)
    pq.write_metadata(schema, tmp_path / "t" / "_common_metadata")
    pq.write_metadata(schema, tmp_path / "t" / "_metadata", metadata_collector=collected)
    found = read(Dataset(tmp_path / "t").open()).sort_by("v")
    assert found.to_pydict() == {"v": [1, 2, 3], "k": [1, 1, 2]}
    theirs = pads.dataset(tmp_path / "t", partitioning="hive").to_table().sort_by("v")
    assert theirs["k"].to_pylist() == found["k"].to_pylist()


def test_objects_of_an_fsspec_store_are_read():
    fsspec = pytest.importorskip("fsspec")
    filesystem = fsspec.filesystem("memory")
    storage = MemoryStorage()
    write_parquet(storage, {"v": range(10)}, url="x")
    filesystem.pipe("/stoker-test/k=3/a.parquet", bytes(storage.read("x", 0, storage.stat("x").size_bytes)))
    try:
        for source in ("memory://stoker-test", "memory://stoker-test/k=*/*.parquet"):
            found = read(Dataset(source).open())
            assert found.to_pydict() == {"v": list(range(10)), "k": [3] * 10}
    finally:
        filesystem.rm("/stoker-test", recursive=True)
