"""What control groups leave to a process."""

from __future__ import annotations

import math

import pytest

from stoker.host import groups, machine


@pytest.fixture
def group(tmp_path, monkeypatch):
    """A process in group /jobs/train; returns what writes a file of a group."""
    (tmp_path / "all" / "jobs" / "train").mkdir(parents=True)
    own = tmp_path / "own"
    own.write_text("4:memory:/elsewhere\n0::/jobs/train\n")
    monkeypatch.setattr(groups, "_ALL", tmp_path / "all")
    monkeypatch.setattr(groups, "_OWN", own)

    def write(where, **files):
        for name, text in files.items():
            (tmp_path / "all" / where / name.replace("_", ".", 1)).write_text(text)

    return write


def memory(limit, used, file=0):
    return {"memory_max": f"{limit}\n", "memory_current": f"{used}\n", "memory_stat": f"anon 1\ninactive_file {file}\n"}


def test_without_a_limit_nothing_is_said(group):
    assert (groups.core_quota(), groups.memory_left()) == (None, None)
    group("jobs", cpu_max="max 100000\n", **memory("max", 5))
    assert (groups.core_quota(), groups.memory_left()) == (None, None)


@pytest.mark.parametrize("where", [".", "jobs", "jobs/train"])
def test_a_limit_holds_wherever_above_the_process_it_stands(group, where):
    group(where, cpu_max="250000 100000\n", **memory(1000, 700, file=50))
    assert (groups.core_quota(), groups.memory_left()) == (2.5, 350)


def test_of_several_limits_the_least_holds(group):
    group("jobs", cpu_max="150000 100000\n", **memory(5000, 4900))
    group("jobs/train", cpu_max="400000 100000\n", **memory(1000, 100))
    assert (groups.core_quota(), groups.memory_left()) == (1.5, 100)


def test_a_group_beyond_its_limit_has_nothing_left(group):
    group("jobs", **memory(1000, 1200))
    assert groups.memory_left() == 0


def test_what_cannot_be_read_limits_nothing(group, monkeypatch, tmp_path):
    group("jobs", cpu_max="nonsense\n", memory_max="100\n")
    assert (groups.core_quota(), groups.memory_left()) == (None, None)
    monkeypatch.setattr(groups, "_OWN", tmp_path / "not there")
    assert (groups.core_quota(), groups.memory_left()) == (None, None)


@pytest.mark.parametrize("quota", [0.2, 1.0, 1.5, 10_000.0])
def test_as_many_threads_work_at_a_time_as_the_container_has_processors(group, quota):
    most = machine.cores()
    group("jobs", cpu_max=f"{int(quota * 100_000)} 100000\n")
    assert machine.cores() == min(most, quota)
    assert machine.num_cores() == min(most, max(1, math.ceil(quota)))


def test_memory_is_what_the_system_has_or_the_container_leaves(group):
    group("jobs/train", **memory(1 << 20, 1 << 19))
    assert machine.available_bytes() == machine.free_memory_bytes() == 1 << 19
