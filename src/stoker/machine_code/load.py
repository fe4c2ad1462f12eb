"""Kept machine code, put into this process: a Python function for each loop."""

from __future__ import annotations

import ctypes
import logging
import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from stoker.machine_code import place
from stoker.machine_code.image import Image, put_in_place
from stoker.machine_code.processors import aim, fitting

# The table of objects that entries know by their places in it; see `entries.py`.
TABLE = "stoker.objects"
OBJECTS = {"ndarray": np.ndarray, "None": None, "TypeError": TypeError, "IndexError": IndexError}

_FASTCALL = 0x80
_READ, _RUN = 0x1, 0x4  # PROT_READ, PROT_EXEC

_log = logging.getLogger("stoker")


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


def load(names: Sequence[str], processors: Sequence[str] | None = None) -> dict[str, ModuleType] | None:
    """Return the modules of kept loops by name; None where not all are kept for this processor and these sources.

    Each has the functions that Python calls, and nothing else of the module of that name. They take what numba's do,
    and raise `TypeError` for what they do not take.

    Args:
        names: Of all modules of loops.
        processors: Whose code may be run, the best first; those that this one is fit for unless told.
    """
    kept = _find(names, fitting() if processors is None else processors)
    if kept is None:
        return None
    image, path = kept
    try:
        begin = _put_into_memory(image)
    except (OSError, AttributeError) as error:  # a system that runs no memory that was written to, or has other parts
        _log.info("the machine code of the loops in %s cannot be used, so numba loads them: %s", path, error)
        return None
    modules: dict[str, ModuleType] = {}
    for symbol, at in image.symbols.items():
        if symbol != TABLE:
            name, _, loop = symbol.rpartition(".")
            module = modules.setdefault(name, ModuleType(name, "Kept machine code of the loops of this module."))
            setattr(module, loop, _function(name, loop, begin + at))
    return modules


def where_kept(names: Sequence[str]) -> Path | None:
    """Return where the machine code of all modules of loops is kept that is made here, None where it is not.

    Args:
        names: Of all modules of loops.
    """
    aimed = aim()
    kept = None if aimed is None else _find(names, [aimed])
    return None if kept is None else kept[1]


def _find(names: Sequence[str], processors: Iterable[str]) -> tuple[Image, Path] | None:
    for processor in processors:
        kept = place.read(processor)
        # Another version of the package may have kept it, which had fewer modules, and those the same.
        if kept is not None and {symbol.rpartition(".")[0] for symbol in kept[0].symbols} >= set(names):
            return kept
    return None


def _put_into_memory(image: Image) -> int:
    """Return where an image lies in memory, ready to run."""
    process = ctypes.CDLL(None, use_errno=True)
    addresses = {name: _address(process, name) for name in image.outside}
    memory = mmap.mmap(-1, -(-len(image.memory) // mmap.PAGESIZE) * mmap.PAGESIZE)
    whole = np.frombuffer(memory, np.uint8)
    put_in_place(image, whole, addresses)
    table = whole[image.symbols[TABLE] :][: 8 * len(OBJECTS)]
    table[:] = np.array([id(thing) for thing in OBJECTS.values()], np.int64).view(np.uint8)
    if process.mprotect(ctypes.c_void_p(whole.ctypes.data), ctypes.c_size_t(len(whole)), _READ | _RUN):
        raise OSError(ctypes.get_errno(), "memory with machine code cannot be run")
    _keep_alive(whole)
    return whole.ctypes.data


def _address(process: ctypes.CDLL, name: str) -> int:
    """Return where a function of the interpreter, or of the C library, lies."""
    address = ctypes.cast(getattr(process, name), ctypes.c_void_p).value
    assert address is not None
    return address


def _function(module: str, name: str, address: int) -> Any:
    """Return the Python function whose machine code is at an address."""
    method = _Method(name.encode(), address, _FASTCALL, None)
    _keep_alive(method)  # the function points to it
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes, make.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.py_object), ctypes.py_object
    return make(ctypes.addressof(method), None, module)


def _keep_alive(thing: Any) -> None:
    """Never let go of something: a thread may be in a loop when the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
