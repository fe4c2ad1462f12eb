"""`chunk_size` holds once decoded, whatever a file makes of few bytes."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import Dataset, Loader, Ragged

NUM_ROWS = 40_000
CHUNK_BYTES = 256 << 10
PROMPTS = ["", "You are a helpful assistant. " * 40, "Answer in one word. " * 20, None]


def arrow_writer(**options):
    return lambda table, path: pq.write_table(table, path, row_group_size=NUM_ROWS, **options)


def polars_writer(**options):
    def write(table, path):
        polars = pytest.importorskip("polars")
        polars.from_arrow(table).write_parquet(path, row_group_size=NUM_ROWS, **options)

    return write


def duckdb_writer(table, path):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.register("t", table)
        connection.sql(f"copy (select * from t) to '{path}' (format parquet, row_group_size {NUM_ROWS * 2})")


def fastparquet_writer(table, path):
    fastparquet = pytest.importorskip("fastparquet")
    frame = table.to_pandas(types_mapper=None)
    for name in frame.columns:  # fastparquet makes dictionaries of categories alone
        if frame[name].dtype.kind == "O" or str(frame[name].dtype) == "str":
            frame[name] = frame[name].astype("category")
    fastparquet.write(str(path), frame, row_group_offsets=[0], write_index=False)


WRITERS = {
    "pyarrow": arrow_writer(),
    "pyarrow-v2": arrow_writer(data_page_version="2.0", compression="zstd"),
    "pyarrow-one-page": arrow_writer(max_rows_per_page=NUM_ROWS, compression="none"),
    "pyarrow-without-statistics": arrow_writer(write_statistics=False, store_schema=False),
    "polars": polars_writer(),
    "polars-without-statistics": polars_writer(statistics=False),
    "duckdb": duckdb_writer,
    "fastparquet": fastparquet_writer,
}

i = np.arange(NUM_ROWS)
COLUMNS = {
    "words": lambda: pa.array([PROMPTS[k % 4] for k in range(NUM_ROWS)]),
    "binary": lambda: pa.array([b"a word of thirty bytes, or so.."] * NUM_ROWS),
    "one word": lambda: pa.array(["w" * 1000]).take(pa.array(np.zeros(NUM_ROWS, np.int32))),
    "lists of words": lambda: pa.array([PROMPTS[: k % 3] for k in range(NUM_ROWS)]),
    "lists of lists": lambda: pa.array([[[PROMPTS[1]], []]] * NUM_ROWS),
    "lists of numbers": lambda: pa.array([[7] * 20] * NUM_ROWS),
    "structs": lambda: pa.array([{"x": PROMPTS[1], "y": [1.0] * 5}] * NUM_ROWS),
    "decimals": lambda: pa.array([Decimal("1.25")] * NUM_ROWS, pa.decimal128(38, 2)),
    "numbers": lambda: pa.array(np.zeros(NUM_ROWS, np.int64)),
    "small numbers": lambda: pa.array((i % 3).astype(np.int8)),
    "times": lambda: pa.array(np.zeros(NUM_ROWS, np.int64), pa.timestamp("us")),
    "nulls": lambda: pa.array([None] * NUM_ROWS, pa.string()),
    "keys": lambda: pa.array([f"https://example.com/{'long/' * 40}{k:08d}" for k in range(NUM_ROWS)]),
}
# What fastparquet writes as it is.
FASTPARQUET = ("words", "binary", "one word", "numbers", "small numbers", "times", "nulls")


def check_chunks(table, path, *, chunk_bytes=CHUNK_BYTES):
    """Check that each fragment holds about `chunk_bytes`, and the loader all rows."""
    catalogue = Dataset(path, chunk_size=chunk_bytes).open()
    row = 0
    for fragment, num_rows in zip(catalogue.fragments, catalogue.num_rows.tolist(), strict=True):
        part = table.slice(row, num_rows)
        assert part.nbytes <= 2.2 * chunk_bytes, fragment
        row += num_rows
    assert row == table.num_rows
    assert len(catalogue) <= 8 + 4 * table.nbytes // chunk_bytes


# Every column by one writer, and a few by every other one, each time.
PAIRS = [
    pytest.param(
        name,
        writer,
        marks=[] if writer == "pyarrow" or name in ("words", "lists of numbers", "numbers") else pytest.mark.slow,
    )
    for name in COLUMNS
    for writer in WRITERS
    if writer != "fastparquet" or name in FASTPARQUET
]


@pytest.mark.parametrize(("name", "writer"), PAIRS)
def test_chunks_hold_what_was_asked_for_once_decoded(tmp_path, writer, name):
    table = pa.table({"c": COLUMNS[name]()})
    WRITERS[writer](table, tmp_path / "a.parquet")
    check_chunks(pq.read_table(tmp_path / "a.parquet", read_dictionary=[]), tmp_path / "a.parquet")


def test_words_that_share_their_beginnings_are_counted_as_they_are(tmp_path):
    table = pa.table({"c": COLUMNS["keys"]()})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, use_dictionary=False, column_encoding={"c": "DELTA_BYTE_ARRAY"})
    assert path.stat().st_size < table.nbytes / 4
    check_chunks(table, path)


def test_the_columns_of_a_filter_are_counted_too(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"c": COLUMNS["small numbers"](), "s": COLUMNS["one word"]()})
    pq.write_table(table, path, row_group_size=NUM_ROWS)
    catalogue = Dataset(path, columns=["c"], filters=[("s", "=", "w" * 1000)], chunk_size="4MiB").open()
    assert len(catalogue) >= 8
    assert catalogue.num_samples.sum() == NUM_ROWS


@pytest.mark.parametrize("writer", ["pyarrow", "pyarrow-one-page", "polars"])
def test_rows_that_are_read_by_parts_are_those_of_the_file(tmp_path, writer):
    table = pa.table({"id": i, "s": COLUMNS["words"]().fill_null("null"), "l": COLUMNS["lists of numbers"]()})
    WRITERS[writer](table, tmp_path / "a.parquet")
    with Loader(Dataset(tmp_path, chunk_size=CHUNK_BYTES), batch_size=1000, seed=3) as loader:
        seen = []
        for batch in loader:
            assert isinstance(batch["s"], Ragged)
            words = [bytes(batch["s"].values[a:b]).decode() for a, b in pairwise(batch["s"].offsets)]
            assert words == table["s"].take(pa.array(batch["id"])).to_pylist()
            assert (batch["l"].values == 7).all()
            assert len(batch["l"].values) == 20 * len(batch["id"])
            seen += batch["id"].tolist()
    assert sorted(seen) == i.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("rows_per_page", [20_000, 24_000_000])
def test_a_few_bytes_that_hold_gigabytes_are_read_within_bounds(tmp_path, rows_per_page):
    num_rows = 24_000_000
    words = pa.array(["a word of sixty bytes, which is not too many to be a sentence"])
    table = pa.table({"s": pa.DictionaryArray.from_arrays(pa.array(np.zeros(num_rows, np.int8)), words)})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=num_rows, max_rows_per_page=rows_per_page, store_schema=False)
    del table
    code = (
        "import sys, stoker\n"
        "dataset = stoker.Dataset(sys.argv[1])\n"
        "with stoker.Loader(dataset, batch_size=1000, shuffle=False, cache=sys.argv[2]) as loader:\n"
        "    print(bytes(next(iter(loader))['s'].values[:6]).decode())\n"
        # getrusage's peak begins with that of the process that started this one.
        "print(*(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM:')))\n"
    )
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "cache")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240).stdout.split("\n")
    assert printed[0] == "a word"
    assert int(printed[1]) < 700 << 10  # KiB: the words alone have 1.5 GB
