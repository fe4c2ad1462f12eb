"""Without compiled loops batches are the same: lists of all kinds, what samples share, units, mixtures."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import loops
from stoker.machine_code.processors import aim

PROGRAM = """
import hashlib, sys
from stoker import machine_code
if sys.argv[1] == "absent":
    sys.modules["numba"] = None
    machine_code.load = lambda names: None
if sys.argv[1].isdigit():  # so many modules of loops are there; the others are still being loaded
    from stoker import loops
    names = loops._LOADED[: int(sys.argv[1])]
    find, loops.load = loops.find, lambda: None
    loops.find = lambda name: find(name) if name in names else None
import numpy as np
from stoker import Dataset, Field, Loader, Mixture, Pack

def add(digest, value):
    for name, one in value.items() if isinstance(value, dict) else enumerate(getattr(value, "arrays", ())):
        digest.update(str(name).encode())
        add(digest, one)
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes())

def found(dataset, **options):
    digest = hashlib.blake2b(digest_size=8)
    with Loader(dataset, batch_size=48, shuffle=True, seed=3, **options) as loader:
        for _ in range(2):
            for batch in loader:
                add(digest, batch)
    return digest.hexdigest()

url, share = "data.parquet", {"key": ["key_*"]}
print(
    found(Dataset(url)),
    found(Dataset(url, columns=["a", "b", "word"])),
    found(Dataset(url, columns=["id", "b"])),
    found(Dataset(url), window=2, lanes=2),
    found(Dataset(url, deduplicate=share)),
    found(Dataset(url, deduplicate=share), deduplicated="unique"),
    found(Dataset(url, deduplicate=share, columns=["key", "key_list", "id"]), deduplicated="unique", group_by="key"),
    found(Dataset(url), group_by="key"),
    found(Dataset(url, columns=["a", "twin"]), sequence=Pack("a", length=16, together=["twin"])),
    found(Mixture({"a": Dataset(url), "b": Dataset(url, filters=[("id", "<", 300)])}, weights={"a": 1, "b": 2})),
    found(Dataset(url, fields={"a": Field("int64", storage_dtype="uint16")})),
    found(Dataset(url, columns=["id", "key_values"]), weights="id"),
)
if sys.argv[1] == "kept":
    assert not {"numba", "llvmlite"} & set(sys.modules)
"""


def _lists(rng, longest, dtype, num):
    return pa.array([rng.integers(0, 100, n).astype(dtype) for n in rng.integers(0, longest, num)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("without-numba")
    rng, num = np.random.default_rng(0), 1_200
    key = np.arange(num) // 7
    a = _lists(rng, 9, "int64", num)
    table = pa.table(
        {
            "id": np.arange(num),
            "key": key,
            "a": a,
            "twin": pa.array([[-value for value in values] for values in a.to_pylist()], pa.list_(pa.int32())),
            "b": _lists(rng, 60, "int16", num),
            "word": pa.array(["w" * int(n) for n in rng.integers(0, 30, num)]),
            "points": pa.array([[[n, n, n]] * (n % 4) for n in range(num)], pa.list_(pa.list_(pa.float32(), 3))),
            "nested": pa.array([[[n] * (n % 3)] * (n % 4) for n in range(num)], pa.list_(pa.list_(pa.int16()))),
            "key_list": pa.array([[int(k)] * (k % 5) for k in key], pa.list_(pa.int32())),
            "key_double": key * 2,
            "key_values": pa.array([[float(k)] * (k % 3) for k in key], pa.list_(pa.float64())),
        }
    )
    pq.write_table(table, folder / "data.parquet", row_group_size=150)
    return folder


def _run(folder, how, environment):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, how],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def expected(folder):
    pytest.importorskip("numba")
    found = _run(folder, str(len(loops._LOADED)), {"NUMBA_DISABLE_JIT": "0"})
    assert len(set(found)) >= 9
    return found


@pytest.mark.parametrize(("how", "environment"), [("absent", {}), ("there", {"NUMBA_DISABLE_JIT": "1"})])
def test_batches_are_the_same_without_numba_or_with_its_compiler_off(folder, expected, how, environment):
    assert _run(folder, how, environment) == expected


@pytest.mark.parametrize("num_there", range(len(loops._LOADED)))
def test_batches_are_the_same_while_loops_are_still_being_loaded(folder, expected, num_there):
    assert _run(folder, str(num_there), {}) == expected


@pytest.mark.skipif(aim() is None, reason="no machine code can be kept here")
def test_batches_are_the_same_by_kept_machine_code_which_needs_no_numba(folder, expected):
    assert _run(folder, "kept", {}) == expected
