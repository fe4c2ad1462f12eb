"""What every test may use, and the check that no test leaves anything behind."""

from __future__ import annotations

import gc
import os
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("default")

REPOSITORY = Path(__file__).resolve().parent.parent


def _open_files() -> set[str]:
    """Paths of regular files this process has open or mapped, of those that Stoker could have made."""
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"fd of {fd.readlink()}")
        except OSError:
            continue
    for line in Path("/proc/self/maps").read_text().splitlines():
        found.add(f"map of {line.split(maxsplit=5)[5]}" if len(line.split(maxsplit=5)) == 6 else "")
    return {name for name in found if "/chunks/" in name or "stoker" in Path(name).name or name.endswith("locks")}


def _folders_in_memory() -> set[Path]:
    """Return what caches have in /dev/shm: of this process alone, or of all processes of this user."""
    return {p for name in (f"-{os.getpid()}-", f".{os.geteuid()}.") for p in Path("/dev/shm").glob(f"stoker{name}*")}


def _is_held(folder: Path) -> bool:
    """Return whether a process has a folder locked that goes with the last one, or it went meanwhile.

    The system's list tells. To try the lock would keep it from a process that has just made the folder, which would
    then leave it. Such a one makes it first and locks it then: so it is looked at more than once.
    """
    for _ in range(3):
        try:
            inode = folder.stat().st_ino
        except FileNotFoundError:
            return True
        if f":{inode} " in Path("/proc/locks").read_text():
            return True
    return False


_num_frozen_modules = 0


def _freeze_what_was_imported() -> None:
    """Let the collection behind each test look at what tests made, not at 300,000 objects of torch and pyarrow."""
    global _num_frozen_modules  # how many were imported the last time
    if len(sys.modules) > _num_frozen_modules + 50:
        gc.collect()
        gc.freeze()
        _num_frozen_modules = len(sys.modules)


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path):
    """Fail a test that leaves a thread, a file handle, a map or a temporary folder of ours behind."""
    _freeze_what_was_imported()
    folders = _folders_in_memory()
    yield
    gc.collect()
    threads = [t for t in threading.enumerate() if t.name.startswith("stoker")]
    for thread in threads:
        thread.join(timeout=60)  # the first one on a machine that compiles loops takes a while on a busy one
    left = [t.name for t in threads if t.is_alive()]
    assert not left, f"threads left behind: {left}"
    if Path("/proc/self/maps").exists():
        open_now = {name for name in _open_files() if str(tmp_path) in name or "/dev/shm/stoker" in name}
        assert not open_now, f"files left open or mapped: {sorted(open_now)}"
    mine = sorted(str(folder) for folder in _folders_in_memory() - folders if not _is_held(folder))
    assert not mine, f"left in /dev/shm: {mine}"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real Parquet of others, beside the repository; tests that need it are skipped where it is not."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no folder ../shared/data with real Parquet of others")
    return folder
