"""Packing records: the fixed-width fields of each sample side by side, from wherever they lie.

dense    ┆ a a a … │ b b b … │ c c c … ┆      as decoded: one array a column
id       ┆ 7 8 9 … ┆
records  ┆ 7 a b c ┆ 8 a b c ┆ 9 a b c ┆      a few rows of all columns at a time
"""

from __future__ import annotations

from stoker._native import RecordPacker
from stoker.source.columns import BatchColumns, Packable, Stack, in_pieces
from stoker.spec import Ragged, Spec


def record_packer(fields: Packable, spec: Spec) -> RecordPacker:
    """Return what packs the records of a chunk, some rows at a time.

    Args:
        fields: Those of the spec at least, which they fit. They must outlive the packer.
        spec: What a sample is.
    """
    packer = RecordPacker(spec.record_bytes)
    for entry in spec.fixed:
        if not entry.value_bytes:
            continue
        packer.add_field(spec.record_offsets[entry.name], entry.dtype.itemsize)
        field = fields[entry.name]
        assert not isinstance(field, Ragged)
        if not isinstance(field, Stack):
            for array in in_pieces(field).arrays:
                packer.add_arrays([array])
            continue
        for piece in field.pieces:
            columns = piece.columns
            if isinstance(columns, BatchColumns):
                kind = columns.dtype
                packer.add_batch(columns.outline.exported, columns.numbers, kind.itemsize, kind.kind == "i")
            else:
                packer.add_arrays(columns)
    return packer
