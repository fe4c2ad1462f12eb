"""What a machine calls itself."""

from __future__ import annotations

import platform

import pytest

from stoker.host.machine import machine, num_cores, processor_of

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
    assert processor_of(cpuinfo) == expected


def test_a_machine_names_its_processor_its_cores_and_no_host():
    parts = machine()
    assert parts["processor"]
    assert parts["cores"] == str(num_cores())
    assert set(parts) <= {"processor", "cores", "memory", "system"}
    assert not any(platform.node() in part for part in parts.values())
