"""Compiled loops, where they are: their machine code, or loaded beside the first batches, which plain NumPy makes.

    find(...)     ──► their machine code, where it is kept: 0.003 s; see `machine_code`
    else
    Loader(...)   ──► a thread has numba compile them, 30 s, once a machine, and keeps their machine code
    first batches ──► NumPy: the same bytes, at a tenth of the rate
    later ones    ──► by each module of loops as soon as it is there

Without the thread a loader's first batch would wait for the compiler, although nothing it needs is compiled. The others
give way to it: it comes by itself, and the sooner it is done the better for all of them.

What is found by a module's name has the loops that Python calls, and may have nothing else of that module.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from stoker import machine_code

# What a loader uses, in the order in which it gains most: what rows are copied by is worth more than what finds them.
_LOADED = (
    "stoker.gather.kernels",
    "stoker.order.kernels",
    "stoker.gather.stretch_kernels",
    "stoker.gather.part_kernels",
    "stoker.gather.shared_kernels",
    "stoker.gather.join_kernels",
    "stoker.windows.read_kernels",
)
NAMES = _LOADED

# What a batch that is made meanwhile leaves to the loading thread: half as long as the last one took, at most 20 ms.
# Two threads make batches of 4,096 rows with lists, on two cores, beside a compiler that alone takes 9 s: all loops are
# there after 9 s where they were after 11.4, and after 11.6 where they were after 14.8 while chunks are built, too.
# Four times as long makes that no sooner, and halves what comes meanwhile.
_PATIENCE, _MOMENT_S = 0.5, 0.02

_log = logging.getLogger("stoker")
_lock = threading.Lock()
_all_there = threading.Event()
_thread: threading.Thread | None = None
_found: dict[str, ModuleType | None] = {}
_is_kept: bool | None = None  # nobody has looked yet
_is_plain = False


def find(name: str) -> ModuleType | None:
    """Return a module of compiled loops; None without numba, and as long as a thread is still to load it.

    Blocks: while it is imported, and once a machine compiled, where its machine code is not kept and nobody has begun
        to load it.

    Args:
        name: Of the module, with its packages.
    """
    if name not in _found and not _take_kept():
        if _is_plain or (is_loading() and name in _LOADED):
            return None
        _found[name] = _import(name)
    return _found[name]


def load(import_module: Callable[[str], ModuleType] = importlib.import_module) -> None:
    """Begin to load what a loader uses, once a process; returns at once.

    Args:
        import_module: Imports a module by its name.
    """
    global _thread  # one set of loaded modules a process
    if _take_kept():
        return
    with _lock:
        if _thread is not None:
            return
        # No daemon: an interpreter that ends while a compiler runs in it may crash.
        _thread = threading.Thread(target=_load, args=(import_module,), name="stoker-loops")
        _thread.start()


def is_loading() -> bool:
    """Whether a thread is loading loops."""
    return _thread is not None and not _all_there.is_set()


def is_at_hand(name: str) -> bool:
    """Whether it takes no time to find a module of compiled loops: nothing is imported."""
    return _take_kept() or _found.get(name) is not None


def wait() -> None:
    """Return when the loading, if it was begun, has ended, and what was compiled for it is kept.

    Blocks: for half a minute at most, where loops are compiled for the first time on a machine.
    """
    if _thread is not None and _thread is not threading.current_thread():
        _thread.join()


def give_way(busy_s: float) -> None:
    """Leave the interpreter's lock, and a core, to the loading thread for a moment.

    Importing and compiling wait for the interpreter's lock again and again, up to 5 ms each time, Python's switch
    interval, where threads that make batches keep it busy.

    Blocks: for 20 ms at most, and not at all where nothing is loaded.

    Args:
        busy_s: How long the last batch took.
    """
    if is_loading():
        _all_there.wait(min(_MOMENT_S, _PATIENCE * busy_s))


def compile_all() -> tuple[int, Path | None]:
    """Compile all there are, and return how many modules that is, and where their machine code is kept, if it is.

    Blocks: for half a minute, or some seconds where numba has kept what it compiled.
    """
    num_there = sum(_import(name) is not None for name in NAMES)
    return num_there, machine_code.keep(NAMES) if num_there == len(NAMES) else None


@contextmanager
def left_out() -> Iterator[None]:
    """Do without loops that are not there yet: for what is over sooner than they would be loaded."""
    global _is_plain
    _is_plain = True
    try:
        yield
    finally:
        _is_plain = False


def _load(import_module: Callable[[str], ModuleType]) -> None:
    try:
        for name in _LOADED:
            _found[name] = _import(name, import_module)
    finally:
        _all_there.set()
    if all(_found[name] is not None for name in _LOADED):
        machine_code.keep(NAMES)


def _take_kept() -> bool:
    """Take the machine code that is kept for all loops, once a process; return whether there is some."""
    global _is_kept
    if _is_kept is None:
        with _lock:
            if _is_kept is None:
                kept = machine_code.load(NAMES)
                _found.update(kept or {})
                _is_kept = kept is not None
    return _is_kept


def _import(name: str, import_module: Callable[[str], ModuleType] = importlib.import_module) -> ModuleType | None:
    try:
        return import_module(name)
    except ImportError:  # without numba, told not to compile, or on another system
        return None
    except Exception as error:  # a numba that does not know something we use, say: no reason to stop training
        reason = str(error).strip().splitlines()
        _log.warning(
            "the compiled loops of %s cannot be made (%s: %s): plain NumPy does their work, at a tenth of the rate; "
            "install a numba that Stoker was tested with",
            name,
            type(error).__name__,
            reason[0] if reason else "no reason given",
        )
        return None


def _before_fork() -> None:
    wait()
    _lock.acquire()


# A child would inherit the locks of a half-done import, or of a compiler, and nobody to open them.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_lock.release, after_in_child=_lock.release)
