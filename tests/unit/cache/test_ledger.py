"""Threads that want the ledger at once are served together, and each gets what its own work gives or raises."""

import os
import threading

import pytest

from stoker.cache.eviction import Ledger
from stoker.cache.folder import Files, Folder
from stoker.cache.locks import Locks
from stoker.cache.manifests import Manifests


class CountingFiles(Files):
    def __init__(self):
        self.num_writes = 0

    def write(self, fd, data, *, offset):
        self.num_writes += 1
        super().write(fd, data, offset=offset)


@pytest.fixture
def files():
    return CountingFiles()


@pytest.fixture
def ledger(tmp_path, files):
    folder = Folder(tmp_path / "cache", files)
    locks = Locks(folder.lock_file)
    yield Ledger(folder, locks, Manifests(folder.datasets, files))
    locks.close()


def served(ledger, works, *, meanwhile=lambda: None):
    """Have all works done by threads that come while the ledger is held; return what each got."""
    found = [None] * len(works)

    def ask(i):
        try:
            found[i] = ledger.share(works[i])
        except Exception as error:
            found[i] = error

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(works))]
    with ledger.open():
        threads[0].start()
        while not ledger._queue._is_led or ledger._queue._turns:  # it waits for the lock, with its own turn in hand
            pass
        for thread in threads[1:]:
            thread.start()
        while len(ledger._queue._turns) < len(works) - 1:
            pass
        meanwhile()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return found


def adding(num_bytes):
    def work(account):
        with account.changing(num_bytes):
            return num_bytes

    return work


def test_those_who_wait_are_served_by_one_and_each_gets_its_own(ledger, files):
    ledger.share(adding(0))
    files.num_writes = 0
    assert served(ledger, [adding(i) for i in range(20)]) == list(range(20))
    assert files.num_writes <= 4  # twice for the one that came first, and twice for all the others
    with ledger.open() as account:
        assert account.kept_bytes == sum(range(20))


def test_an_error_is_of_the_one_whose_work_raised_it(ledger):
    def fails(account):
        raise KeyError("mine")

    found = served(ledger, [adding(1), fails, adding(2), fails, adding(4)])
    assert [one for one in found if not isinstance(one, KeyError)] == [1, 2, 4]
    with ledger.open() as account:
        assert account.kept_bytes == 7


def test_where_the_ledger_cannot_be_held_each_is_told_and_the_next_can(ledger, monkeypatch):
    def refused(self):
        raise OSError("no locks here")

    with monkeypatch.context() as patch:
        found = served(ledger, [adding(1)] * 5, meanwhile=lambda: patch.setattr(Locks, "ledger", refused))
        assert [str(one) for one in found] == ["1"] + ["no locks here"] * 4
    assert ledger.share(adding(1)) == 1


def test_a_change_that_fails_leaves_numbers_that_are_counted_anew(ledger):
    def fails(account):
        with account.changing(1_000):
            raise OSError("no such place")

    with pytest.raises(OSError, match="no such place"):
        ledger.share(fails)
    with ledger.open() as account:
        assert account.kept_bytes == 0


def test_the_file_is_not_closed_while_somebody_writes_to_it(ledger):
    closing = threading.Thread(target=ledger.close)
    with ledger.open() as account:
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()
        with account.changing(5):
            pass
    closing.join(30)
    with ledger.open() as account:
        assert account.kept_bytes == 5


def test_what_is_written_beside_may_be_counted_too_high_after_a_crash_and_nothing_is_counted_anew(ledger, files):
    ledger.share(adding(7))
    files.num_writes = 0

    class Crash(BaseException):
        pass

    def dies(account):
        with account.growing(100):
            assert files.num_writes == 1  # before the file is there
            files.write = crash
            raise Crash

    def crash(*_, **__):
        raise Crash

    with pytest.raises(Crash):
        ledger.share(dies)
    del files.write
    with ledger.open() as account:
        assert (account.kept_bytes, account.loose_bytes) == (7, 100)


def test_what_could_not_be_made_beside_is_not_counted(ledger):
    def fails(account):
        with account.growing(100):
            raise OSError("no such place")

    with pytest.raises(OSError, match="no such place"):
        ledger.share(fails)
    with ledger.open() as account:
        assert account.loose_bytes == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_while_somebody_holds_it_waits_for_nobody_of_its_parent(ledger):
    ledger._queue.enter(None)  # a thread that the child will not have
    child = os.fork()
    if child == 0:
        os._exit(ledger.share(adding(3)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
