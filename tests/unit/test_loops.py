"""Loading compiled loops beside the first batches."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stoker
from stoker import loops
from stoker.machine_code.processors import aim

_BEGIN = """
import importlib, threading
import sys
from stoker import loops, machine_code
machine_code.load = machine_code.keep = lambda *names: None  # as on a machine that keeps none
assert not loops.is_loading() and "numba" not in sys.modules
copying, last = "stoker.gather.kernels", "stoker.windows.read_kernels"
"""


_KEPT = """
import sys
from stoker import loops
with loops.left_out():
    print(loops.find("stoker.gather.kernels") is not None, "numba" in sys.modules)
"""


def _run(code):
    done = subprocess.run([sys.executable, "-c", _BEGIN + code], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_whoever_cannot_wait_gets_plain_numpy_until_the_loops_are_there():
    # The loading is held where it imports, so that what happens meanwhile does not depend on timing.
    out = _run("""
go = threading.Event()
loops.load(lambda name: go.wait() and importlib.import_module(name))
print(loops.find(copying), "numba" in sys.modules)
go.set()
loops.wait()
print(loops.find(copying).__name__)
""")
    assert out == ["None", "False", "stoker.gather.kernels"]


def test_each_module_is_used_as_soon_as_it_is_there():
    out = _run("""
go, at_last = threading.Event(), threading.Event()
def hold_at_last(name):
    if name == last:
        at_last.set()
        go.wait()
    return importlib.import_module(name)
loops.load(hold_at_last)
at_last.wait()
print(loops.find(copying).__name__, loops.find(last), loops.is_loading())
go.set()
loops.wait()
print(loops.find(last).__name__, loops.is_loading())
""")
    assert out == ["stoker.gather.kernels", "None", "True", "stoker.windows.read_kernels", "False"]


def test_loops_that_cannot_be_compiled_are_done_without_and_told_of():
    out = _run("""
import logging
logging.basicConfig(stream=sys.stdout, format="%(message)s")
def fail_at_copying(name):
    if name == copying:
        raise NotImplementedError("no such type\\nand much more")
    return importlib.import_module(name)
loops.load(fail_at_copying)
loops.wait()
print(loops.find(copying), loops.find(last).__name__)
""")
    assert " ".join(out) == (
        "the compiled loops of stoker.gather.kernels cannot be made (NotImplementedError: no such type): plain NumPy "
        "does their work, at a tenth of the rate; install a numba that Stoker was tested with "
        "None stoker.windows.read_kernels"
    )


def test_all_loops_can_be_compiled():
    pytest.importorskip("numba")
    assert all(loops.find(name) is not None for name in loops.NAMES)


def test_who_gives_way_waits_a_moment_and_only_while_something_is_loaded():
    out = _run("""
waited = []
go, wait = threading.Event(), loops._all_there.wait
loops._all_there.wait = lambda seconds=None: waited.append(seconds) if seconds is not None else wait()
loops.give_way(1.0)
print(waited)
loops.load(lambda name: go.wait() and importlib.import_module(name))
loops.give_way(1.0)
loops.give_way(0.001)
print(waited == [0.02, 0.0005])
go.set()
loops.wait()
loops.give_way(1.0)
print(len(waited))
""")
    assert out == ["[]", "True", "2"]


def test_without_numba_the_loading_ends_in_plain_numpy():
    out = _run("""
sys.modules["numba"] = None
loops.load()
loops.wait()
print(loops.is_loading(), loops.find(copying))
""")
    assert out == ["False", "None"]


def test_what_is_over_soon_does_without_them():
    out = _run("""
with loops.left_out():
    print(loops.find(copying), "numba" in sys.modules)
print(loops.find(copying).__name__)
""")
    assert out == ["None", "False", "stoker.gather.kernels"]


@pytest.mark.skipif(aim() is None, reason="no machine code can be kept here")
def test_what_is_over_soon_uses_machine_code_that_is_kept():
    done = subprocess.run(
        [sys.executable, "-c", _KEPT], capture_output=True, text=True, env=os.environ, check=True, timeout=300
    )
    assert done.stdout.split() == ["True", "False"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_waits_for_the_loading_so_that_the_child_can_load_for_itself():
    out = _run("""
import os
loops.load()
child = os.fork()
if child == 0:
    print(loops.find(last).__name__, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""")
    assert out == ["stoker.windows.read_kernels"]


def test_a_process_may_end_while_the_loops_are_being_loaded():
    _run("loops.load()")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_waits_until_the_machine_code_is_kept():
    """A child would inherit the compiler's lock, and need loops that are still to be compiled."""
    out = _run("""
import os
go = threading.Event()
machine_code.keep = lambda names: go.wait()
loops.load()
loops._all_there.wait()
threading.Timer(0.2, go.set).start()
child = os.fork()
if child == 0:
    print(go.is_set(), loops._thread.is_alive(), loops.find("stoker.gather.kernels") is not None, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""")
    assert out == ["True", "False", "True"]


def test_all_of_them_are_compiled_by_one_command():
    for _ in range(2):
        done = subprocess.run([sys.executable, "-m", "stoker.compiling"], capture_output=True, text=True, check=True)
        assert not done.stderr
    names = set(loops.NAMES)
    if aim() is None:
        assert f"{len(names)} of {len(names)} modules after" in done.stdout
    else:
        assert re.fullmatch(r"Machine code of the loops: .*\.bin\n", done.stdout)
    root = Path(stoker.__file__).parent
    asked_for = {
        name
        for path in root.rglob("*.py")
        for name in re.findall(r'"(stoker(?:\.\w+)*\.(?!_)\w*(?:kernels|compiled))"', path.read_text())
    }
    assert asked_for <= names
    assert all(root.parent.joinpath(*name.split(".")).with_suffix(".py").exists() for name in names)
