"""Compiled loops for packing; `packing.py` has the same in NumPy, and the two are held equal by a test.

Imported on first use only. Compiled once a machine, kept beside this file.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from stoker.compiling import compile_loop


@compile_loop()
def fill_places(first, num, at, offsets, ids, positions):
    """Write documents and positions of each token. See `packing.fill_places`."""
    for row in range(len(offsets) - 1):
        end = 0
        for s in range(offsets[row], offsets[row + 1]):
            number = s - offsets[row] + 1
            end = at[s] + num[s]
            shift = first[s] - at[s]
            for i in range(at[s], end):
                ids[row, i] = number
                positions[row, i] = i + shift
        for i in range(end, ids.shape[1]):
            ids[row, i] = 0
            positions[row, i] = 0


@compile_loop()
def copy_ranges(memory, source, num_bytes, target, out):
    """Copy byte ranges. See `packing.copy_ranges`."""
    for s in range(len(source)):
        begin, at, num = source[s], target[s], num_bytes[s]
        out[at : at + num] = memory[begin : begin + num]
