"""`thrift` compiled: the same functions in a second copy of their module.

Importing this imports numba, which takes a tenth of a second.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from stoker.compiling import compile_loop
from stoker.source import thrift

_compiling = threading.Lock()


@functools.cache
def compiled_thrift() -> ModuleType:
    """Return the copy: each of its functions is compiled, and kept, when it is first called for some types."""
    spec = importlib.util.spec_from_file_location("stoker.source._thrift_compiled", thrift.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # the compiler's cache finds the functions again by their module's name
    spec.loader.exec_module(module)
    for name, function in list(vars(module).items()):
        if callable(function) and getattr(function, "__module__", None) == module.__name__:
            # Bounds are checked: bytes that lie about a length must not be read beyond their end.
            setattr(module, name, compile_loop(boundscheck=True)(function))
    return module


def footer_reader() -> Callable[[Any, Any, Any], None]:
    """Return `thrift.footer` compiled, for bytes as uint8.

    Blocks: while it is loaded, 12 ms beside other loops, or compiled, 2.5 s once a machine.
    """
    with _compiling:  # two threads that come first at once would each compile, and trip over each other
        read: Callable[[Any, Any, Any], None] = compiled_thrift().footer
        nothing = (
            np.empty((0, thrift.NUM_GROUP_NUMBERS), np.int64),
            np.empty((0, 0, thrift.NUM_CHUNK_NUMBERS), np.int64),
        )
        read(np.frombuffer(b"\0", np.uint8), *nothing)  # the types of the real calls
        return read
