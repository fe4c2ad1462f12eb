"""Ranks beside each other: who lags is named, by its files too; a device's clock; what a long run keeps."""

import json

import numpy as np
import pytest
from tests.unit.doctor.watched_loops import Clock, PlannedLoader, watched_run

import stoker
from stoker.doctor.watch import RankFigures, find_straggler, read_ranks
from stoker.doctor.watch.device import CudaClock, DeviceSampler
from stoker.doctor.watch.meter import NUM_LATEST, Meter, StepKind, Tally
from stoker.doctor.watch.ranks import write_rank


def ranks(*means):
    return [
        RankFigures(rank=rank, num_steps=100, stall_s=stall, step_s=step) for rank, (stall, step) in enumerate(means)
    ]


def test_a_rank_whose_data_is_late_is_named_though_all_take_the_same_time():
    found = find_straggler(ranks((0.001, 0.060), (0.001, 0.060), (0.041, 0.020), (0.001, 0.060)))
    assert (found.name, found.rank) == ("straggler", 2)
    assert "waits 41 ms" in found.sentence


def test_a_rank_that_computes_slowly_is_named_as_such():
    found = find_straggler(ranks((0.001, 0.060), (0.001, 0.090), (0.001, 0.060)))
    assert found.rank == 1
    assert "not the loader" in found.advice


def test_even_ranks_have_no_straggler():
    assert find_straggler(ranks((0.01, 0.06), (0.011, 0.059), (0.01, 0.06))) is None
    assert find_straggler(ranks((0.01, 0.06))) is None
    assert find_straggler([]) is None


def test_ranks_meet_in_a_folder_without_waiting_for_each_other(tmp_path, monkeypatch):
    for rank, stall in enumerate((0.001, 0.030, 0.001)):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        loader = PlannedLoader(Clock(), 50, lambda i, stall=stall: stall)
        report = watched_run(loader, lambda i: 0.01, ranks=tmp_path / "ranks")
        assert len(report.ranks) == rank + 1
        assert (report.rank, report.world_size) == (rank, 3)
    assert report.findings[0].name == "straggler"
    assert report.findings[0].rank == 1
    assert "rank 1" in str(report)
    assert [figures.rank for figures in read_ranks(tmp_path / "ranks")] == [0, 1, 2]
    assert {path.suffix for path in (tmp_path / "ranks").iterdir()} == {".json"}


def test_files_of_a_run_with_another_number_of_ranks_are_not_mixed_in(tmp_path):
    old, new = ranks((0.1, 0.1), (0.2, 0.1)), ranks((0.3, 0.1))
    for figures in old:
        write_rank(tmp_path, figures, world_size=2)
    write_rank(tmp_path, new[0], world_size=1)
    assert list(read_ranks(tmp_path, world_size=1)) == new
    assert list(read_ranks(tmp_path, world_size=2)) == old


def test_a_folder_without_ranks_and_a_file_that_is_none_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no rank has written"):
        read_ranks(tmp_path)
    (tmp_path / "rank-00000-of-00001.json").write_text(json.dumps({"rank": 0}))
    with pytest.raises(ValueError, match=r"rank-00000-of-00001\.json"):
        read_ranks(tmp_path)


class FakeDevice:
    """A device that works off what is launched; marks are moments on it."""

    def __init__(self, clock):
        self.clock, self.free_s, self.num_marks = clock, 0.0, 0

    def launch(self, seconds):
        self.free_s = max(self.free_s, self.clock.now_s) + seconds

    def mark(self):
        self.num_marks += 1
        return max(self.free_s, self.clock.now_s)

    def is_past(self, mark):
        return self.clock.now_s >= mark

    def between_s(self, first, second):
        return second - first


def device_run(*, stall, launch, work, num=200):
    clock = Clock()
    device = FakeDevice(clock)
    meter = Meter(warmup=4, clock=clock, device=DeviceSampler(device, every=8))
    meter.begin_epoch()
    for _ in range(num):
        meter.ask()
        clock.pass_s(stall)
        meter.got()
        device.launch(work)
        clock.pass_s(launch)
    meter.ask()
    clock.pass_s(1000)
    return meter.device_times(), device


def test_a_device_that_is_behind_never_waits_however_long_the_host_does():
    times, _ = device_run(stall=0.008, launch=0.001, work=0.020)
    assert times.num > 10
    assert times.idle_share == 0


def test_a_device_that_is_done_early_waits_for_the_host():
    times, device = device_run(stall=0.008, launch=0.001, work=0.002)
    assert times.idle_s == pytest.approx(0.007)  # the first of the 8 ms belong to the step: it ends behind its launch
    assert times.busy_s == pytest.approx(0.002, abs=0.0011)
    assert device.num_marks < 200 / 8 * 3 + 3


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="CUDA"):
        CudaClock("cpu")
    with pytest.raises(ValueError, match="cuda:77"):
        CudaClock("cuda:77")
    with pytest.raises(ValueError, match="nonsense"):
        stoker.watch([], device="nonsense")


# ---------------------------------------------------------------------- long runs


def test_sums_are_of_all_steps_and_percentiles_of_the_latest():
    times = np.random.default_rng(0).lognormal(16, 1.5, 20_000).astype(np.int64)
    tally = Tally()
    for block in np.array_split(times, 70):
        zeros = np.zeros_like(block)
        tally.add(np.column_stack([np.full_like(block, StepKind.STEADY), zeros, block, zeros, zeros - 1]))
    spread = tally.spread(0)
    for share, found in ((0.5, spread.p50_s), (0.95, spread.p95_s), (0.99, spread.p99_s)):
        assert found == np.quantile(times[-NUM_LATEST:], share, method="inverted_cdf") / 1e9
    assert tally.num(StepKind.STEADY) == len(times)
    assert spread.mean_s == pytest.approx(times.mean() / 1e9)
    assert spread.max_s == times.max() / 1e9


@pytest.mark.parametrize("num", [1, 127, 128, 129, 5000])
def test_a_timeline_keeps_every_step_in_few_parts(num):
    tally = Tally()
    zeros = np.zeros(num, np.int64)
    rows = np.column_stack([zeros + StepKind.STEADY, zeros, np.arange(num), zeros + 2, zeros - 1])
    for block in np.array_split(rows, max(1, num // 50)):
        tally.add(block)
    parts = tally.parts
    assert len(parts) <= 128
    assert parts.sum(axis=0).tolist() == [num, num * (num - 1) // 2, 2 * num]
    assert len(set(parts[:-1, 0].tolist())) <= 1


def test_a_million_steps_take_no_more_memory_than_ten_thousand():
    meter = Meter(warmup=0)
    meter.begin_epoch()
    held = []
    for num in (20_000, 200_000):
        for _ in range(num):
            meter.ask()
            meter.got()
        seen = meter.look()
        held.append(seen.latest.nbytes + seen.parts.nbytes + len(meter._collected))
    assert len(seen.latest) == NUM_LATEST
    assert held[1] <= held[0] + 128 * 3 * 8
