"""Folders that are gone with whoever made them, whatever ends it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.processes import in_threads

from stoker.loader import temporary
from stoker.loader.temporary import OwnedFolder

FAMILY = "stoker-test-"


def folder_in(parent: Path) -> OwnedFolder:
    return OwnedFolder(parent, prefix=FAMILY, family=FAMILY)


def left_in(parent: Path) -> list[Path]:
    return list(parent.glob(f"{FAMILY}*"))


def interrupted_at(line: int, folder: OwnedFolder) -> bool:
    """Make a folder, raise KeyboardInterrupt at the so-manieth line of it, and return whether there was one."""
    num_lines = 0

    def trace(frame, event, _argument):
        nonlocal num_lines
        if frame.f_code.co_filename != temporary.__file__:
            return None
        if event == "line":
            num_lines += 1
            if num_lines == line:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        folder.make()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_whoever_is_interrupted_while_making_it_leaves_nothing(tmp_path):
    line = 1
    while True:
        folder = folder_in(tmp_path)
        was_interrupted = interrupted_at(line, folder)
        folder.close()
        assert left_in(tmp_path) == []
        if not was_interrupted:
            break
        line += 1
    assert line > 5


def test_a_thread_that_still_writes_leaves_nothing(tmp_path):
    folder = folder_in(tmp_path)
    folder.make()
    stops = threading.Event()
    num_refused = threading.Semaphore(0)

    def write() -> None:
        number = 0
        while not stops.is_set():
            number += 1
            try:
                (folder.path / f"{number}").write_bytes(b"chunk")
            except OSError:
                num_refused.release()

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        while len(list(folder.path.iterdir())) < 50:
            pass
        folder.close()
        assert num_refused.acquire(timeout=60)
        assert left_in(tmp_path) == []
    finally:
        stops.set()
        for writer in writers:
            writer.join()


def test_whoever_makes_one_while_others_sweep_has_it(tmp_path):
    lost = []

    def make(_) -> None:
        for _ in range(60):
            folder = folder_in(tmp_path)
            folder.make()
            if not (folder.path / "owner").exists():
                lost.append(folder.path)
            folder.close()

    in_threads(make, range(8))
    assert lost == []
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("ends", ["", "os.kill(os.getpid(), 9)"])
def test_one_that_was_killed_is_swept_by_the_next_and_one_in_use_is_not(tmp_path, ends):
    made = f"""
        import os, pathlib
        from stoker.loader.temporary import OwnedFolder
        folder = OwnedFolder(pathlib.Path({str(tmp_path)!r}), prefix={FAMILY!r}, family={FAMILY!r})
        folder.make()
        (folder.path / "chunk").write_bytes(b"chunk")
        {ends}
    """
    subprocess.run([sys.executable, "-c", "\n".join(line.strip() for line in made.splitlines())], check=False)
    (abandoned,) = left_in(tmp_path)
    first, second = folder_in(tmp_path), folder_in(tmp_path)
    try:
        first.make()
        assert left_in(tmp_path) == [first.path]
        second.make()
        assert abandoned not in left_in(tmp_path)
        assert sorted(left_in(tmp_path)) == sorted([first.path, second.path])
    finally:
        first.close()
        second.close()
        second.close()
    assert left_in(tmp_path) == []
