"""Several ranks: who makes the others wait, what is said of it."""

from __future__ import annotations

import pytest
from tests.unit.doctor.traces.made import Made, rank_of, traced

NUM_STEPS = 5
NUM_COUNTED = 3  # without the first and the last


def rank(tmp_path, number, *, late=0, wait=0, clock=0, begin=600, end=900, world_size=2, base=None, **nccl):
    """Write a rank whose collectives begin `late` and end together, on a clock of its own."""
    made = Made()
    for step in range(NUM_STEPS):
        at = 1000 * step + clock
        made.step(step, at, at + 1000)
        if wait:
            made.wait(at, at + wait)
        made.launched("cudaLaunchKernel", at + wait, at + 100 + wait, at + 500 + wait)
        made.launched(
            "cudaLaunchKernel", at + wait + 10, at + begin + late, at + end, name="ncclDevKernel_AllReduce(x)", **nccl
        )
    header = rank_of(number, world_size) | ({} if base is None else {"baseTimeNanoseconds": base})
    return made.write(tmp_path / f"{number}.json", **header)


def waits(found):
    """Return what each rank waited, and what the others waited for it, in microseconds."""
    return [(rank["collective_wait_us"], rank["imposed_wait_us"]) for rank in found["ranks"]]


def test_the_rank_whose_collectives_start_last_makes_the_others_wait(tmp_path):
    found = traced(rank(tmp_path, 0), rank(tmp_path, 1, late=200), rank(tmp_path, 2))
    assert found["straggler"] == 1
    assert found["num_matched_collectives"] == NUM_COUNTED
    assert waits(found) == [(200 * NUM_COUNTED, 0), (0, 400 * NUM_COUNTED), (200 * NUM_COUNTED, 0)]
    assert found["verdict"].startswith("Rank 1 makes the others wait, 200 µs a step each")


def test_what_makes_it_late_is_named(tmp_path):
    found = traced(rank(tmp_path, 0), rank(tmp_path, 1, late=200, wait=200))
    assert "it waits for data 200 µs a step longer than the others" in found["verdict"]


def test_nobody_is_blamed_for_jitter(tmp_path):
    assert traced(rank(tmp_path, 0), rank(tmp_path, 1, late=1))["straggler"] is None


def test_nobody_is_blamed_where_they_take_turns(tmp_path):
    paths = []
    for number in (0, 1):
        made = Made()
        for step in range(6):
            at, late = 1000 * step, 200 * (step % 2 == number)
            made.step(step, at, at + 1000).nccl(at + 500 + late, at + 900)
        paths.append(made.write(tmp_path / f"{number}.json", **rank_of(number)))
    found = traced(*paths)
    assert found["straggler"] is None
    assert [imposed for _, imposed in waits(found)] == [400, 400]


@pytest.mark.parametrize("clock", [-5_000_000, -1100, -250, -100, 0, 100, 1100, 5_000_000])
@pytest.mark.parametrize("late", [0, 200])
def test_clocks_of_hosts_that_are_apart_change_nothing(tmp_path, clock, late):
    found = traced(rank(tmp_path, 0), rank(tmp_path, 1, late=late, clock=clock))
    assert found["straggler"] == (1 if late else None)
    assert found["num_matched_collectives"] == NUM_COUNTED
    assert [imposed for _, imposed in waits(found)] == [0, late * NUM_COUNTED]


def test_collectives_are_matched_by_sequence_number_where_the_file_has_it(tmp_path):
    """Rank 1 lacks the first collective: counted by place, each would be matched with its neighbour."""
    paths = []
    for number in (0, 1):
        made = Made()
        for step in range(5):
            at = 1000 * step + 200 * number
            if step or not number:
                made.nccl(at, 1000 * step + 900, **{"Seq": step, "Process Group Name": "0"})
        paths.append(made.write(tmp_path / f"{number}.json", **rank_of(number)))
    found = traced(*paths)
    assert found["num_matched_collectives"] == 4
    assert found["straggler"] == 1


def test_groups_of_one_name_are_told_apart_by_their_ranks(tmp_path):
    """Ranks 0 and 1 share a model, and so do 2 and 3, whose collectives take longer; 1 comes late to its own."""
    paths = []
    for number in range(4):
        made = Made()
        begin, members = (500 + 200 * number, "[0, 1]") if number < 2 else (100, "[2, 3]")
        for step in range(NUM_STEPS):
            made.step(step, 1000 * step, 1000 * step + 1000)
            args = {"Seq": step, "Process Group Name": "tp", "Process Group Ranks": members}
            made.nccl(1000 * step + begin, 1000 * step + 900, **args)
        paths.append(made.write(tmp_path / f"{number}.json", **rank_of(number, 4)))
    found = traced(*paths)
    assert found["straggler"] == 1
    assert [round(waited / 200) for waited, _ in waits(found)] == [NUM_COUNTED, 0, 0, 0]


def test_sending_to_a_neighbour_is_not_a_collective(tmp_path):
    paths = []
    for number in (0, 1):
        made = Made().step(0, 0, 1000)
        args = {"Collective name": "send", "Process Group Name": "pp"}
        made.nccl(300 * number, 900, "ncclDevKernel_SendRecv(x)", **args)
        paths.append(made.write(tmp_path / f"{number}.json", **rank_of(number)))
    assert traced(*paths)["num_matched_collectives"] == 0


def test_ranks_are_told_by_the_file_then_by_its_name_then_by_their_order(tmp_path):
    made = Made().kernel(0, 1)
    paths = [made.write(tmp_path / name) for name in ("run_rank-3.json", "run_rank-1.json")]
    assert [rank["rank"] for rank in traced(*paths)["ranks"]] == [1, 3]
    others = [made.write(tmp_path / name) for name in ("b.json", "a.json")]
    ranks = traced(*others)["ranks"]
    assert [(rank["rank"], rank["paths"]) for rank in ranks] == [(0, [str(others[0])]), (1, [str(others[1])])]


def test_shares_of_all_ranks_are_of_all_their_time(tmp_path):
    one = Made().host("aten::mm", 0, 100).kernel(0, 100)
    two = Made().host("aten::mm", 0, 300).kernel(0, 100)
    found = traced(*(made.write(tmp_path / f"rank{i}.json") for i, made in enumerate((one, two))))
    assert (found["busy_share"], found["idle_share"]) == (0.5, 0.5)
    assert [entry["busy_share"] for entry in found["ranks"]] == [1.0, 1 / 3]


JSON_FIELDS = {
    "verdict",
    "busy_share",
    "idle_share",
    "data_wait_share",
    "comm_compute_overlap_share",
    "exposed_comm_share",
    "unattributed_share",
    "step_us",
    "step_without_data_wait_us",
    "pageable_copies",
}


def test_json_has_its_fields_for_the_whole_and_for_each_rank(tmp_path):
    found = traced(rank(tmp_path, 0), rank(tmp_path, 1))
    assert found.keys() >= JSON_FIELDS
    for entry in found["ranks"]:
        assert entry.keys() >= JSON_FIELDS - {"verdict"}
        assert entry["step_us"] == 1000


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (Made().kernel(0, 98).host("aten::mm", 0, 100), "busy 98 % of the time"),
        (Made().kernel(0, 40).wait(40, 100), "60 % waiting for data"),
        (Made().kernel(0, 40).host("aten::mm", 0, 100), "60 % while the host is busy launching work"),
        (Made().kernel(0, 40).host("train", 0, 100, cat="user_annotation"), "launches nothing (60 % in train)"),
        (Made().step(0, 0, 100).kernel(0, 40), "60 % for a reason that no event in the trace explains"),
        (Made().nccl(0, 80).kernel(80, 100), "does nothing but communicate 80 % of the time"),
        (Made().host("aten::mm", 0, 100), "CPU only: no device did anything"),
        (Made().wait(0, 100), "waited for data 100 % of the time"),
        (Made(), "there are no events"),
    ],
)
def test_the_verdict_says_what_it_is(tmp_path, made, words):
    assert words in made.traced(tmp_path)["verdict"]


def test_a_collective_belongs_to_the_step_that_launched_it(tmp_path):
    """Rank 1's device runs so far behind that each collective ends in the step after."""
    paths = []
    for number in (0, 1):
        made = Made()
        for step in range(5):
            at = 1000 * step
            made.step(step, at, at + 1000)
            begin, end = (950, 1150) if number == 0 else (1050, 1150)
            made.launched("cudaLaunchKernel", at + 10, at + begin, at + end, name="ncclDevKernel_AllReduce(x)")
        paths.append(made.write(tmp_path / f"{number}.json", **rank_of(number)))
    found = traced(*paths)
    assert found["num_matched_collectives"] == 3
    assert [imposed for _, imposed in waits(found)] == [0, 3 * 100]
