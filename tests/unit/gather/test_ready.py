"""Loading compiled loops beside the first batches."""

import os
import subprocess
import sys

import pytest

_BEGIN = """
import numpy as np, sys
from stoker.gather import ready, take
from stoker.order.permute import arithmetic, permute
assert ready.are_kernels_ready() and "numba" not in sys.modules
"""


def _run(code):
    done = subprocess.run([sys.executable, "-c", _BEGIN + code], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_whoever_cannot_wait_gets_plain_numpy_until_the_loops_are_there():
    # The loading is held where it imports, so that what happens meanwhile does not depend on timing.
    out = _run("""
import importlib, threading
go = threading.Event()
ready.load_kernels(lambda name: go.wait() and importlib.import_module(name))
print(arithmetic().__name__, take._compiled(), "numba" in sys.modules)
before = permute(np.arange(5000), size=5000, key=7)
go.set()
ready.wait_for_kernels()
print(arithmetic().__name__, take._compiled().__name__)
print((before == permute(np.arange(5000), size=5000, key=7)).all())
""")
    assert out == ["stoker.order.plain", "None", "False", "stoker.order.compiled", "stoker.gather.kernels", "True"]


def test_who_gives_way_waits_a_moment_and_only_while_something_is_loaded():
    out = _run("""
import importlib, threading
waited = []
go, wait = threading.Event(), ready._ready.wait
ready._ready.wait = lambda seconds=None: waited.append(seconds) if seconds else wait()
ready.give_way()
print(waited)
ready.load_kernels(lambda name: go.wait() and importlib.import_module(name))
ready.give_way()
print(waited == [ready._MOMENT_S])
go.set()
ready.wait_for_kernels()
ready.give_way()
print(len(waited))
""")
    assert out == ["[]", "True", "1"]


def test_without_numba_the_loading_ends_in_plain_numpy():
    out = _run("""
sys.modules["numba"] = None
ready.load_kernels()
ready.wait_for_kernels()
print(ready.are_kernels_ready(), arithmetic().__name__, take._compiled())
""")
    assert out == ["True", "stoker.order.plain", "None"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_waits_for_the_loading_so_that_the_child_can_load_for_itself():
    out = _run("""
import os
ready.load_kernels()
child = os.fork()
if child == 0:
    print(arithmetic().__name__, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""")
    assert out == ["stoker.order.compiled"]


def test_a_process_may_end_while_the_loops_are_being_loaded():
    _run("ready.load_kernels()")
