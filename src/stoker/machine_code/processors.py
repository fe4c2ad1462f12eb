"""Which processors machine code is for: the one it is made on, or all that have the instructions of a level.

Code for one processor may use all that this can do, and is used where all of that is there. Code for a level runs on
nearly all processors of a vendor: a wheel brings it along, made wherever the wheel was.

Source:
    System V ABI, AMD64 supplement 1.0, 3.1.1, "Processor Architecture"; flags by Linux's names, cpufeatures.h.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from stoker.machine_code import objects

# By vendor, what its processors have: AMD's since 2017 (Zen), Intel's for servers since the same year. Two vendors have
# two levels, so that a level also says how rows are best asked for ahead of their turn (`gather/moves.py`).
LEVELS = {"AuthenticAMD": "x86-64-v3", "GenuineIntel": "x86-64-v4"}

_OF_V2 = {"cx16", "lahf_lm", "popcnt", "pni", "ssse3", "sse4_1", "sse4_2"}
_OF_V3 = _OF_V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
_OF_V4 = _OF_V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_FLAGS = {"x86-64-v3": _OF_V3, "x86-64-v4": _OF_V4}
# What images are laid out for.
_MACHINES = ("x86_64",)
# What a user may tell numba without its making other code, and what tells it a level.
_HARMLESS = ("NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS", "NUMBA_THREADING_LAYER", "NUMBA_DISABLE_PERFORMANCE_WARNINGS")
_LEVEL, _BESIDE = "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"
# The first of all processors' entries, which are alike and may be hundreds.
_ABOUT_BYTES = 8192


def environment(level: str) -> dict[str, str]:
    """Return the variables that have a process make code for a level, and nothing beside it."""
    return {_LEVEL: level, _BESIDE: ""}


def aim() -> str | None:
    """Return the processor, or the level, that this process makes code for; None where none can be kept.

    Code depends on it, and on its sources, alone. Not on Python, NumPy or numba: it calls nothing but what CPython
    promises not to change, it knows where objects have their parts or is not used, and what made it is not needed any
    more.
    """
    if sys.platform != "linux" or os.uname().machine not in _MACHINES or not objects.are_known():
        return None
    told = {name for name, value in os.environ.items() if name.startswith("NUMBA_") and name not in _HARMLESS and value}
    if told == {_LEVEL} and os.environ.get(_BESIDE) == "":
        level = os.environ[_LEVEL]
        return level if level in _FLAGS else None
    return None if told else _name(_this())


def fitting() -> tuple[str, ...]:
    """Return the processors and levels whose code this process may run, the best first."""
    return fit(aim(), _this())


def fit(aimed: str | None, about: dict[str, str]) -> tuple[str, ...]:
    """Return which code a process may run.

    Args:
        aimed: What it makes code for; None lets it run none.
        about: What Linux says of its processor, by name.
    """
    level = LEVELS.get(about.get("vendor_id", ""))
    has_level = level is not None and _FLAGS[level] <= set(about.get("flags", "").split())
    levels = (level,) if level is not None and has_level else ()
    if aimed is None or aimed in _FLAGS:
        return tuple(level for level in levels if level == aimed)
    return (aimed, *levels)


def _name(this: dict[str, str]) -> str | None:
    parts = [this.get(name) for name in ("vendor_id", "cpu family", "model", "flags")]
    return None if None in parts else " ".join(str(part) for part in parts)


@cache
def _this() -> dict[str, str]:
    """Return what Linux says of the first processor: what it is, and can do."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            lines = file.read(_ABOUT_BYTES).split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return dict(line.replace("\t", "").split(": ", 1) for line in lines if ": " in line)
