import json
import os
import subprocess
import sys
import threading

import pytest

from stoker.metrics.stages import Stages
from stoker.metrics.stats import LoaderStats
from stoker.metrics.status import (
    About,
    ShownLoader,
    StatusWriter,
    folder,
    is_ours,
    namespace,
    running,
    started_ticks,
    status_name,
)

SECOND = 1_000_000_000
ABOUT = About(dataset="data/", rank=1, world_size=4, global_batch_size=64)


def stats(num_steps=0, **changes):
    usual = {"num_samples": 0, "wait_s": 0.0, "num_ready": 0, "num_built": 0, "num_reused": 0, "num_mended": 0}
    return LoaderStats(**{"num_steps": num_steps, **usual, "stages": {}, **changes})


def show(publisher, stages, look):
    entry = ShownLoader(publisher, stages, lambda: None if (seen := look()) is None else (ABOUT, seen))
    entry.show()
    return entry


def at(stages, seconds, stage="gather"):
    """Let a piece of work end at that time."""
    stages(stage, 0, round(seconds * SECOND), 0)


def only_file(folder):
    (path,) = folder.glob("*.json")
    return json.loads(path.read_text())


def test_the_file_says_what_runs_and_goes_with_the_last_loader(tmp_path):
    publisher = StatusWriter(tmp_path / "status")
    stages, others = Stages(), Stages()
    entry = show(publisher, stages, lambda: stats(3, elapsed_s=2.0))
    other = show(publisher, others, lambda: stats(5))
    assert not (tmp_path / "status").exists()
    at(stages, 1)
    content = only_file(tmp_path / "status")
    assert content["pid"] == os.getpid()
    assert [loader["total"]["num_steps"] for loader in content["loaders"]] == [3, 5]
    assert content["loaders"][0]["world_size"] == 4

    entry.close()
    at(others, 3)
    assert [loader["number"] for loader in only_file(tmp_path / "status")["loaders"]] == [2]
    other.close()
    other.close()
    assert list((tmp_path / "status").iterdir()) == []
    at(others, 9)
    assert list((tmp_path / "status").iterdir()) == []


def test_a_loader_in_the_making_is_not_told_of_and_costs_the_next_nothing(tmp_path):
    publisher = StatusWriter(tmp_path / "status")
    stages = Stages()
    entry = ShownLoader(publisher, stages, lambda: (ABOUT, stats(3)))
    at(stages, 1)
    assert not (tmp_path / "status").exists()
    entry.show()
    at(stages, 1.001)
    assert [loader["number"] for loader in only_file(tmp_path / "status")["loaders"]] == [1]
    ShownLoader(publisher, Stages(), lambda: 1 / 0).close()  # one that failed to open
    assert len(only_file(tmp_path / "status")["loaders"]) == 1


def test_it_is_written_once_a_second_whatever_happens(tmp_path):
    looks = []
    publisher = StatusWriter(tmp_path)
    stages, others = Stages(), Stages()
    show(publisher, stages, lambda: looks.append(1) or stats())
    show(publisher, others, lambda: stats())
    for tenth in range(1, 35):  # from 0.1 to 3.4 s
        at(stages, tenth / 10)
        at(others, tenth / 10)
    assert len(looks) == 4


def test_the_training_loop_writes_only_where_nobody_else_does(tmp_path):
    publisher = StatusWriter(tmp_path)
    stages = Stages()
    show(publisher, stages, lambda: stats())
    at(stages, 0.5, "wait")
    assert list(tmp_path.iterdir()) == []
    at(stages, 1.5, "wait")
    assert len(list(tmp_path.iterdir())) == 1


def test_rates_are_those_of_the_last_seconds(tmp_path):
    steps = [0]
    publisher = StatusWriter(tmp_path)
    stages = Stages()
    show(publisher, stages, lambda: stats(steps[0], step_s=steps[0] / 10, elapsed_s=float(now)))
    for now in range(1, 21):
        steps[0] = now if now <= 10 else 10 + 5 * (now - 10)
        at(stages, now * 1.001)
    loader = only_file(tmp_path)["loaders"][0]
    assert loader["total"]["num_steps"] == 60
    assert loader["recent"]["num_steps"] == 25
    assert loader["recent"]["elapsed_s"] == 5.0


def test_a_loader_that_is_gone_or_fails_to_look_stops_nothing(tmp_path):
    publisher = StatusWriter(tmp_path)
    stages, others = Stages(), Stages()
    show(publisher, stages, lambda: None)
    at(stages, 1)
    assert only_file(tmp_path)["loaders"] == []
    show(publisher, others, lambda: 1 / 0)
    at(others, 3)
    at(stages, 5)
    assert stages.totals()["gather"].num_calls == 2


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path):
    shared, good = tmp_path / "shared", tmp_path / "good"
    shared.mkdir()
    shared.chmod(0o777)
    (tmp_path / "link").symlink_to(shared)
    assert not is_ours(shared)
    assert not is_ours(tmp_path / "link")
    for place in (tmp_path / "file" / "none", shared, tmp_path / "link", good):
        stages = Stages()
        show(StatusWriter(place), stages, lambda: stats())
        at(stages, 1)
    assert list(shared.iterdir()) == []
    assert len(list(good.iterdir())) == 1
    assert good.stat().st_mode & 0o777 == 0o700


def test_without_any_folder_nothing_is_written_and_nobody_is_bothered(tmp_path):
    stages = Stages()
    show(StatusWriter(None), stages, lambda: 1 / 0)
    at(stages, 1)
    assert stages.on_due is None


def test_a_loader_closed_while_the_file_is_being_written_does_not_hang(tmp_path):
    publisher = StatusWriter(tmp_path)
    stages = Stages()
    entries = []

    def look():
        entries[0].close()  # what a garbage collection in here would do
        return stats()

    entries.append(show(publisher, stages, look))
    thread = threading.Thread(target=at, args=(stages, 1))
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert list(tmp_path.glob("*.json")) == []


def test_the_user_says_where_the_file_is_or_that_there_is_none(tmp_path):
    assert folder({"STOKER_STATUS": "off"}) is None
    assert folder({"STOKER_STATUS": ""}) is None
    assert folder({"STOKER_STATUS": str(tmp_path)}) == tmp_path
    assert folder({"TMPDIR": "/elsewhere"}) == folder({}) != tmp_path


# ---------------------------------------------------------------------- read


def write(folder, *, pid=None, ticks=None, where=None):
    pid = os.getpid() if pid is None else pid
    ticks = started_ticks(pid) if ticks is None else ticks
    loaders = [{"number": 1}]
    content = {"format": 1, "pid": pid, "host": "here", "command": "train.py", "time": 1000.0, "loaders": loaders}
    path = folder / f"{namespace() if where is None else where}-{pid}-{ticks}.json"
    path.write_text(json.dumps(content))
    return path


def ended_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_loaders_of_living_processes_are_found(tmp_path):
    write(tmp_path)
    expected = {"pid": os.getpid(), "host": "here", "command": "train.py", "age_s": 2.5, "number": 1}
    assert running(tmp_path, now=1002.5) == [expected]


@pytest.mark.parametrize(
    "changes",
    [
        lambda: {"pid": ended_pid(), "ticks": 7},
        lambda: {"pid": ended_pid(), "ticks": 0},
        lambda: {"ticks": 1},  # its pid is another process's by now
    ],
)
def test_files_of_processes_that_have_ended_are_removed(tmp_path, changes):
    write(tmp_path, **changes()).with_suffix(".new").write_text("half")
    assert running(tmp_path, now=1000.0) == []
    assert list(tmp_path.iterdir()) == []


def test_whoever_writes_first_removes_what_killed_processes_left(tmp_path):
    write(tmp_path, pid=ended_pid(), ticks=7)
    foreign = write(tmp_path, pid=ended_pid(), ticks=7, where=1)
    publisher = StatusWriter(tmp_path)
    stages = Stages()
    show(publisher, stages, lambda: stats())
    at(stages, 1)
    assert sorted(tmp_path.iterdir()) == sorted([foreign, tmp_path / status_name(os.getpid())])


def test_another_containers_files_are_shown_while_fresh_and_left_alone(tmp_path):
    path = write(tmp_path, pid=ended_pid(), ticks=7, where=1)
    assert len(running(tmp_path, now=1001.0)) == 1
    assert running(tmp_path, now=2000.0) == []
    assert path.exists()
    running(tmp_path, now=1_000_000.0)
    assert not path.exists()


def test_files_that_are_none_of_ours_are_passed_over(tmp_path):
    (tmp_path / "notes.json").write_text("{")
    (tmp_path / "2-2.json").write_text('{"format": 99}')
    (tmp_path / "3-3.json").write_text("[]")
    write(tmp_path)
    assert len(running(tmp_path, now=1000.0)) == 1
    assert len(list(tmp_path.iterdir())) == 4


def test_a_folder_of_somebody_elses_is_not_read(tmp_path):
    write(tmp_path)
    tmp_path.chmod(0o777)
    assert running(tmp_path, now=1000.0) == []
    assert running(tmp_path / "none", now=1000.0) == []
