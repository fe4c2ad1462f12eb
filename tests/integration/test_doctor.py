"""The doctor as a command: on real data sets, on storages with one thing wrong, on wrong arguments."""

import importlib.machinery
import subprocess
import sys
import threading
import types

import pytest
from tests.strategies import write_files
from tests.unit.cli.typed import answer_of, typed
from tests.unit.doctor.looks import looked_at_again
from tests.unit.doctor.pages import Page

planted = pytest.importorskip("benchmarks.planted")


@pytest.fixture(autouse=True)
def forget_where_code_was(monkeypatch, tmp_path):
    """Take back what commands add to the path of imports."""
    monkeypatch.syspath_prepend(tmp_path)


def doctored(folder, code, *arguments):
    """Return what the doctor is to be typed with: a data set in code of the user's, budget, threads, scratch."""
    (folder / "train_planted.py").write_text(f"import threading\nfrom stoker import Dataset\n{code}")
    target = f"{folder}/train_planted.py:dataset"
    return ["doctor", target, "--budget", "4s", "--threads", "2", "--scratch", folder / "scratch", *arguments]


@looked_at_again
def test_a_throttled_network_is_named_and_tensors_on_ssd_mend_it(tmp_path):
    """In a lake that gives 16 MB/s."""
    code = "from benchmarks import planted\ndataset = Dataset('lake', storage=planted.behind(16e6))\n"
    found = answer_of(*doctored(tmp_path, code, "--step-time", "4ms", "--batch-size", 2_048, "--gpu-hour", 2.5))
    assert found["verdict"]["stages"][0] == "fetch"
    assert found["today"] == "source"
    assert "tensors" in found["verdict"]["fixes"]
    assert {"source", "ram", "tensors"} <= {path["key"] for path in found["paths"]}
    assert found["ceilings"]["network"] == pytest.approx(16e6, rel=0.5)
    assert not list(tmp_path.glob("scratch/*"))


WAITS = """
def waits(table):
    threading.Event().wait(1.0)
    return table

dataset = Dataset({where!r}, transform=waits, transform_version="1")
"""


def test_what_the_budget_has_no_time_for_is_said_to_be_not_measured(tmp_path):
    code = WAITS.format(where=planted.local(tmp_path, num_chunks=4))
    asked = ("--step-time", "1ms", "--batch-size", 2_048, "--budget", 2, "--verify")
    found = answer_of(*doctored(tmp_path, code, *asked))
    paths, said = {path["key"]: path for path in found["paths"]}, " ".join(found["verdict"]["notes"])
    for key in found["verdict"]["fixes"][:1]:
        assert paths[key]["came_s"] is not None or f"{paths[key]['name']} once more" in said
    for key, name in {"arrow": "Arrow on SSD", "threads": "8 threads"}.items():
        assert key in paths or name in said
    assert "Not measured, for no time was left" in said
    assert "8 threads" in said
    assert "threads" not in found["verdict"]["fixes"]


KEEPS_BUSY = """
dataset = Dataset({where!r})

def step(batch):
    assert len(batch["id"]) in (512, 2_048)
    sum(range(50_000))
"""


@looked_at_again
def test_a_step_that_keeps_the_cores_busy_is_judged_by_what_it_eats_beside_a_loader(tmp_path):
    code = KEEPS_BUSY.format(where=planted.local(tmp_path, num_chunks=4))
    step = f"{tmp_path}/train_planted.py:step"
    found = answer_of(*doctored(tmp_path, code, "--step", step, "--batch-size", 512))
    paths = {path["key"]: path for path in found["paths"]}
    assert "shared" in paths
    assert paths["ram"]["cores_used"] > 0.1
    for path in paths.values():
        is_comparable = (
            path["has_step"] and path["batch_size"] == 512 and path["key"] not in ("ram", "shared", "columns")
        )
        assert not is_comparable or path["rate_s"] <= found["verdict"]["demand_s"]


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


FAILS = """
from benchmarks import planted
from stoker.testing import FlakyStorage

storage = FlakyStorage(planted.lake(), every=1, error=lambda: PermissionError("no"))
dataset = Dataset("lake", storage=storage)
"""


def test_a_source_that_fails_ends_the_examination_and_leaves_nothing(tmp_path):
    code, out, err = typed(*doctored(tmp_path, FAILS))
    assert (code, out) == (1, "")
    assert err.startswith("error ")
    assert not list(tmp_path.glob("scratch/*"))
    assert not [thread.name for thread in threading.enumerate() if "doctor" in thread.name]


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    write_files(tmp_path / "data", [3_000, 2_000], row_group_size=640)
    return "data"


@looked_at_again
def test_the_command_prints_the_verdict_and_what_it_rests_on_and_writes_the_same_to_a_page(tmp_path, data):
    page_file = tmp_path / "out" / "doctor.html"
    command = ["doctor", data, "--step-time", "20ms", "--batch-size", "64", "--budget", "4s"]
    code, out, _ = typed(*command, "--html", page_file)
    assert code == 0
    assert "nothing to gain" in out
    for word in ("today", "each run whole", "disk, writing", "no GPU here"):
        assert word in out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 100
    page = Page(page_file.read_text(encoding="utf-8"))
    assert "The model is the limit" in page.text
    assert [child.name for child in page_file.parent.iterdir()] == ["doctor.html"]


def test_without_a_step_json_says_what_the_path_can_carry(data):
    found = answer_of("doctor", data, "--batch-size", 64, "--budget", 2, "--gpu-hour", 2.5)
    assert "enough for steps of" in found["verdict"]["sentence"]
    assert found["verdict"]["kind"] == "open"
    assert found["interrupted"] == ""
    assert {"paths", "stages", "ceilings", "verdict"} <= set(found)


class FakeNvml:
    """The few functions of the module pynvml that are asked, and one that this GPU cannot answer."""

    NVML_CLOCK_SM = 1
    nvmlClocksThrottleReasonSwPowerCap = 4  # noqa: N815  as the library names it

    __spec__ = importlib.machinery.ModuleSpec("pynvml", None)
    is_open = False

    def nvmlInit(self):  # noqa: N802
        self.is_open = True

    def nvmlShutdown(self):  # noqa: N802
        self.is_open = False

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, i):  # noqa: N802
        return i

    def nvmlDeviceGetName(self, _):  # noqa: N802
        return b"A100"

    def nvmlDeviceGetUtilizationRates(self, _):  # noqa: N802
        return types.SimpleNamespace(gpu=17)

    def nvmlDeviceGetClockInfo(self, *_):  # noqa: N802
        return 1_200

    def nvmlDeviceGetMaxClockInfo(self, *_):  # noqa: N802
        return 1_410

    def nvmlDeviceGetPowerUsage(self, _):  # noqa: N802
        raise RuntimeError("not supported")

    def nvmlDeviceGetMemoryInfo(self, _):  # noqa: N802
        return types.SimpleNamespace(used=10, total=40)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _):  # noqa: N802
        return 4


def test_a_torch_step_gets_tensors_on_every_path_and_the_driver_is_asked_meanwhile(data, tmp_path, monkeypatch):
    """What the driver does not tell is left out."""
    pytest.importorskip("torch")
    driver = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
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
    found = answer_of(*command, "--verify")
    assert {"ram", "source", "tensors", "arrow"} <= {path["key"] for path in found["paths"]}
    assert not [note for note in found["verdict"]["notes"] if "could not be tried" in note]
    (gpu,) = found["gpus"]
    assert (gpu["name"], gpu["utilisation"], gpu["sm_clock_mhz"]) == ("A100", pytest.approx(0.17), 1_200)
    assert "power_w" not in gpu
    assert gpu["throttled"] == ["power limit"]
    assert "share of time" in found["gpu_note"]
    assert not driver.is_open


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
def test_what_makes_no_sense_is_refused_at_once(data, arguments, says):
    code, out, err = typed("doctor", *arguments)
    assert (code, out) == (2, "")
    assert says in " ".join(err.split())


@pytest.mark.slow
@pytest.mark.parametrize("case", [*planted.CASES, *planted.SHARING], ids=lambda case: case.name)
def test_every_planted_case_is_named(case, tmp_path):
    from benchmarks.doctor import examine_case

    found = examine_case(case, tmp_path / "case", budget_s=20.0, verify=0)
    assert case.stages <= set(found.stages), found.sentence
