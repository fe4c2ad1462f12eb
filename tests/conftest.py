"""What every test may use, and the check that no test leaves anything behind."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_ALWAYS = settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
# The same examples at every run: whoever changes nothing breaks nothing. `make test-slow` draws others.
settings.register_profile("always", _ALWAYS, derandomize=True, database=None)
settings.register_profile("others", _ALWAYS, max_examples=300, print_blob=True)
settings.load_profile("always")

REPOSITORY = Path(__file__).resolve().parent.parent


def _open_files(folder: Path) -> set[str]:
    """Regular files that this process has open or mapped, of those that Stoker makes: in a test's folder, in memory."""
    ours, found = (str(folder), "/dev/shm/stoker", "memfd:stoker"), set()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the folder, which is closed by now
            found.add(f"fd of {fd.readlink()}")
    for line in Path("/proc/self/maps").read_text().splitlines():  # torch has thousands
        if any(place in line for place in ours):
            found.add(f"map of {line.split(maxsplit=5)[5]}")
    return {
        name
        for name in found
        if any(place in name for place in ours)
        and ("/chunks/" in name or "stoker" in Path(name).name or name.endswith("locks"))
    }


def _left_in_memory() -> set[Path]:
    """Return what this process has in /dev/shm: folders of caches in memory, and links to chunks that found no room."""
    links = {path for path in Path("/dev/shm").glob(f"stoker.chunk.{os.geteuid()}.*") if _is_ours(path)}
    return links | set(Path("/dev/shm").glob(f"stoker-{os.getpid()}-*"))


def _is_ours(link: Path) -> bool:
    try:
        return str(link.readlink()).startswith(f"/proc/{os.getpid()}/")
    except FileNotFoundError:  # another test's
        return False


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path):
    """Fail a test that leaves a thread, a file handle, a map or a temporary folder of ours behind."""
    gc.freeze()  # the collection behind a test looks at what it made, not at 300,000 objects of torch and pyarrow
    before = _left_in_memory()
    yield
    gc.collect()
    threads = [t for t in threading.enumerate() if t.name.startswith("stoker")]
    for thread in threads:
        thread.join(timeout=60)
    left = [t.name for t in threads if t.is_alive()]
    assert not left, f"threads left behind: {left}"
    if Path("/proc/self/maps").exists():
        open_now = _open_files(tmp_path)
        assert not open_now, f"files left open or mapped: {sorted(open_now)}"
    mine = sorted(map(str, _left_in_memory() - before))
    assert not mine, f"left in /dev/shm: {mine}"


@pytest.fixture
def run(capsys):
    """Run a command of `stoker` in this process; return exit code, stdout and stderr."""
    from stoker.cli import main

    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        return (code, *capsys.readouterr())

    return call


@pytest.fixture
def run_json(run):
    """Run a command with --json; return exit code and the object."""

    def call(*arguments):
        code, out, _ = run(*arguments, "--json")
        return code, json.loads(out)

    return call


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real Parquet of others, beside the repository; tests that need it are skipped where it is not."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no folder ../shared/data with real Parquet of others")
    return folder
