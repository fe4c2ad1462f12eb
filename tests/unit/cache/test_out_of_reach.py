"""What no public name can bring about: moments between two calls, of other threads, processes and hosts."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.processes import in_threads
from tests.unit.cache.chunk_files import read_arrays
from tests.unit.cache.samples import SPEC, arrays_of, entry, key, same_fields
from tests.unit.cache.transforms import waiting

from stoker import CacheError, CacheFullError, Spec
from stoker._native import find_changed
from stoker.cache.folder import Files, Folder, Locks
from stoker.cache.format import Readahead
from stoker.cache.mirror import Mirror
from stoker.cache.store import Store
from stoker.cache.workers import TransformProcesses
from stoker.host.huge import HUGE_BYTES
from stoker.storage.storage import LocalStorage

N = 20
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))}


def put(store, i, **options):
    return store.publish(key(i), arrays_of(SPEC, N, i), SPEC, num_samples=N, **options)


def holds(store, i):
    with store.open(key(i)) as chunk:
        return same_fields(read_arrays(chunk.path), arrays_of(SPEC, N, i))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def locks(tmp_path):
    with contextlib.closing(Folder(tmp_path, Files())) as folder, contextlib.closing(Locks(folder)) as locks:
        yield locks


# ---------------------------------------------------------------------- the folder and its locks


def test_a_new_cache_says_that_it_is_one_all_at_once_and_whoever_is_first_has_said_it(path):
    marker, was_there, others, made = path / "stoker-cache.json", [], [], []

    class Looking(Files):
        def create(self, *names, **options):
            was_there.append(marker.exists())
            return super().create(*names, **options)

        def link(self, *names):
            was_there.append(marker.exists())
            others.append(Store(path))  # comes first
            made.append((marker.stat().st_ino, marker.read_text()))
            super().link(*names)

    with Store(path, files=Looking()):
        assert made == [(marker.stat().st_ino, marker.read_text())]
    assert not any(was_there)
    assert json.loads(made[0][1]) == {"format": "stoker-cache", "version": 2}
    assert marker.stat().st_nlink == 1
    assert list((path / "tmp").iterdir()) == []
    others[0].close()


@pytest.mark.parametrize("is_first", [True, False])
def test_where_no_file_has_a_second_name_a_cache_is_marked_too_and_no_marker_replaced(path, is_first):
    marker, made = path / "stoker-cache.json", []

    class Without(Files):
        def link(self, *names):
            if not is_first:
                Store(path).close()
                made.append(marker.stat().st_ino)
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    Store(path, files=Without()).close()
    assert json.loads(marker.read_text())["version"] == 2
    assert is_first or made == [marker.stat().st_ino]
    assert list((path / "tmp").iterdir()) == []


def test_what_a_living_writer_writes_is_not_swept(path):
    with Store(path) as store:
        assert store.try_lock("8") is not None  # as a writer of that name has it
        left = [path / "tmp" / f"{key(i)}.{writer}-0" for i, writer in ((1, 99), (2, 8))]
        for one in left:
            one.write_bytes(b"half")
        Store(path).close()
        assert [one.exists() for one in left] == [False, True]
    Store(path).close()
    assert not left[1].exists()


def test_the_count_is_held_by_one_at_a_time(locks, tmp_path):
    inside, most = [], []

    def work(held):
        for _ in range(50):
            with held.usage():
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    with contextlib.closing(Folder(tmp_path, Files())) as folder, contextlib.closing(Locks(folder)) as other:
        in_threads(work, [locks, locks, other, other])
    assert set(most) == {1}


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


def test_a_fork_made_while_a_thread_takes_a_lock_is_told_so_and_does_not_wait(tmp_path):
    script = [sys.executable, "-W", "ignore", "-c", BUSY_FORK, str(tmp_path)]
    assert subprocess.run(script, env=ENVIRONMENT, check=True, capture_output=True, text=True).stdout == "0\n"


def test_whoever_evicts_never_sees_a_data_set_in_use_without_its_chunks(path):
    held = []

    class Looking(Files):
        def replace(self, source, name, target, new_name):
            if name.startswith("a."):
                held.append(store.disk.locks.is_held("", elsewhere=True))
            super().replace(source, name, target, new_name)

    with Store(path) as store, Store(path, files=Looking()) as other:
        other.register("a", name="a", urls=[], keys=lambda: [key(1)])
    assert held == [True]


def test_a_data_set_that_comes_into_use_while_it_is_removed_keeps_what_is_still_there(path):
    keys, kept, begun = [f"{i:064}" for i in range(5000)], [], []

    class Telling(Files):
        def remove(self, folder, name):
            if not begun:
                begun.append(threading.Thread(target=begin))
                begun[0].start()
            return super().remove(folder, name)

    def begin():
        other.register("a", name="a", urls=["lake/a"], keys=lambda: keys)
        kept.extend(other.disk.folder.list_chunks())

    with Store(path) as store:
        store.register("a", name="a", urls=["lake/a"], keys=lambda: keys)
        for name in keys:
            store.path_of(name).write_bytes(b"")
    with Store(path, files=Telling()) as store, Store(path) as other:
        with pytest.raises(CacheError, match="in use"):
            store.disk.remove_datasets(["a"])
        begun[0].join()
        assert 0 < len(kept) < len(keys)
        assert store.disk.folder.list_chunks().keys() == {*kept}


class ClosingFiles(Files):
    """Closes a store while it removes a chunk, as a signal's handler may, and opens files of somebody else then."""

    store = None
    others = ()

    def remove(self, folder, name):
        is_gone = super().remove(folder, name)
        if self.store is not None:
            store, self.store = self.store, None
            numbers = len(list(Path("/proc/self/fd").iterdir()))
            store.close()
            other = store.path.parent / "other"
            other.write_bytes(b"of somebody else")
            self.others = [other.open("r+b") for _ in range(numbers - len(list(Path("/proc/self/fd").iterdir())))]
        return is_gone


def test_a_store_that_is_closed_while_it_counts_writes_into_no_file_opened_since(path):
    files = ClosingFiles()
    with Store(path, files=files) as store:
        put(store, 1)
        files.store = store
        with contextlib.suppress(OSError, CacheError):
            store.discard(key(1))
    assert files.others
    for file in files.others:
        file.close()
    assert (path.parent / "other").read_bytes() == b"of somebody else"


def test_a_thread_that_still_builds_when_its_store_is_closed_puts_nothing_anywhere(path):
    store = Store(path)
    store.close()
    path.rename(path.with_name("moved"))
    with pytest.raises(CacheError, match="was closed"):
        put(store, 2)
    assert not path.exists()
    with Store(path) as other:
        assert not other.has(key(2))  # in memory neither


def test_a_file_that_changed_a_moment_ago_is_not_noted_as_verified(tmp_path):
    file = tmp_path / "chunk"
    file.write_bytes(b"content")
    about = file.stat()
    names = ("st_ino", "st_size", "st_mtime_ns")

    def seen_after(age_ns):
        values = {name: getattr(about, name) for name in names} | {"st_ctime_ns": time.time_ns() - age_ns}
        return type("About", (), values)()

    with contextlib.closing(Folder(tmp_path / "cache", Files())) as folder:
        for age_ns, is_noted in ((-(10**12), False), (10**12, True)):
            seen = seen_after(age_ns)
            folder.note_verified(key(1), seen)
            assert folder.was_verified(key(1), seen) == is_noted


def test_room_is_found_ahead_and_only_a_full_disk_is_a_reason_not_to_write(tmp_path):
    files, folder = Files(), os.open(tmp_path, os.O_RDONLY)
    fd = files.create(folder, "file", size_bytes=1 << 20)
    os.close(folder)
    with os.fdopen(fd, "r+b"):
        files.reserve(fd, 1 << 20)
        files.write(fd, b"x", offset=1 << 19)
        assert os.pread(fd, 3, (1 << 19) - 1) == b"\0x\0"
        assert os.fstat(fd).st_size == 1 << 20
    with (tmp_path / "file").open("rb") as file:  # no room is found for what may not be written to
        files.reserve(file.fileno(), 1)
    if sys.platform == "linux" and Path("/dev/shm").is_dir():
        full = pytest.raises(OSError, match=os.strerror(errno.ENOSPC))
        with tempfile.TemporaryFile(dir="/dev/shm") as file, full:
            files.reserve(file.fileno(), 1 << 50)


def test_a_full_disk_is_found_before_anything_of_a_large_file_is_written(path):
    large, written = 20_000, []

    class Full(Files):
        def reserve(self, fd, size_bytes):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def write(self, fd, data, *, offset):
            written.append(memoryview(data).nbytes)
            super().write(fd, data, offset=offset)

    with Store(path, files=Full()) as store:
        put(store, 1)
        assert store.size_of(key(1)) is not None
        written.clear()
        with pytest.raises(CacheFullError, match=r"disk.*full"):
            store.publish(key(2), arrays_of(SPEC, large), SPEC, num_samples=large, must_be_kept=True)
        assert {*written} == {8}  # how much the cache holds
        assert not store.has(key(2))
        assert list((path / "tmp").iterdir()) == []


# ---------------------------------------------------------------------- chunks in memory

needs_memory = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memory that processes share")


@needs_memory
def test_a_chunk_in_memory_that_is_still_being_written_is_not_found_by_an_old_link(path):
    with Store(path, limit_bytes=1) as store:
        put(store, 1)
        (link,) = Path("/dev/shm").glob(f"stoker.chunk.*{key(1)}")
        store.discard(key(1))
        seen = []

        class LookingFiles(Files):
            """Looks from another process, as it were, before the last byte is there."""

            def write(self, fd, data, *, offset):
                super().write(fd, data, offset=offset)
                if os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:"):  # noqa: PTH115
                    link.symlink_to(f"/proc/{os.getpid()}/fd/{fd}")  # as that of a process that had these numbers
                    seen.append(other.has(key(1)))
                    link.unlink()

        with Store(path, limit_bytes=1) as other, Store(path, limit_bytes=1, files=LookingFiles()) as writer:
            put(writer, 1)
            assert other.has(key(1))
        assert seen == [False]


CHILD = """
import sys
from stoker.cache.store import Store
from tests.unit.cache.test_out_of_reach import key, put

store = Store(sys.argv[1], limit_bytes=1)
put(store, 2)
print(store.has(key(2)), flush=True)
sys.stdin.read()
"""


@needs_memory
def test_chunks_in_memory_are_found_by_other_processes_and_go_with_theirs(path):
    with Store(path, limit_bytes=1) as store:
        put(store, 1)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen([sys.executable, "-c", CHILD, str(path)], env=ENVIRONMENT, text=True, **pipes) as child:
            assert child.stdout.readline() == "True\n"
            assert [holds(store, i) for i in (1, 2)] == [True, True]
            child.kill()
            child.wait()
        assert [store.has(key(i)) for i in (1, 2)] == [True, False]
        put(store, 2)
        with Store(path, limit_bytes=1) as other:
            assert [other.has(key(i)) for i in (1, 2)] == [True, True]
            store.discard(key(2))
            assert not other.has(key(2))
    with Store(path, limit_bytes=1) as other:
        assert not other.has(key(1))


# ---------------------------------------------------------------------- what is asked of the system


def test_files_are_what_they_were_until_anything_about_them_changes(tmp_path):
    paths = [tmp_path / name for name in ["a", "b" * 200, "ünïcode", "with space", "empty", "old"]]
    for i, path in enumerate(paths):
        path.write_bytes(b"x" * 1_000 * (i % 5))
        # Times before 1970 and with all nine digits are times, too.
        os.utime(path, ns=(0, [123_456_789_987_654_321, -1, -999_999_999, 0, 1 << 60, 7][i]))
    names = np.array([os.fsencode(path) for path in [*paths, paths[0] / "below a file"]], dtype="S400")
    found = [(about.st_ino, about.st_mtime_ns, about.st_size) for about in map(os.stat, paths)]
    versions = np.array([*found, (1, 2, 3)])

    def changed(files, *, patience_s=1.0):
        told = np.ones(len(files), dtype=np.bool_)
        texts = names.view(np.uint8).reshape(len(names), names.itemsize)
        find_changed(texts, versions, np.array(files, dtype=np.int64), told, int(1e9 * patience_s))
        return told.tolist()

    assert [changed(range(7), patience_s=patience_s) for patience_s in (1, 0)] == [[False] * 6 + [True]] * 2
    os.utime(paths[0], ns=(0, 123_456_789_987_654_322))
    with paths[1].open("ab") as file:
        file.write(b"more")
    os.utime(paths[1], ns=(0, -1))
    paths[2].unlink()
    aside = tmp_path / "aside"
    aside.write_bytes(b"x" * 3_000)
    os.utime(aside, ns=(0, 0))
    aside.replace(paths[3])
    versions[5] = -1
    assert changed(range(6)) == [True, True, True, True, False, True]
    assert changed([4, 2, 4]) == [False, True, False]
    assert changed([]) == []


BLOCK = 8 << 20


def reach(size, ends, *, cpu_s=lambda: 0.0, costs_much=None):
    """Reach so far in a file, and return after each time what parts have been brought in by huge pages."""
    parts, after = [], []
    one = Readahead(
        7,
        size,
        bring_in=lambda _, begin, num: parts.append((begin, begin + num)),
        cpu_s=cpu_s,
        costs_much=costs_much or threading.Event(),
    )
    for end in ends:
        one.reach(end)
        after.append([*parts])
    return after


@given(size=st.integers(HUGE_BYTES, 100 << 20), ends=st.lists(st.integers(1, 100 << 20), min_size=1, max_size=20))
def test_what_is_reached_has_been_brought_in_once(size, ends):
    after = reach(size, ends)
    assert all(parts[-1][1] >= min(end, size) for parts, end in zip(after, ends, strict=True))
    assert all(stop == begin for (_, stop), (begin, _) in pairwise(after[-1]))
    assert all(begin % BLOCK == 0 and begin < stop <= size for begin, stop in after[-1])


def test_small_files_are_left_to_the_system_and_where_pages_cost_much_nobody_asks_for_more():
    assert reach(HUGE_BYTES - 1, [HUGE_BYTES - 1]) == [[]]
    clock = iter([0.0, 0.016])  # after the first block, and when all of it has been read
    costs_much = threading.Event()
    ends = [BLOCK, BLOCK + 1, 2 * BLOCK + 1]
    assert reach(3 * BLOCK, ends, cpu_s=lambda: next(clock), costs_much=costs_much) == [[(0, BLOCK)]] * 3
    assert reach(3 * BLOCK, [1], costs_much=costs_much) == [[]]  # what one file has shown holds for all


# ---------------------------------------------------------------------- a transform's process


def test_what_an_interrupted_call_had_asked_for_is_not_the_answer_to_the_next_one(tmp_path):
    processes = TransformProcesses(functools.partial(waiting, folder=tmp_path), 1)

    def interrupt():
        while not (tmp_path / "begun").exists():
            time.sleep(0.005)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            processes(pa.table({"id": [1, 2, 3]}), "one")
    finally:
        signal.signal(signal.SIGINT, before)
    interrupting.join()
    (tmp_path / "goes on").touch()
    assert processes(pa.table({"id": [4, 5, 6]}), "another")["x"].tolist() == [4, 5, 6]
    processes.close()
    assert multiprocessing.active_children() == []


# ---------------------------------------------------------------------- a mirror that fails


class Moving(LocalStorage):
    """A folder that does what a test says before it answers, and notes the names of the calls."""

    def __init__(self):
        self.before = lambda call: None
        self.calls = []

    def _note(self, call):
        self.calls.append(call)
        self.before(call)

    def stat(self, url):
        self._note("stat")
        return super().stat(url)

    def read(self, url, offset, num_bytes):
        self._note("read")
        return super().read(url, offset, num_bytes)

    def write(self, url, data):
        self._note("write")
        super().write(url, data)


class Hosts:
    """Hosts with a cache each, one mirror, and a clock."""

    def __init__(self, folder):
        self.folder, self.storage, self.stores = folder, Moving(), []
        self.now_s, self.tick_s = 0.0, 0.0

    def clock(self):
        self.now_s += self.tick_s
        return self.now_s

    def store(self, name, *, answer_s=20.0):
        mirror = Mirror(self.folder / "mirror", storage=self.storage, answer_s=answer_s, clock=self.clock)
        self.stores.append(Store(self.folder / name, mirror=mirror))
        return self.stores[-1]

    def filled(self):
        """Put a chunk there."""
        store = self.store("a")
        put(store, 1)
        assert store.mirror.drain(threading.Event()) == 0


@pytest.fixture
def hosts(tmp_path):
    made = Hosts(tmp_path)
    yield made
    for store in made.stores:
        store.close()


def fetch(store, i):
    return store.fetch(key(i), SPEC, num_samples=N)


@pytest.mark.parametrize("failing", ["stat", "read"])
def test_a_mirror_that_fails_is_said_once_and_left_alone_for_longer_each_time(hosts, failing, caplog):
    hosts.filled()
    second = hosts.store("b")

    def fail(call):
        if call == failing:
            raise ConnectionResetError("the store is gone")

    hosts.storage.before = fail
    hosts.storage.calls.clear()
    for _ in range(3):
        assert not fetch(second, 1)
    assert hosts.storage.calls.count(failing) == 1
    hosts.now_s = 1.5
    assert not fetch(second, 1)
    hosts.now_s = 3.0
    assert not fetch(second, 1)
    assert hosts.storage.calls.count(failing) == 2
    hosts.storage.before = lambda call: None
    hosts.now_s = 4.0
    assert fetch(second, 1)
    assert holds(second, 1)
    assert second.counts()["num_mirror_failures"] == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cannot be read" in caplog.text
    assert "gone" in caplog.text


def test_a_sound_chunk_with_other_samples_or_fields_is_not_taken(hosts):
    hosts.filled()
    second = hosts.store("b")
    assert not second.fetch(key(1), SPEC, num_samples=N + 1)
    assert not second.fetch(key(1), Spec((*SPEC, entry("more", "int8"))), num_samples=N)
    assert not second.has(key(1))
    assert second.counts()["num_mirror_failures"] == 2
    assert second.fetch(key(1), None, num_samples=N)  # where nobody knows yet what a sample is
    assert holds(second, 1)


def test_a_mirror_that_says_nothing_is_given_up(hosts):
    hosts.filled()
    second, answer = hosts.store("b", answer_s=0.05), threading.Event()
    hosts.storage.before = lambda call: answer.wait(60)
    try:
        assert not fetch(second, 1)
    finally:
        answer.set()
    assert second.counts()["num_mirror_failures"] == 1


def test_a_mirror_that_takes_nothing_is_read_all_the_same_and_what_is_left_is_told(hosts, caplog):
    hosts.filled()
    second = hosts.store("b")

    def refuse(call):
        if call == "write":
            raise PermissionError(13, "not yours")

    hosts.storage.before, hosts.tick_s = refuse, 100.0
    put(second, 2)
    assert second.mirror.drain(threading.Event()) == 1
    assert fetch(second, 1)
    assert second.counts()["num_mirror_failures"] == hosts.storage.calls.count("write") - 1 == 4
    assert "cannot be written to" in caplog.text
    assert "cannot be read" not in caplog.text


def test_closing_waits_for_the_chunk_on_its_way_and_for_no_other(hosts):
    store = hosts.store("a")
    begun, go = threading.Event(), threading.Event()

    def hold(call):
        if call == "write":
            begun.set()
            go.wait(60)

    hosts.storage.before = hold
    for i in range(20):
        put(store, i)
    assert begun.wait(60)
    closing = threading.Thread(target=store.close)
    closing.start()
    go.set()
    closing.join()
    assert 1 <= len(list((hosts.folder / "mirror").iterdir())) <= 20
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stoker-mirror")]
