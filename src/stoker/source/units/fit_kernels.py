"""The compiled loop that puts pieces of documents into rows: `fit.place_pieces` itself.

Imported where loops are compiled; see `machine_code`.
"""

from __future__ import annotations

from numba import types

from stoker.compiling import compile_loop, reads, writes
from stoker.source.units import fit

__all__ = ["place_pieces"]

_READ, _WRITE = reads(types.int64), writes(types.int64)

place_pieces = compile_loop(types.void(_READ, types.int64, _WRITE, _WRITE, _WRITE, _WRITE))(fit.place_pieces)
