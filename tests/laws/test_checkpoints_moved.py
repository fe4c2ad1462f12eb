"""A state goes on wherever the same rows lie, whatever is made of them; of another order, it says what differs.

Every row is counted by its id: what came before the state was saved, and what comes after, is one epoch of the order.
"""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests import training
from tests.batches import ids_of

import stoker
from stoker.testing import MemoryStorage

OPTIONS = {"batch_size": 7, "shuffle": True, "seed": 3, "prefetch": 0, "num_threads": 1}
NUM_BEFORE = 4


def table_of(first: int, num: int) -> pa.Table:
    ids = np.arange(first, first + num)
    return pa.table(
        {
            "id": ids,
            "x": ids.astype(np.float32),
            "group": pa.array((ids // 3).tolist()),
            "weight": (ids % 5).astype(np.float32),
            "tokens": pa.array([[int(i)] * (1 + int(i) % 4) for i in ids], pa.list_(pa.int32())),
        }
    )


def write_lake(root, *, num_files=6, rows=20, first=0):
    """Write files in folders of partitions."""
    for number in range(num_files):
        path = root / (f"day={number % 3}") / f"part-{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table_of(first + number * rows, rows), path, row_group_size=8)
    return root


def begun(dataset, **options):
    """Return the ids of some steps, the rest of the epoch and all of the next one, and the state between."""
    with stoker.Loader(dataset, **(OPTIONS | options)) as loader:
        batches = iter(loader)
        before = ids_of(next(batches) for _ in range(NUM_BEFORE))
        state = json.dumps(loader.state_dict())
        return before, ids_of(batches), ids_of(loader), state


def gone_on(dataset, state, **options):
    with stoker.Loader(dataset, **(OPTIONS | options)) as loader:
        loader.load_state_dict(json.loads(state))
        return ids_of(loader), ids_of(loader)


def refused(dataset, state, **options) -> str:
    return training.refused(dataset, state, **(OPTIONS | options))


@pytest.fixture
def lake(tmp_path):
    return write_lake(tmp_path / "lake")


def copied(lake, tmp_path):
    return stoker.Dataset(shutil.copytree(lake, tmp_path / "scratch" / "job=12" / "copy"))


def linked(lake, tmp_path):
    (tmp_path / "link").symlink_to(lake)
    return stoker.Dataset(tmp_path / "link")


def touched(lake, tmp_path):
    for path in lake.rglob("*.parquet"):
        os.utime(path, ns=(1, 1))
    return stoker.Dataset(lake)


def matched_by_a_glob(lake, tmp_path):
    return stoker.Dataset(f"{lake}/**/*.parquet")


def listed(lake, tmp_path):
    return stoker.Dataset([str(path) for path in lake.rglob("*.parquet")])


def written_anew(lake, tmp_path):
    for path in lake.rglob("*.parquet"):
        pq.write_table(pq.read_table(path, partitioning=None), path, row_group_size=8, compression="zstd")
    return stoker.Dataset(lake)


def in_a_store(lake, tmp_path):
    storage = MemoryStorage()
    for path in lake.rglob("*.parquet"):
        storage.put(f"s3://bucket/a/b/{path.relative_to(lake)}", path.read_bytes())
    return stoker.Dataset("s3://bucket/a/b", storage=storage)


def beside_empty_files(lake, tmp_path):
    pq.write_table(table_of(0, 0), lake / "day=1" / "nothing.parquet")
    return stoker.Dataset(lake)


MOVES = [copied, linked, touched, matched_by_a_glob, listed, written_anew, in_a_store, beside_empty_files]


@pytest.mark.parametrize("move", MOVES)
def test_the_same_files_elsewhere_are_the_same_order(lake, tmp_path, move):
    before, rest, following, state = begun(stoker.Dataset(lake), cache=tmp_path / "cache")
    assert sorted(before + rest) == list(range(120))
    moved = move(lake, tmp_path)
    assert gone_on(moved, state, cache=tmp_path / "cache") == (rest, following)


COUNTED = {
    "rows": {},
    "groups": {"group_by": "group"},
    "draws": {"weights": "weight"},
    "windows": {"sequence": stoker.NGram(length=2, keys="group")},
}


@pytest.mark.parametrize("counted", COUNTED)
def test_a_move_keeps_the_order_whatever_is_counted(lake, tmp_path, counted):
    _, rest, following, state = begun(stoker.Dataset(lake), **COUNTED[counted])
    assert gone_on(copied(lake, tmp_path), state, **COUNTED[counted]) == (rest, following)


@pytest.mark.parametrize(
    "options",
    [
        {"columns": ["id"]},
        {"fields": {"x": "float16"}},
        {"transform": lambda table: table.select(["id"]), "transform_version": "2"},
        {"deduplicate": {"group": ["group"]}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_is_made_of_the_rows_is_no_part_of_the_order(lake, options):
    _, rest, following, state = begun(stoker.Dataset(lake))
    assert gone_on(stoker.Dataset(lake, **options), state) == (rest, following)


def test_a_loader_made_without_a_window_takes_that_of_the_state(lake):
    _, rest, following, state = begun(stoker.Dataset(lake), window=2)
    assert gone_on(stoker.Dataset(lake), state) == (rest, following)
    assert "the window was 2 and is 3" in refused(stoker.Dataset(lake), state, window=3)


def test_one_folder_named_among_others_is_the_same_files_and_the_others_are_more(tmp_path):
    lake = tmp_path / "lake"
    *_, state = begun(stoker.Dataset(write_lake(lake / "monday", num_files=2)))
    write_lake(lake / "tuesday", num_files=1, first=100)
    words = refused(stoker.Dataset([lake / "monday", lake / "tuesday"]), state)
    assert "1 file more: tuesday/day=0/part-0.parquet." in words
    *_, state = begun(stoker.Dataset([lake / "monday", lake / "tuesday"]))
    assert "order: 1 file fewer." in refused(stoker.Dataset(lake / "monday"), state)


def test_an_error_names_the_files_that_differ(lake, tmp_path):
    *_, state = begun(stoker.Dataset(lake))
    write_lake(lake, num_files=9)
    (lake / "day=0" / "part-0.parquet").unlink()
    pq.write_table(table_of(20, 20), lake / "day=1" / "part-1.parquet", row_group_size=5)
    pq.write_table(table_of(20, 19), lake / "day=2" / "part-2.parquet")
    words = refused(stoker.Dataset(lake), state)
    assert "3 files more: day=0/part-6.parquet, day=1/part-7.parquet, day=2/part-8.parquet; 1 file fewer; " in words
    assert ": day=2/part-2.parquet" in words


def test_an_error_names_the_filter_and_all_settings_that_differ(lake):
    *_, state = begun(stoker.Dataset(lake, filters=[("id", ">=", 10)]))
    words = refused(stoker.Dataset(lake, filters=[("id", ">=", 11)]), state, seed=4, lanes=7)
    for part in ("the seed was 3 and is 4", "lanes was 1 and is 7", "the filter was id >= 10", "and is id >= 11"):
        assert part in words


def test_files_of_other_names_are_another_data_set(lake, tmp_path):
    *_, state = begun(stoker.Dataset(lake))
    other = write_lake(tmp_path / "other")
    for path in [*other.rglob("*.parquet")]:
        path.rename(path.with_name(f"other-{path.name}"))
    assert "none of its 6 files" in refused(stoker.Dataset(other), state)


def test_a_mixture_goes_on_elsewhere_and_names_what_differs(lake, tmp_path):
    def mixture(root, weights=(2, 1), **options):
        options["columns"] = ["id"]
        parts = {"web": stoker.Dataset(root, columns=["id"]), "code": stoker.Dataset(root / "day=0", **options)}
        return stoker.Mixture(parts, weights=dict(zip(parts, weights, strict=True)))

    _, rest, following, state = begun(mixture(lake))
    moved = shutil.copytree(lake, tmp_path / "copy")
    assert gone_on(mixture(moved, (4, 2)), state) == (rest, following)
    write_lake(moved, num_files=7)
    words = refused(mixture(moved, (1, 1), filters=[("id", ">", 1)]), state)
    assert "the mixture's weights were web: 2/3, code: 1/3 and are web: 1/2, code: 1/2" in words
    assert "1 file more: day=0/part-6.parquet in 'web'" in words
    assert "1 file more: part-6.parquet in 'code'" in words
    assert "the filter was none and is id > 1" in words


def test_a_state_is_small_and_says_nothing_of_where_files_lie(lake):
    *_, state = begun(stoker.Dataset(lake))
    assert len(state) < 600
    assert "lake" not in state
