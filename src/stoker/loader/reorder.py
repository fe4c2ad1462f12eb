"""A batch's units in another order: what was gathered data set by data set, as a mixture has it.

gathered    ┆ w ┆ w ┆ w ┆ c ┆ c ┆        one gather a data set, each from its own windows
order         0   3   1   2   4
batch       ┆ w ┆ c ┆ w ┆ w ┆ c ┆        a second one, out of what now lies in the processor's cache
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stoker.fields.offsets import Int64, offsets_of, ranges
from stoker.fields.spec import Array, Arrays, Ragged
from stoker.loader.gather.assemble import Assembled
from stoker.loader.gather.buffers import BufferPool
from stoker.loader.gather.lists import reordered_lists, reordered_records
from stoker.loader.units.make import Made, Shaping


def reordered(made: Made, order: Int64, pool: BufferPool, *, is_grouped: bool = False) -> Made:
    """Return a batch whose unit i is unit `order[i]` of another one, in memory of its own.

    Args:
        made: The other one. Its memory may be used again afterwards.
        order: Each of its units once. Shape [B].
        pool: Gives the memory.
        is_grouped: Whether units are groups, whose borders are the field `group_offsets`.
    """
    if not made.has_records:
        arrays: Arrays = {name: _taken(field, order, pool) for name, field in made.arrays.items()}
        return made._replace(arrays=arrays)
    rows = order
    added: Arrays = {}
    if made.shaping is not None:
        rows = _spread(order, made.shaping.length)
    elif is_grouped:
        borders = made.arrays["group_offsets"]
        assert isinstance(borders, np.ndarray)
        offsets = offsets_of(np.diff(borders)[order])
        rows = ranges(borders[order], offsets)
        added["group_offsets"] = offsets
    assembled = _assembled(made.assembled, rows, pool)
    views = _shaped(assembled.views(), made.shaping)
    arrays = {}
    for name, field in made.arrays.items():
        if name in added or name in views:
            arrays[name] = added[name] if name in added else views[name]
            continue
        assert isinstance(field, Ragged)  # of windows over rows: some lists a window
        arrays[name] = reordered_lists(field, order, pool)
    return made._replace(arrays=arrays, assembled=assembled)


def _assembled(assembled: Assembled, rows: Int64, pool: BufferPool) -> Assembled:
    return assembled._replace(
        num_samples=len(rows),
        records=reordered_records(assembled.records, rows, pool),
        ragged={name: reordered_lists(lists, rows, pool) for name, lists in assembled.ragged.items()},
        shared=tuple(
            # What samples share stays as it is, but leaves the memory that the next batch is gathered into.
            replace(one, rows=_assembled(one.rows, np.arange(one.rows.num_samples), pool), index=one.index[rows])
            for one in assembled.shared
        ),
    )


def _shaped(views: Arrays, shaping: Shaping | None) -> Arrays:
    if shaping is None:
        return views
    return {name: shaping.apply(name, views[name]) for name in shaping.places}


def _taken(field: Array | Ragged, order: Int64, pool: BufferPool) -> Array | Ragged:
    """Return entries of a field that has one a unit."""
    if isinstance(field, Ragged):
        return reordered_lists(field, order, pool)
    size = len(order) * field.dtype.itemsize * int(np.prod(field.shape[1:], dtype=np.int64))
    out: Array = pool.take(size)[:size].view(field.dtype).reshape(len(order), *field.shape[1:])
    np.take(field, order, axis=0, out=out, mode="clip")
    return out


def _spread(order: Int64, length: int) -> Int64:
    return (order[:, None] * length + np.arange(length, dtype=np.int64)).reshape(-1)
