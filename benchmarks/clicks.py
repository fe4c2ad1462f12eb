"""Rows as click logs have them: counts that are often missing, and words of all cardinalities.

Source:
    Criteo's display advertising challenge: 13 counts, 26 hashed words, and of how many words each column has.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stoker import Field

NUM_COUNTS = 13
CARDINALITIES = (
    *(1_460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194, 27, 14_992),
    *(5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572),
)
NUM_BUCKETS = 1 << 20
FIELDS = {
    "counts": Field("float32", columns="count_*", fill=0),
    "words": Field("int32", columns="word_*", hash_buckets=NUM_BUCKETS, fill=""),
}

_GROUP_ROWS = 1 << 17
_NULL_SHARE = 0.1
# How much more often the first word of a column comes than the others.
_EXPONENT = 1.2


def write_clicks(folder: Path, *, num_rows: int) -> Path:
    """Write rows to a file as pyarrow writes it unless told otherwise, and return where it is."""
    path = folder / "clicks.parquet"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    with pq.ParquetWriter(path, _rows(rng, 1).schema) as writer:
        for begin in range(0, num_rows, _GROUP_ROWS):
            writer.write_table(_rows(rng, min(_GROUP_ROWS, num_rows - begin)))
    return path


def _rows(rng: np.random.Generator, num: int) -> pa.Table:
    return pa.table(
        {
            "label": pa.array(rng.integers(0, 2, num, dtype=np.int32)),
            **{f"count_{i}": _counts(rng, num) for i in range(NUM_COUNTS)},
            **{f"word_{i}": _words(rng, num, cardinality) for i, cardinality in enumerate(CARDINALITIES)},
        }
    )


def _counts(rng: np.random.Generator, num: int) -> pa.Array:
    counts = np.minimum(rng.zipf(_EXPONENT + 0.3, num), 60_000).astype(np.int32)
    return pa.array(counts, mask=rng.random(num) < _NULL_SHARE)


def _words(rng: np.random.Generator, num: int, cardinality: int) -> pa.Array:
    """Return words of eight hexadecimal digits, most of them few, as a power law has them."""
    numbers = (np.minimum(rng.zipf(_EXPONENT, num), 1 << 40) % cardinality).astype(np.uint64)
    mixed = (numbers * np.uint64(2_654_435_761) % np.uint64(1 << 32)).astype(">u4")
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    halves = mixed.view(np.uint8).reshape(num, 4)
    text = np.stack([digits[halves >> 4], digits[halves & 15]], axis=2).reshape(num, 8)
    words = pa.StringArray.from_buffers(
        num, pa.py_buffer(np.arange(0, 8 * num + 1, 8, dtype=np.int32)), pa.py_buffer(np.ascontiguousarray(text))
    )
    return pa.compute.if_else(pa.array(rng.random(num) < _NULL_SHARE), pa.scalar(None, pa.string()), words)
