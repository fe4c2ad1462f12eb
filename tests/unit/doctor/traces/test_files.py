"""Files and ranks: one file a cycle of the profiler's schedule, several ranks in one; ranges that name a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.unit.doctor.traces.made import MAIN, Made, rank_of, traced

torch = pytest.importorskip("torch")


def cycle(number, *, pid=100, late=0, first_step=0, num_steps=4):
    """Make one cycle of a rank's profiler: steps of 1000 that begin with a wait of 200, and a collective."""
    made = Made()
    for step in range(first_step, first_step + num_steps):
        at = 1000 * step + 50_000 * number
        made.step(step, at, at + 1000).wait(at, at + 200 + late)
        made.launched("cudaLaunchKernel", at + 200 + late, at + 210 + late, at + 500 + late)
        name = "ncclDevKernel_AllReduce(x)"
        made.launched("cudaLaunchKernel", at + 220 + late, at + 500 + late, at + 1000, name=name)
    for event in made.events:
        event["pid"], event["tid"] = (pid, pid) if event["tid"] == MAIN else (event["pid"], event["tid"])
    return made


def write_folder(folder, *, num_ranks, num_cycles, late=0, is_anew=False, **header):
    """Write what `tensorboard_trace_handler` does: HOST_PID.TIME.pt.trace.json."""
    folder.mkdir()
    for number in range(num_ranks):
        for at in range(num_cycles):
            made = cycle(at, pid=100 + number, late=late * (number == 1), first_step=0 if is_anew else 4 * at)
            made.write(folder / f"host_{100 + number}.{at + 1000}.pt.trace.json", **header)
    return sorted(folder.iterdir())


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("num_cycles", [1, 3])
def test_files_of_one_process_are_cycles_of_a_rank(tmp_path, num_ranks, num_cycles):
    paths = write_folder(tmp_path / "logs", num_ranks=num_ranks, num_cycles=num_cycles)
    found = traced(*paths)
    assert found["num_ranks"] == num_ranks
    for rank in found["ranks"]:
        assert len(rank["paths"]) == num_cycles
        assert sum(step["is_counted"] for step in rank["steps"]) == 2 * num_cycles
        assert rank["wall_us"] == 2000 * num_cycles
        assert rank["data_wait_share"] == 0.2
    assert found["num_matched_collectives"] == (2 * num_cycles if num_ranks == 2 else 0)
    assert found["straggler"] is None


@pytest.mark.parametrize("is_anew", [False, True])
def test_a_straggler_is_found_in_a_folder_of_cycles(tmp_path, is_anew):
    """A profiler that is made anew for each epoch begins to count steps from 0 again."""
    paths = write_folder(tmp_path / "logs", num_ranks=2, num_cycles=3, late=300, is_anew=is_anew)
    found = traced(*paths)
    assert (found["num_ranks"], found["straggler"], found["num_matched_collectives"]) == (2, 1, 6)
    assert found["straggler_reason"] == "it waits for data 300 µs a step longer than the others"
    assert found["ranks"][1]["imposed_wait_us"] == 300 * 6


def test_cycles_that_count_anew_are_not_taken_for_each_other_where_their_collectives_differ(tmp_path):
    """Rank 0 has one more at each step of its second cycle, rank 1 at each of its first."""
    paths = []
    for number in (0, 1):
        for at in range(2):
            made = cycle(at, pid=100 + number)
            for step in range(4 if at != number else 0):
                begin = 1000 * step + 50_000 * at
                made.nccl(begin + 500, begin + 700, "ncclDevKernel_AllReduce(x)")
            paths.append(made.write(tmp_path / f"host_{100 + number}.{at + 1000}.pt.trace.json"))
    found = traced(*paths)
    assert (found["num_ranks"], found["num_matched_collectives"]) == (2, 0)


@pytest.mark.parametrize("name", ["{rank}.{cycle}.json", "host{rank}_1.{cycle}.pt.trace.json"])
@pytest.mark.parametrize("num_cycles", [1, 3])
def test_ranks_of_one_process_number_whose_clocks_are_minutes_apart_are_no_cycles(tmp_path, name, num_cycles):
    """Containers number their processes alike; with several cycles only the handler's names tell ranks apart."""
    if num_cycles > 1 and not name.startswith("host"):
        return
    paths = []
    for number in range(3):
        for at in range(num_cycles):
            made = cycle(at, pid=1, late=300 * (number == 1), first_step=4 * at)
            for event in made.events:
                event["ts"] += 60_000_000 * number
            paths.append(made.write(tmp_path / name.format(rank=number, cycle=at)))
    found = traced(*paths)
    assert (found["num_ranks"], found["straggler"]) == (3, 1)


@pytest.mark.parametrize("does_share_devices", [False, True])
def test_ranks_in_one_file_are_told_apart(tmp_path, does_share_devices):
    """Their calls have the same correlations, as those of two processes do."""
    both = Made()
    for number in (0, 1):
        made = cycle(0, pid=100 + number, late=300 * number)
        for event in made.events:
            is_work = event["cat"] == "kernel"
            both.events.append({**event, "pid": number if is_work and not does_share_devices else event["pid"]})
        both.events.append(
            {"ph": "M", "name": "process_name", "pid": 100 + number, "tid": 0, "args": {"name": f"rank {number}"}}
        )
    found = both.traced(tmp_path, **rank_of(0))
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert [rank["data_wait_share"] for rank in found["ranks"]] == [0.2, 0.5]
    assert found["straggler"] == 1


@pytest.mark.parametrize("does_share_devices", [False, True])
def test_ranks_in_one_file_with_graphs_are_told_apart(tmp_path, does_share_devices):
    """One call launches three kernels under one id; a call that only waits has the id of the other rank's launch."""
    both = Made()
    for number in (0, 1):
        made, pid = Made(), 100 + number
        for step in range(5):
            at, late = 1000 * step, 300 * number
            made.step(step, at, at + 1000).wait(at, at + 200 + late)
            made.call("cudaGraphLaunch", at + 200 + late, at + 210 + late, correlation=10 * step + 1)
            made.call("cudaStreamSynchronize", at + 995, at + 996, correlation=10 * step + 2 + number)
            for start, stop in ((210, 300), (301, 400), (402, 500)):
                made.kernel(at + start + late, at + stop + late, correlation=10 * step + 1)
            link = 10 * step + 3 - number
            made.call("cudaLaunchKernel", at + 220 + late, at + 221 + late, correlation=link)
            made.nccl(at + 500 + late, at + 1000, correlation=link)
        for event in made.events:
            is_work = event["cat"] == "kernel"
            process = {} if is_work and does_share_devices else {"pid": number} if is_work else {"pid": pid, "tid": pid}
            both.events.append({**event, **process})
    found = both.traced(tmp_path)
    assert [rank["data_wait_share"] for rank in found["ranks"]] == [0.2, 0.5]
    assert [rank["queued_share"] for rank in found["ranks"]] == [0.003, 0.003]
    assert found["straggler"] == 1


@pytest.mark.parametrize("does_share_devices", [False, True])
def test_eight_ranks_in_one_file_that_launch_at_the_same_moments_are_told_apart(tmp_path, does_share_devices):
    both = Made()
    for number in range(8):
        for event in cycle(0, pid=100 + number, late=300 * (number == 6)).events:
            is_work = event["cat"] == "kernel"
            both.events.append({**event, "pid": number if is_work and not does_share_devices else event["pid"]})
    found = both.traced(tmp_path)
    assert (found["num_ranks"], found["straggler"]) == (8, 6)


def test_what_nothing_else_explains_is_named_by_the_range_it_is_in(tmp_path):
    made = Made().step(0, 0, 1000).kernel(0, 100).kernel(900, 1000)
    made.host("train_step", 0, 1000, cat="user_annotation").host("log_metrics", 100, 700, cat="user_annotation")
    made.host("train.py(80): write_rows", 150, 650, cat="python_function")
    made.host("<built-in method acquire of _thread.lock object at 0x7f>", 160, 640, cat="python_function")
    made.host("save", 700, 850, cat="user_annotation")
    found = made.traced(tmp_path)
    assert found["unattributed_share"] == 0.8
    assert found["largest_range"] == {"name": "train.py(80): write_rows", "share": 0.5}
    assert "50 % in train.py(80): write_rows" in found["verdict"]
    assert found["advice"] == ["look at train.py(80): write_rows: the host is in it, and launches nothing"]


def test_python_functions_that_make_data_are_data(tmp_path):
    made = Made().step(0, 0, 100).host("train.py(12): get_batch", 0, 60, cat="python_function").kernel(60, 100)
    assert made.times(tmp_path)["waiting_for_data"] == 60


def test_copies_from_pageable_memory_have_advice_though_they_are_not_the_largest_reason(tmp_path):
    made = Made().step(0, 0, 1000).wait(0, 500)
    made.launched(
        "cudaMemcpyAsync", 500, 510, 560, name="Memcpy HtoD (Pageable -> Device)", cat="gpu_memcpy", length=60
    )
    made.kernel(560, 1000)
    advice = made.traced(tmp_path)["advice"]
    assert "stoker doctor" in advice[0]
    assert advice[1].startswith("pin the batches (`pin_memory=True`)")
    assert "block the host 6.0 % of the time" in advice[1]


def recipe(folder: Path, num_steps: int) -> str:
    """Return the how-to's own recipe, with a model and a loader to run on."""
    text = (Path(__file__).parents[4] / "docs/how-to/trace.md").read_text()
    code = re.search(r"    with torch\.profiler\.profile\(.*?prof\.step\(\)\n", text, re.DOTALL)[0]
    lines = "\n".join(line[4:] for line in code.splitlines())
    return lines.replace('"logs"', repr(str(folder))).replace("loader:", f"[1] * {num_steps}:")


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
@pytest.mark.parametrize("num_cycles", [1, 3, 5])
def test_the_recipe_of_the_documentation_is_read_as_what_it_is(tmp_path, num_cycles):
    layer = torch.nn.Linear(8, 8)
    code = recipe(tmp_path / "logs", 15 * num_cycles)
    exec(code, {"torch": torch, "train_step": lambda _: layer(torch.ones(4, 8)).sum().backward()})
    files = list((tmp_path / "logs").iterdir())
    assert len(files) == num_cycles
    found = traced(tmp_path / "logs")
    assert (found["status"], found["num_ranks"]) == ("cpu_only", 1)
    assert [step["is_counted"] for step in found["ranks"][0]["steps"]] == num_cycles * [False, *[True] * 6, False]


RANK = """
import sys, torch, torch.distributed as dist
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
layer = torch.nn.Linear(8, 8)
def train_step(_):
    layer(torch.ones(4, 8)).sum().backward()
    dist.all_reduce(layer.weight.grad)
{code}
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("num_cycles", [1, 3, 5])
def test_the_recipe_on_two_ranks_is_two_ranks(tmp_path, num_cycles):
    import subprocess
    import sys

    code = RANK.format(code=recipe(tmp_path / "logs", 15 * num_cycles))
    ranks = [subprocess.Popen([sys.executable, "-c", code, str(rank), str(tmp_path / "meet")]) for rank in (0, 1)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    found = traced(tmp_path / "logs")
    assert [(rank["rank"], len(rank["paths"])) for rank in found["ranks"]] == [(0, num_cycles), (1, num_cycles)]
    assert all(len(rank["steps"]) == 8 * num_cycles for rank in found["ranks"])
