"""Strings and lists at the ends of pages, and how long decoded ones stay in memory."""

from __future__ import annotations

import gc
from mmap import PAGESIZE as PAGE_BYTES

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker


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


@pytest.mark.parametrize("compression", ["snappy", "none"])
@pytest.mark.parametrize("num_words", [10_000, 3])
def test_strings_whose_dictionary_a_writer_gave_up_midway_are_delivered_as_they_are(tmp_path, compression, num_words):
    # Of any length, so that short ones move by registers and long ones over themselves; enough not to be joined.
    rng = np.random.default_rng(0)
    words = [rng.bytes(int(num)) for num in rng.choice([0, 1, 9, 16, 17, 300, 9_000], num_words)]
    images = [None if i % 7 == 3 else words[int(i)] for i in rng.integers(0, num_words, 120)]
    images += [None if i % 5 == 1 else rng.bytes(int(i)) for i in rng.choice([0, 2, 15, 40, 5_000, 20_000], 200)]
    table = pa.table({"number": np.arange(len(images)), "image": pa.array(images, pa.binary())})
    options = {"dictionary_pagesize_limit": 30_000, "data_page_size": 50_000, "write_batch_size": 5}
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=250, compression=compression, **options)
    with stoker.Loader(
        stoker.Dataset(tmp_path / "a.parquet", fields={"image": stoker.Field(fill="")}), batch_size=50, shuffle=False
    ) as loader:
        got = [bytes(image) for batch in loader for image in batch["image"]]
    assert got == [image or b"" for image in images]


def test_decoded_rows_go_with_their_chunk_and_not_when_garbage_is_collected(tmp_path):
    rows = pa.table({"number": np.arange(60_000), "words": pa.array([str(i) * 20 for i in range(60_000)])})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=3_000, use_dictionary=False)
    dataset = stoker.Dataset(tmp_path / "a.parquet", chunk_size=200_000)
    gc.collect()
    gc.disable()
    try:
        with stoker.Loader(dataset, batch_size=1_000, cache=tmp_path / "cache") as loader:
            before = pa.total_allocated_bytes()
            for _ in loader:
                pass
        left = pa.total_allocated_bytes() - before
    finally:
        gc.enable()
    assert left < 100_000  # less than a chunk
