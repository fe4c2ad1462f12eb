"""Pages of numbers, lists of numbers and strings to Arrow, by native code: up to three times as fast as pyarrow.

    column chunk  ┆ header │ dictionary ┆ header │ levels │ values ┆ header │ levels │ values ┆ …
                       └── scan ──┬─────────┘
                                  ▼
    a page        decompress ─► levels ─► values        one page at a time, while it lies in the processor's cache
                                              └─► an Arrow array

What is decoded here is what most of the bytes of training data are. All else, and whatever is wrong with a file, is
pyarrow's: `decoded_leaves` leaves it out.
"""

from __future__ import annotations

from stoker.parquet.pages.column import LeafStream
from stoker.parquet.pages.leaf import Leaf, known_leaves
from stoker.parquet.pages.row_group import TOGETHER_BYTES, decoded_leaves, leaf_streams

__all__ = ["TOGETHER_BYTES", "Leaf", "LeafStream", "decoded_leaves", "known_leaves", "leaf_streams"]
