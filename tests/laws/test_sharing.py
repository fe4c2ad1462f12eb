"""Sharing changes where values are kept and never what they are: shared = not shared, bit for bit."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stoker
from stoker.cache.runs import take_rows
from stoker.spec import Ragged, Shared

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
    "grouped": {"shuffle": True, "shuffle_by": "query_id"},
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


def flat(field):
    """A field as (dtype, shape, bytes), whatever it is."""
    if isinstance(field, Ragged):
        return flat(field.values), flat(field.offsets)
    array = np.ascontiguousarray(field)
    return array.dtype.str, array.shape, array.tobytes()


def expanded(field):
    if not isinstance(field, Shared):
        return field
    assert field.index.dtype == np.int32
    rows = np.asarray(field.index, dtype=np.int64)
    assert set(rows.tolist()) == set(range(len(field.values.offsets) - 1 if isinstance(field.values, Ragged)
                                           else len(field.values)))  # fmt: skip
    return take_rows(field.values, rows)


def batches(dataset, **options):
    with stoker.Loader(dataset, batch_size=7, seed=3, num_threads=2, prefetch=2, **options) as loader:
        return [
            {name: flat(expanded(field)) for name, field in batch.items()} for _ in range(2) for batch in loader
        ]  # two epochs


@settings(max_examples=60)
@given(
    drawn=datasets,
    share=st.sampled_from(sorted(SHARES)),
    order=st.sampled_from(sorted(ORDERS)),
    window=st.sampled_from([None, "all", 1, 2]),
    remainder=st.sampled_from(["keep", "pad"]),
    world_size=st.integers(1, 3),
    is_cached=st.booleans(),
)
def test_batches_are_the_same_whatever_is_shared(drawn, share, order, window, remainder, world_size, is_cached):
    if drawn["narrow"] and (order == "at places" or share in ("two keys", "nothing repeats")):
        return
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        write(folder / "data", drawn)
        plain = stoker.Dataset(folder / "data", chunk_size=drawn["chunk_size"])
        shared = stoker.Dataset(folder / "data", chunk_size=drawn["chunk_size"], share=SHARES[share])
        cache = {"cache": folder / "cache"} if is_cached else {}
        for rank in range(world_size):
            options = {**ORDERS[order], "window": window, "remainder": remainder, "rank": rank} | cache
            options["world_size"] = world_size
            assert batches(shared, **options) == batches(plain, **options)


def test_a_cache_is_read_again_and_the_other_jobs_chunks_stay(tmp_path):
    drawn = {"files": [([(1, 5), (2, 3), (1, 4)], 8)], "chunk_size": 500, "noise": 0, "seed": 1, "narrow": False}
    write(tmp_path / "data", drawn)
    options = {"batch_size": 4, "cache": tmp_path / "cache"}
    plain = stoker.Dataset(tmp_path / "data", chunk_size=500)
    shared = stoker.Dataset(tmp_path / "data", chunk_size=500, share={"query_id": "q_*"})
    for dataset, num_built in ((plain, 1), (shared, 1), (plain, 0), (shared, 0)):
        with stoker.Loader(dataset, **options) as loader:
            assert len(list(loader)) == 3
            assert (loader.stats().num_built > 0) == (num_built > 0)


def test_another_share_is_another_data_set(tmp_path):
    drawn = {"files": [([(1, 5)], 8)], "chunk_size": 500, "noise": 0, "seed": 1, "narrow": False}
    write(tmp_path / "data", drawn)
    found = {
        stoker.Dataset(tmp_path / "data", share=share).open().fingerprint
        for share in (None, {}, {"query_id": "q_*"}, {"query_id": ["q_*"]}, {"query_id": ["q_word"]}, {"user": ["q_*"]})
    }
    assert len(found) == 4


@pytest.mark.parametrize(
    ("share", "error", "words"),
    [
        (["query_id"], TypeError, "mapping"),
        ({"query_id": []}, ValueError, "empty"),
        ({"query_id": [3]}, TypeError, "names and patterns"),
        ({"": ["a"]}, TypeError, "named by a text"),
    ],
)
def test_a_wrong_share_is_refused_before_anything_is_read(share, error, words):
    with pytest.raises(error, match=words):
        stoker.Dataset("nowhere", share=share)


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
        stoker.Loader(stoker.Dataset(tmp_path / "data", share=share), batch_size=2)
