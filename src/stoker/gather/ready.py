"""Loading compiled loops beside the first batches, which plain NumPy makes meanwhile.

    Loader(...)   ──► a thread imports numba and reads the kernels   0.4 s; compiles them once a machine: seconds
    first batches ──► NumPy: the same bytes, at a lower rate
    later ones    ──► compiled

Without it a loader's first batch would wait for the compiler, although nothing it needs is compiled.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable

from stoker.order.permute import defer_compiled

_MODULES = ("stoker.order.compiled", "stoker.gather.kernels", "stoker.cache.look_kernels")

# What a batch that is made meanwhile leaves to the loading thread.
_MOMENT_S = 0.005

_lock = threading.Lock()
_ready = threading.Event()
_thread: threading.Thread | None = None


def load_kernels(import_module: Callable[[str], object] = importlib.import_module) -> None:
    """Begin to load the compiled loops, once a process; returns at once.

    Args:
        import_module: Imports a module by its name.
    """
    global _thread  # one set of loaded modules a process
    with _lock:
        if _thread is not None:
            return
        defer_compiled(True)
        # No daemon: an interpreter that ends while a compiler runs in it may crash.
        _thread = threading.Thread(target=_load, args=(import_module,), name="stoker-kernels")
        _thread.start()


def are_kernels_ready() -> bool:
    """Whether compiled loops can be asked for without waiting: they are loaded, or nobody has begun to."""
    return _thread is None or _ready.is_set()


def wait_for_kernels() -> None:
    """Return when the loading, if it was begun, has ended.

    Blocks: for half a second at most; seconds where they are compiled for the first time on a machine.
    """
    if _thread is not None:
        _ready.wait()


def give_way() -> None:
    """Leave the interpreter's lock to the loading thread for a moment; returns at once when nothing is loaded.

    Importing looks at thousands of files, and behind each the thread waits for the lock: up to 5 ms, Python's switch
    interval, where a loop that makes its batches itself keeps it busy. One of batches of one row kept it
    from being done for 10 to 27 s; where it gives way, for 1.4 to 2.5 s.

    Blocks: for 5 ms at most.
    """
    if not are_kernels_ready():
        _ready.wait(_MOMENT_S)


def _load(import_module: Callable[[str], object]) -> None:
    try:
        for module in _MODULES:
            import_module(module)
    except ImportError:  # without numba there is nothing to load
        pass
    finally:
        defer_compiled(False)
        _ready.set()


# A child would inherit the locks of a half-done import, and nobody to open them.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=wait_for_kernels)
