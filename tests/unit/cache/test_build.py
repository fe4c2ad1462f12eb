"""From rows to chunks: what is read and transformed how often, what a transform may return, and what errors say."""

import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.strategies import sample_table
from tests.unit.cache.chunk_files import content_of
from tests.unit.cache.limits import file_sizes_limited_to

import stoker
from stoker import CacheError, FieldError, FieldMismatchError, Ragged, SourceError, TransformError
from stoker.cli import main
from stoker.testing import FlakyStorage, MemoryStorage, write_parquet


def lake(sizes=(100, 0, 64, 30), row_group_size=50, *, storage=None, name="lake"):
    storage, first = storage or MemoryStorage(), 0
    for i, size in enumerate(sizes):
        table = sample_table(size, first=first)
        write_parquet(storage, table, url=f"{name}/{i}.parquet", row_group_size=row_group_size)
        first += size
    return storage


def loader_of(storage, cache, *, transform=None, num_threads=1, **options):
    if transform is not None:
        options |= {"transform": transform, "transform_version": "1"}
    dataset = stoker.Dataset("lake/", storage=storage, **{"chunk_size": 4000, **options})
    return stoker.Loader(dataset, batch_size=10, num_threads=num_threads, cache=cache)


def values_of(loader, name="x"):
    return [value for batch in loader for value in batch[name].tolist()]


class CountingTransform:
    """Notes the first id of every table that it sees."""

    def __init__(self, make=lambda table: {"x": table["id"].to_numpy() * 2}):
        self.make = make
        self.seen = []

    def __call__(self, table):
        self.seen.append(table["id"][0].as_py() if table.num_rows else None)
        return self.make(table)


def test_a_chunk_says_of_which_rows_it_is_and_has_them(tmp_path):
    storage = lake()
    with loader_of(storage, tmp_path / "cache") as loader:
        list(loader)
    found = []
    for path in (tmp_path / "cache" / "chunks").iterdir():
        metadata, arrays, _ = content_of(path)
        about = metadata["about"]
        assert (about["key"], about["rows"]) == (path.stem, None)
        first, last = about["row_groups"]
        file = pq.ParquetFile(pa.BufferReader(storage.read(about["url"], 0, storage.stat(about["url"]).size_bytes)))
        records = arrays["records"].reshape(-1).view(np.dtype(metadata["record"]))
        assert records["id"].tolist() == file.read_row_groups(range(first, last + 1))["id"].to_pylist()
        found += records["id"].tolist()
    assert sorted(found) == list(range(194))


@pytest.mark.parametrize("num_threads", [1, 3])
def test_the_parts_of_one_huge_row_group_are_read_once_and_later_only_what_is_missing(tmp_path, num_threads):
    storage, transform = lake(sizes=(3000,), row_group_size=3000), CountingTransform()
    options = {"transform": transform, "chunk_size": 20_000, "num_threads": num_threads}
    for _ in range(2):
        with loader_of(storage, tmp_path / "cache", **options) as loader:
            assert values_of(loader) == [2 * i for i in range(3000)]
        chunks = sorted((tmp_path / "cache" / "chunks").iterdir())
        assert len(set(transform.seen)) == len(transform.seen) == len(chunks) > 2
    chunks[1].unlink()
    with loader_of(storage, tmp_path / "cache", **options) as loader:
        assert values_of(loader) == [2 * i for i in range(3000)]
    assert len(transform.seen) == len(chunks) + 1


def test_with_a_transform_the_first_chunk_with_samples_says_what_a_sample_is(tmp_path):
    transform = CountingTransform()
    options = {"transform": transform, "filters": [("id", ">=", 120)]}
    with loader_of(lake(), tmp_path / "cache", **options) as loader:
        assert [str(entry) for entry in loader.spec] == ["x: int64"]
        assert transform.seen[0] == 120
        assert values_of(loader) == [2 * i for i in range(120, 194)]
    num = len(transform.seen)
    with loader_of(lake(), tmp_path / "cache", **options) as loader:
        assert [str(entry) for entry in loader.spec] == ["x: int64"]
    assert len(transform.seen) == num


def test_a_data_set_without_any_sample_still_says_what_one_would_be(tmp_path):
    transform = CountingTransform(lambda table: {"x": table["half"].to_numpy()})
    with loader_of(lake(), tmp_path / "cache", transform=transform, filters=[("id", "<", 0)]) as loader:
        assert [str(entry) for entry in loader.spec] == ["x: float32"]
        assert list(loader) == []


def test_a_fragment_without_samples_is_neither_read_nor_transformed(tmp_path):
    transform = CountingTransform()
    # No footer excludes 10.25, which lies between two halves.
    nowhere = (pc.field("half") == 10.25) | (pc.field("id") == 160)
    with loader_of(lake(), tmp_path / "cache", transform=transform, filters=nowhere) as loader:
        assert values_of(loader) == [320]
    assert transform.seen == [160]


SCRIPT = """
import pyarrow.compute as pc
import stoker

def unlucky(table):
    if table["id"][0].as_py() >= {unlucky}:
        raise ValueError("bad luck")
    return table

dataset = stoker.Dataset("{data}", chunk_size=4000, transform=unlucky, transform_version="1", filters={filters})
"""


def warm(tmp_path, name, *, unlucky=10**9, filters="None"):
    """Warm the cache with what a script of this name says, and return how that ended."""
    script = tmp_path / f"{name}.py"
    script.write_text(SCRIPT.format(data=tmp_path / "data", unlucky=unlucky, filters=filters))
    return main(["warm", f"{script}:dataset", "--cache", str(tmp_path / "cache"), "--threads", "3"])


def test_an_error_while_warming_is_told_when_the_others_are_done_and_what_they_did_stays(tmp_path, capsys):
    for i in range(8):
        write_parquet(tmp_path / "data" / f"{i}.parquet", sample_table(50, first=50 * i))
    assert warm(tmp_path, "unlucky_rows", unlucky=200) == 1
    assert "bad luck" in capsys.readouterr().err
    assert list((tmp_path / "cache" / "tmp").iterdir()) == []
    assert warm(tmp_path, "lucky_rows") == 0


def test_a_chunk_without_samples_has_arrays_without_rows(tmp_path):
    deep = pa.array([[[i], []] for i in range(50)], pa.list_(pa.list_(pa.int8())))
    for i in range(2):
        table = sample_table(50, first=50 * i).append_column("deep", deep)
        write_parquet(tmp_path / "data" / f"{i}.parquet", table)
    assert warm(tmp_path, "few_rows", filters='(pc.field("half") == 10.25) | (pc.field("id") == 60)') == 0
    found = [content_of(path) for path in (tmp_path / "cache" / "chunks").iterdir()]
    assert sorted(int(metadata["num_samples"]) for metadata, _, _ in found) == [0, 1]
    (arrays,) = (arrays for metadata, arrays, _ in found if metadata["num_samples"] == "0")
    assert len(arrays["records"]) == len(arrays["strips.places"]) == len(arrays["strips"]) == 0
    assert arrays["deep.offsets"].tolist() == arrays["deep.values.offsets"].tolist() == [0]


class Crowd:
    """A transform that notes how many threads were in it at once; behind the first table, each waits for another."""

    def __init__(self):
        self.now = self.most = 0
        self.mutex = threading.Lock()
        self.are_two = threading.Event()

    def __call__(self, table):
        with self.mutex:
            self.now += 1
            self.most = max(self.most, self.now)
            if self.now > 1:
                self.are_two.set()
        if table["id"][0].as_py():
            assert self.are_two.wait(30)
        with self.mutex:
            self.now -= 1
        return {"x": table["id"].to_numpy()}


def test_as_many_threads_transform_as_are_asked_for_and_no_more(tmp_path):
    crowd = Crowd()
    with loader_of(lake((50,) * 30), tmp_path / "cache", transform=crowd, num_threads=2) as loader:
        assert sorted(values_of(loader)) == list(range(1500))
    assert crowd.most == 2


class Late:
    """A store that answers late, and counts how many wait for it at once."""

    def __init__(self, inner, wait_s):
        self.inner, self.wait_s = inner, wait_s
        self.list, self.stat = inner.list, inner.stat
        self.num_waiting = self.most_waiting = 0
        self.mutex = threading.Lock()

    def read(self, url, offset, num_bytes):
        with self.mutex:
            self.num_waiting += 1
            self.most_waiting = max(self.most_waiting, self.num_waiting)
        try:
            time.sleep(self.wait_s)
            return self.inner.read(url, offset, num_bytes)
        finally:
            with self.mutex:
                self.num_waiting -= 1


@pytest.mark.parametrize("is_tight", [False, True])
@pytest.mark.parametrize("has_small", [False, True], ids=["one", "mixture"])
def test_more_are_fetched_at_once_from_a_store_that_answers_late_where_there_is_room_for_them(
    tmp_path, is_tight, has_small
):
    late = Late(lake((50,) * 60), 0.1)  # far longer than it takes to compute, on a busy machine, too
    dataset = stoker.Dataset("lake/", storage=late)
    if has_small:  # of which there is room for all, always
        lake((5,), storage=late.inner, name="small")
        dataset = stoker.Mixture({"small": stoker.Dataset("small/", storage=late), "large": dataset})
    options = {"batch_size": 60, "shuffle": True, "window": 60, "num_threads": 1, "cache": tmp_path / "cache"}
    with stoker.Loader(dataset, cache_limit=100_000 if is_tight else "1GB", **options) as loader:
        late.most_waiting = 0
        ids = values_of(loader, "id")
        assert has_small or sorted(ids) == list(range(3000))
        assert {*ids} == {*range(3000)}
    # One that computes, and the six beside it.
    assert (late.most_waiting <= 7) == is_tight


late = Late(lake((50,) * 60), 0.1)


def counted_from_here(table):
    if table["id"][0].as_py() == 0:  # what opening the data set reads does not count
        late.most_waiting = 0
    return table


# Named on the command line below.
late_dataset = stoker.Dataset("lake/", storage=late, transform=counted_from_here, transform_version="1")


def test_warming_fetches_more_at_once_too(tmp_path):
    assert main(["warm", f"{__name__}:late_dataset", "--cache", str(tmp_path / "cache"), "--threads", "1"]) == 0
    assert late.most_waiting > 7


# ---------------------------------------------------------------------- errors


def fails(table):
    raise ZeroDivisionError("no such row")


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (fails, TransformError, r"lake/0\.parquet row group 0.*ZeroDivisionError: no such row"),
        (lambda table: {"x": np.zeros(7)}, TransformError, r"7 rows of the 50 .*must keep their number"),
        (lambda table: table.slice(1), TransformError, r"49 rows of the 50 .*must keep their number"),
        (lambda table: [1, 2], FieldMismatchError, "returned a list"),
    ],
)
def test_what_a_transform_may_not_do_names_the_fragment(tmp_path, make, error, match):
    def load():
        with loader_of(lake(), tmp_path / "cache", transform=make) as loader:
            list(loader)

    with pytest.raises(error, match=match) as caught:
        load()
    assert caught.value.fragment == "lake/0.parquet row group 0"
    assert any("while transforming lake/0.parquet row group 0" in note for note in caught.value.__notes__)
    assert make is not fails or isinstance(caught.value.__cause__, ZeroDivisionError)
    assert list((tmp_path / "cache" / "tmp").iterdir()) == []


def test_a_source_that_fails_names_stage_and_fragment(tmp_path):
    storage = lake()
    with loader_of(storage, tmp_path / "cache") as loader:
        list(loader)
    for path in (tmp_path / "cache" / "chunks").iterdir():
        path.unlink()
    failing = FlakyStorage(storage, every=1, error=lambda: PermissionError("not today"))
    with pytest.raises(SourceError, match="not today") as caught:
        loader_of(failing, tmp_path / "cache")
    assert caught.value.__notes__ == ["while reading lake/0.parquet row group 0"]


def test_where_parts_cannot_be_published_nothing_is_left_and_the_next_try_has_all_threads(tmp_path):
    storage = lake(sizes=(3000,), row_group_size=3000)
    with loader_of(storage, tmp_path / "cache", chunk_size=20_000, num_threads=2) as loader:
        for _ in range(3):  # more often than there are permits to compute
            with file_sizes_limited_to(10_000), pytest.raises(CacheError, match="cannot be written to") as caught:
                list(loader)
            assert any("while publishing lake/0.parquet row group 0" in note for note in caught.value.__notes__)
            assert list((tmp_path / "cache" / "tmp").iterdir()) == []
            assert list((tmp_path / "cache" / "chunks").iterdir()) == []
        assert values_of(loader, "id") == list(range(3000))


def test_after_transforms_that_failed_all_threads_may_compute_again(tmp_path):
    left = [3]  # more often than there are permits to compute

    def fails_at_first(table):
        if table["id"][0].as_py() and left[0]:
            left[0] -= 1
            raise RuntimeError("not yet")
        return table

    with loader_of(lake(), tmp_path / "cache", transform=fails_at_first, num_threads=2) as loader:
        while left[0]:
            with pytest.raises(TransformError, match="not yet"):
                list(loader)
        assert values_of(loader, "id") == list(range(194))


def lists(num, *, levels=1):
    values = np.zeros(num, np.uint8)
    for _ in range(levels):
        values = Ragged(values, np.arange(num + 1))
    return values


def falling(num):
    """Return lists of which every other one ends before it begins, as pyarrow takes them unchecked."""
    offsets = pa.py_buffer((np.arange(num + 1) % 2).astype(np.int32))
    return pa.ListArray.from_buffers(
        pa.list_(pa.uint8()), num, [None, offsets], children=[pa.array([1, 2], pa.uint8())]
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"x": None}, "'x' is missing"),
        ({"x": lambda num: np.zeros(num, np.float32)}, "'x' should be x: float64, but its dtype is float32"),
        ({"vector": lambda num: np.zeros((num, 4), np.float32)}, r"it has the shape \[50, 4\] for 50 rows"),
        ({"vector": lists}, "it is ragged"),
        ({"near": lambda num: np.zeros(num, np.uint8)}, "it is not ragged"),
        ({"near": lambda num: lists(num, levels=2)}, "it has more than 1 level"),
        ({"near": falling}, "its offsets do not rise from 0"),
        ({"deep": lists}, "it has 1 level"),
        ({"more": np.zeros}, "'more' is none of the data set's"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_a_result_that_differs_from_the_first_names_fragment_and_field_and_is_not_kept(tmp_path, change, reason):
    first = {
        "x": np.zeros,
        "vector": lambda num: np.zeros((num, 5), np.float32),
        "near": lists,
        "deep": lambda num: lists(num, levels=2),
    }

    def make(table):
        made = first | (change if table["id"][0].as_py() else {})
        return {name: one(table.num_rows) for name, one in made.items() if one is not None}

    with (
        loader_of(lake(), tmp_path / "cache", transform=make) as loader,
        pytest.raises(FieldMismatchError, match=rf"lake/0\.parquet row group 1: .*{reason}.*The first chunk") as caught,
    ):
        list(loader)
    assert "while publishing lake/0.parquet row group 1" in caught.value.__notes__
    (path,) = (tmp_path / "cache" / "chunks").iterdir()
    assert content_of(path)[0]["about"]["row_groups"] == [0, 0]
    assert list((tmp_path / "cache" / "tmp").iterdir()) == []


def test_fields_that_would_share_an_array_are_refused(tmp_path):
    storage = MemoryStorage()
    write_parquet(storage, {"a": pa.array([[[1]]]), "a.values": pa.array([[1]])}, url="lake/a.parquet")
    with pytest.raises(FieldError, match=r"'a' and 'a\.values' would both be kept as 'a\.values.*rename one"):
        loader_of(storage, tmp_path / "cache")


def test_a_value_that_does_not_fit_names_its_row_wherever_it_lies_in_the_table(tmp_path):
    values = np.zeros(60_000)
    values[45_123] = 1e30
    write_parquet(tmp_path / "a.parquet", {"x": values})

    def in_pieces(table):
        return pa.concat_tables([table.slice(i, 20_000) for i in range(0, 60_000, 20_000)])

    narrow = {"x": stoker.Field("float32", storage_dtype="float16")}
    dataset = stoker.Dataset(tmp_path / "a.parquet", fields=narrow, transform=in_pieces, transform_version="1")
    with pytest.raises(FieldError, match=r"row 45123, counted from 0") as caught:
        stoker.Loader(dataset, batch_size=10, cache=tmp_path / "cache")
    assert f"while converting {tmp_path}/a.parquet row group 0" in caught.value.__notes__
