"""Mixtures of groups, windows, packed rows and draws: each data set's units come as they would alone."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.laws.test_units_loader import KINDS, units_in
from tests.laws.units_data import write
from tests.oracles.order_page import page
from tests.strategies import flat

import stoker

RUNS = {
    "web": [([(0, 5), (1, 3), (2, 9), (3, 2), (0, 1)], 8), ([(1, 7), (2, 2)], 3)],
    "code": [([(2, 4), (1, 1), (0, 6)], 1000)],
    "books": [([(3, 9), (1, 9)], 20)],
}
OPTIONS = {"shuffle": True, "seed": 5, "window": 2}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("mixed-units")


@pytest.fixture(scope="module")
def datasets(place):
    made = {}
    for seed, (name, files) in enumerate(RUNS.items()):
        drawn = {"files": files, "chunk_size": 700, "is_filtered": False, "seed": seed}
        made[name] = write(place / name, drawn)
    return made


def batches_of(dataset, kind, **options) -> list[dict]:
    with stoker.Loader(dataset, **(OPTIONS | KINDS[kind] | options)) as loader:
        return list(loader)


def units_with_sources(batches, kind) -> list[tuple[int, tuple]]:
    found = []
    for batch in batches:
        sources = batch.pop("source").tolist()
        units = units_in(kind, batch)
        assert len(units) == len(sources)
        found += zip(sources, units, strict=True)
    return found


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_data_sets_units_come_as_they_would_alone(kind, place, datasets):
    mixture = stoker.Mixture(datasets, source_field="source")
    cache = place / "cache"
    with stoker.Loader(mixture, batch_size=7, cache=cache, **OPTIONS, **KINDS[kind]) as loader:
        epochs = [units_with_sources(loader, kind) for _ in range(2)]
        assert loader.units.num_units == len(epochs[0]) == len(epochs[1]) > 3
    for number, (name, dataset) in enumerate(datasets.items()):
        seed = page.order_key(OPTIONS["seed"], 0, f"mixture:{name}")
        options = OPTIONS | {"seed": seed} | KINDS[kind]
        with stoker.Loader(dataset, batch_size=1000, cache=cache, **options) as loader:
            for units in epochs:
                alone = [unit for batch in loader for unit in units_in(kind, batch)]
                assert [unit for source, unit in units if source == number] == alone


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_mixed_units_are_the_same_on_any_ranks_and_threads_and_after_a_resume(kind, place, datasets, tmp_path):
    mixture = stoker.Mixture(datasets, weights={"web": 3, "code": 2, "books": 1}, until="last", source_field="source")
    cache = place / "cache"
    expected = batches_of(mixture, kind, batch_size=6, num_threads=1, prefetch=0, cache=cache)
    for options in ({"num_threads": 7}, {"cache": tmp_path / "cold"}, {"cache": None}):
        got = batches_of(mixture, kind, batch_size=6, **({"cache": cache} | options))
        for one, other in zip(got, expected, strict=True):
            assert one.keys() == other.keys()
            for name in one:
                for a, b in zip(flat(one[name]), flat(other[name]), strict=True):
                    assert a.dtype == b.dtype
                    np.testing.assert_array_equal(a, b)
    whole = units_with_sources(expected, kind)
    by_rank = [
        batches_of(mixture, kind, global_batch_size=6, rank=rank, world_size=4, cache=cache) for rank in range(4)
    ]
    together = [one for step in zip(*by_rank, strict=True) for one in units_with_sources(step, kind)]
    assert together == whole

    for cut in range(0, len(expected), 6):
        options = OPTIONS | KINDS[kind] | {"cache": cache}
        with stoker.Loader(mixture, batch_size=6, **options) as loader:
            seen = [batch for _, batch in zip(range(cut), loader, strict=False)]
            state = json.loads(json.dumps(loader.state_dict()))
        with stoker.Loader(mixture, batch_size=11, **options) as loader:
            loader.load_state_dict(state)
            rest = list(loader)
        assert units_with_sources(seen, kind) + units_with_sources(rest, kind) == whole


@pytest.mark.parametrize("kind", ["group", "windows", "packed", "weights"])
def test_explain_names_every_row_of_mixed_units(kind, place, datasets):
    mixture = stoker.Mixture(datasets, weights={"web": 3, "code": 2, "books": 1}, source_field="source")
    with stoker.Loader(mixture, batch_size=6, cache=place / "cache", **OPTIONS, **KINDS[kind]) as loader:
        for step, batch in enumerate(loader):
            explanation = loader.explain(step, epoch=0)
            sources = batch.pop("source")
            assert [list(datasets).index(row.dataset) for row in explanation] == sources[explanation.unit].tolist()
            if kind == "group":
                assert explanation.unit.tolist() == np.repeat(
                    np.arange(len(sources)), np.diff(batch["group_offsets"])
                ).tolist()  # fmt: skip
            if kind in ("group", "weights"):
                found = [
                    pq.ParquetFile(row.url).read_row_group(row.row_group, columns=["id"])["id"][row.row].as_py()
                    for row in explanation
                ]
                assert found == batch["id"].tolist()


@pytest.mark.parametrize(
    ("kind", "lanes"),
    [
        *((kind, 1 if kind == "timed" else 2) for kind in sorted(KINDS)),  # of the former there is one window alone
        *(pytest.param(kind, 1, marks=pytest.mark.slow) for kind in sorted(KINDS) if kind != "timed"),
    ],
)
def test_find_is_the_inverse_of_explain_for_mixed_units(kind, lanes, place, datasets):
    mixture = stoker.Mixture(datasets, weights={"web": 3, "code": 2, "books": 1}, until="last")
    options = {"cache": place / "cache", "lanes": lanes, **OPTIONS, **KINDS[kind]}
    for epoch in (0, 1):
        used: dict[tuple, list] = {}
        for rank in range(3):
            with stoker.Loader(mixture, global_batch_size=8, rank=rank, world_size=3, **options) as loader:
                for step in range(len(loader)):
                    explanation = loader.explain(step, epoch=epoch)
                    stands = {
                        (*row[:3], unit) for row, unit in zip(explanation, explanation.unit.tolist(), strict=True)
                    }
                    for url, row_group, row, _ in stands:
                        used.setdefault((url, row_group, row), []).append((step, rank))
        with stoker.Loader(mixture, global_batch_size=8, rank=0, world_size=3, **options) as loader:
            for row in rows_of(place):
                uses = loader.find_all(*row, epoch=epoch)
                found = [(use.step, use.rank) for use in uses if use.step is not None]
                assert found == sorted(used.get(row, []))
                assert loader.find(*row, epoch=epoch) == uses[0]


def rows_of(place):
    """Return file, row group and row of every row of the data sets."""
    for path in [path for name in RUNS for path in sorted((place / name).rglob("*.parquet"))]:
        metadata = pq.read_metadata(path)
        for group in range(metadata.num_row_groups):
            for row in range(metadata.row_group(group).num_rows):
                yield str(path), group, row
