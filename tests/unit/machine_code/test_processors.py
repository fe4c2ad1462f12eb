"""Code for one processor runs on that one, code for a level on those that have all of it."""

import os
import subprocess
import sys

import pytest

from stoker.machine_code.processors import LEVELS, aim, environment, fit

V3 = "cx16 lahf_lm popcnt pni ssse3 sse4_1 sse4_2 abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"
AMD, INTEL = (
    {"vendor_id": vendor, "flags": f"fpu {flags} last"} for vendor, flags in zip(LEVELS, (V3, V4), strict=True)
)


def test_a_processor_runs_its_own_code_and_that_of_its_vendors_level():
    assert fit("this one", AMD) == ("this one", "x86-64-v3")
    assert fit("this one", INTEL) == ("this one", "x86-64-v4")


@pytest.mark.parametrize(
    ("about", "flag"), [(AMD, flag) for flag in V3.split()] + [(INTEL, flag) for flag in V4.split()]
)
def test_a_processor_that_lacks_something_of_a_level_runs_its_own_alone(about, flag):
    flags = about["flags"].replace(f" {flag} ", " ")
    assert fit("this one", about | {"flags": flags}) == ("this one",)


@pytest.mark.parametrize("about", [{}, {"vendor_id": "GenuineIntel"}, {"vendor_id": "another", "flags": V4}])
def test_a_processor_that_nobody_knows_runs_its_own_alone(about):
    assert fit("this one", about) == ("this one",)


def test_who_is_told_a_level_runs_that_and_nothing_else_and_only_where_it_can():
    assert fit("x86-64-v3", AMD) == ("x86-64-v3",)
    assert fit("x86-64-v3", AMD | {"flags": "fpu"}) == ()
    assert fit("x86-64-v4", AMD) == ()
    assert fit(None, AMD) == ()


def _run(code, variables):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | variables, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(aim() is None, reason="no machine code can be kept here")
@pytest.mark.parametrize(
    ("variables", "is_level"),
    [
        (environment("x86-64-v3"), True),
        (environment("x86-64-v3") | {"NUMBA_BOUNDSCHECK": "1"}, False),
        ({"NUMBA_CPU_NAME": "x86-64-v3"}, False),
        (environment("znver3"), False),
        ({"NUMBA_CPU_FEATURES": "+avx2"}, False),
    ],
)
def test_a_process_aims_at_a_level_where_numba_is_told_that_and_nothing_beside_it(variables, is_level):
    code = "from stoker.machine_code.processors import aim; print(aim())"
    assert _run(code, variables) == ("x86-64-v3" if is_level else "None")
