"""Mixtures that go on by other weights, over more files and other data sets: exact by the ids of rows.

Each data set's rows are counted through its own epochs, each of which has every row once.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
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

OPTIONS = {"global_batch_size": 6, "shuffle": True, "seed": 3, "num_threads": 1, "prefetch": 0}
SIZES = {"web": 60, "code": 45, "books": 9}


class Lakes:
    """Data sets that grow; ids say which one a row is of, and count its rows."""

    def __init__(self, root: Path, sizes=SIZES) -> None:
        self.root, self.sizes = root, {}
        for name, size in sizes.items():
            self.add(name, size - size // 3, "m")
            self.add(name, size // 3, "q")

    def add(self, name: str, num_rows: int, letter: str) -> None:
        first = self.sizes.get(name, 0)
        ids = 1000 * [*SIZES, "more"].index(name) + np.arange(first, first + num_rows)
        (self.root / name).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": ids}), self.root / name / f"{letter}-{first}.parquet", row_group_size=4)
        self.sizes[name] = first + num_rows

    def mixture(self, weights, until="first", names=None) -> stoker.Mixture:
        parts = {name: stoker.Dataset(self.root / name, chunk_size=100) for name in names or self.sizes}
        return stoker.Mixture(parts, weights=weights, until=until)

    def rows(self, name: str) -> list[int]:
        return [1000 * [*SIZES, "more"].index(name) + i for i in range(self.sizes[name])]


def train(mixture, state, **options):
    return training.train(mixture, state, **(OPTIONS | options))


def of(steps, name, epoch=None) -> list[int]:
    number = [*SIZES, "more"].index(name)
    return [i for e, ids in steps for i in ids if i // 1000 == number and epoch in (None, e)]


@pytest.fixture
def lakes(tmp_path):
    return Lakes(tmp_path)


def test_other_weights_decide_the_rest_of_the_epoch_and_no_row_comes_again(lakes):
    before, state = train(lakes.mixture({"web": 4, "code": 2, "books": 0.4}), None, num_steps=6)
    after, _ = train(
        lakes.mixture({"web": 1, "code": 1, "books": 0.1}), state, num_steps=60, world_size=2, allow={"weights"}
    )
    rest = [ids for epoch, ids in after if epoch == 0]
    shares = Counter(i // 1000 for ids in rest for i in ids)
    # 36 rows came, 23 of web and 11 of code: of the others, 37 and 34, code's are used up first.
    assert shares[1] == 45 - len(of(before, "code"))
    assert shares[0] == shares[1]
    for name in ("web", "code"):
        epoch = of(before + after, name, epoch=0)
        assert len(epoch) == len(set(epoch))
    assert sorted(of(before + after, "code", epoch=0)) == lakes.rows("code")
    for name, size in lakes.sizes.items():
        stream = of(before + after, name)
        for start in range(0, len(stream) - size + 1, size):
            assert sorted(stream[start : start + size]) == lakes.rows(name)


def test_each_data_set_goes_on_in_its_own_order(lakes):
    weights = {"web": 4, "code": 2, "books": 0.4}
    uncut, _ = train(lakes.mixture(weights), None, num_steps=40)
    before, state = train(lakes.mixture(weights), None, num_steps=6)
    after, _ = train(lakes.mixture(weights | {"books": 2}), state, num_steps=20, allow={"weights"})
    for name in SIZES:
        stream = of(before + after, name)
        assert stream == of(uncut, name)[: len(stream)] or len(stream) > len(of(uncut, name))


def test_a_state_of_a_reweighted_epoch_is_resumed_exactly_and_explained(lakes):
    _, state = train(lakes.mixture({"web": 4, "code": 2, "books": 0.4}), None, num_steps=6)
    mixture = lakes.mixture({"web": 1, "code": 3, "books": 0.1})
    uncut, _ = train(mixture, state, num_steps=40, allow={"weights"})
    first, state = train(mixture, state, num_steps=4, allow={"weights"})
    rest, _ = train(mixture, state, num_steps=36, world_size=3)
    assert first + rest == uncut
    with stoker.Loader(mixture, **OPTIONS) as loader:
        loader.load_state_dict(json.loads(state))
        batches = [batch["id"].tolist() for batch in loader]
        loader.load_state_dict(json.loads(state))
        for step, ids in enumerate(batches):
            found = loader.explain(4 + step)
            got = [pq.read_table(row.url)["id"][row.row_group * 4 + row.row].as_py() for row in found]
            assert got == ids


@pytest.mark.parametrize("remainder", ["pad", "drop"])
def test_remainders_of_a_reweighted_epoch_are_those_of_any_other(lakes, remainder):
    _, state = train(lakes.mixture({"web": 4, "code": 2, "books": 0.4}), None, num_steps=6)
    mixture = lakes.mixture({"web": 1, "code": 1, "books": 0.1})
    with stoker.Loader(mixture, remainder=remainder, **(OPTIONS | {"global_batch_size": 16})) as loader:
        loader.load_state_dict(json.loads(state), allow={"weights"})
        batches = list(loader)
        assert loader.epoch == 1
    assert [len(batch["id"]) for batch in batches] == [16] * (5 if remainder == "pad" else 4)
    kept = [i for batch in batches for i in batch["id"][batch.get("sample_mask", np.ones(16, bool))].tolist()]
    for number in (0, 1):
        ids = [i for i in kept if i // 1000 == number]
        assert len(ids) == len(set(ids))


def test_data_sets_come_and_go(lakes):
    before, state = train(lakes.mixture({"web": 4, "code": 2, "books": 0.4}), None, num_steps=6)
    lakes.add("more", 50, "m")
    names = ("web", "more", "code")
    mixture = lakes.mixture({"web": 2, "more": 2, "code": 1}, names=names)
    after, _ = train(mixture, state, num_steps=40, allow={"files", "weights"})
    assert not of(after, "books")
    assert len(set(of(before + after, "web")[:60])) == 60
    assert len(set(of(after, "more")[:50])) == 50


def test_without_weights_a_grown_mixture_gives_every_row_once(lakes):
    before, state = train(lakes.mixture(None), None, num_steps=6)
    lakes.add("code", 8, "a")
    lakes.add("books", 3, "z")
    after, state = train(lakes.mixture(None), state, num_steps=5, world_size=2, allow={"files"})
    lakes.add("web", 9, "n")
    rest, _ = train(lakes.mixture(None), state, num_steps=60, allow={"files"})
    for epoch in (0, 1):
        ids = [i for e, ids in before + after + rest for i in ids if e == epoch]
        assert sorted(ids) == sorted(i for name in lakes.sizes for i in lakes.rows(name))


def refused(mixture, state, allow=(), **options) -> str:
    return training.refused(mixture, state, allow=allow, **(OPTIONS | options))


def test_an_error_names_the_word_that_lets_it_go_on(lakes):
    weights = {"web": 4, "code": 2, "books": 1}
    _, state = train(lakes.mixture(weights), None, num_steps=3)
    words = refused(lakes.mixture(weights | {"web": 3}), state)
    assert "web: 4/7" in words
    assert "allow={'weights'}" in words
    lakes.add("code", 6, "z")
    words = refused(lakes.mixture(weights), state)
    assert "1 file more: z-45.parquet in 'code'" in words
    assert "allow={'files'}" in words
    assert "data sets of the mixture were" in refused(lakes.mixture({"web": 1}, names=["web"]), state, {"weights"})


def test_a_mixture_in_lanes_keeps_its_weights_and_files(lakes):
    weights = {"web": 4, "code": 2, "books": 1}
    _, state = train(lakes.mixture(weights), None, num_steps=3, lanes=2)
    other = lakes.mixture(weights | {"web": 3})
    assert "in several lanes cannot go on" in refused(other, state, {"weights"}, lanes=2)


@given(
    moves=st.lists(
        st.tuples(
            st.integers(1, 9),  # steps
            st.integers(1, 3),  # ranks
            st.lists(st.integers(1, 6), min_size=3, max_size=3) | st.none(),  # weights, None as they are
            st.sampled_from(["first", "last"]),
            st.lists(st.tuples(st.sampled_from(list(SIZES)), st.integers(1, 9), st.sampled_from("aoz")), max_size=2),
        ),
        min_size=1,
        max_size=5,
    ),
    shuffle=st.booleans(),
    window=st.sampled_from([1, "all", None]),
)
@examples(4)
def test_each_epoch_of_each_data_set_has_each_of_its_rows_once_whatever_happens(moves, shuffle, window):
    """A data set's stream is cut where one of its own epochs ends: behind as many rows as it had by then."""
    with tempfile.TemporaryDirectory() as place:
        lakes, state = Lakes(Path(place)), None
        weights = {"web": 3, "code": 2, "books": 1}
        now: dict[str, list[int]] = {name: [] for name in SIZES}
        for num_steps, world_size, others, until, files in [*moves, (40, 1, None, "first", [])]:
            weights = weights if others is None else dict(zip(SIZES, others, strict=True))
            steps, state = train(
                lakes.mixture(weights, until), state, num_steps=num_steps, world_size=world_size,
                allow={"files", "weights"}, shuffle=shuffle, window=window,
            )  # fmt: skip
            for name in SIZES:
                for i in of(steps, name):
                    assert i not in now[name]
                    now[name].append(i)
                    if len(now[name]) == lakes.sizes[name]:
                        now[name] = []
            for name, num_rows, letter in files:
                lakes.add(name, num_rows, letter)
