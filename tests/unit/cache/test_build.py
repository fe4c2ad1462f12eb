import errno
import threading

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.processes import in_threads
from tests.strategies import check_samples, sample_table
from tests.unit.cache.chunk_files import about_of, read_arrays
from tests.unit.cache.samples import SPEC

import stoker
from stoker import (
    CacheError,
    CacheFullError,
    FieldError,
    FieldMismatchError,
    Ragged,
    SourceError,
    TransformError,
)
from stoker.cache.builder import Builder, empty_arrays
from stoker.cache.folder import Files
from stoker.cache.store import Store
from stoker.cache.threads import AdaptivePool
from stoker.loader.fill import warm
from stoker.metrics.stages import Stages
from stoker.testing import FlakyStorage, MemoryStorage, write_parquet


def lake(sizes=(100, 0, 64, 30), row_group_size=50):
    storage = MemoryStorage()
    first = 0
    for i, size in enumerate(sizes):
        write_parquet(storage, sample_table(size, first=first), url=f"lake/{i}.parquet", row_group_size=row_group_size)
        first += size
    return storage


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "cache") as store:
        yield store


def opened(storage, **options):
    return stoker.Dataset("lake/", storage=storage, **{"chunk_size": 4000, **options}).open()


def read(store, catalogue, i):
    return read_arrays(store.path_of(catalogue.key(i)))


class CountingTransform:
    """Notes the first id of every table that it sees."""

    def __init__(self, make=lambda table: {"x": table["id"].to_numpy() * 2}):
        self.make = make
        self.seen = []

    def __call__(self, table):
        self.seen.append(table["id"][0].as_py() if table.num_rows else None)
        return self.make(table)


def test_every_fragment_becomes_a_chunk_with_its_rows(store):
    catalogue = opened(lake())
    builder = Builder(catalogue, store)
    ids = []
    for i in range(len(catalogue)):
        assert builder.build(i)
        arrays = read(store, catalogue, i)
        check_samples(arrays)
        ids += arrays["id"].tolist()
    assert ids == list(range(194))
    with store.open(catalogue.key(0)) as chunk:
        fragment = catalogue.fragments[0]
        assert about_of(chunk.path)["url"] == fragment.url
        assert about_of(chunk.path)["row_groups"] == [fragment.row_groups[0], fragment.row_groups[-1]]
        assert chunk.header.spec == builder.find_spec()


def test_what_is_there_is_neither_read_nor_transformed_again(store):
    storage = lake()
    transform = CountingTransform()
    catalogue = opened(storage, transform=transform, transform_version="1")
    builder = Builder(catalogue, store)
    for i in range(len(catalogue)):
        assert builder.build(i)
    assert sorted(transform.seen) == sorted(set(transform.seen))
    assert len(transform.seen) == len(catalogue)
    storage.reset_counts()
    again = Builder(catalogue, store)
    assert all(again.build(i) for i in range(len(catalogue)))
    assert storage.num_calls == 0


def test_to_ask_whether_other_rows_stand_in_for_a_chunk_is_no_miss_of_it(store):
    catalogue = opened(lake())
    assert not Builder(catalogue, store).is_substituted(0)
    with Store(store.path) as other:
        assert Builder(catalogue, other).build(0)
    store.count_uses(1, [catalogue.key(0)])
    assert (store.counts()["num_reused"], store.counts()["num_missed"]) == (1, 0)


def test_the_parts_of_one_huge_row_group_are_read_once(store):
    storage = lake(sizes=(3000,), row_group_size=3000)
    transform = CountingTransform()
    catalogue = opened(storage, chunk_size=20_000, transform=transform, transform_version="1")
    assert len(catalogue.unit(0)) == len(catalogue) > 2
    builder = Builder(catalogue, store)
    assert builder.build(len(catalogue) - 1)
    assert all(store.has(catalogue.key(i)) for i in range(len(catalogue)))
    assert len(transform.seen) == len(catalogue)
    gone = catalogue.key(1)
    store.discard(gone)
    assert builder.build(1)
    assert store.has(gone)
    assert len(transform.seen) == len(catalogue) + 1


def test_parts_that_only_came_along_stay_where_they_can_and_are_not_kept_in_memory(tmp_path):
    catalogue = opened(lake(sizes=(3000,), row_group_size=3000), chunk_size=20_000)
    with Store(tmp_path / "other") as store:
        Builder(catalogue, store).build(0)
        size = max(store.size_of(catalogue.key(i)) for i in range(len(catalogue)))
    with Store(tmp_path / "cache", limit_bytes=2 * size) as store:
        builder = Builder(catalogue, store)
        last = len(catalogue) - 1
        assert builder.build(last)
        with store.open(catalogue.key(last)) as chunk:
            assert not chunk.is_kept
        assert sum(store.has(catalogue.key(i)) for i in range(last)) == 2  # which is first is the helpers' to say


def test_a_chunk_somebody_else_builds_is_left_to_them(store):
    catalogue = opened(lake())
    builder = Builder(catalogue, store)
    with store.try_lock(catalogue.key(1)):
        assert not builder.build(1)
        assert builder.build(0)
    assert builder.build(1)


def test_with_a_transform_the_first_chunk_with_samples_says_what_a_sample_is(store, tmp_path):
    transform = CountingTransform()
    options = {"filters": [("id", ">=", 120)], "transform": transform, "transform_version": "1"}
    catalogue = opened(lake(), **options)
    spec = Builder(catalogue, store).find_spec()
    assert [str(entry) for entry in spec] == ["x: int64"]
    assert transform.seen == [120]
    with Store(store.path) as other:
        assert Builder(catalogue, other).find_spec() == spec
    assert transform.seen == [120]


def test_a_fragment_without_samples_is_neither_read_nor_transformed(store):
    transform = CountingTransform()
    # No footer excludes 10.25, which lies between two halves.
    nowhere = (pc.field("half") == 10.25) | (pc.field("id") == 160)
    catalogue = opened(lake(), filters=nowhere, transform=transform, transform_version="1")
    empty = [i for i in range(len(catalogue)) if catalogue.num_samples[i] == 0]
    assert empty
    builder = Builder(catalogue, store)
    assert all(builder.build(i) for i in range(len(catalogue)))
    assert transform.seen == [160]
    for i in empty:
        assert [len(array) for array in read(store, catalogue, i).values()] == [0]


def test_empty_arrays_fit_every_kind_of_field():
    arrays = empty_arrays(SPEC)
    assert arrays["dense"].shape == (0, 5)
    assert isinstance(arrays["words"].values, Ragged)
    assert arrays["words"].values.offsets.tolist() == [0]


def test_a_data_set_without_any_sample_still_says_what_one_would_be(store):
    transform = CountingTransform(lambda table: {"x": table["half"].to_numpy()})
    catalogue = opened(lake(), filters=[("id", "<", 0)], transform=transform, transform_version="1")
    assert [str(entry) for entry in Builder(catalogue, store).find_spec()] == ["x: float32"]


# ---------------------------------------------------------------------- errors


def failing(make, storage=None):
    return opened(storage or lake(), transform=CountingTransform(make), transform_version="1")


def test_an_exception_of_the_transform_names_the_fragment_and_keeps_its_cause(store):
    def make(table):
        raise ZeroDivisionError("no such row")

    catalogue = failing(make)
    with pytest.raises(TransformError, match=r"lake/0\.parquet row group 0.*ZeroDivisionError: no such row") as caught:
        Builder(catalogue, store).build(0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.fragment == str(catalogue.fragments[0])
    assert any("while transforming" in note for note in caught.value.__notes__)
    assert list((store.path / "tmp").iterdir()) == []
    assert store.try_lock(catalogue.key(0)) is not None


def test_another_number_of_rows_names_both(store):
    catalogue = failing(lambda table: {"x": np.zeros(7)})
    rows = int(catalogue.num_samples[0])
    with pytest.raises(TransformError, match=rf"7 rows of the {rows} "):
        Builder(catalogue, store).build(0)


def test_a_table_with_fewer_rows_is_refused_too(store):
    with pytest.raises(TransformError, match="must keep their number"):
        Builder(failing(lambda table: table.slice(1)), store).build(0)


def test_a_result_that_is_no_array_is_refused(store):
    with pytest.raises(FieldMismatchError, match="list"):
        Builder(failing(lambda table: [1, 2]), store).build(0)


def test_a_result_that_differs_from_the_first_names_fragment_and_field(store):
    def make(table):
        return {"x": table["id"].to_numpy().astype(np.float32 if table["id"][0].as_py() else np.float64)}

    catalogue = failing(make)
    builder = Builder(catalogue, store)
    assert builder.build(0)
    with pytest.raises(FieldMismatchError, match=r"row group 1.*'x' should be x: float64, but its dtype is float32"):
        builder.build(1)
    assert not store.has(catalogue.key(1))


def test_nulls_without_an_answer_name_the_fragment(store):
    storage = MemoryStorage()
    write_parquet(storage, {"id": pa.array([1, None])}, url="lake/a.parquet")
    with pytest.raises(FieldError, match=r"null") as caught:
        Builder(opened(storage), store).build(0)
    assert any("lake/a.parquet row group 0" in note for note in caught.value.__notes__)


def test_a_source_that_fails_names_stage_and_fragment(store):
    storage = lake()
    opened(storage)
    flaky = FlakyStorage(storage, error=lambda: PermissionError("not today"))
    catalogue = opened(flaky)
    list(catalogue.read(1))  # what was read whole with its footer
    flaky._every = 1
    with pytest.raises(SourceError, match="not today") as caught:
        Builder(catalogue, store).build(0)
    assert f"while reading {catalogue.fragments[0]}" in caught.value.__notes__


def test_stages_are_told_with_their_bytes(store):
    stages = Stages(max_spans=100)
    catalogue = opened(lake(), transform=CountingTransform(), transform_version="1")
    Builder(catalogue, store, on_stage=stages).build(0)
    told = [span[:4] for track in stages.tracks() for span in track.recorded()]
    names = [stage for stage, *_ in told]
    # Fetching and decoding take turns; what is made of the rows follows.
    assert set(names) == {"fetch", "decode", "transform", "convert", "publish"}
    assert names[-3:] == ["transform", "convert", "publish"]
    assert all(start <= stop for _, start, stop, _ in told)
    assert {stage: size for stage, _, _, size in told}["publish"] == store.disk.folder.count_bytes()


# ---------------------------------------------------------------------- warm


def test_warming_a_cache_that_is_too_small_keeps_what_fits_and_says_so(tmp_path):
    catalogue = opened(lake(sizes=(50,) * 8))
    with Store(tmp_path / "other") as store:
        Builder(catalogue, store).build(0)
        size = store.disk.folder.count_bytes()
    with Store(tmp_path / "cache", limit_bytes=int(3.5 * size)) as store:
        progress = warm(Builder(catalogue, store), pool=AdaptivePool(2))
        assert progress.is_full
        assert progress.num_done == sum(store.has(catalogue.key(i)) for i in range(len(catalogue))) == 3
        assert warm(Builder(catalogue, store), pool=AdaptivePool(2)).num_done == 3
    with Store(tmp_path / "none", limit_bytes=100) as store, pytest.raises(CacheFullError, match="never fit"):
        warm(Builder(catalogue, store), pool=AdaptivePool(2))


def test_an_error_while_warming_is_raised_when_the_others_are_done(store):
    def make(table):
        if table["id"][0].as_py() >= 100:
            raise ValueError("bad luck")
        return {"x": table["id"].to_numpy()}

    with pytest.raises(TransformError, match="bad luck"):
        warm(Builder(failing(make), store), pool=AdaptivePool(3))
    assert list((store.path / "tmp").iterdir()) == []


class HeldFiles(Files):
    """Holds the first chunk whose header is about to be written until it is let go."""

    def __init__(self):
        self.is_held = threading.Event()
        self.let_go = threading.Event()

    def write(self, fd, data, *, offset):
        is_header = offset == 0 and len(data) > 1000
        if is_header and not self.is_held.is_set():
            self.is_held.set()
            assert self.let_go.wait(30)
        super().write(fd, data, offset=offset)


class Crowd:
    """A transform that notes how many threads were in it at once; each waits for a second one, as long as it is told.

    Args:
        patience_s: Where no second one may come, whoever can come in as well has so much time to.
    """

    def __init__(self, patience_s):
        self.patience_s = patience_s
        self.now = self.most = 0
        self.mutex = threading.Lock()
        self.are_two = threading.Event()

    def __call__(self, table):
        with self.mutex:
            self.now += 1
            self.most = max(self.most, self.now)
            if self.now > 1:
                self.are_two.set()
        self.are_two.wait(self.patience_s)
        with self.mutex:
            self.now -= 1
        return {"x": table["id"].to_numpy()}


def test_the_next_chunk_is_made_while_one_is_published_but_no_two_at_once(tmp_path):
    files, crowd = HeldFiles(), Crowd(patience_s=0.05)
    catalogue = opened(
        lake((50,) * 5), transform=crowd, transform_version="1"
    )  # a file each, so that none is read with another
    with Store(tmp_path / "cache", files=files) as store:
        files.is_held.set()
        builder = Builder(catalogue, store, num_computing=1)
        builder.find_spec()
        files.is_held.clear()
        chunks = [i for i in range(len(catalogue)) if not store.has(catalogue.key(i))]
        first = threading.Thread(target=builder.build, args=(chunks[0],))
        first.start()
        assert files.is_held.wait(30)
        assert builder.build(chunks[1])
        assert not store.has(catalogue.key(chunks[0]))
        files.let_go.set()
        first.join()
        in_threads(builder.build, chunks[2:])
        assert all(store.has(catalogue.key(i)) for i in range(len(catalogue)))
    assert len(chunks) >= 3
    assert crowd.most == 1


class Meeting:
    """A remote storage whose reads wait until so many are there at once."""

    def __init__(self, inner, num):
        self.list, self.stat, self.inner = inner.list, inner.stat, inner
        self.barrier = threading.Barrier(num)
        self.is_open = False

    def read(self, url, offset, num_bytes):
        if self.is_open:
            self.barrier.wait(30)
        return self.inner.read(url, offset, num_bytes)


def test_as_many_fetch_as_there_are_threads_and_no_more_compute_than_may(tmp_path):
    storage, crowd = Meeting(lake((50,) * 9), 8), Crowd(patience_s=0)
    catalogue = opened(storage, transform=crowd, transform_version="1")
    with Store(tmp_path / "cache") as store:
        builder = Builder(catalogue, store, num_computing=2)
        builder.find_spec()
        chunks = [i for i in range(len(catalogue)) if not store.has(catalogue.key(i))]
        crowd.most, crowd.are_two, crowd.patience_s = 0, threading.Event(), 30
        storage.is_open = True
        in_threads(builder.build, chunks)
        assert all(store.has(catalogue.key(i)) for i in range(len(catalogue)))
    assert len(chunks) == 8  # so all of them were reading at once, or the barrier would have broken
    assert crowd.most == 2


def test_a_place_is_free_again_after_a_transform_that_failed(tmp_path):
    def fails(table):
        raise RuntimeError("no")

    catalogue = opened(lake((50,) * 3), transform=CountingTransform(), transform_version="1")
    with Store(tmp_path / "cache") as store:
        builder = Builder(catalogue, store, num_computing=1)
        builder.find_spec()
        catalogue.dataset.transform = fails
        for i in (1, 2):
            with pytest.raises(TransformError):
                builder.build(i)
        catalogue.dataset.transform = CountingTransform()
        assert all(builder.build(i) for i in (1, 2))


class Noted:
    """A transform that tells when it sees its second table."""

    def __init__(self):
        self.num_seen = 0
        self.has_two = threading.Event()

    def __call__(self, table):
        self.num_seen += 1
        if self.num_seen > 1:
            self.has_two.set()
        return {"x": table["id"].to_numpy()}


def test_a_part_is_published_while_the_next_one_is_made_where_nobody_else_builds(tmp_path):
    files, noted = HeldFiles(), Noted()
    catalogue = opened(lake((50, 4_000), row_group_size=4_000), transform=noted, transform_version="1")
    unit = catalogue.unit(1)
    assert len(unit) > 2
    with Store(tmp_path / "cache", files=files) as store:
        files.is_held.set()
        builder = Builder(catalogue, store, num_computing=2)
        builder.find_spec()
        files.is_held.clear()
        noted.num_seen = 0
        noted.has_two.clear()
        building = threading.Thread(target=builder.build, args=(1,))
        building.start()
        assert files.is_held.wait(30)
        assert noted.has_two.wait(30)
        assert not store.has(catalogue.key(1))
        files.let_go.set()
        building.join()
        builder.close()
        assert all(store.has(catalogue.key(i)) for i in unit)
    assert not any(thread.name.startswith("stoker-build") for thread in threading.enumerate())


def test_a_part_that_cannot_be_published_ends_the_build_and_leaves_nothing(tmp_path):
    class Broken(Files):
        is_broken = False

        def write(self, fd, data, *, offset):
            if self.is_broken:
                raise PermissionError(errno.EACCES, "not on a Sunday")
            super().write(fd, data, offset=offset)

    catalogue = opened(lake((4_000,), row_group_size=4_000))
    files = Broken()
    with Store(tmp_path / "cache", files=files) as store:
        builder = Builder(catalogue, store, num_computing=2)
        files.is_broken = True
        with pytest.raises(CacheError, match="not on a Sunday"):
            builder.build(0)
        files.is_broken = False
        builder.close()
        assert list((store.path / "tmp").iterdir()) == []
        assert builder.permits.num_free == 2
