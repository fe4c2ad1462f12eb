"""Loops are compiled where nothing can be written, too: in each process then."""

import subprocess
import sys

SCRIPT = """
import numba.core.caching
import numpy as np
from stoker import machine_code

machine_code.load = machine_code.keep = lambda *names: None
numba.core.caching.CacheImpl._locator_classes = []  # neither beside the source nor in the home can be written
try:
    numba.njit(cache=True)(lambda x: x)
except RuntimeError:
    print("no place")

import stoker.gather.kernels
import stoker.feed.units.kernels, stoker.order.kernels, stoker.trace.profile.scan
from stoker.order.permute import permute

print(permute(np.arange(5), size=5, key=7).tolist())
"""


def test_every_loop_is_there_where_nothing_can_be_written():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split("\n") == ["no place", "[3, 4, 2, 0, 1]", ""]


INNER = """
from stoker.compiling import compile_loop

@compile_loop("int64(int64)")
def inner(x):
    return x + {added}
"""
BETWEEN = """
from package.inner import inner
from package.numbers import FACTOR

def nothing_compiled():
    pass
"""
OUTER = """
from stoker.compiling import compile_loop
from package.between import FACTOR, inner

@compile_loop("int64(int64)")
def outer(x):
    return FACTOR * inner(x)
"""


def test_kept_loops_are_those_of_the_modules_they_were_made_of(tmp_path):
    """Another version of a package is installed around what is kept, and most of its files may be the same."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "between.py").write_text(BETWEEN)
    (package / "outer.py").write_text(OUTER)

    def found(*, added, factor):
        (package / "inner.py").write_text(INNER.format(added=added))
        (package / "numbers.py").write_text(f"FACTOR = {factor}")
        script = "from package.outer import outer; print(outer(5), *outer.stats.cache_hits.values())"
        done = subprocess.run(
            [sys.executable, "-B", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300
        )
        return done.stdout.split()

    assert found(added=1, factor=10) == ["60"]
    assert found(added=1, factor=10) == ["60", "1"]  # kept
    assert found(added=2, factor=10) == ["70"]
    assert found(added=2, factor=3) == ["21"]
    assert found(added=2, factor=3) == ["21", "1"]
