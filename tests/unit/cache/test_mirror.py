"""The mirror of a cache: what comes from it, what is put there, and what is not believed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
from tests.unit.cache.chunk_files import read_arrays
from tests.unit.cache.samples import SPEC, arrays_of, entry, key, same_fields

from stoker import Cache, CacheFullError, Spec
from stoker.cache.mirror import Mirror
from stoker.cache.store import Store
from stoker.storage.storage import LocalStorage

N = 30


class Moving(LocalStorage):
    """A folder that does what a test says before it answers.

    Attributes:
        before: Called with the name of the call.
        calls: Their names.
    """

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
    """Hosts with a cache each, and one mirror."""

    def __init__(self, folder):
        self.folder = folder
        self.storage = Moving()
        self.now_s, self.tick_s = 0.0, 0.0
        self.stores = []

    def clock(self):
        self.now_s += self.tick_s
        return self.now_s

    def store(self, name, **options):
        mirror = Mirror(
            self.folder / "mirror",
            storage=self.storage,
            answer_s=options.pop("answer_s", 20.0),
            clock=self.clock,
        )
        self.stores.append(Store(self.folder / name, mirror=mirror, **options))
        return self.stores[-1]

    def object_of(self, i):
        return self.folder / "mirror" / f"{key(i)}.safetensors"


@pytest.fixture
def hosts(tmp_path):
    made = Hosts(tmp_path)
    yield made
    for store in made.stores:
        store.close()


def publish(store, i):
    store.publish(key(i), arrays_of(SPEC, N, i), SPEC, num_samples=N)


def drained(store):
    assert store.mirror.drain(threading.Event()) == 0


def fetch(store, i, **options):
    return store.fetch(key(i), SPEC, **{"num_samples": N, **options})


def holds(store, i):
    with store.open(key(i)) as chunk:
        return same_fields(read_arrays(chunk.path), arrays_of(SPEC, N, i))


def test_a_chunk_that_one_host_has_published_is_fetched_by_another_and_is_the_same_file(hosts):
    first, second = hosts.store("a"), hosts.store("b")
    publish(first, 1)
    drained(first)
    assert not fetch(second, 2)
    assert fetch(second, 1)
    assert holds(second, 1)
    assert second.path_of(key(1)).read_bytes() == first.path_of(key(1)).read_bytes()
    counts = second.counts()
    assert (counts["num_fetched"], counts["num_built"], counts["num_mirror_failures"]) == (1, 0, 0)
    assert first.counts()["num_uploaded"] == 1
    assert [path.name for path in (hosts.folder / "mirror").iterdir()] == [f"{key(1)}.safetensors"]


def test_a_chunk_with_as_long_a_header_as_the_format_allows_is_fetched(hosts):
    first, second = hosts.store("a"), hosts.store("b")
    first.publish(key(1), arrays_of(SPEC, N, 1), SPEC, num_samples=N, about={"note": "x" * (15 << 20)})
    drained(first)
    assert fetch(second, 1)
    assert holds(second, 1)


KILLED = """
import resource, signal, sys
from stoker.storage.storage import LocalStorage

signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
LocalStorage().write(sys.argv[1], bytes(100_000))
"""


@pytest.mark.parametrize("is_old", [False, True])
def test_what_a_host_that_was_killed_had_begun_to_put_there_goes_once_it_is_old(hosts, is_old):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    script = [sys.executable, "-c", KILLED, str(hosts.object_of(1))]
    assert subprocess.run(script, env=environment, check=False).returncode == -signal.SIGXFSZ
    (left,) = (hosts.folder / "mirror").iterdir()
    if is_old:
        os.utime(left, (0, 0))
    store = hosts.store("a")
    publish(store, 1)
    drained(store)
    assert hosts.object_of(1).exists()
    assert left.exists() == (not is_old)
    assert store.mirror.sizes() == {key(1): hosts.object_of(1).stat().st_size}


def test_what_is_there_is_not_put_there_again(hosts):
    first, second = hosts.store("a"), hosts.store("b")
    publish(first, 1)
    drained(first)
    publish(second, 1)
    drained(second)
    assert hosts.storage.calls.count("write") == 1
    assert second.counts()["num_uploaded"] == 0
    assert second.mirror.sizes() == {key(1): hosts.object_of(1).stat().st_size}


@pytest.mark.parametrize("at", [3, 200, 5000, -1])
def test_a_damaged_chunk_is_not_taken_and_what_is_built_in_its_place_mends_the_mirror(hosts, at, caplog):
    first, second = hosts.store("a"), hosts.store("b")
    publish(first, 1)
    drained(first)
    sound = hosts.object_of(1).read_bytes()
    damaged = bytearray(sound)
    damaged[at] ^= 0x10
    hosts.object_of(1).write_bytes(damaged[:at] if at == -1 else damaged)
    assert not fetch(second, 1)
    assert not second.has(key(1))
    assert list((hosts.folder / "b" / "tmp").iterdir()) == []
    assert second.counts()["num_mirror_failures"] == 1
    assert "holds what is damaged" in caplog.text
    publish(second, 1)
    drained(second)
    assert hosts.object_of(1).read_bytes() == sound


def test_a_sound_chunk_under_another_name_or_with_other_samples_is_not_taken(hosts):
    first, second = hosts.store("a"), hosts.store("b")
    publish(first, 1)
    drained(first)
    hosts.object_of(2).write_bytes(hosts.object_of(1).read_bytes())
    assert not fetch(second, 2)
    assert not fetch(second, 1, num_samples=N + 1)
    other = Spec((*SPEC, entry("more", "int8")))
    assert not second.fetch(key(1), other, num_samples=N)
    assert second.counts()["num_mirror_failures"] == 3
    assert second.fetch(key(1), None, num_samples=N)  # where nobody knows yet what a sample is


@pytest.mark.parametrize("failing", ["stat", "read"])
def test_a_mirror_that_fails_is_said_once_and_left_alone_for_longer_each_time(hosts, failing, caplog):
    first, second = hosts.store("a"), hosts.store("b")
    publish(first, 1)
    drained(first)

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
    assert second.counts()["num_mirror_failures"] == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cannot be read" in caplog.text
    assert "gone" in caplog.text


def test_a_mirror_that_says_nothing_is_given_up(hosts):
    first, second = hosts.store("a"), hosts.store("b", answer_s=0.05)
    publish(first, 1)
    drained(first)
    answer = threading.Event()
    hosts.storage.before = lambda call: answer.wait(60)
    try:
        assert not fetch(second, 1)
    finally:
        answer.set()
    assert second.counts()["num_mirror_failures"] == 1


def test_a_mirror_that_takes_nothing_is_read_all_the_same_and_what_is_left_is_told(hosts, caplog):
    first, second = hosts.store("a"), hosts.store("b")
    publish(first, 1)
    drained(first)

    def refuse(call):
        if call == "write":
            raise PermissionError(13, "not yours")

    hosts.storage.before, hosts.tick_s = refuse, 100.0
    publish(second, 2)
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
        publish(store, i)
    assert begun.wait(60)
    closing = threading.Thread(target=store.close)
    closing.start()
    go.set()
    closing.join()
    assert 1 <= len(list((hosts.folder / "mirror").iterdir())) <= 20
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stoker-mirror")]


def test_a_chunk_for_which_the_folder_has_no_room_comes_and_goes_through_memory(hosts):
    first, second = hosts.store("a", limit_bytes=1), hosts.store("b", limit_bytes=1)
    publish(first, 1)
    drained(first)
    assert first.counts()["num_uploaded"] == 1
    with pytest.raises(CacheFullError):
        fetch(second, 1, must_be_kept=True)
    assert fetch(second, 1)
    assert holds(second, 1)
    assert list((hosts.folder / "b" / "chunks").iterdir()) == []


def test_what_is_damaged_here_is_not_put_there(hosts):
    first = hosts.store("a")
    taken, go = threading.Event(), threading.Event()

    def hold(call):
        taken.set()
        go.wait(60)

    hosts.storage.before = hold
    publish(first, 1)
    assert taken.wait(60)
    data = bytearray(first.path_of(key(1)).read_bytes())
    data[5000] ^= 1
    first.path_of(key(1)).write_bytes(data)
    go.set()
    drained(first)
    assert not hosts.object_of(1).exists()


@pytest.mark.parametrize(
    "url",
    ["s3://AKIA:hush@bucket/x", "s3://bucket/x?secret_key=hush", "https://me:hush@host/x", "abfss://a:hush@b.dfs/x"],
)
def test_a_url_with_what_may_be_credentials_is_refused_without_showing_them(url):
    with pytest.raises(ValueError, match="mirror_options") as caught:
        Cache("/nvme", mirror=url)
    assert "hush" not in str(caught.value)


def test_options_of_a_mirror_are_shown_nowhere(tmp_path):
    cache = Cache(tmp_path / "cache", mirror="s3://bucket/x", mirror_options={"secret_key": "hush"})
    assert "hush" not in repr(cache)
    with pytest.raises(ValueError, match="without a mirror"):
        Cache(tmp_path / "cache", mirror_options={"secret_key": "hush"})
    with pytest.raises(TypeError, match="mirror"):
        Cache(tmp_path / "cache", mirror=7)


@pytest.mark.parametrize(
    ("mirror", "options", "says"), [("s3://bucket/x", {"nope": 1}, "nope"), ("nobody://x/y", None, "nobody")]
)
def test_a_mirror_that_no_client_can_open_is_a_wrong_argument(tmp_path, mirror, options, says):
    with pytest.raises(ValueError, match=says):
        Cache(tmp_path / "cache", mirror=mirror, mirror_options=options).open()
