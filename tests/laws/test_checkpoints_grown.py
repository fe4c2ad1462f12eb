"""Files that come while an epoch is under way: no row again before its end, every other row, old and new, once."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import training
from tests.strategies import examples

import stoker

NUM_EPOCHS = 2
COUNTED = {
    "rows": {},
    "groups": {"group_by": "group"},
    "windows": {"sequence": stoker.NGram(length=2, keys="group", overlap=False)},
    "packed": {"sequence": stoker.Pack("tokens", length=7, per_segment="id")},
}


class Lake:
    """Files that come by and by, and the ids of all of their rows."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ids: list[int] = []

    def add(self, name: str, num_rows: int) -> None:
        """Write a file, in row groups of 5 rows. Groups are pairs of rows."""
        ids = np.arange(len(self.ids), len(self.ids) + num_rows)
        self.ids += ids.tolist()
        table = pa.table(
            {
                "id": ids,
                "group": ids // 2,
                "weight": np.ones(num_rows, np.float32),
                "tokens": pa.array([[int(i)] * (1 + int(i) % 3) for i in ids], pa.list_(pa.int32())),
            }
        )
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, row_group_size=4)

    @property
    def dataset(self) -> stoker.Dataset:
        return stoker.Dataset(self.root, chunk_size=200)


def ids_in(batch) -> list[int]:
    """Return the ids of a batch, each row once that it has: those of the packed documents that begin there."""
    if "tokens" in batch and "segment_ids" in batch:
        return batch["tokens"][batch["segment_ids"] > 0].tolist()
    ids = batch["id"]
    return getattr(ids, "values", ids).ravel().tolist()


def train(dataset, state, **options):
    return training.train(dataset, state, num_epochs=NUM_EPOCHS, ids_in=ids_in, num_threads=1, **options)


moves = st.lists(
    st.tuples(
        st.integers(1, 5),  # steps
        st.integers(1, 3),  # ranks
        st.integers(1, 4),  # a lane's part of a batch
        st.lists(st.tuples(st.sampled_from("acegikmoqsuwy"), st.integers(1, 6)), max_size=2),  # files to come
    ),
    min_size=1,
    max_size=5,
)


@given(
    moves=moves,
    counted=st.sampled_from([*COUNTED]),
    shuffle=st.booleans(),
    lanes=st.integers(1, 3),
    window=st.sampled_from([1, 3, "all", None]),
)
@examples(8)
def test_a_lake_that_grows_gives_every_row_once_an_epoch_on_any_ranks(moves, counted, shuffle, lanes, window):
    with tempfile.TemporaryDirectory() as place:
        lake, state = Lake(Path(place) / "lake"), None
        seen, expected = {}, {}
        for name in ("b", "n", "z"):
            lake.add(f"{name}.parquet", 8)
        options = {"shuffle": shuffle, "seed": 5, "lanes": lanes, "window": window, "prefetch": 0} | COUNTED[counted]
        for number, (num_steps, world_size, part, files) in enumerate([*moves, (10**9, 1, 5, [])]):
            steps, state = train(
                lake.dataset, state, num_steps=num_steps, world_size=world_size, allow={"files"},
                global_batch_size=part * lanes, **options,
            )  # fmt: skip
            for epoch, ids in steps:
                seen[epoch] = seen.get(epoch, []) + ids
                expected[epoch] = sorted(i for i in lake.ids for _ in range(1 + i % 3 if counted == "packed" else 1))
            if json.loads(state)["epoch"] == NUM_EPOCHS:
                break
            for letter, rows in files:
                lake.add(f"{letter}-{number}-{len(lake.ids)}.parquet", 2 * rows)
        assert {epoch: sorted(ids) for epoch, ids in seen.items()} == expected


@pytest.fixture
def lake(tmp_path):
    lake = Lake(tmp_path / "lake")
    for name in ("b", "n", "z"):
        lake.add(f"{name}.parquet", 24)
    return lake


OPTIONS = {"global_batch_size": 5, "shuffle": True, "seed": 3, "prefetch": 0}


def test_the_old_rows_come_as_they_would_have_and_the_new_ones_behind_them(lake):
    uncut, _ = train(lake.dataset, None, num_steps=10**9, **OPTIONS)
    rest = [i for epoch, ids in uncut if epoch == 0 for i in ids][4 * 5 :]
    _, state = train(lake.dataset, None, num_steps=4, **OPTIONS)
    lake.add("a.parquet", 10)
    steps, _ = train(lake.dataset, state, num_steps=10**9, allow={"files"}, **OPTIONS)
    ids = [i for epoch, ids in steps if epoch == 0 for i in ids]
    assert ids[: len(rest)] == rest
    assert sorted(ids[len(rest) :]) == list(range(72, 82))
    assert ids[len(rest) :] != list(range(72, 82))
    assert sorted(i for epoch, ids in steps if epoch == 1 for i in ids) == lake.ids
    # The next epoch is that of a loader which has had all files from the beginning.
    fresh, _ = train(lake.dataset, None, num_steps=10**9, **OPTIONS)
    assert [ids for epoch, ids in steps if epoch == 1] == [ids for epoch, ids in fresh if epoch == 1]


def test_steps_of_a_grown_epoch_are_explained_and_rows_are_found_in_them(lake):
    _, state = train(lake.dataset, None, num_steps=4, **OPTIONS)
    lake.add("a.parquet", 10)
    with stoker.Loader(lake.dataset, batch_size=5, shuffle=True, seed=3, prefetch=0) as loader:
        loader.load_state_dict(json.loads(state), allow={"files"})
        batches = [batch["id"].tolist() for batch in loader]
        loader.load_state_dict(json.loads(state), allow={"files"})
        assert loader.stats().epoch_steps == 17
        for step in (4, 10, 16):
            found = loader.explain(step)
            rows = [lake.ids.index(i) for i in batches[step - 4]]
            tables = {url: pq.read_table(url)["id"].to_pylist() for url in found.urls}
            got = [tables[row.url][row.row_group * 4 + row.row] for row in found]
            assert got == rows
        url = str(lake.root / "a.parquet")
        assert loader.find(url, 0, 0).step == 4 + next(n for n, ids in enumerate(batches) if 72 in ids)


def refused(dataset, state, *, allow=frozenset({"files"}), **options) -> str:
    return training.refused(dataset, state, allow=allow, **(OPTIONS | options))


def test_without_a_word_the_error_names_the_files_and_the_word(lake):
    _, state = train(lake.dataset, None, num_steps=4, **OPTIONS)
    lake.add("a.parquet", 10)
    words = refused(lake.dataset, state, allow=())
    assert "1 file more: a.parquet. Load it into a loader of what was saved, go on " in words
    assert "load_state_dict(state, allow={'files'})" in words


def test_files_that_are_gone_or_changed_are_refused_in_mid_epoch_and_not_at_its_beginning(lake):
    _, state = train(lake.dataset, None, num_steps=4, **OPTIONS)
    _, end = train(lake.dataset, None, num_steps=15, **OPTIONS)
    (lake.root / "n.parquet").unlink()
    words = refused(lake.dataset, state)
    assert "1 file fewer (an epoch under way keeps the files that it began with)" in words
    steps, _ = train(lake.dataset, end, num_steps=10**9, allow={"files"}, **OPTIONS)
    assert sorted(i for _, ids in steps for i in ids) == [*range(24), *range(48, 72)]


def test_draws_by_weight_are_refused_in_mid_epoch(lake):
    _, state = train(lake.dataset, None, num_steps=4, weights="weight", **OPTIONS)
    lake.add("a.parquet", 10)
    assert "1 file more: a.parquet (draws by weight" in refused(lake.dataset, state, weights="weight")


def test_a_state_whose_segments_have_other_samples_than_their_files_is_refused(lake):
    _, state = train(lake.dataset, None, num_steps=4, **OPTIONS)
    lake.add("a.parquet", 10)
    _, state = train(lake.dataset, state, num_steps=1, allow={"files"}, **OPTIONS)
    saved = json.loads(state)
    assert saved["datasets"][0]["segment_sizes"] == [72, 10]
    saved["datasets"][0]["segment_sizes"] = [73, 9]
    words = refused(lake.dataset, json.dumps(saved))
    assert "its segments have (73, 9) samples, and the files that came with them (72, 10)" in words


@pytest.mark.parametrize(("allow", "error"), [({"file"}, ValueError), ("files", TypeError), (3, TypeError)])
def test_words_that_mean_nothing_are_wrong_arguments(lake, allow, error):
    with stoker.Loader(lake.dataset, **OPTIONS) as loader, pytest.raises(error, match="allow"):
        loader.load_state_dict(loader.state_dict(), allow=allow)
