"""Loops are compiled where nothing can be written, too: in each process then."""

import subprocess
import sys

SCRIPT = """
import numba.core.caching
import numpy as np

numba.core.caching.CacheImpl._locator_classes = []  # neither beside the source nor in the home can be written
try:
    numba.njit(cache=True)(lambda x: x)
except RuntimeError:
    print("no place")

import stoker.cache.kernels, stoker.cache.look_kernels, stoker.cache.runs_kernels, stoker.gather.kernels
import stoker.feed.units.kernels, stoker.order.compiled, stoker.order.draws_compiled, stoker.trace.profile.scan
from stoker.order.permute import permute

print(permute(np.arange(5), size=5, key=7).tolist())
"""


def test_every_loop_is_there_where_nothing_can_be_written():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split("\n") == ["no place", "[3, 4, 2, 0, 1]", ""]
