"""Mixed data sets on the whole path: each one's share, cut and resumed anywhere, explained."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.oracles.order_page import page
from tests.strategies import check_samples, sample_table

import stoker

# Ids say which data set a sample is of: thousands for web, ten thousands for code, hundred thousands for books.
FIRST = {"web": 1000, "code": 10_000, "books": 100_000}
SIZES = {"web": [100, 0, 157], "code": [64, 1, 90], "books": [33]}
TOTALS = {name: sum(sizes) for name, sizes in SIZES.items()}
WEIGHTS = {"web": 5, "code": 3, "books": 0.5}
OPTIONS = {"shuffle": True, "seed": 3, "window": 2}


def write_mixed(folder: Path) -> None:
    for name, sizes in SIZES.items():
        first = FIRST[name]
        (folder / name).mkdir()
        for i, size in enumerate(sizes):
            pq.write_table(sample_table(size, first=first), folder / name / f"part-{i}.parquet", row_group_size=40)
            first += size


@pytest.fixture(scope="module")
def place():
    with tempfile.TemporaryDirectory() as path:
        write_mixed(Path(path))
        yield Path(path)


def mixture_of(place, *, names=("web", "code", "books"), filters=None, **options) -> stoker.Mixture:
    datasets = {name: stoker.Dataset(place / name, chunk_size=4000, filters=filters) for name in names}
    weights = options.pop("weights", WEIGHTS)
    weights = weights and {name: weights[name] for name in names}
    return stoker.Mixture(datasets, weights=weights, source_field="source", **options)


def whose(ids) -> list[int]:
    return [sum(i >= FIRST[name] for name in ("code", "books")) for i in np.asarray(ids).tolist()]


def epochs_of(mixture, *, num_epochs=1, **options) -> list[list[dict]]:
    with stoker.Loader(mixture, **(OPTIONS | options)) as loader:
        epochs = []
        for _ in range(num_epochs):
            epochs.append(list(loader))
            assert len(epochs[-1]) == len(loader)
        for batch in (batch for epoch in epochs for batch in epoch):
            check_samples(batch)
            assert batch["source"].dtype == np.int32
            assert batch["source"].tolist() == whose(batch["id"])
        return epochs


def ids_of(batches) -> list[int]:
    return [i for batch in batches for i in batch["id"].tolist()]


def test_no_sample_comes_again_before_its_data_set_has_been_through(place):
    epochs = epochs_of(mixture_of(place), num_epochs=7, batch_size=50, cache=place / "cache")
    assert len({tuple(ids_of(batches)) for batches in epochs}) == 7
    ids = [i for batches in epochs for i in ids_of(batches)]
    for number, name in enumerate(FIRST):
        stream = [i for i in ids if whose([i]) == [number]]
        rounds = [stream[at : at + TOTALS[name]] for at in range(0, len(stream), TOTALS[name])]
        every = list(range(FIRST[name], FIRST[name] + TOTALS[name]))
        assert all(sorted(one) == every for one in rounds[:-1])
        assert len(set(rounds[-1])) == len(rounds[-1])
        assert len({tuple(one[:20]) for one in rounds if len(one) >= 20}) == sum(len(one) >= 20 for one in rounds)


@pytest.mark.parametrize("until", ["first", "last"])
def test_shares_are_those_of_the_weights_and_one_data_set_comes_exactly_once(place, until):
    (batches,) = epochs_of(mixture_of(place, until=until), batch_size=40, cache=place / "cache")
    counts = Counter(whose(ids_of(batches)))
    ends = min(TOTALS, key=lambda name: TOTALS[name] / WEIGHTS[name]) if until == "first" else "books"
    number = list(FIRST).index(ends)
    scale = TOTALS[ends] / WEIGHTS[ends]
    assert [counts[i] for i in range(3)] == [int(scale * weight + 0.5) for weight in WEIGHTS.values()]
    assert len({i for i in ids_of(batches) if whose([i]) == [number]}) == TOTALS[ends] == counts[number]


def test_without_weights_every_sample_comes_once_an_epoch(place):
    for lanes in (1, 4):
        for batches in epochs_of(
            mixture_of(place, weights=None), num_epochs=2, global_batch_size=40, lanes=lanes, cache=place / "cache"
        ):
            every = [i for name in FIRST for i in range(FIRST[name], FIRST[name] + TOTALS[name])]
            assert sorted(ids_of(batches)) == every


@pytest.mark.parametrize("filters", [None, [("flag", "==", True)]])
@pytest.mark.parametrize("until", ["first", "last"])
def test_cut_at_every_step_the_rest_is_the_same_on_other_ranks_and_batch_sizes(place, until, filters):
    mixture = mixture_of(place, until=until, filters=filters)
    options = OPTIONS | {"cache": place / "cache"}
    with stoker.Loader(mixture, batch_size=36, **options) as loader:
        states, uncut = [loader.state_dict()], []
        for batch in loader:
            uncut += batch["id"].tolist()
            states.append(json.loads(json.dumps(loader.state_dict())))
        after = ids_of(loader)
    assert states[-1]["epoch"] == 1
    for number, state in enumerate(states):
        world_size, batch_size = 1 + number % 3, 7 + 5 * number
        rest = []
        for rank in range(world_size):
            with stoker.Loader(mixture, batch_size=batch_size, rank=rank, world_size=world_size, **options) as loader:
                loader.load_state_dict(state)
                assert loader.state_dict() == state
                rest.append([batch["id"].tolist() for batch in loader])
        assert len({len(batches) for batches in rest}) == 1
        together = [i for step in zip(*rest, strict=True) for ids in step for i in ids]
        assert together == (uncut[36 * number :] if number + 1 < len(states) else after)


@pytest.mark.parametrize("remainder", ["keep", "drop", "pad"])
@pytest.mark.parametrize("lanes", [1, 2])
def test_remainders_are_those_of_one_data_set(place, remainder, lanes):
    options = {"global_batch_size": 64, "remainder": remainder, "lanes": lanes, "cache": place / "cache"}
    (whole,) = epochs_of(mixture_of(place, until="last"), **(options | {"remainder": "keep"}))
    (batches,) = epochs_of(mixture_of(place, until="last"), **options)
    for one, other in zip(batches[:-1], whole, strict=False):
        assert one["id"].tolist() == other["id"].tolist()
    if remainder == "pad":
        mask = np.concatenate([batch["sample_mask"] for batch in batches])
        assert {len(batch["id"]) for batch in batches} == {64}
        assert sorted(np.array(ids_of(batches))[mask].tolist()) == sorted(ids_of(whole))
        part = 64 // lanes
        for lane in range(lanes):
            at = slice(part * lane, part * lane + part)
            padding = batches[-1]["id"][at][~batches[-1]["sample_mask"][at]]
            assert padding.tolist() == batches[0]["id"][at][: len(padding)].tolist()
    elif remainder == "drop":
        assert {len(batch["id"]) for batch in batches} == {64}
        assert len(batches) == len(ids_of(whole)) // 64


@pytest.mark.parametrize("until", ["first", "last"])
def test_explain_names_data_set_file_and_row_of_every_sample_and_find_is_its_inverse(place, until):
    options = OPTIONS | {"batch_size": 30, "rank": 1, "world_size": 2, "cache": place / "cache", "lanes": 2}
    with stoker.Loader(mixture_of(place, until=until), **options) as loader:
        used: dict[tuple, list[int]] = {}
        for epoch in range(2):
            for step, batch in enumerate(loader):
                explanation = loader.explain(step, epoch=epoch)
                assert len(explanation) == len(batch["id"])
                for found, sample in zip(explanation, batch["id"].tolist(), strict=True):
                    table = pq.ParquetFile(found.url).read_row_group(found.row_group, columns=["id"])
                    assert table["id"][found.row].as_py() == sample
                    assert found.dataset == list(FIRST)[whose([sample])[0]]
                    used.setdefault((epoch, found.url, found.row_group, found.row), []).append(step)
        for (epoch, url, row_group, row), steps in list(used.items())[::17]:
            uses = loader.find_all(url, row_group, row, epoch=epoch)
            assert [use.step for use in uses if use.rank == 1] == steps
            assert {use.epoch for use in uses} == {epoch}
            assert loader.find(url, row_group, row, epoch=epoch) == uses[0]


def test_a_row_that_an_epoch_does_not_use_is_found_in_none_of_its_steps(place):
    with stoker.Loader(mixture_of(place), batch_size=30, cache=place / "cache", **OPTIONS) as loader:
        used = {i for i in ids_of(loader) if i >= FIRST["books"]}
        found = [loader.find("books/part-0.parquet", 0, row, epoch=0).step is not None for row in range(33)]
        assert found == [FIRST["books"] + row in used for row in range(33)]
        assert 0 < len(used) < 33
        with pytest.raises(ValueError, match=r"part-0.parquet' is a file of 3 data sets .*web, code, books"):
            loader.find("part-0.parquet", 0, 0)
        with pytest.raises(ValueError, match=r"no data set of the mixture has this row:\n  web: .*\n  code: "):
            loader.find("books/part-7.parquet", 0, 0)


def test_another_mixture_is_another_order_and_the_scale_of_weights_is_none(place):
    def state_of(**options):
        with stoker.Loader(mixture_of(place, **options), batch_size=9, cache=place / "cache", **OPTIONS) as loader:
            return loader.state_dict()

    base = state_of()
    scaled = state_of(weights={name: 20 * weight for name, weight in WEIGHTS.items()})
    assert scaled == base
    for other, words in (
        (state_of(until="last"), "until was 'last' and is 'first'"),
        (state_of(weights=None), "the mixture's weights were none and are web: "),
        (state_of(weights=WEIGHTS | {"code": 2}), "the mixture's weights were web: .* and are web: "),
        (state_of(names=("code", "web", "books")), "data sets of the mixture were code, web, books and are web, "),
        (state_of(filters=[("flag", "==", True)]), "the filter was flag == True .* and is none in 'web'"),
    ):
        with (
            stoker.Loader(mixture_of(place), batch_size=9, cache=place / "cache", **OPTIONS) as loader,
            pytest.raises(stoker.ResumeError, match=words),
        ):
            loader.load_state_dict(other)


def test_the_same_data_set_twice_under_two_names_is_shuffled_in_two_ways(place):
    web = stoker.Dataset(place / "web", chunk_size=4000)
    mixture = stoker.Mixture({"a": web, "b": web}, source_field="twin")
    with stoker.Loader(mixture, batch_size=100, cache=place / "cache", **OPTIONS) as loader:
        batches = list(loader)
    ids, twin = (np.concatenate([batch[name] for batch in batches]) for name in ("id", "twin"))
    assert sorted(ids[twin == 0].tolist()) == sorted(ids[twin == 1].tolist())
    assert np.count_nonzero(ids[twin == 0] == ids[twin == 1]) < 12


def test_an_error_names_the_data_set_and_a_difference_every_field(place, tmp_path):
    (tmp_path / "other").mkdir()
    table = sample_table(10).drop_columns(["flag"])
    pq.write_table(table, tmp_path / "other" / "x.parquet")
    mixture = stoker.Mixture({"web": stoker.Dataset(place / "web"), "other": stoker.Dataset(tmp_path / "other")})
    with pytest.raises(stoker.FieldError, match="other: has no field flag: bool"):
        stoker.Loader(mixture, batch_size=4)
    mixture = stoker.Mixture({"web": stoker.Dataset(place / "web"), "gone": stoker.Dataset(tmp_path / "gone")})
    with pytest.raises(stoker.SourceMissingError) as raised:
        stoker.Loader(mixture, batch_size=4)
    assert "in data set 'gone' of the mixture" in raised.value.__notes__
    with pytest.raises(TypeError, match="Mixture"):
        stoker.Loader({"web": mixture}, batch_size=4)


def test_a_small_cache_gives_the_same_batches(place, tmp_path):
    mixture = mixture_of(place, until="last")
    (expected,) = epochs_of(mixture, batch_size=40, cache=place / "cache")
    for batches in epochs_of(mixture, num_epochs=2, batch_size=40, cache=tmp_path / "cache", cache_limit="25kB")[:1]:
        assert ids_of(batches) == ids_of(expected)


@pytest.mark.parametrize("lanes", [1, 8, 16])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_rare_data_set_comes_in_its_share_all_along_an_epoch_whatever_the_lanes(tmp_path, lanes, shuffle):
    num_rows = {"often": 64_000, "rare": 19}
    for name, num in num_rows.items():
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"id": np.arange(num)}), tmp_path / name / "a.parquet", row_group_size=4000)
    datasets = {name: stoker.Dataset(tmp_path / name) for name in num_rows}
    mixture = stoker.Mixture(datasets, weights=None, source_field="source")
    with stoker.Loader(mixture, batch_size=64, shuffle=shuffle, seed=1, lanes=lanes) as loader:
        num_rare = np.cumsum([int(batch["source"].sum()) for batch in loader])
    assert num_rare[-1] == num_rows["rare"]
    share = num_rows["rare"] * np.arange(1, len(num_rare) + 1) / len(num_rare)
    # A lane's blocks of 1,024 positions are 16 x lanes steps: shares are exact, to a sample, where they end.
    most = max(1, 16 * lanes * num_rows["rare"] / len(num_rare))
    assert (abs(num_rare - share) <= 1 + most).all()
    assert (abs(num_rare - share)[16 * lanes - 1 :: 16 * lanes] <= 2).all()


@pytest.mark.parametrize(("shuffle", "lanes"), [(True, 1), (False, 1), (True, 2)])
def test_a_data_set_of_a_few_rows_comes_in_its_own_order_epoch_after_epoch(tmp_path, shuffle, lanes):
    datasets = {}
    for name, ids in {"few": np.arange(5), "many": np.arange(100, 3100)}.items():
        pq.write_table(pa.table({"id": ids}), tmp_path / f"{name}.parquet")
        datasets[name] = stoker.Dataset(tmp_path / f"{name}.parquet")
    mixed = {"weights": {"few": 2, "many": 1}, "until": "last"}
    settings = {"shuffle": shuffle, "seed": 3, "lanes": lanes}
    sizes, weights, part = {"few": [5], "many": [3000]}, [2, 1], 700 // lanes
    with stoker.Loader(stoker.Mixture(datasets, **mixed), batch_size=700, **settings) as loader:
        for epoch in range(2):
            told = {**settings, "weights": weights, "until": "last", "epoch": epoch}
            of_lanes = [
                [row + 100 * (name == "many") for name, _, row in page.mixture_order(sizes, lane=lane, **told)]
                for lane in range(lanes)
            ]
            for step, batch in enumerate(loader):
                expected = [i for ids in of_lanes for i in ids[step * part : (step + 1) * part]]
                assert batch["id"].tolist() == expected
