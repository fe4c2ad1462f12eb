"""High may import low, never the other way round; the order stays pure."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import stoker

SOURCE = Path(stoker.__file__).parent


def test_layers_hold():
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    result = subprocess.run(command, cwd=SOURCE.parent.parent, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("path", sorted((SOURCE / "order").rglob("*.py")), ids=lambda path: path.name)
def test_order_imports_no_clock_disk_thread_or_random_module(path):
    forbidden = {
        "time",
        "datetime",
        "os",
        "io",
        "pathlib",
        "shutil",
        "tempfile",
        "threading",
        "random",
        "secrets",
        "uuid",
    }
    forbidden |= {"multiprocessing", "concurrent", "socket", "pyarrow", "mmap"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Attribute):
            assert not (node.attr == "random" and getattr(node.value, "id", "") == "np"), path
            continue
        else:
            continue
        assert not {name.split(".")[0] for name in names} & forbidden, (path, names)
        assert not any(name.startswith("numpy.random") for name in names), path


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_reads_or_writes_pickle(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name for alias in node.names} | {getattr(node, "module", "") or ""}
            assert not names & {"pickle", "cloudpickle", "dill", "shelve", "marshal"}, path
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant), path
            assert node.value.value is False, path
