"""Ranks beside each other: who lags is named, by its files too; a device's clock; what a long run keeps."""

import itertools
import json
import tracemalloc

import numpy as np
import pytest
from tests.unit.doctor.watched_loops import Clock, PlannedLoader, names_of, watched_run

import stoker


@pytest.fixture
def report_of(tmp_path, monkeypatch):
    """Watch ranks one after the other, each with so long a stall and step; return the report of the last."""

    def watch(*means, world_size=None):
        for rank, (stall, step) in enumerate(means):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", str(world_size or len(means)))
            loader = PlannedLoader(Clock(), 50, lambda _, stall=stall: stall)
            report = watched_run(loader, lambda _, step=step: step, ranks=tmp_path / "ranks")
            assert [figures.rank for figures in report.ranks] == list(range(rank + 1))
            assert (report.rank, report.world_size) == (rank, world_size or len(means))
        return report

    return watch


def test_a_rank_whose_data_is_late_is_named_though_all_take_the_same_time(report_of):
    report = report_of((0.001, 0.060), (0.001, 0.060), (0.041, 0.020), (0.001, 0.060))
    found = report.findings[0]
    assert (found.name, found.rank) == ("straggler", 2)
    assert "waits 41 ms" in found.sentence
    assert "rank 2" in str(report)


def test_a_rank_that_computes_slowly_is_named_as_such(report_of):
    found = report_of((0.001, 0.060), (0.001, 0.090), (0.001, 0.060)).findings[0]
    assert (found.name, found.rank) == ("straggler", 1)
    assert "not the loader" in found.advice


@pytest.mark.parametrize("means", [((0.01, 0.06), (0.011, 0.059), (0.01, 0.06)), ((0.01, 0.06),), ((0, 0), (0, 0))])
def test_even_ranks_have_no_straggler(report_of, means):
    assert "straggler" not in names_of(report_of(*means))


def test_ranks_meet_in_a_folder_of_json_files_without_waiting_for_each_other(report_of, tmp_path):
    report_of((0.001, 0.01), (0.030, 0.01), world_size=3)
    files = sorted((tmp_path / "ranks").iterdir())
    assert {path.suffix for path in files} == {".json"}
    assert [json.loads(path.read_text())["stall_s"] for path in files] == pytest.approx([0.001, 0.03])


def test_files_of_a_run_with_another_number_of_ranks_are_not_mixed_in(report_of):
    report_of((0.1, 0.1), (0.2, 0.1))
    assert [figures.stall_s for figures in report_of((0.3, 0.1)).ranks] == [pytest.approx(0.3)]


def test_a_file_in_the_folder_that_is_no_ranks_is_named(report_of, tmp_path):
    report_of((0.1, 0.1), world_size=2)
    (tmp_path / "ranks" / "rank-00001-of-00002.json").write_text(json.dumps({"rank": 1}))
    with pytest.raises(ValueError, match=r"rank-00001-of-00002\.json"):
        report_of((0.1, 0.1), world_size=2)


# ---------------------------------------------------------------------- a device


class Gpu:
    """A device that works off what is launched; its events are moments on it."""

    def __init__(self):
        self.clock, self.free_s, self.num_events = Clock(), 0.0, 0

    def launch(self, seconds):
        self.free_s = max(self.free_s, self.clock.now_s) + seconds

    def event(self, *, enable_timing):
        assert enable_timing
        return Event(self)


class Event:
    """One of `torch.cuda`, as far as it is used."""

    def __init__(self, gpu):
        self.gpu = gpu

    def record(self, stream):
        self.gpu.num_events += 1
        self.at_s = max(self.gpu.free_s, self.gpu.clock.now_s)

    def query(self):
        return self.gpu.clock.now_s >= self.at_s

    def elapsed_time(self, later):
        return 1e3 * (later.at_s - self.at_s)


@pytest.fixture
def gpu(monkeypatch):
    """Let torch have a device."""
    torch, gpu = pytest.importorskip("torch"), Gpu()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)
    monkeypatch.setattr(torch.cuda, "Event", gpu.event)
    return gpu


def device_report(gpu, *, stall, launch, work):
    watched = stoker.watch(PlannedLoader(gpu.clock, 200, lambda _: stall), warmup=4, device="cuda", clock=gpu.clock)
    for _ in watched:
        gpu.launch(work)
        gpu.clock.pass_s(launch)
    gpu.clock.pass_s(1000)
    return watched.report()


def test_a_device_that_is_behind_never_waits_however_long_the_host_does(gpu):
    report = device_report(gpu, stall=0.008, launch=0.001, work=0.020)
    assert report.device.num > 10
    assert report.device.idle_share == 0
    assert report.verdict.limit == "model"


def test_a_device_that_is_done_early_waits_for_the_host(gpu):
    report = device_report(gpu, stall=0.008, launch=0.001, work=0.002)
    assert report.device.idle_s == pytest.approx(0.007)  # the first of the 8 ms belong to the step behind its launch
    assert report.device.busy_s == pytest.approx(0.002, abs=0.0011)
    assert "the device waits" in report.verdict.sentence
    assert "idle by its own clock" in str(report)
    assert gpu.num_events < 200 / 8 * 3 + 3


@pytest.mark.parametrize(("device", "words"), [("cpu", "CUDA"), ("cuda:77", "cuda:77"), ("nonsense", "nonsense")])
def test_a_device_that_is_not_there_is_named(device, words):
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match=words):
        stoker.watch([], device=device)


# ---------------------------------------------------------------------- long runs


def test_sums_are_of_all_steps_and_percentiles_of_the_latest():
    stalls = np.random.default_rng(0).lognormal(16, 1.5, 20_000).astype(np.int64)
    loader = PlannedLoader(Clock(), len(stalls), lambda i: stalls[i] / 1e9)
    report = watched_run(loader, lambda _: 0.001, warmup=0)
    assert report.num_steady == len(stalls) - 1  # the first is the epoch's
    for share, found in ((0.5, report.stall.p50_s), (0.95, report.stall.p95_s), (0.99, report.stall.p99_s)):
        assert found == np.quantile(stalls[-4096:], share, method="inverted_cdf") / 1e9
    assert report.stall.mean_s == pytest.approx(stalls[1:].mean() / 1e9)
    assert report.stall.max_s == stalls[1:].max() / 1e9


@pytest.mark.parametrize("num", [1, 2, 128, 129, 130, 5000])
def test_a_run_is_shown_in_few_parts_whatever_its_length(num):
    loader = PlannedLoader(Clock(), num, lambda i: 0.003 if i >= num // 2 else 0.001)
    parts = watched_run(loader, lambda _: 0.001, warmup=0).parts
    assert len(parts) == min(num - 1, 32)
    assert list(parts) == sorted(parts)
    if num >= 128:
        assert (parts[0], parts[-1]) == (pytest.approx(0.5), pytest.approx(0.75))


def test_fifty_thousand_steps_take_no_more_memory_than_ten_thousand():
    batches, held = iter(stoker.watch(itertools.repeat(None), warmup=0)), []
    tracemalloc.start()
    try:
        for num in (10_000, 40_000):
            for _ in range(num):
                next(batches)
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[1] - held[0] < 500_000
