"""Where lists lie in a region: looked up for rows, field by field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stoker import loops
from stoker.gather.take import extents, inner_extents, strip_extents
from stoker.maps import memory_at
from stoker.offsets import Int64
from stoker.windows.window import Rows

_NO_PLACES = np.empty(0, dtype=np.int64)


class Borders(NamedTuple):
    """Where the lists of one field lie.

    Attributes:
        sources: First byte of each in the region. Shape [B].
        offsets: Of the lists side by side, in values. Shape [B + 1].
    """

    sources: Int64
    offsets: Int64


class Strips(NamedTuple):
    """Where the lists of several fields lie, those of a row side by side.

    Attributes:
        region: First address and bytes of what they lie in: of a region, or of all from the first to the last of
            several, whatever lies between these.
        sources: First byte of each in there. Shape [F, B].
        offsets: Of each field's lists side by side, in values. Shape [F, B + 1].
        value_bytes: Bytes of a value of each field. Shape [F].
    """

    region: tuple[int, int]
    sources: Int64
    offsets: Int64
    value_bytes: Int64

    @property
    def memory(self) -> npt.NDArray[np.uint8]:
        """What they lie in. Nothing is kept alive by it."""
        return memory_at(*self.region)

    def only(self, fields: Sequence[int]) -> Strips:
        """Return those of some fields, in order."""
        chosen = list(fields)
        return Strips(self.region, self.sources[chosen], self.offsets[chosen], self.value_bytes[chosen])


def strip_borders(rows: Rows, slot: Int64, row: Int64) -> Strips:
    """Return where the lists of some rows lie that lie side by side.

    Args:
        rows: Of a window; their spec has strips.
        slot: Chunk of each row, as its place in the window. Shape [B].
        row: The rows, counted through the window. Shape [B].
    """
    places = rows.places.strips
    assert places is not None
    value_bytes = np.array([entry.value_bytes for entry in rows.spec.strip], dtype=np.int64)
    found = strip_extents(rows.halves, places.places, places.strips, value_bytes, slot, row)
    return Strips((rows.address, rows.bytes.nbytes), *found, value_bytes)


def spanned(regions: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return first address and bytes of all from the first region to the last, whatever lies between these.

    Whole numbers of 8 bytes, as what lies in there is looked at in larger units than bytes.
    """
    address = min(address for address, _ in regions)
    return address, -(-max(sum(region) - address for region in regions) // 8) * 8


def join_strips(strips: Sequence[Strips], places: Int64 | None = None, *, compiled: bool = True) -> Strips:
    """Return the lists of several windows as those of one.

    Args:
        strips: At least one.
        places: Which row of the result each row of all of them is: a permutation, shape [B]; None for one after the
            other.
        compiled: False keeps to NumPy.
    """
    kernels = loops.find("stoker.gather.join_kernels") if compiled else None
    region = spanned([one.region for one in strips])
    num_fields, num = len(strips[0].value_bytes), sum(one.sources.shape[1] for one in strips)
    sources = np.empty((num_fields, num), dtype=np.int64)
    offsets = np.zeros((num_fields, num + 1), dtype=np.int64)
    end = 0
    for one in strips:
        begin = one.region[0] - region[0]
        start, end = end, end + one.sources.shape[1]
        if kernels is not None:
            some = _NO_PLACES if places is None else places[start:end]
            kernels.put_lists(one.sources, one.offsets, begin, start, some, sources, offsets)
        else:
            where = slice(start, end) if places is None else places[start:end]
            sources[:, where] = one.sources + begin
            offsets[:, 1:][:, where] = np.diff(one.offsets, axis=1)
    if kernels is not None:
        kernels.add_up(offsets)
    else:
        np.cumsum(offsets, axis=1, out=offsets)
    return Strips(region, sources, offsets, strips[0].value_bytes)


def borders_of(rows: Rows, slot: Int64, row: Int64) -> dict[str, Borders]:
    """Return where the lists of some rows lie, of all fields that have one level of them; see `strip_borders`."""
    found = borders_apart(rows, slot, row)
    if rows.spec.strip:
        strips = strip_borders(rows, slot, row)
        lists = zip(rows.spec.strip, strips.sources, strips.offsets, strict=True)
        found |= {entry.name: Borders(sources, offsets) for entry, sources, offsets in lists}
    return found


def borders_apart(rows: Rows, slot: Int64, row: Int64) -> dict[str, Borders]:
    """Return where the lists of some rows lie of those fields that lie by themselves; see `borders_of`."""
    found = {}
    for entry in rows.spec.apart:
        if entry.num_levels == 1:
            levels = rows.places.levels[entry.name]
            starts, offsets = extents(rows.words, levels.offsets[0], slot, row)
            found[entry.name] = Borders(levels.values[slot] + starts * entry.value_bytes, offsets)
    return found


class NestedBorders(NamedTuple):
    """Where the lists of lists of one field lie.

    Attributes:
        values: Of each row, all of whose values lie side by side.
        outer: Offsets of the rows' inner lists side by side. Shape [B + 1].
        inner: Offsets of these, in values. Shape [outer[-1] + 1].
    """

    values: Borders
    outer: Int64
    inner: Int64


def nested_borders(rows: Rows, name: str, slot: Int64, row: Int64) -> NestedBorders:
    """Return where the lists of lists of some rows lie.

    Args:
        rows: Of a window.
        name: The field.
        slot: Chunk of each row, as its place in the window. Shape [B].
        row: The rows, counted through the window. Shape [B].
    """
    levels, value_bytes = rows.places.levels[name], rows.spec[name].value_bytes
    starts, outer = extents(rows.words, levels.offsets[0], slot, row)
    begins, ends, inner = inner_extents(rows.words, levels.offsets[1], slot, starts, outer)
    return NestedBorders(Borders(levels.values[slot] + begins * value_bytes, ends), outer, inner)
