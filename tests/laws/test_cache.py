"""Contract 5 and 8 of the store: a chunk is published whole or not at all, and what is kept stays.

A state machine plays several stores on one folder against a dict; crashes fall between any two changes of the disk.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.strategies import examples
from tests.unit.cache.chunk_files import read_arrays
from tests.unit.cache.samples import SPEC, arrays_of, key, same_fields

from stoker import ChunkCorruptError
from stoker.cache import admin
from stoker.cache.folder import Files
from stoker.cache.store import Store

N = 5
NUM_KEYS = 8
KEYS = st.integers(0, NUM_KEYS - 1)
SIZE_BYTES = 8576  # of one chunk of these samples
NUM_CHANGES = 4  # of the disk, when one is published
N_LARGE = 68_000  # samples of a chunk of three huge pages
NUM_CHANGES_LARGE = 8  # of the disk, when such a one is published


class Killed(BaseException):
    """The process is no more: nothing of it runs on."""


class KilledFiles(Files):
    """Changes the disk as often as it may live, then never again."""

    def __init__(self, lives: int) -> None:
        self.lives = lives

    def _live(self) -> None:
        if self.lives == 0:
            raise Killed
        self.lives -= 1

    def create(self, folder, name, **options):
        self._live()
        return super().create(folder, name, **options)

    def write(self, fd, data, *, offset):
        if self.lives == 1:
            super().write(fd, bytes(data)[: len(data) // 2], offset=offset)  # in the middle of a write
        self._live()
        super().write(fd, data, offset=offset)

    def reserve(self, fd, size_bytes):
        self._live()
        super().reserve(fd, size_bytes)

    def replace(self, *names):
        self._live()
        super().replace(*names)

    def remove(self, folder, name):
        self._live()
        return super().remove(folder, name)


def put(store: Store, i: int, seed: int, *, num: int = N, **options) -> None:
    store.publish(key(i), arrays_of(SPEC, num, seed), SPEC, num_samples=num, **options)


def use(store: Store, numbers) -> None:
    numbers = list(numbers)
    store.register(f"set{numbers[0]}", name="set", urls=[], keys=lambda: [key(i) for i in numbers])


class StoreMachine(RuleBasedStateMachine):
    """Two living stores and any number of killed ones on one folder."""

    limit: int | None

    @initialize(chunks=st.sampled_from([3, 4, 5, None]))
    def open(self, chunks):
        self.folder = Path(tempfile.mkdtemp(prefix="laws-"))
        self.limit = None if chunks is None else chunks * SIZE_BYTES
        self.stores = [Store(self.folder / "cache", limit_bytes=self.limit) for _ in range(2)]
        for store in self.stores:
            use(store, range(NUM_KEYS))
        self.content: dict[int, int] = {}  # what was published last, by number: the seed of its arrays
        self.kept: set[int] = set()
        self.opened: list = []

    @rule(which=st.integers(0, 1), i=KEYS, seed=st.integers(0, 3))
    def publish(self, which, i, seed):
        store = self.stores[which]
        if store.has(key(i)):
            return
        has_room = self.limit is None or store.disk.folder.count_bytes() + SIZE_BYTES <= self.limit
        put(store, i, seed)
        self.content[i] = seed
        with store.open(key(i)) as chunk:
            assert same_fields(read_arrays(chunk.path), arrays_of(SPEC, N, seed))
            assert chunk.is_kept == has_room
        self._note_kept()

    @rule(which=st.integers(0, 1), i=KEYS)
    def open_chunk(self, which, i):
        try:
            chunk = self.stores[which].open(key(i))
        except KeyError:
            assert i not in self.kept
            return
        assert same_fields(read_arrays(chunk.path), arrays_of(SPEC, N, self.content[i]))
        self.opened.append(chunk)

    @precondition(lambda self: self.opened)
    @rule()
    def close_chunk(self):
        self.opened.pop(0).close()

    @rule(which=st.integers(0, 1), i=KEYS)
    def discard(self, which, i):
        self.stores[which].discard(key(i))
        assert not any(store.has(key(i)) for store in self.stores)
        self.kept.discard(i)

    @rule(i=KEYS)
    def damage(self, i):
        store = self.stores[0]
        if store.size_of(key(i)) is None:
            return
        path = store.path_of(key(i))
        data = bytearray(path.read_bytes())
        data[4096 + i] ^= 0x10
        path.unlink()
        path.write_bytes(data)
        with pytest.raises(ChunkCorruptError):
            self.stores[1].open(key(i))
        assert store.size_of(key(i)) is None
        self.kept.discard(i)

    @rule(i=KEYS, lives=st.integers(0, NUM_CHANGES), seed=st.integers(0, 3))
    def publish_and_be_killed(self, i, lives, seed):
        files = KilledFiles(10**9)
        victim = Store(self.folder / "cache", limit_bytes=self.limit, files=files)
        try:
            use(victim, range(NUM_KEYS))
            files.lives = lives
            put(victim, i, seed)
        except Killed:
            pass
        finally:
            files.lives = 10**9
            victim.close()  # the system drops a dead process's locks
        fresh = Store(self.folder / "cache", limit_bytes=self.limit)
        assert list((self.folder / "cache" / "tmp").iterdir()) == []
        if fresh.size_of(key(i)) is not None:
            arrays = read_arrays(fresh.path_of(key(i)))
            known = [s for s in (seed, self.content.get(i)) if s is not None]
            self.content[i] = next(s for s in known if same_fields(arrays, arrays_of(SPEC, N, s)))
        fresh.close()
        self._note_kept()

    @rule(which=st.integers(0, 1))
    def reopen(self, which):
        for chunk in self.opened:
            chunk.close()
        self.opened.clear()
        self.stores[which].close()
        self.stores[which] = Store(self.folder / "cache", limit_bytes=self.limit)
        use(self.stores[which], range(NUM_KEYS))

    @invariant()
    def everything_there_is_whole_and_within_the_limit(self):
        if not hasattr(self, "stores"):
            return
        store = self.stores[0]
        _, corrupt, strays = admin.verify(store)
        assert corrupt == strays == []
        assert self.kept <= {i for i in range(NUM_KEYS) if store.has(key(i))}
        if self.limit is not None:
            assert store.disk.folder.count_bytes() <= self.limit

    def _note_kept(self):
        """What is kept once stays, until it is discarded."""
        kept = {i for i in range(NUM_KEYS) if self.stores[0].size_of(key(i)) is not None}
        assert kept >= self.kept
        self.kept = kept

    def teardown(self):
        for chunk in getattr(self, "opened", ()):
            chunk.close()
        for store in getattr(self, "stores", ()):
            store.close()
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


StoreMachine.TestCase.settings = settings(examples(12), stateful_step_count=40)
test_stores_on_one_folder_are_a_dict_that_forgets_only_what_it_may = StoreMachine.TestCase


@pytest.mark.parametrize("lives", range(NUM_CHANGES_LARGE + 1))
def test_a_crash_between_any_two_changes_leaves_a_cache_that_works(lives, tmp_path):
    with Store(tmp_path / "cache") as store:
        put(store, 0, 0)
    files = KilledFiles(10**9)
    with Store(tmp_path / "cache", files=files) as store:
        files.lives = lives
        was_killed = True
        with contextlib.suppress(Killed):
            put(store, 1, 1, num=N_LARGE)
            was_killed = False
        assert was_killed == (lives < NUM_CHANGES_LARGE), "NUM_CHANGES_LARGE must be the changes that publishing takes"
    with Store(tmp_path / "cache") as store:
        assert list((tmp_path / "cache" / "tmp").iterdir()) == []
        assert admin.verify(store)[1] == []
        assert same_fields(read_arrays(store.path_of(key(0))), arrays_of(SPEC, N, 0))
        put(store, 1, 2)
        assert same_fields(read_arrays(store.path_of(key(1))), arrays_of(SPEC, N, 2))


@pytest.mark.parametrize("lives", range(8))
def test_a_crash_while_the_folder_is_made_leaves_a_folder_that_can_be_made(lives, tmp_path):
    with contextlib.suppress(Killed):
        Store(tmp_path / "cache", files=KilledFiles(lives)).close()
    with Store(tmp_path / "cache") as store:
        put(store, 1, 1)
        assert len(admin.verify(store)[0]) == 1
