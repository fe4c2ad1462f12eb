"""A wheel that is built from the checkout is whole, says for which machine it is, and needs nothing that compiles."""

import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

import stoker

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "stoker"
SCRIPT = """
import pyarrow as pa, pyarrow.parquet as pq, stoker, sys
pq.write_table(pa.table({"x": range(100)}), "data.parquet")
loader = stoker.Loader(stoker.Dataset("data.parquet"), batch_size=10, cache="cache", seed=0)
print(sum(int(batch["x"].sum()) for batch in loader))
print([name for name in ("numba", "llvmlite", "torch") if name in sys.modules])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT]
    subprocess.run([*command, "--no-build-isolation", "--config-settings", "build-dir=build/wheel-test"], check=True)
    (path,) = folder.iterdir()
    return path


@pytest.mark.slow
def test_a_wheel_has_all_modules_the_native_one_and_its_types(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*.py")} <= names
    assert {"stoker/py.typed", "stoker/_native.pyi"} <= names
    assert len([name for name in names if name.startswith("stoker/_native.") and name.endswith(".so")]) == 1
    assert not {Path(name).parts[0] for name in names} - {"stoker", f"stoker-{stoker.__version__}.dist-info"}


@pytest.mark.slow
def test_a_wheel_is_tagged_for_this_machine_and_this_python_or_later_ones(wheel):
    name, version, _, tags = parse_wheel_filename(wheel.name)
    assert (name, str(version)) == ("stoker", stoker.__version__)
    assert tags & set(sys_tags())
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert {tag.platform for tag in tags} == {platform}
    assert {tag.abi for tag in tags} == {"cp311" if sys.version_info < (3, 12) else "abi3"}


@pytest.mark.slow
def test_an_empty_environment_needs_the_wheel_and_no_compiler_to_load_batches(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel]
    subprocess.run(install, check=True)
    done = subprocess.run([python, "-c", SCRIPT], check=True, cwd=tmp_path, env={}, capture_output=True, text=True)
    assert done.stdout.split("\n") == ["4950", "[]", ""]
    assert done.stderr == ""
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    own = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
    files = [path for part in site.iterdir() if not part.name.startswith(own) for path in part.rglob("*")]
    assert sum(path.stat().st_size for path in files if path.is_file()) <= 290e6


def test_what_type_checkers_read_is_what_the_native_module_has(tmp_path):
    made = tmp_path / "_native.pyi"
    stubgen = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "_native", "-i", PACKAGE, "-o", made]
    subprocess.run(stubgen, check=True)
    assert made.read_text() == (PACKAGE / "_native.pyi").read_text()


def test_what_make_builds_with_is_what_pip_builds_with():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pins = (ROOT / "constraints.txt").read_text().replace("_", "-").split()
    assert set(project["build-system"]["requires"]) <= set(pins)
