"""`stoker warm --engine ray` on a local cluster of two workers, of which one is killed; where Ray is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs Ray: pip install 'stoker[ray]'")

ROOT = Path(__file__).parents[2]
NUM_ROWS = 2_000
DATASET = """
import os
from pathlib import Path
import stoker

def marked(table):
    with Path(os.environ["STOKER_TEST_MARKS"]).open("ab", buffering=0) as marks:
        marks.write(f"{os.getpid()} {table['id'][0].as_py()}\\n".encode())
    return {"x": table["id"].to_numpy()}

dataset = stoker.Dataset(os.environ["STOKER_TEST_DATA"], chunk_size=4000, transform=marked, transform_version="1")
"""


@pytest.mark.timeout(500)
def test_a_cluster_fills_a_mirror_though_a_worker_is_killed(tmp_path):
    from stoker.testing import write_example

    write_example(tmp_path / "data", rows_of_files=[NUM_ROWS // 4] * 4, row_group_size=20)
    (tmp_path / "named.py").write_text(DATASET)
    marks = tmp_path / "marks"
    marks.touch()
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"), "STOKER_TEST_MARKS": str(marks), "STOKER_TEST_DATA": str(tmp_path / "data"),
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
    }  # fmt: skip
    command = [sys.executable, "-m", "stoker.cli", "warm", f"{tmp_path / 'named.py'}:dataset"]
    command += ["--cache", str(tmp_path / "cache"), "--mirror", str(tmp_path / "mirror"), "--threads", "1"]
    process = subprocess.Popen(
        [*command, "--engine", "ray", "--parts", "8", "--json"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    def kill_one():
        while process.poll() is None and marks.stat().st_size < 200:
            pass
        os.kill(int(marks.read_text().splitlines()[-1].split()[0]), 9)

    killer = threading.Thread(target=kill_one)
    killer.start()
    out, errors = process.communicate()
    killer.join()
    assert process.returncode == 0, errors
    told = json.loads(out)
    built = Counter(line.split()[1] for line in marks.read_text().splitlines())
    assert told["is_complete"]
    assert told["num_chunks"] == len(built) == len(list((tmp_path / "mirror").iterdir()))
    assert set(built.values()) <= {1, 2}
    assert f"8 of 8 parts: {told['num_built']}" in errors
    again = subprocess.run([*command, "--json"], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(again.stdout)["num_built"] == 0
