"""Compiled loops that read Thrift: `thrift` in a second copy of its module, so that both are the same functions.

Imported where loops are compiled.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from numba import types

from stoker.compiling import compile_loop, reads, writes
from stoker.source import thrift

__all__ = ["footer"]


def _compiled_copy() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stoker.source._thrift_compiled", thrift.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # the compiler's cache finds the functions again by their module's name
    spec.loader.exec_module(module)
    own = {name: value for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__}
    # Bounds are checked: bytes that lie about a length must not be read beyond their end. What others call is compiled
    # for what they call it with, what is called from outside for what it is called with there.
    signatures = {"footer": types.void(reads(types.uint8), writes(types.int64, 2), writes(types.int64, 3))}
    for name, function in sorted(own.items(), key=lambda item: item[0] in signatures):
        setattr(module, name, compile_loop(signatures.get(name), boundscheck=True)(function))
    return module


_compiled = _compiled_copy()
field, zigzag, skip, footer = _compiled.field, _compiled.zigzag, _compiled.skip, _compiled.footer
