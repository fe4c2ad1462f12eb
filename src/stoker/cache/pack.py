"""Packing records: the fixed-width fields of each sample laid side by side, from wherever they lie."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stoker import loops
from stoker.source.columns import BatchColumns, Packable, Pieces, Stack, StackPiece, in_pieces
from stoker.spec import Array, Ragged, Spec

# Ways of the compiled loop: a number of so many bytes is copied as it is; an integer of so many bytes is widened to
# eight, which adds one of these to them; anything else is copied byte by byte.
_PLAIN = (1, 2, 4, 8)
_WIDENED = {"i": 10, "u": 20}
_BYTES = 0
_NO_ROWS = np.zeros((0, 4), np.int64)


LOOPS = "stoker.cache.kernels"
"""The compiled loops of packing and of laying strips."""


class _Job(NamedTuple):
    """One column of some rows, and where it goes.

    Attributes:
        values: Contiguous, one item or row of items a record.
        offset: In the record, in bytes.
        dtype: What lies there.
    """

    values: Array
    offset: int
    dtype: np.dtype[np.generic]


@dataclass(frozen=True)
class _Segment:
    """Rows whose columns do not change over from one array to another."""

    start: int
    stop: int
    jobs: Sequence[_Job]
    table: npt.NDArray[np.int64]


class Packer:
    """Packs the rows of a chunk.

        dense    ┆ a a a … │ b b b … │ c c c … ┆      as decoded: one array a column
        id       ┆ 7 8 9 … ┆
        records  ┆ 7 a b c ┆ 8 a b c ┆ 9 a b c ┆      a few rows of all columns at a time

    Args:
        fields: Those of the spec at least; kept until the packer goes.
        spec: What a sample is; the fields fit it.
        num_samples: N.
        compiled: False keeps to NumPy.
    """

    def __init__(self, fields: Packable, spec: Spec, *, num_samples: int, compiled: bool = True) -> None:
        self._record_bytes = spec.record_bytes
        self._kernels = loops.find(LOOPS) if compiled else None
        self._fields = fields  # what is read by address stays where it is
        entries = [entry for entry in spec.fixed if entry.value_bytes]
        pieces = {entry.name: _pieces(fields[entry.name]) for entry in entries}
        starts = sorted({0, num_samples, *(piece.start for some in pieces.values() for piece in some)})
        self._segments: list[_Segment] = []
        at = dict.fromkeys(pieces, 0)
        for start, stop in itertools.pairwise(starts):
            jobs: list[_Job] = []
            tables: list[npt.NDArray[np.int64]] = []
            for entry in entries:
                offset = spec.record_offsets[entry.name]
                while pieces[entry.name][at[entry.name]].stop <= start:
                    at[entry.name] += 1
                piece = pieces[entry.name][at[entry.name]]
                if self._kernels is not None and isinstance(piece.columns, BatchColumns):
                    tables.append(_rows(piece.columns, start - piece.start, offset, entry.dtype))
                    continue
                for j, column in enumerate(piece.columns):
                    values = column[start - piece.start : stop - piece.start]
                    jobs.append(_Job(values, offset + j * entry.dtype.itemsize, entry.dtype))
            if self._kernels is not None:
                tables.append(np.array([_row(job) for job in jobs], dtype=np.int64).reshape(-1, 4))
            self._segments.append(_Segment(start, stop, jobs, np.concatenate([_NO_ROWS, *tables])))

    def pack(self, block: Array, start: int, stop: int) -> None:
        """Lay the records of rows [start, stop) at the beginning of `block`, uint8.

        Bytes between fields are left as they are.
        """
        width = self._record_bytes
        if (stop - start) * width > len(block):
            raise ValueError(f"{stop - start} records of {width} bytes do not fit a block of {len(block)}")
        for segment in self._segments:
            first, last = max(start, segment.start), min(stop, segment.stop)
            if first >= last:
                continue
            if self._kernels is not None:
                target = block.__array_interface__["data"][0] + (first - start) * width
                self._kernels.pack(segment.table, target, width, first - segment.start, last - segment.start)
            else:
                for job in segment.jobs:
                    values = job.values[first - segment.start : last - segment.start]
                    _assign(block, (first - start) * width + job.offset, width, values, job.dtype)


def _pieces(field: Array | Ragged | Stack | Pieces) -> Sequence[StackPiece]:
    """Return the columns of some rows after the other; one alone, where nothing is stacked."""
    assert not isinstance(field, Ragged)
    if isinstance(field, Stack):
        return field.pieces
    parts = in_pieces(field)
    return [StackPiece(start=start, columns=(array,)) for start, array in zip(parts.starts, parts.arrays, strict=False)]


def _row(job: _Job) -> tuple[int, int, int, int]:
    """Return the job as the compiled loop takes it: address, bytes a row, place in the record, way."""
    values = job.values
    width = values.nbytes // max(1, len(values))
    way = _way(values.dtype, job.dtype) if values.ndim == 1 else _BYTES
    return values.__array_interface__["data"][0], width, job.offset, way


def _rows(columns: BatchColumns, first: int, offset: int, dtype: np.dtype[np.generic]) -> npt.NDArray[np.int64]:
    """Return the same of columns that lie side by side in a record from `offset` on, from their row `first` on."""
    width = columns.dtype.itemsize
    table = np.empty((len(columns), 4), np.int64)
    table[:, 0] = columns.addresses + first * width
    table[:, 1] = width
    table[:, 2] = offset + np.arange(len(columns)) * dtype.itemsize
    table[:, 3] = _way(columns.dtype, dtype)
    return table


def _way(stored: np.dtype[np.generic], dtype: np.dtype[np.generic]) -> int:
    """Return how the compiled loop copies one value of a dtype to where one of another is to be."""
    width = stored.itemsize
    if width < dtype.itemsize:
        return width + _WIDENED[stored.kind]
    return width if width in _PLAIN else _BYTES


def _assign(block: Array, offset: int, record_bytes: int, values: Array, dtype: np.dtype[np.generic]) -> None:
    inner = np.empty(values.shape[1:], dtype=dtype).strides
    target: Array = np.ndarray(values.shape, dtype, buffer=block, offset=offset, strides=(record_bytes, *inner))
    target[...] = values
