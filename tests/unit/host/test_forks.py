"""What a fork closes of its parent's."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from stoker import Dataset, Loader
from stoker.testing import write_example


def open_locks(folder):
    """Return the descriptors of locks that are open below a folder."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the folder, which is closed by now
            path = fd.readlink()
            found += [int(fd.name)] if path.is_relative_to(folder) and path.name == "locks" else []
    return sorted(found)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_closes_all_locks_of_its_parent_also_where_one_was_closed_by_somebody_else(tmp_path, monkeypatch):
    monkeypatch.setenv("STOKER_STATUS", "off")
    data = write_example(tmp_path / "data")
    with ExitStack() as loaders:
        for i in range(4):
            loaders.enter_context(Loader(Dataset(data), batch_size=8, cache=tmp_path / f"cache-{i}"))
        locks = open_locks(tmp_path)
        assert len(locks) == 4
        os.close(locks[0])
        child = os.fork()
        if not child:
            os._exit(len(open_locks(tmp_path)))
        _, status = os.waitpid(child, 0)
        os.dup2(locks[1], locks[0])
    assert os.waitstatus_to_exitcode(status) == 0
