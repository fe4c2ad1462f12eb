"""An argument that a class does not have is answered with what it has instead; one of the wrong type at once."""

import inspect

import pytest

import stoker

torch = pytest.importorskip("torch")

from stoker.torch import TorchDataset, TorchLoader

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
        ("bach_size", "near: batch_size"),
        ("shufle", "near: shuffle"),
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
        (stoker.Dataset, "column", "near: columns"),
        (stoker.Field, "vocab", "near: vocabulary"),
        (stoker.Field, "fill_value", "fill="),
        (stoker.Mixture, "probabilities", "weights="),
        (stoker.Mixture, "weight", "near: weights"),
        (stoker.Pack, "lenght", "near: length"),
        (stoker.NGram, "strides", "near: stride"),
        (stoker.Shard, "worldsize", "near: world_size"),
        (stoker.Trace, "max_span", "near: max_spans"),
    ],
)
def test_misspelt_arguments_are_answered_with_near_ones(cls, name, words):
    with pytest.raises(TypeError, match=rf"{cls.__name__} has no argument '{name}'.*{words}"):
        cls(**MADE[cls], **{name: 2})


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
