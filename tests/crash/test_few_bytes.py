"""A system may give fewer bytes than a read asks for: chunks are opened, uploaded and fetched all the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.strategies import write_files

SCRIPT = """
import sys
from stoker import Cache, Dataset, Loader

data, folder = sys.argv[1:]
for host in ("first", "first", "second"):
    cache = Cache(f"{folder}/{host}", mirror=f"{folder}/mirror", verify="always")
    with Loader(Dataset(data), batch_size=500, num_threads=1, cache=cache) as loader:
        assert [x for batch in loader for x in batch["id"].tolist()] == list(range(500))
    told = loader.stats()
    print(told.num_built, told.num_uploaded, told.num_fetched, told.num_mended, told.num_mirror_failures)
"""


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs gcc and LD_PRELOAD")
def test_chunks_that_come_a_thousand_bytes_at_a_time_are_opened_uploaded_and_fetched(tmp_path):
    library, source = tmp_path / "few_bytes.so", Path(__file__).with_name("few_bytes.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    (tmp_path / "hosts").mkdir()
    environment = os.environ | {
        "LD_PRELOAD": str(library),
        "FEW_BYTES_BELOW": str(tmp_path / "hosts"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    data = write_files(tmp_path / "data", [500], row_group_size=500)
    command = [sys.executable, "-c", SCRIPT, str(data), str(tmp_path / "hosts")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1 1 0 0 0", "0 0 0 0 0", "0 0 1 0 0"]
