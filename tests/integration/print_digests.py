"""Print what decides a batch, for another interpreter to compare: run by test_numpy_versions.py.

Needs the library's own dependencies and nothing else; imports no test code.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

import stoker
from stoker import _native
from stoker.hashing import order_key
from stoker.sampling import Order
from stoker.sampling.mixture import MixtureOrder

ROOT = Path(__file__).resolve().parents[2]


def check_order() -> int:
    """Compare every frozen vector of the order; return how many numbers were compared."""
    golden = json.loads((ROOT / "tests" / "golden" / "order.json").read_text())
    num_compared = 0
    for one in golden["keys"]:
        key = order_key(seed=one["seed"], epoch=one["epoch"], purpose=one["purpose"])
        _same([key], [int(one["key"], 16)], one)
        num_compared += 1
    for one in golden["permutations"]:
        size, key = one["size"], int(one["key"], 16)
        index, place = (np.array(one[name], np.int64) for name in ("index", "place"))
        for move, given, expected in ((_native.permute, index, place), (_native.unpermute, place, index)):
            move(given, 0, size, key, moved := np.empty_like(given))
            _same(moved, expected, one)
        num_compared += 2 * len(one["index"])
    for one in golden["epochs"]:
        order = Order(one["num_samples"], shuffle=True, seed=one["seed"], window=one["window"], lanes=one["lanes"])
        chunk, row = order.epoch(one["epoch"], lane=one["lane"]).locate(range(len(one["chunk"])))
        _same(chunk, one["chunk"], one)
        _same(row, one["row"], one)
        num_compared += 2 * len(one["chunk"])
    for one in json.loads((ROOT / "tests" / "golden" / "mixture.json").read_text())["mixtures"]:
        sizes = [[part["of"]] * part["chunks"] if isinstance(part, dict) else part for part in one["sizes"]]
        arguments = {name: one[name] for name in ("names", "weights", "until", "seed", "window", "lanes")}
        epoch = MixtureOrder(sizes, shuffle=True, **arguments).epoch(one["epoch"], lane=one["lane"])
        found = [epoch.samples(position, position + 1) for position in one["position"]]
        for column, expected in zip(zip(*found, strict=True), ("component", None, "chunk", "row"), strict=True):
            if expected is not None:
                _same(np.concatenate(column), one[expected], one)
                num_compared += len(found)
    return num_compared


def _same(found: object, expected: object, what: object) -> None:
    if np.asarray(found).tolist() != np.asarray(expected).tolist():
        raise AssertionError(f"with NumPy {np.__version__}: {found} is not {expected} of {what}")


def digest_of_epochs(folder: str) -> list[str]:
    """Return a digest of every byte of several loaders' epochs, positions included."""
    digests = []
    dataset = stoker.Dataset(
        folder, chunk_size=4000, fields={"word": stoker.Field(hash_buckets=1000), "half": stoker.Field("float64")}
    )
    for options in (
        {"shuffle": True, "window": 2},
        {"shuffle": True, "window": "all", "lanes": 3, "remainder": "pad", "augment": with_noise},
        {"shuffle": False, "remainder": "drop"},
    ):
        digest = hashlib.sha256()
        with stoker.Loader(dataset, batch_size=30, seed=5, **options) as loader:
            for _ in range(2):
                for batch in loader:
                    for name, field in batch.items():
                        digest.update(name.encode())
                        for part in field.arrays if isinstance(field, stoker.Ragged) else [field]:
                            digest.update(np.ascontiguousarray(part).tobytes())
                    digest.update(json.dumps(loader.state_dict(), sort_keys=True).encode())
        digests.append(digest.hexdigest())
    return digests


def with_noise(batch: dict, rng: np.random.Generator) -> dict:
    """Whole bytes of the generator's bit stream: the streams of distributions may change with NumPy."""
    return batch | {"noise": rng.bit_generator.random_raw(len(batch["id"]))}


if __name__ == "__main__":
    print(  # noqa: T201
        json.dumps({"num_compared": check_order(), "digests": digest_of_epochs(sys.argv[1])})
    )
