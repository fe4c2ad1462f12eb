"""Every call that changes a cache's disk fails once, and for good: no wrong row, nothing left, nothing unusable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import REPOSITORY
from tests.crash.faults import ERRORS

HERE = Path(__file__).parent


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs gcc and LD_PRELOAD")
@pytest.mark.parametrize(
    ("step", "errors"),
    [(31, ERRORS), *(pytest.param(1, (e,), marks=[pytest.mark.slow, pytest.mark.timeout(1000)]) for e in ERRORS)],
    ids=str,
)
def test_a_disk_that_fails_at_any_write_costs_no_row_and_leaves_nothing_behind(tmp_path, step, errors):
    library = tmp_path / "faults.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, HERE / "faults.c", "-ldl"], check=True)
    environment = os.environ | {
        "LD_PRELOAD": str(library),
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'src'}",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.faults", str(tmp_path), str(step), *errors],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    num_tried, num_calls, _ = map(int, done.stdout.split())
    assert num_calls > 50
    assert num_tried >= 2 * len(errors) * (num_calls // step)
