import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.processes import in_threads

import stoker
from stoker import CacheError
from stoker.cache.folder import Files, Folder, Locks


@pytest.fixture
def folder(tmp_path):
    folder = Folder(tmp_path, Files())
    yield folder
    folder.close()


@pytest.fixture
def locks(folder):
    with_locks = Locks(folder)
    yield with_locks
    with_locks.close()


def hold(path, connection):
    locks = Locks(Folder(path, Files()))
    exclusive = locks.try_lock("a")
    shared = locks.try_lock("data", is_shared=True)
    connection.send_bytes(b"held" if exclusive and shared else b"refused")
    connection.recv_bytes()


@pytest.fixture
def other_process(locks, tmp_path):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=hold, args=(tmp_path, theirs))
    process.start()
    theirs.close()
    assert ours.recv_bytes() == b"held"
    yield process
    process.kill()
    process.join()
    process.close()
    ours.close()


def test_a_lock_is_had_once_at_a_time(locks):
    lock = locks.try_lock("a")
    assert lock is not None
    assert locks.try_lock("a") is None
    assert locks.is_held("a")
    lock.close()
    lock.close()
    assert not locks.is_held("a")
    with locks.try_lock("a"):
        pass


def test_names_do_not_get_in_each_others_way(locks):
    assert all(locks.try_lock(name) for name in "abc")


def test_threads_exclude_each_other_too(locks):
    got = []
    with locks.try_lock("a"):
        thread = threading.Thread(target=lambda: got.append(locks.try_lock("a")))
        thread.start()
        thread.join()
    assert got == [None]


def test_a_shared_lock_is_held_until_the_last_one_lets_go(locks, folder):
    other = Locks(folder)
    first = locks.try_lock("data", is_shared=True)
    second = other.try_lock("data", is_shared=True)
    assert other.try_lock("data") is None
    assert locks.is_held("data", elsewhere=True)
    first.close()
    assert locks.is_held("data")
    assert not other.is_held("data", elsewhere=True)
    second.close()
    assert not locks.is_held("data")
    other.close()


def test_closing_gives_everything_back_and_takes_nothing_from_others(locks, folder):
    other = Locks(folder)
    kept = locks.try_lock("mine")
    assert other.try_lock("theirs")
    other.close()
    other.close()
    assert locks.try_lock("theirs")
    assert locks.try_lock("mine") is None
    assert kept is not None
    with pytest.raises(CacheError, match="closed"):
        other.try_lock("theirs")


def test_another_process_excludes_us_until_it_dies(locks, other_process):
    assert locks.try_lock("a") is None
    assert locks.is_held("a")
    assert locks.is_held("data", elsewhere=True)
    assert locks.try_lock("data") is None
    shared = locks.try_lock("data", is_shared=True)
    assert shared is not None
    shared.close()
    other_process.kill()
    other_process.join()
    assert locks.try_lock("a") is not None
    assert locks.try_lock("data") is not None


def test_the_count_is_held_by_one_at_a_time(locks, folder):
    other = Locks(folder)
    inside, most = [], []

    def work(held):
        for _ in range(50):
            with held.usage():
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    in_threads(work, [locks, locks, other, other])
    other.close()
    assert set(most) == {1}


def test_the_file_stays_empty_and_alone(locks, tmp_path):
    assert all(locks.try_lock(str(i)) for i in range(100))
    assert [(path.name, path.stat().st_size) for path in tmp_path.glob("lock*")] == [("locks", 0)]


FORK = """
import os, sys
from pathlib import Path
from stoker.cache.folder import Files, Folder, Locks

locks = Locks(Folder(Path(sys.argv[1]), Files()))
lock = locks.try_lock("a")
if child := os.fork():
    os.waitpid(child, 0)
lock.close()
if sys.argv[2:]:
    locks.close()
print("tried", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("closes", [[], ["closes"]])
def test_a_fork_drops_no_lock_of_its_parent_and_keeps_none_once_that_has_ended(locks, tmp_path, closes):
    environment = os.environ | {"PYTHONPATH": str(Path(stoker.__file__).parents[1])}
    script = [sys.executable, "-W", "ignore", "-c", FORK, str(tmp_path), *closes]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(script, env=environment, text=True, **pipes) as parent:
        assert parent.stdout.readline() == "tried\n"  # by the fork, which lives until its input ends
        assert locks.try_lock("a") is None
        parent.kill()
        parent.wait()
        assert locks.try_lock("a") is not None


BUSY_FORK = """
import os, signal, sys
from pathlib import Path
from stoker.cache.folder import Files, Folder, Locks

locks = Locks(Folder(Path(sys.argv[1]), Files()))
with locks._mutex:  # as a thread has it that is taking a lock
    child = os.fork()
if not child:
    signal.alarm(10)
    locks._mutex.acquire(blocking=False)
    try:
        locks.try_lock("a")
    except RuntimeError as error:
        os._exit(0 if "make a loader of your own" in str(error) else 1)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_made_while_a_thread_takes_a_lock_is_told_so_and_does_not_wait(locks, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(Path(stoker.__file__).parents[1])}
    script = [sys.executable, "-W", "ignore", "-c", BUSY_FORK, str(tmp_path)]
    assert subprocess.run(script, env=environment, check=True, capture_output=True, text=True).stdout == "0\n"
