"""The same integers and the same bytes on other versions of NumPy: the order uses none of its streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from tests.strategies import write_files

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("print_digests.py")
# NumPy and pyarrow: the oldest that the library takes, which have no builds for newer Pythons, and a middle NumPy 2.
VERSIONS = [*([("1.26.4", "16.1.0")] if sys.version_info < (3, 13) else []), ("2.1.3", "26.0.1")]


def printed_by(python: Path | str, folder: Path, *options: str, **environ: str) -> dict[str, object]:
    run = subprocess.run(
        [str(python), *options, str(SCRIPT), str(folder)], capture_output=True, text=True, timeout=280, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")} | environ,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("versions") / "data", [100, 0, 257, 64, 1, 301], row_group_size=50)


def test_the_digests_are_those_of_this_numpy_for_any_hash_seed(folder):
    one = printed_by(sys.executable, folder, PYTHONHASHSEED="1")
    assert one["num_compared"] > 1000
    assert printed_by(sys.executable, folder, PYTHONHASHSEED="4242") == one


@pytest.mark.slow
@pytest.mark.parametrize(("version", "pyarrow"), VERSIONS)
def test_another_numpy_gives_the_same_integers_and_the_same_bytes(version, pyarrow, folder, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    pinned = [f"numpy=={version}", f"pyarrow=={pyarrow}", "xxhash", "rich"]
    constraints = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith(("numpy=", "pyarrow=", "#"))
    ]
    (tmp_path / "constraints.txt").write_text("\n".join(constraints))
    subprocess.run(
        [str(python), "-m", "pip", "install", "-q", "-c", str(tmp_path / "constraints.txt"), *pinned],
        check=True, capture_output=True, timeout=280,
    )  # fmt: skip
    says = subprocess.run(
        [str(python), "-c", "import numpy; print(numpy.__version__)"], check=True, capture_output=True, text=True
    )
    assert says.stdout.strip() == version != np.__version__
    assert printed_by(python, folder) == printed_by(sys.executable, folder)
