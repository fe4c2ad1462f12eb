"""An argument that a class does not have is answered with what it has instead; one of the wrong type at once."""

import inspect

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker

torch = pytest.importorskip("torch")

from stoker.torch import TorchDataset, TorchLoader, to_nested

pytestmark = pytest.mark.torch

DATASET = stoker.Dataset("nowhere")
MADE = {
    stoker.Loader: {"dataset": DATASET, "batch_size": 8},
    TorchLoader: {"dataset": DATASET, "batch_size": 8},
    TorchDataset: {"dataset": DATASET, "batch_size": 8, "cache": "nowhere"},
    stoker.Dataset: {"source": "nowhere"},
    stoker.Mixture: {"datasets": {"a": DATASET}},
    stoker.Field: {},
    stoker.NGram: {"length": 2},
    stoker.Pack: {"field": "tokens", "length": 8},
    stoker.Shard: {},
    stoker.SequenceShard: {"rank": 0, "world_size": 2, "fields": "tokens"},
    stoker.Scaled: {"low": 0.0, "high": 1.0},
    stoker.Trace: {},
    stoker.Cache: {"folder": "cache"},
}
loaders = pytest.mark.parametrize("loader", [stoker.Loader, TorchLoader, TorchDataset])


@loaders
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("drop_last", "remainder="),
        ("collate_fn", "augment="),
        ("sampler", "shuffle="),
        ("batch_sampler", "batch_size="),
        ("generator", "seed="),
        ("shuffle_buffer", "window="),
        ("num_epochs", "for epoch in"),
        ("worker_init_fn", "leave it out"),
        ("columns", "an argument of .*Dataset"),
        ("bach_size", "did you mean 'batch_size'"),
        ("shufle", "did you mean 'shuffle'"),
        ("zzz", "it has batch_size|it has dataset"),
    ],
)
def test_what_other_loaders_call_otherwise_is_named_as_ours(loader, name, words):
    with pytest.raises(TypeError, match=rf"{loader.__name__} has no argument '{name}'.*({words})"):
        loader(**MADE[loader], **{name: 2})


@loaders
@pytest.mark.parametrize("name", ["num_workers", "pin_memory", "persistent_workers", "prefetch_factor"])
def test_what_a_data_loader_has_is_named_as_ours_or_left_to_it(loader, name):
    words = "DataLoader" if loader is TorchDataset else "num_threads=|TorchLoader|leave it out|prefetch="
    with pytest.raises(TypeError, match=f"{loader.__name__} has no argument '{name}'.*({words})"):
        loader(**MADE[loader], **{name: 2})


@pytest.mark.parametrize(
    ("cls", "name", "words"),
    [
        (stoker.Dataset, "filter", "filters="),
        (stoker.Dataset, "path", "first"),
        (stoker.Dataset, "batch_size", "an argument of Loader"),
        (stoker.Dataset, "column", "did you mean 'columns'"),
        (stoker.Field, "vocab", "did you mean 'vocabulary'"),
        (stoker.Field, "fill_value", "fill="),
        (stoker.Mixture, "probabilities", "weights="),
        (stoker.Mixture, "weight", "did you mean 'weights'"),
        (stoker.Pack, "lenght", "did you mean 'length'"),
        (stoker.NGram, "strides", "did you mean 'stride'"),
        (stoker.Shard, "worldsize", "did you mean 'world_size'"),
        (stoker.Trace, "max_span", "did you mean 'max_spans'"),
        (stoker.Cache, "limt", "did you mean 'limit'"),
        (stoker.SequenceShard, "field", "did you mean 'fields'"),
    ],
)
def test_misspelt_arguments_are_answered_with_near_ones(cls, name, words):
    with pytest.raises(TypeError, match=rf"{cls.__name__} has no argument '{name}'.*{words}"):
        cls(**MADE[cls], **{name: 2})


@pytest.mark.parametrize(
    ("cls", "name"),
    [(stoker.Dataset, "source"), (stoker.Loader, "dataset"), (stoker.Mixture, "datasets"), (stoker.Cache, "folder")],
)
def test_what_is_missing_is_named(cls, name):
    with pytest.raises(TypeError, match=f"^{cls.__name__} needs '{name}'"):
        cls()


@pytest.mark.parametrize("cls", [stoker.Loader, TorchLoader, stoker.Dataset, stoker.Mixture])
def test_too_many_by_position_are_told_their_names(cls):
    first, *_ = MADE[cls].values()
    with pytest.raises(TypeError, match=r"by position.*which argument is 32\? It has"):
        cls(first, 32)


@pytest.mark.parametrize("cls", MADE, ids=lambda cls: cls.__name__)
def test_signatures_stay_as_they_are_written(cls):
    parameters = inspect.signature(cls).parameters
    assert {*MADE[cls]} <= {*parameters} or "options" in parameters
    assert not any(one.kind is one.VAR_POSITIONAL for one in parameters.values())


NUMBERS = [True, 2.5, float("nan"), "3", None, [], object(), np.array([1, 2])]
WRONG = {
    (stoker.Loader, "batch_size"): [*NUMBERS[:3], 0, -1, "3", 2**63],
    (stoker.Loader, "seed"): NUMBERS,
    (stoker.Loader, "shuffle"): [1, "yes", None],
    (stoker.Loader, "window"): [0, 2.5, "many", True],
    (stoker.Loader, "lanes"): [0, *NUMBERS[:4]],
    (stoker.Loader, "num_threads"): [0, -2, *NUMBERS[:4]],
    (stoker.Loader, "prefetch"): [-1, *NUMBERS[:4]],
    (stoker.Loader, "rank"): [-1, *NUMBERS[:4]],
    (stoker.Loader, "cache"): [3, b"x"],
    (stoker.Loader, "cache_limit"): [0, -1, 2.5, True, "much", float("nan")],
    (stoker.Loader, "remainder"): [None, "last", 1],
    (stoker.Loader, "trace"): [True, "trace.json"],
    (stoker.Loader, "group_by"): [3, [3], "", {"a"}],
    (stoker.Loader, "weights"): [3, ["w"], ""],
    (stoker.Loader, "sequence"): [8, "tokens"],
    (stoker.Loader, "sequence_shard"): [1, stoker.Shard()],
    (stoker.Dataset, "columns"): ["id", 3, [3], {"id"}, (name for name in "ab")],
    (stoker.Dataset, "fields"): [["x"], {"x": 3}, {3: "int64"}, {"x": None}],
    (stoker.Dataset, "chunk_size"): [0, -1, 2.5, True, "big", None],
    (stoker.Dataset, "refresh"): [1, None, "yes"],
    (stoker.Dataset, "storage_options"): [3, "region", [("a", 1)]],
    (stoker.Dataset, "transform"): [3, "f", lambda: 0, lambda table, more: 0],
    (stoker.Dataset, "source"): [3, None, [], "", b"x", {"a"}, (name for name in "ab"), [3], open],
    (stoker.Mixture, "weights"): [3, [1.0], {"a": float("nan")}, {"a": -1}, {"a": True}, {"a": "1"}, {"b": 1}],
    (stoker.Mixture, "source_field"): [3, ""],
    (stoker.Field, "dtype"): [3, "str", object(), b"x", np.int64(3)],
    (stoker.Field, "columns"): [3, [], [""], [3], b"x", {"a", "b"}, ["a", "a"], {"a": 1}],
    (stoker.Field, "shape"): [-1, 2.5, True, "3", [None], [True], {3}],
    (stoker.Field, "vocabulary"): ["abc", b"abc", 3, [], {"a", "b"}, {"a": 0}, ["a", "a"], [1.5], [None]],
    (stoker.Field, "hash_buckets"): [0, True, 2.5, 10**30],
    (stoker.Field, "num_bytes"): [0, True, 2.5, 10**30],
    (stoker.Field, "fill"): [[], object(), b"x", np.array([1])],
    (stoker.Field, "mask"): [1, "yes", None],
    (stoker.Pack, "length"): [0, *NUMBERS, 2**31],
    (stoker.Pack, "split"): [1, None],
    (stoker.Pack, "cu_seqlens"): [1, None],
    (stoker.Pack, "together"): [3, [3], {"labels"}, ["a", "a"]],
    (stoker.Pack, "pad"): ["0", None, [0]],
    (stoker.NGram, "length"): [0, *NUMBERS[:4], 2**31],
    (stoker.NGram, "keys"): [3, [3], [""], {"a"}],
    (stoker.NGram, "max_gap"): [-1, "1s", True],
    (stoker.NGram, "overlap"): [0, None],
    (stoker.Shard, "rank"): [-1, 1, *NUMBERS],
    (stoker.Shard, "world_size"): [0, *NUMBERS],
    (stoker.SequenceShard, "rank"): [-1, 2, *NUMBERS],
    (stoker.SequenceShard, "fields"): [[], 3, "", {"tokens"}, ["a", "a"], None],
    (stoker.SequenceShard, "layout"): ["ring", None],
    (stoker.Scaled, "low"): [float("nan"), float("-inf"), -(10**400), "0", None, True, [0.0]],
    (stoker.Scaled, "high"): [float("inf"), 10**400, "1", None, [1.0], np.array([1.0])],
    (stoker.Trace, "max_spans"): [0, *NUMBERS],
    (stoker.Trace, "nvtx"): [1, "yes", None],
}


@pytest.mark.parametrize(("cls", "name"), WRONG, ids=lambda value: getattr(value, "__name__", value))
def test_a_wrong_value_is_an_error_at_construction_that_names_its_argument(cls, name):
    for value in WRONG[cls, name]:
        with pytest.raises((TypeError, ValueError), match=name.removesuffix("s")) as found:
            cls(**(MADE[cls] | {name: value}))
        assert found.type in (TypeError, ValueError), value


def test_numpy_numbers_arrays_and_paths_are_taken_for_what_they_are():
    assert stoker.Field("int64", shape=3).shape == stoker.Field("int64", shape=(np.int32(3),)).shape == (3,)
    assert stoker.Field(vocabulary=np.array(["a", "b"])).vocabulary == ("a", "b")
    floats = stoker.Dataset("a", fields={"x": "float32"}).fields
    assert stoker.Dataset("a", fields={"x": np.float32}).fields == floats
    assert stoker.Dataset("a", fields={"x": np.dtype("f4")}).fields == floats
    assert stoker.Field(columns=np.array(["a", "b"])).columns == ("a", "b")
    assert stoker.Field(hash_buckets=np.int64(8)) == stoker.Field(hash_buckets=8)
    assert stoker.Field(fill=np.float32(0.5)).to_json() == stoker.Field(fill=0.5).to_json()
    assert stoker.Shard(np.int64(1), np.int32(4)) == stoker.Shard(1, 4)
    assert stoker.Scaled(np.float32(0), 1) == stoker.Scaled(0.0, 1.0)
    assert stoker.Pack("tokens", length=np.int16(8)).length == 8


def test_methods_say_what_they_need(tmp_path):
    pq.write_table(pa.table({"id": np.arange(20), "words": [[1]] * 20}), tmp_path / "a.parquet")
    with stoker.Loader(stoker.Dataset(tmp_path), batch_size=np.int64(4), cache_limit=np.int64(10**9)) as loader:
        for call, name in (
            (lambda value: loader.explain(value), "step"),
            (lambda value: loader.explain(0, epoch=value), "epoch"),
            (lambda value: loader.set_epoch(value), "epoch"),
            (lambda value: loader.find(value, 0, 0), "url"),
            (lambda value: loader.find("a.parquet", value, 0), "row_group"),
            (lambda value: loader.find("a.parquet", 0, value), "row"),
            (lambda value: loader.find("a.parquet", 0, 0, epoch=value), "epoch"),
        ):
            for value in (1.5, True, object(), [], *([] if name == "url" else ["1"])):
                with pytest.raises(TypeError, match=f"{name} must be"):
                    call(value)
        for call in (loader.explain, lambda value: loader.find("a.parquet", 0, value)):
            for value in (-1, 20, 10**30):
                with pytest.raises(ValueError, match=r"lies outside|none with the number"):
                    call(value)
        use = loader.find(tmp_path / "a.parquet", np.int64(0), np.int32(5))
        assert use == loader.find("a.parquet", 0, 5)
        assert [type(value) for value in use[:2]] == [int, int]
        with pytest.raises(KeyError, match="did you mean 'words'"):
            loader.spec["word"]
        with pytest.raises(TypeError, match=r"stoker\.Ragged of tensors"):
            to_nested(next(iter(loader))["words"])


def test_a_generator_of_paths_is_told_how_to_be_a_list(tmp_path):
    with pytest.raises(TypeError, match=r"not generator: write sorted"):
        stoker.Dataset(path for path in [tmp_path])
