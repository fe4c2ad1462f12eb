"""`stoker top` shows the loaders that run, and those alone; what is written for it costs training nothing."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
from tests.strategies import write_files

import stoker
from stoker import LoaderStats
from stoker.cli import main
from stoker.metrics.stages import Stages
from stoker.metrics.status import StatusFile, folder

SECOND = 1_000_000_000


def stats(num_steps=0, **changes):
    usual = {"num_samples": 0, "wait_s": 0.0, "num_ready": 0, "num_built": 0, "num_reused": 0, "num_mended": 0}
    return LoaderStats(**{"num_steps": num_steps, **usual, "stages": {}, **changes})


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder of the files, named as users name it."""
    monkeypatch.setenv("STOKER_STATUS", str(tmp_path / "status"))
    return tmp_path / "status"


@pytest.fixture
def show():
    """Tell of a loader whose figures are what a function returns."""
    shown = []

    def call(look):
        stages = Stages()
        shown.append(StatusFile(stages, lambda: None if (seen := look()) is None else ({"dataset": "data/"}, seen)))
        shown[-1].show()
        return stages, shown[-1]

    yield call
    for file in shown:
        file.close()


def at(stages, seconds, stage="gather"):
    """Let a piece of work end at that time."""
    stages(stage, 0, round(seconds * SECOND), 0)


def test_it_is_written_once_a_second_whatever_happens(place, show):
    looks = []
    stages, _ = show(lambda: looks.append(1) or stats())
    for tenth in range(1, 35):  # from 0.1 to 3.4 s
        at(stages, tenth / 10)
    assert len(looks) == 4


def test_the_training_loop_writes_only_where_nobody_else_does(place, show):
    stages, _ = show(stats)
    at(stages, 0.5, "wait")
    assert not place.exists()
    at(stages, 1.5, "wait")
    assert len(list(place.iterdir())) == 1


def test_rates_are_those_of_the_last_seconds(place, show):
    steps = [0]
    stages, _ = show(lambda: stats(steps[0], step_s=steps[0] / 10, elapsed_s=float(now)))
    for now in range(1, 21):
        steps[0] = now if now <= 10 else 10 + 5 * (now - 10)
        at(stages, now * 1.001)
    found = json.loads(written(place).read_text())
    assert found["total"]["num_steps"] == 60
    assert found["recent"]["num_steps"] == 25
    assert found["recent"]["elapsed_s"] == 5.0


def test_a_loader_that_is_gone_or_fails_to_look_stops_nothing(place, show):
    stages, _ = show(lambda: None)
    at(stages, 1)
    others, _ = show(lambda: 1 / 0)
    at(others, 3)
    at(others, 5)
    assert others.totals()["gather"].num_calls == 2
    assert not place.exists()


def test_without_any_folder_nothing_is_written_and_nobody_is_bothered(monkeypatch, show):
    monkeypatch.setenv("STOKER_STATUS", "off")
    stages, _ = show(lambda: 1 / 0)
    at(stages, 1)
    assert stages.on_due is None


def test_a_loader_closed_while_the_file_is_being_written_does_not_hang(place, show):
    def look():
        file.close()  # what a garbage collection in here would do
        return stats()

    stages, file = show(look)
    thread = threading.Thread(target=at, args=(stages, 1))
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert not place.exists()


# ---------------------------------------------------------------------- as users see it


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


def training(data, batch_size=50, **options):
    """A loader whose loop has had a batch, by whose end the file is written."""
    loader = stoker.Loader(stoker.Dataset(data), batch_size=batch_size, prefetch=0, **options)
    next(iter(loader))
    return loader


def written(place):
    """Return the file of a loader that trains, once whichever thread writes it first is done."""
    while not (paths := list(place.glob("*.json"))):
        pass
    (path,) = paths
    return path


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

    loader = stoker.Loader(stoker.Dataset(sys.argv[1]), batch_size=50, prefetch=0)
    next(iter(loader))
    while not any(name.endswith(".json") for name in os.listdir(os.environ["STOKER_STATUS"])):
        pass  # another thread is writing it
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
        assert json.loads(written(place).read_text())["pid"] == os.getpid()
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
def test_the_user_may_want_no_file(data, tmp_path, monkeypatch, top, value):
    monkeypatch.setenv("STOKER_STATUS", value)
    with training(data):
        assert top() == []


def test_the_folder_is_the_same_for_jobs_and_shells(tmp_path):
    assert folder({"TMPDIR": "/elsewhere", "XDG_RUNTIME_DIR": "/elsewhere"}) == folder({})
    assert folder({"STOKER_STATUS": str(tmp_path)}) == tmp_path
