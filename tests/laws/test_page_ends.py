"""Lists that end near the end of a page with nothing mapped behind it, where loops that copy whole blocks read on."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker
from stoker.host.huge import PAGE_BYTES


@pytest.mark.parametrize("first", [0, 1])
def test_lists_that_end_anywhere_near_the_end_of_a_page_are_delivered(tmp_path, first):
    # Records of more than a page, so that a gap is left behind each chunk's lists; every end around one page's.
    lengths = range(PAGE_BYTES - 160 + first, PAGE_BYTES + 20, 2)
    width = PAGE_BYTES // 4 + 76
    table = pa.table(
        {
            "dense": pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(len(lengths) * width, np.float32)), width),
            "text": pa.array([bytes([i % 251]) * length for i, length in enumerate(lengths)]),
            "empty": pa.array([[]] * len(lengths), pa.list_(pa.int64())),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1)
    with stoker.Loader(stoker.Dataset(tmp_path / "a.parquet", chunk_size=1), batch_size=3) as loader:
        got = []
        for batch in loader:
            got += [bytes(text) for text in batch["text"]]
            assert not len(batch["empty"].values)
    assert got == table["text"].to_pylist()
