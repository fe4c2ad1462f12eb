"""Compiled loops, where they are: loaded beside the first batches, which plain NumPy makes meanwhile.

    Loader(...)   ──► a thread imports numba and reads the loops   0.4 s; compiles them once a machine: ten seconds
    first batches ──► NumPy: the same bytes, at a tenth of the rate
    later ones    ──► by each module of loops as soon as it is there

Without it a loader's first batch would wait for the compiler, although nothing it needs is compiled. The others give
way to it: it comes by itself, and the sooner it is done the better for all of them.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

# What a loader uses, in the order in which it gains most: a chunk is packed before it is gathered from, and what rows
# are copied by is worth more than what finds them.
_LOADED = (
    "stoker.cache.kernels",
    "stoker.gather.kernels",
    "stoker.order.compiled",
    "stoker.gather.stretch_kernels",
    "stoker.gather.part_kernels",
    "stoker.source.pages.kernels",
    "stoker.gather.shared_kernels",
    "stoker.gather.join_kernels",
    "stoker.cache.look_kernels",
    "stoker.windows.read_kernels",
)
# What only some use, when they come to it.
_OTHERS = (
    "stoker.compact_kernels",
    "stoker.cache.runs_kernels",
    "stoker.feed.units.kernels",
    "stoker.order.draws_compiled",
)

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
_is_plain = False


def find(name: str) -> ModuleType | None:
    """Return a module of compiled loops; None without numba, and as long as a thread is still to load it.

    Blocks: while it is imported, and once a machine compiled, where nobody has begun to load it.

    Args:
        name: Of the module, with its packages.
    """
    if name in _found:
        return _found[name]
    if _is_plain or (is_loading() and name in _LOADED):
        return None
    module = _found[name] = _import(name)
    return module


def load(import_module: Callable[[str], ModuleType] = importlib.import_module) -> None:
    """Begin to load what a loader uses, once a process; returns at once.

    Args:
        import_module: Imports a module by its name.
    """
    global _thread  # one set of loaded modules a process
    with _lock:
        if _thread is not None:
            return
        # No daemon: an interpreter that ends while a compiler runs in it may crash.
        _thread = threading.Thread(target=_load, args=(import_module,), name="stoker-loops")
        _thread.start()


def is_loading() -> bool:
    """Whether a thread is loading loops."""
    return _thread is not None and not _all_there.is_set()


def is_there(name: str) -> bool:
    """Whether a module of compiled loops is loaded; imports nothing."""
    return _found.get(name) is not None


def wait() -> None:
    """Return when the loading, if it was begun, has ended.

    Blocks: for half a second at most; ten seconds where loops are compiled for the first time on a machine.
    """
    if _thread is not None:
        _all_there.wait()


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


def load_all() -> int:
    """Load all there are, and return how many modules that is.

    Blocks: until they are compiled, once a machine.
    """
    return sum(find(name) is not None for name in (*_LOADED, *_OTHERS))


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


# A child would inherit the locks of a half-done import, and nobody to open them.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=wait)
