"""Compiled loops that make the lists of several windows those of one; `borders.py` has the same in NumPy.

They look at numbers alone that were found already, some 40 microseconds for a batch: they keep the interpreter's lock,
which would take longer to get back.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

from numba import types

from stoker.gather.moves import INT64, INT64_2D, OUT_INT64_2D, compiled


@compiled(INT64_2D, INT64_2D, types.int64, types.int64, INT64, OUT_INT64_2D, OUT_INT64_2D, keeps_lock=True)
def put_lists(sources, offsets, begin, start, places, all_sources, all_offsets):
    """Put where the lists of one window lie, and how long they are, to their places: behind `start`, if none are given.

    `begin` is what to add to each source; lengths stand where their lists end.
    """
    num_fields, num = sources.shape
    for f in range(num_fields):
        for i in range(num):
            place = places[i] if len(places) else start + i
            all_sources[f, place] = sources[f, i] + begin
            all_offsets[f, place + 1] = offsets[f, i + 1] - offsets[f, i]


@compiled(OUT_INT64_2D, keeps_lock=True)
def add_up(all_offsets):
    """Make offsets of lengths."""
    num_fields, num = all_offsets.shape
    for f in range(num_fields):
        end = 0
        for i in range(num):
            end += all_offsets[f, i]
            all_offsets[f, i] = end
