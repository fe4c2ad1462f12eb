"""The promise: frozen vectors, and a page from which another implementation comes out equal."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.oracles import permutation as oracle
from tests.oracles.order_page import page
from tests.strategies import permute, unpermute

from stoker.hashing import order_key
from stoker.sampling import Order

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
