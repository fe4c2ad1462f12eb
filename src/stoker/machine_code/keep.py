"""Loops that numba has compiled, made into one object and kept."""

from __future__ import annotations

import ctypes
import importlib
import logging
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from stoker.machine_code import place
from stoker.machine_code.image import Image, lay_out
from stoker.machine_code.load import TABLE
from stoker.machine_code.processors import aim

if TYPE_CHECKING:  # which imports numba
    from stoker.machine_code.entries import Loop

_log = logging.getLogger("stoker")


def keep(names: Sequence[str]) -> Path | None:
    """Keep the machine code of loops; return where, or None where none can be kept.

    Blocks: for two seconds, and until the modules are compiled where they are not.

    Args:
        names: Of all modules of loops.
    """
    aimed = aim()
    if aimed is None:
        return None
    try:
        return place.write(aimed, _made(names), names)
    except Exception as error:  # the inside of another numba: loops are loaded by it, as without this
        _log.info("the machine code of the loops cannot be kept, so each process loads them by numba: %s", error)
        return None


def _made(names: Iterable[str]) -> Image:
    """Return one image of all loops that Python calls, each with its entry.

    Raises:
        NotImplementedError: They need what no image has.
    """
    from llvmlite import binding
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.registry import cpu_target

    from stoker.machine_code.entries import add_entry, add_memory

    loops = [loop for name in names for loop in _loops(importlib.import_module(name))]
    context = cpu_target.target_context
    with global_compiler_lock:
        codegen = context.codegen()
        library = codegen.create_library("stoker.entries")
        module = library.create_ir_module("stoker.entries")
        add_memory(module)
        for loop in loops:
            add_entry(module, loop, context)
        library.add_ir_module(module)
        whole = library._final_module
        for part in dict.fromkeys(attrgetter("library")(loop.compiled) for loop in loops):
            whole.link_in(part._get_module_for_linking(), preserve=True)
        entries = [loop.name for loop in loops]
        for function in whole.functions:
            if not function.is_declaration and function.name not in entries:
                function.linkage = "internal"
        # Each loop has been optimized with all that it calls: what is left is to drop what nobody calls any more.
        passes = binding.create_new_module_pass_manager()
        passes.add_global_dead_code_eliminate_pass()
        passes.run(whole, binding.create_pass_builder(codegen._tm, binding.create_pipeline_tuning_options()))
        code = codegen._tm.emit_object(whole)
    image = lay_out(code, [TABLE, *entries])
    process = ctypes.CDLL(None)
    missing = [name for name in image.outside if not hasattr(process, name)]
    if missing:
        raise NotImplementedError(f"loops call {', '.join(missing)}, which only numba has")
    return image


def _loops(module: ModuleType) -> list[Loop]:
    """Return the loops of a module that Python calls: those of its `__all__`, or its own public ones."""
    from stoker.machine_code.entries import Loop

    found = []
    for name in getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")]):
        loop = getattr(module, name)
        if not hasattr(loop, "overloads") or (loop.__module__ != module.__name__ and not hasattr(module, "__all__")):
            continue
        (compiled,) = loop.overloads.values()
        found.append(Loop(f"{module.__name__}.{name}", compiled, not loop.targetoptions.get("nogil", False)))
    return found
