"""Sharing changes where values are kept and never what they are: shared = not shared, bit for bit."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.batches import check_same, contents
from tests.strategies import examples

import stoker
from stoker import Deduplicated

# A file: its runs (key, length), rows of a row group.
files = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=12), st.sampled_from([3, 8, 20, 1000])
    ),
    min_size=1,
    max_size=4,
)
datasets = st.fixed_dictionaries(
    {
        "files": files,
        "chunk_size": st.sampled_from([500, 3000, "32MiB"]),
        "noise": st.sampled_from([0, 0.3]),
        "seed": st.integers(0, 9),
        "narrow": st.booleans(),
    }
)
SHARES = {
    "some": {"query_id": ["q_number", "q_list"]},
    "all of a query": {"query_id": ["q_*"]},
    "lists alone": {"q_list": ["q_nested", "q_word"]},
    "two keys": {"query_id": ["q_vector", "q_word"], "user": ["u_*"]},
    "all there is": {"query_id": ["*"]},
    "nothing repeats": {"id": ["own"]},
}
ORDERS = {
    "shuffled": {"shuffle": True},
    "as they lie": {},
    "grouped": {"shuffle": True, "group_by": "query_id"},
    "in windows": {"shuffle": True, "sequence": stoker.NGram(length=2)},
    "at places": {"sequence": stoker.NGram({0: ["id", "query_id", "q_list"], 2: ["q_vector", "own"]})},
}


def write(folder: Path, drawn) -> None:
    """Write the files: what belongs to a query follows from its key, but for some noise."""
    rng = np.random.default_rng(drawn["seed"])
    folder.mkdir(parents=True, exist_ok=True)
    for f, (runs, row_group_size) in enumerate(drawn["files"]):
        keys = np.array([key for key, length in runs for _ in range(length)], dtype=np.int64)
        query = np.where(rng.random(len(keys)) < drawn["noise"], keys + rng.integers(0, 2, len(keys)), keys)
        table = {
            "id": rng.permutation(len(keys)) + 1000 * f,
            "query_id": keys,
            "q_number": (query / 3).astype(np.float32),
            "q_vector": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(query, 3).astype(np.float64)), 3),
            "q_list": pa.array([[key] * (key % 4) for key in query.tolist()], pa.list_(pa.int32())),
            "q_nested": pa.array([[[key] * n for n in range(key % 4)] for key in query.tolist()],
                                 pa.list_(pa.list_(pa.int16()))),
            "q_word": pa.array([f"q{key}" * (key % 3) for key in query.tolist()], pa.string()),
            "user": (keys // 3).astype(np.int16),
            "u_flag": keys // 3 % 2 == 0,
            "own": rng.random(len(keys)),
            "own_list": pa.array([[n] * (n % 3) for n in range(len(keys))], pa.list_(pa.int64())),
        }  # fmt: skip
        if drawn["narrow"]:
            del table["own"], table["q_vector"]
        pq.write_table(pa.table(table), folder / f"{f}.parquet", row_group_size=row_group_size)


def batches(dataset, *, batch_size=7, prefetch=2, **options):
    """Two epochs, as each sample has its fields; what samples share comes once, and nothing that none of them has."""
    with stoker.Loader(dataset, batch_size=batch_size, seed=3, num_threads=2, prefetch=prefetch, **options) as loader:
        found = [batch for _ in range(2) for batch in loader]
    for field in (field for batch in found for field in batch.values() if isinstance(field, Deduplicated)):
        assert field.index.dtype == np.int32
        assert set(field.index.tolist()) == set(range(len(field.values)))
    return contents(found)


@examples(8)
@given(
    drawn=datasets,
    share=st.sampled_from(sorted(SHARES)),
    order=st.sampled_from(sorted(ORDERS)),
    window=st.sampled_from([None, "all", 1, 2]),
    remainder=st.sampled_from(["keep", "pad"]),
    world_size=st.integers(1, 3),
    is_cached=st.booleans(),
    batch_size=st.sampled_from([1, 7]),
    prefetch=st.sampled_from([2, 24]),
    lanes=st.integers(1, 2),
)
def test_batches_are_the_same_whatever_is_shared(
    drawn, share, order, window, remainder, world_size, is_cached, batch_size, prefetch, lanes
):
    if drawn["narrow"] and (order == "at places" or share in ("two keys", "nothing repeats")):
        return
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        write(folder / "data", drawn)
        plain = stoker.Dataset(folder / "data", chunk_size=drawn["chunk_size"])
        shared = stoker.Dataset(folder / "data", chunk_size=drawn["chunk_size"], deduplicate=SHARES[share])
        cache = {"cache": folder / "cache"} if is_cached else {}
        for rank in range(world_size):
            options = {**ORDERS[order], "window": window, "remainder": remainder, "rank": rank} | cache
            options |= {"world_size": world_size, "batch_size": batch_size * lanes, "lanes": lanes}
            expected = batches(plain, prefetch=0, **options)  # one at a time
            check_same(batches(shared, prefetch=prefetch, **options), expected)
            if "sequence" not in options:
                check_same(batches(shared, deduplicated="unique", prefetch=prefetch, **options), expected)


def test_a_cache_is_read_again_and_the_other_jobs_chunks_stay(tmp_path):
    drawn = {"files": [([(1, 5), (2, 3), (1, 4)], 8)], "chunk_size": 500, "noise": 0, "seed": 1, "narrow": False}
    write(tmp_path / "data", drawn)
    options = {"batch_size": 4, "cache": tmp_path / "cache"}
    plain = stoker.Dataset(tmp_path / "data", chunk_size=500)
    shared = stoker.Dataset(tmp_path / "data", chunk_size=500, deduplicate={"query_id": "q_*"})
    for dataset, num_built in ((plain, 1), (shared, 1), (plain, 0), (shared, 0)):
        with stoker.Loader(dataset, **options) as loader:
            assert len(list(loader)) == 3
            assert (loader.stats().num_built > 0) == (num_built > 0)


def test_another_share_is_another_data_set(tmp_path):
    drawn = {"files": [([(1, 5)], 8)], "chunk_size": 500, "noise": 0, "seed": 1, "narrow": False}
    write(tmp_path / "data", drawn)
    found = {
        stoker.Dataset(tmp_path / "data", deduplicate=share).open().fingerprint
        for share in (None, {}, {"query_id": "q_*"}, {"query_id": ["q_*"]}, {"query_id": ["q_word"]}, {"user": ["q_*"]})
    }
    assert len(found) == 4


@pytest.mark.parametrize(
    ("share", "error", "words"),
    [
        (["query_id"], TypeError, "mapping"),
        ({"query_id": []}, ValueError, "empty"),
        ({"query_id": [3]}, TypeError, "must hold names"),
        ({3: ["a"]}, TypeError, "named by a text"),
    ],
)
def test_a_wrong_share_is_refused_before_anything_is_read(share, error, words):
    with pytest.raises(error, match=words):
        stoker.Dataset("nowhere", deduplicate=share)


@pytest.mark.parametrize(
    ("share", "words"),
    [
        ({"query": ["q_*"]}, "did you mean 'query_id'"),
        ({"query_id": ["w_*"]}, "'w_\\*' names no field"),
        ({"query_id": ["q_*"], "user": ["q_word"]}, "shared by 'query_id' and by 'user'"),
    ],
)
def test_what_the_fields_do_not_allow_is_said_when_it_is_opened(tmp_path, share, words):
    write(tmp_path / "data", {"files": [([(1, 5)], 8)], "noise": 0, "seed": 1, "narrow": False})
    with pytest.raises(stoker.FieldError, match=words):
        stoker.Loader(stoker.Dataset(tmp_path / "data", deduplicate=share), batch_size=2)


def test_shared_fields_come_once_where_that_is_asked_for(tmp_path):
    drawn = {"files": [([(1, 5), (2, 3), (1, 4)], 100)], "noise": 0, "seed": 1, "narrow": False}
    write(tmp_path / "data", drawn)
    dataset = stoker.Dataset(tmp_path / "data", deduplicate={"query_id": ["q_*"], "user": ["u_*"]})
    with stoker.Loader(dataset, batch_size=12, deduplicated="unique") as loader:
        (batch,) = loader
    names = [entry.name for entry in loader.spec]
    assert list(batch) == names
    assert {name for name in names if isinstance(batch[name], stoker.Deduplicated)} == {
        *("query_id", "q_number", "q_vector", "q_list", "q_nested", "q_word", "user", "u_flag")
    }
    # Equal keys apart are runs of their own; equal neighbours are one.
    assert batch["query_id"].values.tolist() == [1, 2, 1]
    assert batch["query_id"].index.tolist() == [0] * 5 + [1] * 3 + [2] * 4
    assert batch["user"].values.tolist() == [0]
    assert batch["q_vector"].values.shape == (3, 3)
    assert len(batch["q_list"].values.offsets) == 4


@pytest.mark.parametrize(
    "options", [{"deduplicated": "once"}, {"deduplicated": "unique", "sequence": stoker.NGram(length=2)}]
)
def test_a_way_that_cannot_be_is_refused(tmp_path, options):
    with pytest.raises(ValueError, match="deduplicated"):
        stoker.Loader(stoker.Dataset(tmp_path), batch_size=2, **options)


def test_augment_gets_what_the_loop_gets(tmp_path):
    write(tmp_path / "data", {"files": [([(1, 5), (2, 3)], 100)], "noise": 0, "seed": 1, "narrow": False})
    dataset = stoker.Dataset(tmp_path / "data", deduplicate={"query_id": ["q_*"]})
    kinds = []

    def augment(batch, rng):
        kinds.append(type(batch["q_number"]))
        return batch

    for shared in ("expand", "unique"):
        with stoker.Loader(dataset, batch_size=8, deduplicated=shared, augment=augment) as loader:
            assert all(type(batch["q_number"]) is kinds[-1] for batch in loader)
    assert kinds == [np.ndarray, stoker.Deduplicated]


def double(table):
    return {"key": table["query_id"].to_numpy() * 2, "half": table["q_number"].to_numpy() / 2, "id": table["id"]}


@pytest.mark.parametrize("transform_in", ["threads", "processes"])
def test_what_a_transform_makes_is_shared_like_columns(tmp_path, transform_in):
    write(tmp_path / "data", {"files": [([(1, 5), (2, 3)], 4)], "noise": 0, "seed": 1, "narrow": False})
    options = {"transform": double, "transform_version": "1"}
    dataset = stoker.Dataset(tmp_path / "data", **options, deduplicate={"key": ["half"]})
    plain = stoker.Dataset(tmp_path / "data", **options)
    cache = tmp_path / "cache"
    check_same(batches(dataset, transform_in=transform_in, cache=cache), batches(plain))
    with pytest.raises(stoker.FieldError, match="no field 'query_id'"):
        list(
            stoker.Loader(
                stoker.Dataset(tmp_path / "data", **options, deduplicate={"query_id": ["half"]}), batch_size=2
            )
        )


def test_mixed_data_sets_share_in_the_same_way_or_say_where_not(tmp_path):
    write(tmp_path / "a", {"files": [([(1, 5), (2, 3)], 100)], "noise": 0, "seed": 1, "narrow": False})
    write(tmp_path / "b", {"files": [([(4, 2), (5, 6)], 100)], "noise": 0.3, "seed": 2, "narrow": False})
    share = {"query_id": ["q_*"]}
    mixed = stoker.Mixture({name: stoker.Dataset(tmp_path / name, deduplicate=share) for name in "ab"})
    plain = stoker.Mixture({name: stoker.Dataset(tmp_path / name) for name in "ab"})
    expected = batches(plain, shuffle=True)
    check_same(batches(mixed, shuffle=True), expected)
    check_same(batches(mixed, shuffle=True, deduplicated="unique"), expected)
    other = stoker.Mixture(
        {"a": stoker.Dataset(tmp_path / "a", deduplicate=share), "b": stoker.Dataset(tmp_path / "b")}
    )
    with pytest.raises(stoker.FieldError, match="shared by query_id"):
        stoker.Loader(other, batch_size=2)
