"""Without numba the order is the same."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from stoker import machine_code
if sys.argv[1] == "absent":
    sys.modules["numba"] = None
    machine_code.load = lambda names: None
from stoker.order import Order
from stoker.order.permute import arithmetic
chunk, row = Order([500, 0, 700], shuffle=True, seed=3, window=1).epoch(2).locate(range(1200))
print(arithmetic().__name__, hash((tuple(chunk.tolist()), tuple(row.tolist()))))
"""


def _run(how, environment):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize(("how", "environment"), [("absent", {}), ("there", {"NUMBA_DISABLE_JIT": "1"})])
def test_the_order_is_the_same_without_numba_or_with_its_compiler_off(how, environment):
    pytest.importorskip("numba")
    compiled, expected = _run("there", {"NUMBA_DISABLE_JIT": "0"})
    plain, found = _run(how, environment)
    assert (compiled, plain) == ("stoker.order.compiled", "stoker.order.plain")
    assert found == expected


def test_importing_the_order_does_not_import_numba():
    program = "import sys, stoker.order, stoker.order.quality; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
