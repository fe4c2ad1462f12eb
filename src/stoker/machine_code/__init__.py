"""Machine code of the compiled loops, kept on disk and put into a process without a compiler.

    once a machine   numba compiles the loops ──► `keep`: one image with an entry for each ──► a file      30 s
    each process     the file ──► `load`: into memory, with its addresses; entries are Python functions  0.003 s

Numba can keep what it compiled, too, but to read it takes numba itself, its tables of types, and a compiler that has
been set up: 0.8 s of the first batches of each process.
"""

from __future__ import annotations

from stoker.machine_code.keep import keep
from stoker.machine_code.load import load, where_kept

__all__ = ["keep", "load", "where_kept"]
