"""Where other rows stand in for bad ones: the same batches on every road, in as many steps, and never by accident."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.batches import check_same, contents, ids_of
from tests.strategies import sample_table

import stoker
from stoker.testing import FlakyStorage, MemoryStorage, write_parquet

ROWS = 40  # of a row group
BAD_GROUPS = (0, 3, 4, 11)  # of all, counted through the files: the first, two side by side, and the last
OPTIONS = {"batch_size": 8, "shuffle": True, "seed": 5, "window": 3}
HUGE = 1200  # rows of a row group that is split


def fails_on_some(table: pa.Table) -> dict[str, np.ndarray]:
    ids = table["id"].to_numpy()
    if np.isin(ids // ROWS, BAD_GROUPS).any():
        raise ValueError("such rows are not wanted")
    return {"id": ids}


def fits_not_always(table: pa.Table) -> dict[str, np.ndarray]:
    ids = table["id"].to_numpy()
    return {"id": ids.astype(np.int32) if np.isin(ids // ROWS, BAD_GROUPS).any() else ids}


def damage(path: Path, groups: tuple[int, ...], column: str) -> None:
    """Overwrite the pages of a column in some row groups of a file."""
    numbers = pq.read_metadata(path)
    with path.open("r+b") as file:
        for group in groups:
            chunk = next(
                numbers.row_group(group).column(c)
                for c in range(numbers.num_columns)
                if numbers.row_group(group).column(c).path_in_schema.startswith(column)
            )
            file.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
            file.write(b"\xff" * chunk.total_compressed_size)


@pytest.fixture(params=["pages", "a huge row group", "transform", "its fields"], scope="module")
def bad(request, tmp_path_factory):
    """A data set with bad chunks, and which ids stand in for which: a list of all samples in the fixed order."""
    folder = tmp_path_factory.mktemp("bad") / "data"
    folder.mkdir()
    options = {"chunk_size": 3000}
    if request.param == "a huge row group":
        pq.write_table(sample_table(HUGE), folder / "0.parquet", row_group_size=HUGE, write_page_index=False)
        pq.write_table(sample_table(100, first=HUGE), folder / "1.parquet")
        dataset = stoker.Dataset(folder, chunk_size=8000)
        damage(folder / "0.parquet", (0,), "vector")
        return dataset, None
    for i in range(3):
        pq.write_table(sample_table(4 * ROWS, first=4 * ROWS * i), folder / f"{i}.parquet", row_group_size=ROWS)
    if request.param == "pages":
        for i in range(3):
            damage(folder / f"{i}.parquet", tuple(g - 4 * i for g in BAD_GROUPS if g // 4 == i), "vector")
    elif request.param == "transform":
        options |= {"transform": fails_on_some, "transform_version": "1"}
    else:
        options |= {"transform": fits_not_always, "transform_version": "1"}
    groups = [next(h % 12 for h in range(g, g + 12) if h % 12 not in BAD_GROUPS) for g in range(12)]
    if request.param == "its fields":  # the first chunk says what fits, so that the others are what does not
        groups = [next(h % 12 for h in range(g, g + 12) if h % 12 in BAD_GROUPS) for g in range(12)]
    return stoker.Dataset(folder, **options), [i for g in groups for i in range(ROWS * g, ROWS * (g + 1))]


def run(dataset, *, world_size=1, state=None, num_steps=None, **options):
    """Return the batches of an epoch as ids, those of all ranks joined step by step, and the state behind the last."""
    steps: list[list[int]] = []
    for rank in range(world_size):
        with stoker.Loader(
            dataset, on_error="substitute", rank=rank, world_size=world_size,
            **OPTIONS | {"batch_size": OPTIONS["batch_size"] // world_size} | options,
        ) as loader:  # fmt: skip
            if state is not None:
                loader.load_state_dict(state)
            found = []
            for batch in loader:
                found.append(batch["id"].tolist())
                if len(found) == num_steps:
                    break
            after = json.loads(json.dumps(loader.state_dict()))
            assert loader.stats().num_substituted or num_steps or state
        steps = found if not rank else [a + b for a, b in zip(steps, found, strict=True)]
    return steps, after


def test_rows_of_the_next_chunk_that_can_be_made_stand_in(bad):
    dataset, expected = bad
    with stoker.Loader(dataset, batch_size=7, on_error="substitute") as loader:
        ids = ids_of(loader)
        assert len(ids) == loader.num_samples
        assert loader.stats().num_substituted > 1
    if expected is None:  # parts of the huge row group are all replaced, each by the first rows of the other file
        assert set(ids) == set(range(HUGE, HUGE + 100))
    else:
        assert ids == expected


def test_batches_are_the_same_on_every_road(bad, tmp_path):
    dataset, _ = bad
    want, _ = run(dataset)
    cache = tmp_path / "cache"
    roads = [
        {"cache": cache},
        {"cache": cache},
        {"num_threads": 1, "prefetch": 0},
        {"num_threads": 4, "cache": tmp_path / "other"},
        {"cache": tmp_path / "tight", "cache_limit": 40_000},
        {"world_size": 4},
        {"world_size": 4, "cache": cache},
        {"world_size": 4, "cache": tmp_path / "cold"},
    ]
    for road in roads:
        assert run(dataset, **road)[0] == want, road
    if dataset.transform is fails_on_some:
        assert run(dataset, transform_in="processes", num_threads=2)[0] == want
    for before, after in ((1, 4), (4, 1)):
        first, state = run(dataset, world_size=before, num_steps=5, cache=tmp_path / f"from {before}")
        rest, _ = run(dataset, world_size=after, state=state, cache=tmp_path / f"from {before}")
        assert first + rest == want


def test_each_is_said_once_and_raise_never_meets_it(bad, tmp_path, caplog):
    dataset, _ = bad
    cache = tmp_path / "cache"
    with stoker.Loader(dataset, batch_size=8, cache=cache, on_error="substitute") as loader:
        with caplog.at_level(logging.WARNING, logger="stoker"):
            for _ in range(2):
                assert sum(len(batch["id"]) for batch in loader) == loader.num_samples
        num = loader.stats().num_substituted
        said = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
        assert len(said) == len(set(said)) <= num
        explained = loader.explain(0)
        bad_ones = [text.partition(" are left out")[0] for text in said]
        for row, is_substituted in zip(explained, explained.is_substituted.tolist(), strict=True):
            assert is_substituted == any(f"{row.url} row group {row.row_group}" in text for text in bad_ones)
    caplog.clear()
    with (
        caplog.at_level(logging.WARNING, logger="stoker"),
        stoker.Loader(dataset, batch_size=8, cache=cache, on_error="substitute") as loader,
    ):
        assert sum(len(batch["id"]) for batch in loader) == loader.num_samples
        assert (loader.stats().num_built, loader.stats().num_substituted) == (0, num)
    assert sum("left out" in record.getMessage() for record in caplog.records) == num
    errors = (stoker.SourceCorruptError, stoker.TransformError)
    with pytest.raises(errors), stoker.Loader(dataset, batch_size=8, cache=cache) as loader:
        list(loader)


def lake(num_rows: int = ROWS) -> MemoryStorage:
    storage = MemoryStorage()
    for i in range(3):
        table = sample_table(num_rows, first=num_rows * i)
        write_parquet(storage, table, url=f"lake/{i}.parquet", compression="snappy")
    return storage


def test_what_no_other_rows_help_against_raises():
    made = lake(30_000)  # smaller files come with their footers

    def large() -> MemoryStorage:
        files = {info.url: made.read(info.url, 0, info.size_bytes) for info in made.list("lake")}
        return MemoryStorage({url: bytes(content) for url, content in files.items()})

    storage = FlakyStorage(large(), reads=range(4, 1000))  # after the three footers
    with pytest.raises(stoker.SourceError, match="connection reset"):
        stoker.Loader(stoker.Dataset("lake", storage=storage), batch_size=8, on_error="substitute")
    gone = large()
    with stoker.Loader(stoker.Dataset("lake", storage=gone), batch_size=8, on_error="substitute") as loader:
        gone.delete("lake/2.parquet")
        with pytest.raises(stoker.SourceMissingError):
            list(loader)
    changed = large()
    with stoker.Loader(stoker.Dataset("lake", storage=changed), batch_size=8, on_error="substitute") as loader:
        changed.put("lake/2.parquet", b"PAR1" + bytes(2000) + b"PAR1")
        with pytest.raises(stoker.SourceError):
            list(loader)


@pytest.mark.parametrize("error", [MemoryError, ModuleNotFoundError, FileNotFoundError(2, "no vocabulary")])
def test_a_transform_that_lacks_something_raises(error):
    def transform(table):
        if table["id"][0].as_py() >= ROWS:
            raise error
        return {"id": table["id"].to_numpy()}

    dataset = stoker.Dataset("lake", storage=lake(), transform=transform, transform_version="1")
    with stoker.Loader(dataset, batch_size=8, on_error="substitute") as loader, pytest.raises(stoker.TransformError):
        list(loader)


def test_a_transform_that_always_fails_raises_its_error():
    def transform(table):
        raise ValueError("a slip of the pen")

    dataset = stoker.Dataset("lake", storage=lake(), transform=transform, transform_version="1")
    with pytest.raises(stoker.TransformError, match="a slip of the pen"):
        stoker.Loader(dataset, batch_size=8, on_error="substitute")


def test_a_repaired_source_is_read(tmp_path):
    path = tmp_path / "data.parquet"
    pq.write_table(sample_table(3 * ROWS), path, row_group_size=ROWS)
    sound = path.read_bytes()
    damage(path, (1,), "vector")
    options = {"batch_size": 8, "cache": tmp_path / "cache", "on_error": "substitute"}
    with stoker.Loader(stoker.Dataset(path, chunk_size=2500), **options) as loader:
        ids = ids_of(loader)
    assert ids == [*range(ROWS), *range(2 * ROWS, 3 * ROWS), *range(2 * ROWS, 3 * ROWS)]
    path.write_bytes(sound)
    with stoker.Loader(stoker.Dataset(path, chunk_size=2500), **options) as loader:
        assert ids_of(loader) == list(range(3 * ROWS))
        assert loader.stats().num_substituted == 0


@pytest.mark.parametrize(
    "unit", [{"group_by": "id"}, {"weights": "half"}, {"sequence": stoker.Pack("history", length=8)}]
)
def test_what_is_counted_in_rows_is_refused_before_anything_is_read(unit):
    storage = lake()
    with pytest.raises(ValueError, match="on_error='substitute'"):
        stoker.Loader(stoker.Dataset("lake", storage=storage), batch_size=8, on_error="substitute", **unit)
    assert storage.num_calls == 0
    with pytest.raises(ValueError, match="on_error must be"):
        stoker.Loader(stoker.Dataset("lake", storage=storage), batch_size=8, on_error="skip")


def test_deduplicated_fields_and_lists_stand_in_whole(tmp_path):
    path = tmp_path / "data.parquet"
    pq.write_table(sample_table(6 * ROWS), path, row_group_size=ROWS)
    damage(path, (1, 5), "history")
    columns = ["id", "word", "vector", "history"]
    dataset = stoker.Dataset(path, chunk_size=3000, deduplicate={"word": ["vector"]}, columns=columns)
    with stoker.Loader(dataset, batch_size=16, on_error="substitute") as loader:
        batches = contents(loader, expands=False)
        assert loader.stats().num_substituted >= 2
    with stoker.Loader(dataset, batch_size=16, on_error="substitute", cache=tmp_path / "c", num_threads=1) as loader:
        check_same(contents(loader, expands=False), batches)
