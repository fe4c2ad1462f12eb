"""`stoker top` shows the loaders that run, and those alone; what is written for it costs training nothing."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from tests.processes import wait_until
from tests.strategies import write_files

import stoker
from stoker.cli import main

SECOND = 1_000_000_000


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder of the files, named as users name it."""
    monkeypatch.setenv("STOKER_STATUS", str(tmp_path / "status"))
    return tmp_path / "status"


@pytest.fixture
def data(tmp_path):
    return str(write_files(tmp_path / "data", [300, 200]))


@pytest.fixture
def top(capsys):
    """Return what `stoker top --json` shows."""

    def call():
        assert main(["top", "--json"]) == 0
        return json.loads(capsys.readouterr().out)["loaders"]

    return call


def training(data, batch_size=50, kind=stoker.Loader, **options):
    """A loader whose loop has had a batch, by whose end the file is written."""
    loader = kind(stoker.Dataset(data), batch_size=batch_size, prefetch=0, **options)
    next(iter(loader))
    return loader


def written(place):
    """Return what the file of a loader that trains says, once whichever thread writes it first is done."""
    wait_until(lambda: any(place.glob("*.json")))
    (path,) = place.glob("*.json")
    return path.read_text()


# ---------------------------------------------------------------------- when it is written


class Clock(stoker.Trace):
    """Lets a test tell of work of its loader that ends at times of the test's own, which begin behind all real work."""

    def stages(self, name):
        self.of_loader, self.now_ns = super().stages(name), time.perf_counter_ns() + 60 * SECOND
        return self.of_loader

    def tell(self, seconds, stage="gather"):
        self.of_loader(stage, self.now_ns, self.now_ns + round(seconds * SECOND), 0)

    def begin(self, place):
        """Let the file be written at 0."""
        before = written(place)

        def is_written():  # not at once: the thread that wrote it first may not be done
            self.tell(0)
            return written(place) != before

        wait_until(is_written)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def loader(data, place, clock):
    with training(data, batch_size=5, trace=clock) as loader:
        clock.begin(place)
        yield loader


def test_it_is_written_once_a_second_whatever_happens(loader, clock, place):
    found = {written(place)}
    for tenth in range(1, 35):  # from 0.1 to 3.4 s
        clock.tell(tenth / 10)
        found.add(written(place))
    assert len(found) == 4


def test_the_training_loop_writes_only_where_nobody_else_does(loader, clock, place):
    before = written(place)
    clock.tell(1.5, "wait")
    assert written(place) == before
    clock.tell(2.5, "wait")
    assert written(place) != before


def test_rates_are_those_of_the_last_seconds(loader, clock, place):
    batches = iter(loader)
    for now in range(1, 21):
        for _ in range(1 if now <= 10 else 5):
            next(batches)
        clock.tell(now * 1.001)
    found = json.loads(written(place))
    assert found["total"]["num_steps"] == 1 + 60
    assert found["recent"]["num_steps"] == 25


class ClosedWhenLookedAt(stoker.Loader):
    """Is closed while its file is being written, as a garbage collection in there would do."""

    def stats(self):
        if hasattr(self, "looks_for_the_last_time"):
            self.close()
        return super().stats()


def test_a_loader_closed_while_the_file_is_being_written_does_not_hang(data, place, clock):
    with training(data, kind=ClosedWhenLookedAt, trace=clock) as loader:
        clock.begin(place)
        loader.looks_for_the_last_time = True
        thread = threading.Thread(target=clock.tell, args=(1.5,))
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        assert list(place.iterdir()) == []


# ---------------------------------------------------------------------- as users see it


def test_loaders_are_shown_while_they_train_until_they_are_closed(data, place, top):
    with training(data, rank=1, world_size=4):
        written(place)
        (shown,) = top()
        assert (shown["pid"], shown["dataset"], shown["rank"], shown["world_size"]) == (os.getpid(), data, 1, 4)
        assert shown["total"]["epoch_steps"] == 10 // 4 + 1
        assert place.stat().st_mode & 0o777 == 0o700
    assert top() == []
    assert list(place.iterdir()) == []


TRAINING = """
    import os, sys
    import stoker
    from tests.processes import wait_until

    loader = stoker.Loader(stoker.Dataset(sys.argv[1]), batch_size=50, prefetch=0)
    next(iter(loader))
    # Another thread is writing it.
    wait_until(lambda: any(name.endswith(".json") for name in os.listdir(os.environ["STOKER_STATUS"])))
    if len(sys.argv) > 2:
        if os.fork() == 0:
            print("trains", flush=True)
            sys.stdin.read()
            os._exit(0)
    else:
        print("trains", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def train(data, place):
    """Train in a process of its own, until its standard input ends."""
    started = []

    def start(*more):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(TRAINING), data, *more],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "trains\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.stdin.close()
        process.stdout.close()
        process.wait()


@pytest.mark.parametrize("more", [(), ("and forks",)], ids=["alone", "with a fork that lives on"])
def test_another_process_is_shown_until_it_is_killed_and_its_file_goes(train, place, top, more):
    process = train(*more)
    assert [one["pid"] for one in top()] == [process.pid]
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert top() == []
    assert list(place.iterdir()) == []


def test_whoever_writes_first_removes_what_killed_processes_left(train, data, place):
    process = train()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(list(place.iterdir())) == 1
    (place / "loaders-1-abc.new").write_text("{")  # of one that was killed while it wrote the first time
    with training(data):
        assert json.loads(written(place))["pid"] == os.getpid()
        assert len(list(place.iterdir())) == 1


def test_files_that_are_none_of_ours_are_passed_over(data, place, top):
    place.mkdir(mode=0o700)
    (place / "notes.json").write_text("{")
    with training(data):
        assert len(top()) == 1
    assert [path.name for path in place.iterdir()] == ["notes.json"]


def test_a_folder_that_others_may_write_to_is_neither_used_nor_read(data, tmp_path, monkeypatch, top):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (tmp_path / "link").symlink_to(shared)
    for place in (tmp_path / "none" / "none", shared, tmp_path / "link"):
        monkeypatch.setenv("STOKER_STATUS", str(place))
        with training(data):
            assert top() == []
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize("value", ["off", ""])
def test_the_user_may_want_no_file(data, monkeypatch, top, value):
    monkeypatch.setenv("STOKER_STATUS", value)
    with training(data):
        assert top() == []
        monkeypatch.delenv("STOKER_STATUS")  # nor is one in the usual folder
        assert os.getpid() not in [one["pid"] for one in top()]


def test_the_first_file_has_the_loader_though_chunks_are_built_while_it_is_made(data, place):
    seen = []

    def transform(table):
        seen.append(place.exists())
        return {"id": table["id"].to_numpy()}

    dataset = stoker.Dataset(data, chunk_size=5000, transform=transform, transform_version="1")
    with stoker.Loader(dataset, batch_size=50) as loader:
        assert seen == [False]  # a chunk was built, to see what the transform makes
        next(iter(loader))
        assert json.loads(written(place))["total"]["epoch_steps"] == 10


def test_the_folder_is_the_same_for_jobs_and_shells(data, tmp_path, monkeypatch, top):
    monkeypatch.delenv("STOKER_STATUS", raising=False)

    def go_to(name):
        (tmp_path / name).mkdir()
        for variable in ("TMPDIR", "XDG_RUNTIME_DIR"):
            monkeypatch.setenv(variable, str(tmp_path / name))

    go_to("job")
    with training(data):
        go_to("shell")
        wait_until(lambda: os.getpid() in [one["pid"] for one in top()])
    assert [*(tmp_path / "job").iterdir(), *(tmp_path / "shell").iterdir()] == []
