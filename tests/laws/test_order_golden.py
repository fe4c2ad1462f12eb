"""The promise: frozen vectors, and a page from which another implementation comes out equal."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st
from tests.oracles import permutation as oracle
from tests.oracles.order_page import page
from tests.strategies import examples, permute, unpermute

from stoker import Dataset, Loader, Mixture
from stoker.hashing import order_key
from stoker.sampling import Order
from stoker.testing import MemoryStorage, write_parquet

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = json.loads((ROOT / "tests" / "golden" / "order.json").read_text())


@pytest.mark.parametrize("golden", GOLDEN["keys"], ids=str)
def test_keys_are_frozen(golden):
    arguments = {name: golden[name] for name in ("seed", "epoch", "purpose")}
    assert order_key(**arguments) == int(golden["key"], 16)
    assert page.order_key(**arguments) == int(golden["key"], 16)


@pytest.mark.parametrize("golden", GOLDEN["permutations"], ids=lambda golden: f"{golden['size']}-{golden['key']}")
def test_permutations_are_frozen(golden):
    size, key, index, place = golden["size"], int(golden["key"], 16), golden["index"], golden["place"]
    assert permute(index, size=size, key=key).tolist() == place
    assert unpermute(place, size=size, key=key).tolist() == index
    assert oracle.permute(np.array(index), size, key).tolist() == place
    assert [page.permute(i, size, key) for i in index] == place


@pytest.mark.parametrize("golden", GOLDEN["epochs"], ids=str)
def test_epochs_are_frozen(golden):
    order = Order(
        golden["num_samples"], shuffle=True, seed=golden["seed"], window=golden["window"], lanes=golden["lanes"]
    )
    epoch = order.epoch(golden["epoch"], lane=golden["lane"])
    assert epoch.window_starts.tolist() == golden["window_starts"]
    samples = list(zip(golden["chunk"], golden["row"], strict=True))
    chunk, row = epoch.locate(range(len(samples)))
    assert list(zip(chunk.tolist(), row.tolist(), strict=True)) == samples
    arguments = {name: golden[name] for name in ("seed", "epoch", "window", "lanes", "lane")}
    whole = page.epoch_order(golden["num_samples"], **arguments)
    assert whole[: len(samples)] == samples
    chunk, row = epoch.locate(np.arange(epoch.num_samples))
    assert list(zip(chunk.tolist(), row.tolist(), strict=True)) == whole


# ---------------------------------------------------------------------- what a loader explains is what the page gives


@st.composite
def orders(draw):
    """Arguments of a loader that decide an order and what a rank takes of it."""
    lanes, world_size = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    return {
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(-5, 5)),
        "window": draw(st.just("all") | st.integers(1, 5)),
        "lanes": lanes,
        "global_batch_size": draw(st.integers(1, 30)) * lanes,
        "remainder": draw(st.sampled_from(["keep", "drop", "pad"])),
        "rank": draw(st.integers(0, world_size - 1)),
        "world_size": world_size,
    }


def dataset_of(sizes, *, folder="lake"):
    """Return a data set of one chunk of each size; one without rows is none."""
    storage = MemoryStorage()
    for number, size in enumerate(sizes):
        write_parquet(storage, {"id": np.arange(size)}, url=f"{folder}/{number:02}.parquet")
    return Dataset(folder, storage=storage)


def check_steps(loader, lanes, settings, *, epoch):
    """Check that every step of an epoch has what the page says that a rank takes of these lanes, padding included.

    And that each of these rows is found in just these steps.
    """
    sizes, used = [len(lane) for lane in lanes], {}
    batch_size, remainder = settings["global_batch_size"], settings["remainder"]
    assert len(loader) == page.num_steps(sizes, batch_size, remainder)
    for step in range(len(loader)):
        places = page.taken(sizes, batch_size, step, settings["rank"], settings["world_size"], remainder)
        told = loader.explain(step, epoch=epoch)
        assert [(row.dataset, row.chunk, row.chunk_row) for row in told] == [lanes[lane][at] for lane, at in places]
        for row in told:
            if not row.is_padding:
                used.setdefault((row.url, row.row_group, row.row), []).append(step)
    if settings["world_size"] == 1 and remainder != "drop":
        assert sum(map(len, used.values())) == sum(sizes)
    for row, steps in [*used.items()][:: 1 + len(used) // 30]:
        assert [use.step for use in loader.find_all(*row, epoch=epoch) if use.rank == settings["rank"]] == steps


def page_order(settings):
    return {name: settings[name] for name in ("seed", "shuffle", "lanes")} | {
        "window": None if settings["window"] == "all" else settings["window"]
    }


SMALL = {"shuffle": True, "seed": 1, "window": "all", "remainder": "pad", "rank": 0, "world_size": 1}


@examples(25)
@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=12), settings=orders(), epoch=st.integers(0, 3))
@example(sizes=[1], settings=SMALL | {"lanes": 2, "global_batch_size": 4}, epoch=0)  # one lane is empty
@example(sizes=[3], settings=SMALL | {"lanes": 1, "global_batch_size": 8}, epoch=0)  # repeated more than once
def test_every_step_has_the_samples_that_the_page_gives_it(sizes, settings, epoch):
    counts, order = [size for size in sizes if size], page_order(settings)
    with Loader(dataset_of(sizes), **settings) as loader:
        lanes = [page.epoch_order(counts, epoch=epoch, lane=lane, **order) for lane in range(order["lanes"])]
        check_steps(loader, [[(None, *sample) for sample in lane] for lane in lanes], settings, epoch=epoch)


@examples(15)
@given(
    sizes=st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=5), min_size=1, max_size=4),
    times=st.sampled_from([1, 1, 15]),  # an epoch of one block, or of several
    weights=st.none() | st.lists(st.sampled_from([1, 2, 0.3, 2.25, 9.5]), min_size=4, max_size=4),
    until=st.sampled_from(["first", "last"]),
    settings=orders(),
    epoch=st.integers(0, 3),
)
def test_every_step_of_a_mixture_has_the_samples_that_the_page_gives_it(sizes, times, weights, until, settings, epoch):
    names, order = [f"set {number}" for number in range(len(sizes))], page_order(settings)
    sizes = [[times * size for size in some] for some in sizes]
    shares = None if weights is None else dict(zip(names, weights, strict=False))
    parts = {name: [size for size in some if size] for name, some in zip(names, sizes, strict=True)}
    datasets = {name: dataset_of(some, folder=name) for name, some in zip(names, sizes, strict=True)}
    try:
        loader = Loader(Mixture(datasets, weights=shares, until=until), **settings)
    except ValueError as error:
        if not any(words in str(error) for words in ("has no samples", "would give no sample", "too few to share out")):
            raise
        reject()
    with loader:
        listed = None if shares is None else [*shares.values()]
        order |= {"weights": listed, "until": until, "epoch": epoch}
        lanes = [page.mixture_order(parts, lane=lane, **order) for lane in range(order["lanes"])]
        check_steps(loader, lanes, settings, epoch=epoch)
