"""What control groups leave to a process."""

from __future__ import annotations

import math

import pytest

from stoker.host import machine
from stoker.host.machine import core_quota, memory_left, own_groups


@pytest.fixture
def group(tmp_path):
    """A process in group /jobs/train; returns what writes a file of a group, and gives all groups."""
    (tmp_path / "all" / "jobs" / "train").mkdir(parents=True)
    (tmp_path / "own").write_text("4:memory:/elsewhere\n0::/jobs/train\n")

    def write(where, **files):
        for name, text in files.items():
            (tmp_path / "all" / where / name.replace("_", ".", 1)).write_text(text)
        return limits(own_groups(tmp_path / "own", tmp_path / "all"))

    return write


def limits(groups):
    return core_quota(groups), memory_left(groups)


def memory(limit, used, file=0):
    return {"memory_max": f"{limit}\n", "memory_current": f"{used}\n", "memory_stat": f"anon 1\ninactive_file {file}\n"}


def test_without_a_limit_nothing_is_said(group):
    assert group("jobs") == (None, None)
    assert group("jobs", cpu_max="max 100000\n", **memory("max", 5)) == (None, None)


@pytest.mark.parametrize("where", [".", "jobs", "jobs/train"])
def test_a_limit_holds_wherever_above_the_process_it_stands(group, where):
    assert group(where, cpu_max="250000 100000\n", **memory(1000, 700, file=50)) == (2.5, 350)


def test_of_several_limits_the_least_holds(group):
    group("jobs", cpu_max="150000 100000\n", **memory(5000, 4900))
    assert group("jobs/train", cpu_max="400000 100000\n", **memory(1000, 100)) == (1.5, 100)


def test_a_group_beyond_its_limit_has_nothing_left(group):
    assert group("jobs", **memory(1000, 1200)) == (None, 0)


def test_what_cannot_be_read_limits_nothing(group, tmp_path):
    assert group("jobs", cpu_max="nonsense\n", memory_max="100\n") == (None, None)
    assert limits(own_groups(tmp_path / "not there", tmp_path / "all")) == (None, None)


def test_a_machine_gives_no_more_than_its_groups():
    quota = core_quota()
    assert machine.cores() <= (quota or machine.cores())
    assert machine.num_cores() == max(1, math.ceil(machine.cores()))
