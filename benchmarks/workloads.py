"""Rows that are nothing like the demo's: images, texts as tokens, and thousands of columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.against_copy import against_copy
from benchmarks.measure import Answer, sized
from stoker import Dataset, Field, Pack
from stoker.demo.data import DemoData

# Of each data set, about: more than any cache of a processor, less than the memory of a small machine.
NUM_BYTES = sized(1 << 30, small=4 << 20)
_GROUP_BYTES = sized(32 << 20, small=1 << 20)
_IMAGE_BYTES = 224 * 224 * 3
# Of an image as most keep them: compressed once, by itself.
IMAGE_FILE_BYTES = (20_000, 150_000)
TOKENS = (100, 8_192)
_PACKED_LENGTH = 2_048
_NUM_COLUMNS = 2_000
WIDE = {"x": Field("float32", columns="x_*")}
WIDE_BYTES = 4 * _NUM_COLUMNS


def run_images(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Images of 150 kB: a sample is longer than anything that is asked for ahead."""
    del data
    rows = _write(folder / "images", _images(), row_bytes=_IMAGE_BYTES)
    answer = against_copy("images", Dataset(rows), folder, batch_size=256, num_rounds=num_rounds, promise=0.80)
    return replace(answer, data=f"images of {_IMAGE_BYTES:,} bytes, {NUM_BYTES >> 20:,} MiB")


def run_tokens(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Texts of 100 to 8,192 tokens."""
    del data
    rows = token_rows(folder)
    answer = against_copy("tokens", Dataset(rows), folder, batch_size=512, num_rounds=num_rounds, promise=0.65)
    return replace(answer, data=f"lists of {TOKENS[0]:,} to {TOKENS[1]:,} int32, {NUM_BYTES >> 20:,} MiB")


def run_packed(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """The same texts in rows of 2,048 tokens, each with its document and its place there: two thirds are not read."""
    del data
    rows, pack = token_rows(folder), Pack("tokens", length=_PACKED_LENGTH)
    answer = against_copy(
        "packed tokens", Dataset(rows), folder, batch_size=64, num_rounds=num_rounds, promise=None, sequence=pack
    )
    return replace(answer, data=f"lists of {TOKENS[0]:,} to {TOKENS[1]:,} int32 in rows of {_PACKED_LENGTH:,}")


def run_wide(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """2,000 columns of floats as one field."""
    del data
    dataset = Dataset(wide_rows(folder), fields=WIDE)
    answer = against_copy("2,000 columns", dataset, folder, batch_size=4_096, num_rounds=num_rounds, promise=0.80)
    return replace(answer, data=f"{_NUM_COLUMNS:,} columns of float32, {NUM_BYTES >> 20:,} MiB")


def wide_rows(folder: Path) -> str:
    """Write rows of 2,000 floats, a column each, and return where."""
    return _write(folder / "wide", _wide(), row_bytes=WIDE_BYTES)


def token_rows(folder: Path) -> str:
    """Write texts as lists of tokens, and return where."""
    return _write(folder / "tokens", _texts(), row_bytes=4 * sum(TOKENS) // 2)


def image_files(folder: Path) -> str:
    """Write images as files, bytes of any length, and return where."""
    return _write(folder / "image-files", _image_files(), row_bytes=sum(IMAGE_FILE_BYTES) // 2, is_usual=True)


def _write(folder: Path, groups: Iterator[pa.Table], *, row_bytes: int, is_usual: bool = False) -> str:
    """Write as many rows as make about `NUM_BYTES`, a row group at a time, and return where.

    Args:
        folder: Where.
        groups: What.
        row_bytes: Of each row.
        is_usual: Whether to write as pyarrow does unless told, with a dictionary and snappy; else plainly.
    """
    if folder.exists():
        return str(folder)
    folder.mkdir(parents=True)
    num_left = max(1, NUM_BYTES // row_bytes)
    first = next(groups)
    compression = "snappy" if is_usual else "none"
    with pq.ParquetWriter(
        folder / "0.parquet", first.schema, compression=compression, use_dictionary=is_usual
    ) as writer:
        rows = first
        while num_left > 0:
            rows = rows.slice(0, num_left)
            writer.write_table(rows)
            num_left -= len(rows)
            rows = next(groups)
    return str(folder)


def _images() -> Iterator[pa.Table]:
    rng, num = np.random.default_rng(0), max(1, _GROUP_BYTES // _IMAGE_BYTES)
    while True:
        # Parquet has no bytes in lists of one length: each would take four, and two levels.
        pixels = pa.py_buffer(rng.integers(0, 256, num * _IMAGE_BYTES, dtype=np.uint8))
        images = pa.Array.from_buffers(pa.binary(_IMAGE_BYTES), num, [None, pixels])
        yield pa.table({"label": rng.integers(0, 1_000, num), "image": images})


def _image_files() -> Iterator[pa.Table]:
    rng, num = np.random.default_rng(0), max(1, 2 * _GROUP_BYTES // sum(IMAGE_FILE_BYTES))
    while True:
        offsets = np.concatenate([[0], np.cumsum(rng.integers(*IMAGE_FILE_BYTES, num, endpoint=True))]).astype(np.int32)
        content = pa.py_buffer(rng.integers(0, 256, offsets[-1], dtype=np.uint8))
        images = pa.Array.from_buffers(pa.binary(), num, [None, pa.py_buffer(offsets), content])
        yield pa.table({"label": rng.integers(0, 1_000, num), "image": images})


def _texts() -> Iterator[pa.Table]:
    rng, num = np.random.default_rng(0), max(1, _GROUP_BYTES // (2 * sum(TOKENS)))
    while True:
        offsets = np.concatenate([[0], np.cumsum(rng.integers(*TOKENS, num, endpoint=True))]).astype(np.int32)
        tokens = pa.array(rng.integers(0, 128_256, offsets[-1], dtype=np.int32))
        yield pa.table(
            {"label": rng.integers(0, 2, num), "tokens": pa.ListArray.from_arrays(pa.array(offsets), tokens)}
        )


def _wide() -> Iterator[pa.Table]:
    rng, num = np.random.default_rng(0), max(1, _GROUP_BYTES // (4 * _NUM_COLUMNS))
    while True:
        columns = rng.standard_normal((_NUM_COLUMNS, num), dtype=np.float32)
        yield pa.table({"label": rng.integers(0, 2, num)} | {f"x_{i:04}": columns[i] for i in range(_NUM_COLUMNS)})
