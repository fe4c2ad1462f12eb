"""A loader without cache= where /dev/shm is as small as in a container: on disk, or an error that says what to do."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

NUM_ROWS, WIDTH = 20_000, 600  # 48 MB of float32: chunks of two files fill 64 MiB

SCRIPT = """
import logging, sys, stoker
logging.basicConfig(level=logging.WARNING, format="%(message)s")
parts = {name: stoker.Dataset(f"{sys.argv[1]}/{name}") for name in ("a", "b")}
dataset = stoker.Mixture(parts, weights=None) if sys.argv[2] == "mixture" else stoker.Dataset(sys.argv[1])
try:
    with stoker.Loader(dataset, batch_size=500, shuffle=True, window="all") as loader:
        print("rows", sum(len(batch["id"]) for batch in loader))
except stoker.CacheFullError as error:
    print("full", error)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    for number, name in enumerate("ab"):
        (folder / name).mkdir()
        values = np.random.default_rng(number).random((NUM_ROWS, WIDTH), dtype=np.float32)
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), WIDTH)
        pq.write_table(pa.table({"id": np.arange(NUM_ROWS), "v": vectors}), folder / name / "p.parquet")
    return folder


def run(folder, tmp_path, *, kind, mounts):
    """Run the script where small file systems lie over some folders, for it alone."""
    (tmp_path / "temporary").mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    mounted = " && ".join(f"mount -t tmpfs -o size=64m tmpfs {place}" for place in mounts)
    if subprocess.run(["unshare", "--mount", "sh", "-c", mounted], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount file systems")
    command = f"{mounted} && exec {sys.executable} {tmp_path}/script.py {folder} {kind}"
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "STOKER_STATUS": "off",
        "TMPDIR": str(tmp_path / "temporary"),
    }
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command],
        capture_output=True, text=True, env=environ, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("kind", ["data set", "mixture"])
def test_with_a_small_shared_memory_chunks_are_kept_on_disk_and_a_warning_says_so(folder, tmp_path, kind):
    done = run(folder, tmp_path, kind=kind.replace(" ", "-"), mounts=["/dev/shm"])
    assert done.stdout == f"rows {2 * NUM_ROWS}\n"
    assert "cache=" in done.stderr
    assert "--shm-size" in done.stderr
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("kind", ["data set", "mixture"])
def test_where_the_disk_has_no_room_either_the_error_names_what_helps(folder, tmp_path, kind):
    done = run(folder, tmp_path, kind=kind.replace(" ", "-"), mounts=["/dev/shm", tmp_path / "temporary"])
    assert done.stdout.startswith("full ")
    assert "cache=" in done.stdout
    assert "--shm-size" in done.stdout
