"""The doctor on real data sets and storages with one thing wrong, and as a command."""

import contextlib
import functools
import json
import threading

import pytest
from tests.strategies import write_files

from stoker import Dataset
from stoker.cli import main
from stoker.doctor import whole_paths
from stoker.doctor.examine import examine
from stoker.doctor.fill import fill_cache
from stoker.doctor.probe_machine import Disk
from stoker.doctor.ranks import compare_ranks
from stoker.doctor.results import SOURCE, TENSORS
from stoker.doctor.settings import DoctorSettings
from stoker.doctor.step import TimedStep
from stoker.errors import StokerError
from stoker.testing import FlakyStorage, SlowStorage

planted = pytest.importorskip("benchmarks.planted")

# Seconds: enough to tell causes apart that were planted far apart, on a machine that does something else as well.
BUDGET_S = 4.0


def settings(**changed):
    return DoctorSettings(**{"num_threads": 2, "budget_s": BUDGET_S, **changed})


def looked_at_again(test):
    """Try up to three times: on a machine that is used for something else as well, one look can find that instead."""

    @functools.wraps(test)
    def look(tmp_path):
        folders = [tmp_path / str(i) for i in range(3)]
        for folder in folders:
            folder.mkdir()
            with contextlib.suppress(AssertionError) if folder != folders[-1] else contextlib.nullcontext():
                test(folder)
                break

    return look


@looked_at_again
def test_a_throttled_network_is_named_and_tensors_on_ssd_mend_it(tmp_path):
    dataset = Dataset("lake", storage=planted.behind(8e6))
    found = examine(dataset, settings(step=TimedStep(4e-3), batch_size=2_048, scratch=tmp_path))
    assert found.verdict.stages[0] == "fetch"
    assert "network" in found.verdict.sentence
    assert found.today.key == SOURCE
    assert found.fixes[0].key == TENSORS
    assert [path.limit for path in found.paths][-1] == "step"
    network = next(ceiling for ceiling in found.ceilings if ceiling.key == "network")
    assert network.value == pytest.approx(8e6, rel=0.3)


@pytest.mark.parametrize("is_throttled", [False, True])
def test_what_processors_limit_runs_for_a_while_before_it_counts(tmp_path, monkeypatch, is_throttled):
    ran = []

    def noted(name):
        work = getattr(whole_paths, name)

        def run(*arguments, **options):
            ran.append(name)
            return work(*arguments, **options)

        return run

    for name in ("warm_up", "run_source"):
        monkeypatch.setattr(whole_paths, name, noted(name))
    dataset = Dataset("lake", storage=planted.behind(40e6)) if is_throttled else Dataset(planted.local(tmp_path))
    examine(dataset, settings(step=TimedStep(1e-5), batch_size=2_048, scratch=tmp_path / "scratch"))
    assert ran == (["run_source"] if is_throttled else ["warm_up", "run_source"])


@looked_at_again
def test_latency_is_named_where_no_bandwidth_is_missing(tmp_path):
    dataset = Dataset("lake", storage=SlowStorage(planted.small_lake(), latency_s=0.6))
    found = examine(dataset, settings(step=TimedStep(1e-3), batch_size=2_048, scratch=tmp_path))
    assert found.verdict.stages[0] == "fetch"
    assert "first byte" in found.verdict.sentence


@looked_at_again
def test_a_transform_that_holds_the_gil_is_named_with_the_reason(tmp_path):
    dataset = Dataset(planted.local(tmp_path), transform=planted.python_loop, transform_version="1")
    found = examine(dataset, settings(step=TimedStep(1e-3), batch_size=2_048, scratch=tmp_path / "scratch"))
    assert found.verdict.stages[0] == "transform"
    assert "GIL" in found.verdict.sentence
    transform = found.stage("transform")
    assert transform.gil_s == pytest.approx(transform.cpu_s, rel=0.3)


@looked_at_again
def test_a_transform_that_does_not_hold_the_gil_is_not_accused_of_it(tmp_path):
    dataset = Dataset(planted.local(tmp_path), transform=planted.sorts, transform_version="1")
    found = examine(dataset, settings(step=TimedStep(0.4e-3), batch_size=2_048, scratch=tmp_path / "scratch"))
    assert found.verdict.stages[0] == "transform"
    assert "GIL" not in found.verdict.sentence


@looked_at_again
def test_a_slow_step_is_told_that_there_is_nothing_to_gain(tmp_path):
    dataset = Dataset(planted.local(tmp_path))
    found = examine(dataset, settings(step=TimedStep(0.1), batch_size=256, scratch=tmp_path / "scratch"))
    assert found.verdict.stages == ("step",)
    assert found.fixes == ()


@looked_at_again
def test_a_cache_that_holds_everything_makes_today_the_warm_path(tmp_path):
    dataset = Dataset(planted.local(tmp_path, num_chunks=4))
    fill_cache(dataset, tmp_path / "cache", num_threads=2)
    before = sorted(path.name for path in (tmp_path / "cache").rglob("*"))
    found = examine(dataset, settings(step=TimedStep(1e-6), batch_size=2, cache=tmp_path / "cache"))
    assert found.today.key == TENSORS
    assert found.verdict.stages[0] == "batch"
    assert sorted(path.name for path in (tmp_path / "cache").rglob("*")) == before


@looked_at_again
def test_the_verdict_comes_with_a_timeline_and_a_result_that_json_can_write(tmp_path):
    dataset = Dataset("lake", storage=planted.behind(80e6))
    found = examine(dataset, settings(step=TimedStep(1e-3), batch_size=2_048, gpu_hour=2.5, scratch=tmp_path))
    assert {span.stage for span in found.timeline} >= {"wait", "step"}
    assert all(0 <= span.start_s < span.stop_s for span in found.timeline)
    written = json.loads(json.dumps(found.to_json()))
    assert written["verdict"]["stages"][0] == "fetch"
    assert written["money"]["epoch"] == pytest.approx(sum(part["cost"] for part in written["money"]["parts"]))


def test_a_step_that_is_a_function_is_measured_with_its_processor_time(tmp_path):
    class Counting:
        text = "a function"
        given_s = None

        def __init__(self):
            self.sizes = set()

        def begin(self, batch):
            self.sizes.add(len(batch["id"]))
            sum(range(20_000))

        def finish(self):
            pass

    step = Counting()
    found = examine(
        Dataset(planted.local(tmp_path, num_chunks=4)), settings(step=step, batch_size=512, scratch=tmp_path)
    )
    assert found.step.cpu_s > 0
    assert found.step.demand.samples_s == pytest.approx(512 / found.step.step_s)
    assert found.sweep.step_knee is not None
    assert {32, 128, 512, 2_048, 4_096} <= step.sizes


def test_a_source_that_fails_ends_the_examination_and_leaves_nothing(tmp_path):
    storage = FlakyStorage(planted.lake(), every=1, error=lambda: PermissionError("no"))
    with pytest.raises(StokerError):
        examine(Dataset("lake", storage=storage), settings(scratch=tmp_path / "scratch"))
    assert not list(tmp_path.glob("scratch/*"))
    assert not [thread.name for thread in threading.enumerate() if "doctor" in thread.name]


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    write_files(tmp_path / "data", [3_000, 2_000], row_group_size=640)
    return "data"


def test_the_command_prints_the_verdict_the_stages_and_the_ceilings(data, capsys):
    assert main(["doctor", data, "--step-time", "20ms", "--batch-size", "64", "--budget", "2s"]) == 0
    out, _ = capsys.readouterr()
    assert "nothing to gain" in out
    for word in ("today", "decode Parquet", "supply / demand", "disk, writing", "no GPU here"):
        assert word in out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 100


def test_without_a_step_the_command_says_what_the_path_can_carry(data, capsys):
    assert main(["doctor", data, "--batch-size", "64", "--budget", "1"]) == 0
    assert "steps of" in " ".join(capsys.readouterr().out.split())


def test_json_holds_the_whole_result(data, capsys):
    assert main(["doctor", data, "--step-time", "0.02", "--batch-size", "64", "--budget", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"]["stages"] == ["step"]
    assert {"stages", "paths", "fixes", "ceilings", "sweep", "materialise"} <= set(found)


def test_a_step_in_the_users_file_is_called_with_batches_and_verified(data, capsys, tmp_path):
    (tmp_path / "train_it.py").write_text(
        "from stoker import Dataset\n"
        "loaded = []\n"
        "loaded.append(1)\n"
        f"dataset = Dataset({data!r})\n"
        "def step(batch):\n"
        "    assert len(loaded) == 1 and len(batch['id'])\n"
        "    sum(range(200_000))\n"
    )
    command = ["doctor", "train_it.py:dataset", "--step", "train_it.py:step", "--batch-size", "64", "--budget", "2"]
    assert main(command) == 0
    assert "train_it.py:step" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name what to examine"),
        (["data", "--demo"], "leave TARGET out"),
        (["data", "--step-time", "soon"], "is no time"),
        (["data", "--step-time", "-1"], "no time"),
        (["data", "--step", "train.py"], "does not name the step"),
        (["data", "--step-time", "1", "--step", "a.py:b"], "give one of the two"),
        (["data", "--budget", "0.1"], "too little"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(data, capsys, arguments, says):
    assert main(["doctor", *arguments]) == 2
    assert says in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
@pytest.mark.parametrize("case", planted.CASES, ids=lambda case: case.name)
def test_every_planted_case_is_named(case, tmp_path):
    from benchmarks.doctor import examine_case

    found = examine_case(case, tmp_path / "case", budget_s=8.0, verify_all=False)
    assert case.stages <= set(found.verdict.stages), found.verdict.sentence


@pytest.mark.slow
@looked_at_again
def test_the_rank_whose_link_is_narrow_is_named_with_its_stage(tmp_path):
    def rank(bytes_s):
        dataset = Dataset("lake", storage=planted.behind(bytes_s))
        return examine(dataset, settings(step=TimedStep(4e-3), batch_size=2_048, scratch=tmp_path)).to_json()

    verdict = compare_ranks([rank(40e6), rank(5e6), rank(40e6)])
    assert (verdict.rank, verdict.stage) == (1, "fetch")
    assert verdict.lost_share > 0.5


@looked_at_again
def test_a_transform_that_waits_is_named_though_it_takes_no_core(tmp_path):
    dataset = Dataset(planted.local(tmp_path, num_chunks=6), transform=planted.asks_a_service, transform_version="1")
    found = examine(dataset, settings(step=TimedStep(1e-3), batch_size=2_048, scratch=tmp_path / "scratch"))
    assert found.verdict.stages[0] == "transform"
    transform = found.stage("transform")
    assert transform.wait_s == pytest.approx(30e-6, rel=0.2)


@looked_at_again
def test_a_slow_disk_under_a_cache_that_memory_cannot_hold_is_named(tmp_path):
    dataset = Dataset(planted.local(tmp_path, num_chunks=4))
    fill_cache(dataset, tmp_path / "cache", num_threads=2)
    slow = Disk(read_bytes_s=5e6, write_bytes_s=5e6, is_memory=False)
    found = examine(
        dataset,
        settings(
            step=TimedStep(1e-3),
            batch_size=2_048,
            cache=tmp_path / "cache",
            disk=lambda *_: slow,
            free_memory_bytes=lambda: 0,
        ),
    )
    assert found.verdict.stages[0] == "open"
    assert "disk" in found.verdict.sentence
