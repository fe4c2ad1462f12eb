"""What this host is and gives, by what the system writes of it."""

from __future__ import annotations

import math
import mmap
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.processes import python

from stoker.host import huge, machine
from stoker.host.huge import HUGE_BYTES
from stoker.host.machine import group_limits

FIRST = "processor\t: 0\nvendor_id\t: X\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\nstepping\t: 1\n"


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (FIRST + "\n" + FIRST.replace("AMD EPYC", "another"), "AMD EPYC, family 25 model 1"),
        ("model name\t: Cortex: A72\n", "Cortex: A72"),
        ("processor\t: 0\nBogoMIPS\t: 50.00\n", ""),
        ("", ""),
    ],
)
def test_a_processor_is_named_with_its_kind_where_the_system_tells(cpuinfo, expected):
    assert machine.processor_of(cpuinfo) == expected


def test_a_machine_names_its_processor_its_cores_and_no_host():
    parts = machine.machine()
    assert parts["processor"]
    assert parts["cores"] == str(machine.num_cores())
    assert set(parts) <= {"processor", "cores", "memory", "system"}
    assert not any(platform.node() in part for part in parts.values())


# ---------------------------------------------------------------------- control groups


@pytest.fixture
def group(tmp_path):
    """A process in group /jobs/train; returns what writes a file of a group, and gives what all groups leave it."""
    (tmp_path / "all" / "jobs" / "train").mkdir(parents=True)
    (tmp_path / "own").write_text("4:memory:/elsewhere\n0::/jobs/train\n")

    def write(where, **files):
        for name, text in files.items():
            (tmp_path / "all" / where / name.replace("_", ".", 1)).write_text(text)
        return group_limits(tmp_path / "own", tmp_path / "all")

    return write


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
    assert group_limits(tmp_path / "not there", tmp_path / "all") == (None, None)


OTHER_GROUP = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
static const char *instead(const char *path) {
    if (!strcmp(path, "/proc/self/cgroup")) return getenv("OWN_GROUP");
    return strcmp(path, "/sys/fs/cgroup/cpu.max") ? path : getenv("CPU_MAX");
}
#define OPEN(name) int name(const char *path, int flags, ...) { \\
    va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more); \\
    return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name))(instead(path), flags, mode); }
OPEN(open)
OPEN(open64)
"""


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs gcc and LD_PRELOAD")
@pytest.mark.parametrize(("quota", "limit"), [("50000", 0.5), ("999900000", math.inf), ("max", math.inf)])
def test_a_process_gets_no_more_cores_than_its_groups_have(tmp_path, quota, limit):
    (tmp_path / "own").write_text("0::/\n")
    (tmp_path / "max").write_text(f"{quota} 100000\n")
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-o", tmp_path / "other.so", "-", "-ldl"]
    subprocess.run(command, input=OTHER_GROUP.encode(), check=True)
    files = {"LD_PRELOAD": "other.so", "OWN_GROUP": "own", "CPU_MAX": "max"}
    say = "from stoker.host import machine; print(machine.cores(), machine.num_cores())"
    asked = python("-c", say, env={name: str(tmp_path / file) for name, file in files.items()}, stdout=subprocess.PIPE)
    cores = min(float(len(os.sched_getaffinity(0))), limit)
    assert asked.communicate()[0] == f"{cores} {math.ceil(cores)}\n"


# ---------------------------------------------------------------------- memory


@pytest.mark.parametrize("num_bytes", [0, 1, 5_000, HUGE_BYTES, HUGE_BYTES + 1])
def test_memory_begins_at_a_huge_page_and_can_be_written(num_bytes):
    found = huge.memory(num_bytes)
    assert found.shape == (num_bytes,)
    assert found.dtype == np.uint8
    if num_bytes:
        assert found.ctypes.data % HUGE_BYTES == 0
    found[:] = 7
    assert (found == 7).all()


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTFORK"), reason="the system has no such advice")
@pytest.mark.parametrize("is_inherited", [True, False])
def test_what_a_device_copies_from_is_not_inherited(is_inherited):
    found = huge.memory(5_000, is_inherited=is_inherited)
    flags, inside = None, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line[0].isupper():  # 7f1c2a000000-7f1c2a400000 rw-p ...
            begin, end = (int(border, 16) for border in line.split()[0].split("-"))
            inside = begin <= found.ctypes.data < end
        elif inside and line.startswith("VmFlags:"):
            flags = line.split()[1:]
    assert ("dc" in flags) is not is_inherited  # not copied
