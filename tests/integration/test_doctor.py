"""The doctor on real data sets and storages with one thing wrong, and as a command."""

import contextlib
import functools
import json
import subprocess
import sys
import threading

import pytest
from tests.strategies import write_files
from tests.unit.doctor.report.pages import Page

from stoker import Dataset, Loader, StokerError
from stoker.cli import main
from stoker.cli.arguments import OK, WRONG_USAGE
from stoker.doctor.examine import examine
from stoker.doctor.results import ARROW, RAM, SHARED, SOURCE, TENSORS, THREADS
from stoker.doctor.runs import at_work
from stoker.doctor.settings import DoctorSettings
from stoker.doctor.step import FunctionStep, StepError, TimedStep
from stoker.testing import FlakyStorage

planted = pytest.importorskip("benchmarks.planted")

# Seconds: enough to tell causes apart that were planted far apart, on a machine that does something else as well.
BUDGET_S = 4.0


def settings(**changed):
    return DoctorSettings(**{"num_threads": 2, "budget_s": BUDGET_S, **changed})


def looked_at_again(test):
    """Try up to three times: on a machine that is used for something else as well, one look can find that instead."""

    @functools.wraps(test)
    def look(tmp_path, *arguments, **named):
        folders = [tmp_path / str(i) for i in range(3)]
        for folder in folders:
            folder.mkdir()
            with contextlib.suppress(AssertionError) if folder != folders[-1] else contextlib.nullcontext():
                test(folder, *arguments, **named)
                break

    return look


@looked_at_again
def test_a_throttled_network_is_named_and_tensors_on_ssd_mend_it(tmp_path):
    dataset = Dataset("lake", storage=planted.behind(16e6))
    found = examine(dataset, settings(step=TimedStep(4e-3), batch_size=2_048, scratch=tmp_path, gpu_hour=2.5))
    numbers = found.numbers
    assert found.stages[0] == "fetch"
    assert numbers.today == SOURCE
    assert TENSORS in [fix.key for fix in found.fixes]
    assert {SOURCE, RAM, TENSORS} <= {path.key for path in numbers.paths}
    assert numbers.ceilings["network"] == pytest.approx(16e6, rel=0.5)
    written = json.loads(json.dumps(found.to_json()))
    assert written["verdict"]["stages"][0] == "fetch"
    assert not list(tmp_path.iterdir())


def test_what_the_budget_has_no_time_for_is_said_to_be_not_measured(tmp_path):
    def waits(table):
        threading.Event().wait(1.0)
        return table

    dataset = Dataset(planted.local(tmp_path, num_chunks=4), transform=waits, transform_version="1")
    asked = settings(step=TimedStep(1e-3), batch_size=2_048, budget_s=2.0, scratch=tmp_path / "x", verify=1)
    found = examine(dataset, asked)
    said = " ".join(found.notes)
    assert all(fix.came_s is not None or f"{fix.name} once more" in said for fix in found.fixes[:1])
    for key, name in {ARROW: "Arrow on SSD", THREADS: "8 threads"}.items():
        assert found.numbers.path(key) is not None or name in said
    assert "Not measured, for no time was left" in said
    assert "8 threads" in said
    assert not [fix for fix in found.fixes if fix.key == THREADS]


@looked_at_again
def test_a_cache_that_holds_everything_makes_today_the_warm_path(tmp_path):
    dataset = Dataset(planted.local(tmp_path, num_chunks=4))
    with Loader(dataset, batch_size=4_096, cache=tmp_path / "cache") as loader:
        for _ in loader:
            pass
    before = sorted(path.name for path in (tmp_path / "cache").rglob("*"))
    found = examine(
        dataset,
        settings(
            step=TimedStep(1e-3),
            batch_size=2_048,
            cache=tmp_path / "cache",
            disk=lambda *_: {"disk_read": 5e6, "disk_write": 5e6},
            free_memory_bytes=lambda: 0,
        ),
    )
    assert found.numbers.today == TENSORS
    assert found.stages[0] == "open"
    assert "disk" in found.sentence
    assert ARROW not in [fix.key for fix in found.fixes]  # as many bytes from the same disk
    assert sorted(path.name for path in (tmp_path / "cache").rglob("*")) == before


@looked_at_again
def test_a_step_that_keeps_the_cores_busy_is_judged_by_what_it_eats_beside_a_loader(tmp_path):
    def step(batch):
        assert len(batch["id"]) in (512, 2_048)
        sum(range(50_000))

    found = examine(
        Dataset(planted.local(tmp_path, num_chunks=4)),
        settings(step=FunctionStep(step, name="train.py:step"), batch_size=512, scratch=tmp_path / "scratch"),
    )
    numbers = found.numbers
    assert numbers.path(SHARED) is not None
    assert numbers.path(RAM).cores_used > 0.1
    fed = [path for path in numbers.paths if found.is_comparable(path) and path.key not in (RAM, SHARED)]
    assert all(path.rate_s <= found.demand_s for path in fed)


def test_a_loader_that_fails_beside_the_step_does_not_end_the_examination(tmp_path):
    class FailsBeside(Loader):
        def __iter__(self):
            if "beside" in threading.current_thread().name:
                raise StokerError("no room beside the step")
            return super().__iter__()

    step = FunctionStep(lambda _: sum(range(50_000)), name="train.py:step")
    dataset = Dataset(planted.local(tmp_path, num_chunks=4))
    found = examine(dataset, settings(step=step, batch_size=512, scratch=tmp_path / "x", make_loader=FailsBeside))
    assert found.numbers.path(SHARED) is None
    assert found.numbers.path(TENSORS) is not None
    assert any("could not be tried: no room beside the step" in note for note in found.notes)


def test_what_a_loader_that_works_beside_a_step_raises_is_raised_there(tmp_path):
    def fails(batch, rng):
        raise ArithmeticError("no more")

    def step_for_ever():
        dataset = Dataset(planted.local(tmp_path, num_chunks=1))
        with at_work(Loader(dataset, batch_size=64, augment=fails)) as want:
            while True:
                want()

    with pytest.raises(ArithmeticError, match="no more"):
        step_for_ever()


UNGUARDED = """
from stoker import Dataset
from stoker.doctor.examine import examine
from stoker.doctor.settings import DoctorSettings
from stoker.doctor.step import TimedStep

def same(table):
    return table

dataset = Dataset("lake", transform=same, transform_version="1")
settings = DoctorSettings(step=TimedStep(1e-5), batch_size=64, budget_s=25.0, num_threads=2)
print(*examine(dataset, settings).notes)
"""


@pytest.mark.slow
def test_a_script_without_a_guard_is_examined_once_and_told_so_in_one_line_a_process(tmp_path):
    planted.local(tmp_path, num_chunks=4)
    (tmp_path / "script.py").write_text(UNGUARDED)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert "the transform in processes: could not be tried" in done.stdout
    assert set(done.stderr.splitlines()) == {
        'examine(): a process imports this script; call it below `if __name__ == "__main__":`'
    }


def test_a_source_that_fails_ends_the_examination_and_leaves_nothing(tmp_path):
    storage = FlakyStorage(planted.lake(), every=1, error=lambda: PermissionError("no"))
    with pytest.raises(StokerError):
        examine(Dataset("lake", storage=storage), settings(scratch=tmp_path / "scratch"))
    assert not list(tmp_path.glob("scratch/*"))
    assert not [thread.name for thread in threading.enumerate() if "doctor" in thread.name]


def test_a_step_that_raises_is_told_before_anything_is_measured_with_the_users_own_line(tmp_path):
    def step(batch):
        return batch["no such field"]

    doing = []
    with pytest.raises(StepError, match=r"train.py:step failed: KeyError.*test_doctor\.py, line \d+, in step"):
        examine(
            Dataset(planted.local(tmp_path, num_chunks=4)),
            settings(
                step=FunctionStep(step, name="train.py:step"),
                scratch=tmp_path / "scratch",
                on_progress=lambda what, _: doing.append(what),
            ),
        )
    assert doing[-1] == "trying the step"
    assert len(doing) == 3  # after the data set was opened, and one chunk of it built
    assert not list(tmp_path.glob("scratch/*"))


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    write_files(tmp_path / "data", [3_000, 2_000], row_group_size=640)
    return "data"


@looked_at_again
def test_the_command_prints_the_verdict_and_what_it_rests_on_and_writes_the_same_to_a_page(tmp_path, data, capsys):
    page_file = tmp_path / "out" / "doctor.html"
    command = ["doctor", data, "--step-time", "20ms", "--batch-size", "64", "--budget", "4s"]
    assert main([*command, "--html", str(page_file)]) == OK
    out, _ = capsys.readouterr()
    assert "nothing to gain" in out
    for word in ("today", "each run whole", "disk, writing", "no GPU here"):
        assert word in out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 100
    page = Page(page_file.read_text(encoding="utf-8"))
    assert "The model is the limit" in page.text
    assert [child.name for child in page_file.parent.iterdir()] == ["doctor.html"]


def test_without_a_step_json_says_what_the_path_can_carry(data, capsys):
    assert main(["doctor", data, "--batch-size", "64", "--budget", "2", "--json", "--gpu-hour", "2.5"]) == OK
    found = json.loads(capsys.readouterr().out)
    assert "enough for steps of" in found["verdict"]["sentence"]
    assert found["verdict"]["kind"] == "open"
    assert found["interrupted"] == ""
    assert {"paths", "stages", "ceilings", "verdict"} <= set(found)


def test_a_torch_step_gets_tensors_on_every_path(data, capsys, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "train_it.py").write_text(
        "import torch\n"
        "from stoker import Dataset\n"
        "loaded = []\n"
        "loaded.append(1)\n"
        f"dataset = Dataset({data!r})\n"
        "def step(batch):\n"
        "    assert len(loaded) == 1 and len(batch['id'])\n"
        "    assert isinstance(batch['id'], torch.Tensor), type(batch['id'])\n"
        "    torch.ones(64, 64) @ torch.ones(64, 64)\n"
    )
    command = ["doctor", "train_it.py:dataset", "--step", "train_it.py:step", "--batch-size", "64", "--budget", "6"]
    assert main([*command, "--verify", "--json"]) == OK
    found = json.loads(capsys.readouterr().out)
    assert {"ram", "source", "tensors", "arrow"} <= {path["key"] for path in found["paths"]}
    assert not [note for note in found["verdict"]["notes"] if "could not be tried" in note]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name what to examine"),
        (["data", "--demo"], "leave TARGET out"),
        (["data", "--step-time", "soon"], "is no time"),
        (["data", "--step-time", "-1"], "no time"),
        (["data", "--step", "train.py"], "does not name a step"),
        (["data", "--step", "nowhere.py:step"], "there is no file nowhere.py to take a step from"),
        (["data", "--step-time", "1", "--step", "a.py:b"], "give one of the two"),
        (["data", "--budget", "0.1"], "too little"),
        (["data", "--html", "."], "is a folder"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(data, capsys, arguments, says):
    assert main(["doctor", *arguments]) == WRONG_USAGE
    assert says in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
@pytest.mark.parametrize("case", [*planted.CASES, *planted.SHARING], ids=lambda case: case.name)
def test_every_planted_case_is_named(case, tmp_path):
    from benchmarks.doctor import examine_case

    found = examine_case(case, tmp_path / "case", budget_s=20.0, verify=0)
    assert case.stages <= set(found.stages), found.sentence
