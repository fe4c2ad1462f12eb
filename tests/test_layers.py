"""What no file may have: the order no clock, disk, thread or random numbers, and nothing of it pickle.

Which folder may import which, `lint-imports` checks (`make lint`).
"""

import ast
from pathlib import Path

import stoker

SOURCE = Path(stoker.__file__).parent
IMPURE = {"concurrent", "datetime", "io", "mmap", "multiprocessing", "os", "pathlib", "pyarrow", "random", "secrets"}
IMPURE |= {"shutil", "socket", "tempfile", "threading", "time", "uuid"}


def imported(node: ast.AST) -> set[str]:
    """Return the modules that a statement imports, and what it takes from them, by their whole names."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return set()


def test_the_order_imports_no_clock_disk_thread_or_random_module():
    paths = sorted((SOURCE / "sampling").rglob("*.py"))
    assert len(paths) > 5
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            names = imported(node)
            assert not {name.split(".")[0] for name in names} & IMPURE, (path, names)
            assert not any(name.startswith("numpy.random") for name in names), path
            if isinstance(node, ast.Attribute):
                assert not (node.attr == "random" and getattr(node.value, "id", "") == "np"), path


def test_nothing_reads_or_writes_pickle():
    paths = sorted(SOURCE.rglob("*.py"))
    assert len(paths) > 100
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            names = {name.split(".")[0] for name in imported(node)}
            assert not names & {"pickle", "cloudpickle", "dill", "shelve", "marshal"}, path
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), path
                assert node.value.value is False, path
