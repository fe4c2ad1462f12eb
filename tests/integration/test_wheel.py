"""A wheel brings machine code of the loops along, for the processors of both vendors."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from stoker.machine_code.processors import LEVELS, aim, fitting

ROOT = Path(__file__).parents[2]


@pytest.mark.slow  # two compilers, and an environment that they are installed in
@pytest.mark.timeout(900)
@pytest.mark.skipif(aim() is None, reason="no machine code can be made here")
def test_who_installs_a_wheel_needs_no_compiler(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        images = [name.rpartition("/")[2] for name in file.namelist() if "/images/" in name]
        file.extractall(tmp_path / "installed")
    assert sorted(images) == [f"loops-{level}.bin" for level in sorted(LEVELS.values())]
    found = subprocess.run(
        [sys.executable, "-c", "from stoker import loops; print(loops.is_at_hand('stoker.gather.kernels'))"],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "installed"), "XDG_CACHE_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == [str(len(fitting()) > 1)]
