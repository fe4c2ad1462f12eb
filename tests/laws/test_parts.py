"""A huge row group by parts: whoever reads its columns, and however small parts are, the rows are those of the file."""

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.laws.test_pages import columns, same_bits
from tests.strategies import examples

from stoker import Dataset, SourceError
from stoker.testing import MemoryStorage


@contextmanager
def helped(num_threads=3):
    """Give what shares numbers out among so many threads, as those that build do."""
    with ThreadPoolExecutor(num_threads) as pool:
        yield lambda num, work: [*pool.map(work, range(num))]


def others(rng, num_rows):
    """Return columns that pyarrow decodes."""
    return {
        "s": pa.array([{"a": i, "b": [i] * (i % 3)} for i in range(num_rows)]),
        "t": pa.array(rng.random(num_rows) < 0.5),
        "text": pa.array([f"{'word' * (i % 4)} {rng.integers(1 << 40)}" for i in range(num_rows)]),
        "some": pa.array([None if i % 3 == 0 else [1, None] for i in range(num_rows)], pa.list_(pa.int32())),
    }


@examples(15)
@given(
    data=st.data(),
    num_rows=st.sampled_from([50, 1_000, 3_000]),
    num_columns=st.integers(0, 5),
    num_parts=st.integers(2, 9),
    is_remote=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_row_group_is_the_same_by_parts_and_whoever_reads_them(
    tmp_path_factory, data, num_rows, num_columns, num_parts, is_remote, seed
):
    rng = np.random.default_rng(seed)
    drawn = {f"x{i}": data.draw(columns(num_rows, rng))[0] for i in range(num_columns)}
    table = pa.table(drawn | (others(rng, num_rows) if not drawn or data.draw(st.booleans()) else {}))
    file = io.BytesIO()
    codec = data.draw(st.sampled_from(["none", "snappy", "zstd", "gzip"]))
    pq.write_table(table, file, compression=codec, data_page_size=data.draw(st.sampled_from([500, 1 << 20])))
    metadata = pq.read_metadata(file)
    chunk_size = max(1, metadata.row_group(0).total_byte_size // num_parts)
    if is_remote:
        dataset = Dataset("a", storage=MemoryStorage({"a": file.getvalue()}), chunk_size=chunk_size)
    else:
        path = tmp_path_factory.getbasetemp() / f"{seed}.parquet"
        path.write_bytes(file.getvalue())
        dataset = Dataset(path, chunk_size=chunk_size)
    catalogue = dataset.open()
    whole = pa.concat_tables(t for _, t in catalogue.read(0))
    with helped() as share_out:
        shared = pa.concat_tables(t for _, t in catalogue.read(0, share_out=share_out))
    expected = pq.read_table(io.BytesIO(file.getvalue()))
    while any(pa.types.is_struct(kind) for kind in expected.schema.types):
        expected = expected.flatten()
    for got in (whole, shared):
        got.validate(full=True)
        assert got.num_rows == num_rows
        for name in catalogue.schema.names:
            assert same_bits(got.column(name).combine_chunks(), expected.column(name).combine_chunks())


def test_columns_of_a_part_are_read_by_several_threads(tmp_path):
    path = tmp_path / "a.parquet"
    rng = np.random.default_rng(0)
    pq.write_table(pa.table({f"x{i}": rng.random(400_000) for i in range(4)}), path)
    catalogue = Dataset(path, chunk_size="2MB").open()
    assert len(catalogue.unit(0)) > 1
    met, threads = threading.Barrier(2), set()

    told = []
    with helped(2) as share_out:

        def shared(num, work):
            def noted(i):
                if len(threads) < 2 and threading.get_ident() not in threads:
                    threads.add(threading.get_ident())
                    met.wait(30)  # until another one has come
                work(i)

            share_out(num, noted)

        for _ in catalogue.read(0, share_out=shared, on_stage=lambda *stage: told.append(stage)):
            pass
    assert len(threads) == 2  # more may have come later
    # Nothing that a thread did is reported by another one, too.
    assert {name for name, *_ in told} == {"decode", "fetch"}
    assert sum(num_bytes for name, *_, num_bytes in told if name == "decode") == 4 * 8 * 400_000


def test_a_damaged_column_is_an_error_whoever_reads_it(tmp_path):
    path = tmp_path / "a.parquet"
    rng = np.random.default_rng(0)
    pq.write_table(pa.table({f"x{i}": rng.random(100_000) for i in range(6)}), path, write_page_checksum=True)
    column = pq.read_metadata(path).row_group(0).column(3)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size // 3] ^= 1
    path.write_bytes(content)
    catalogue = Dataset(path, chunk_size="1MB").open()
    with helped() as share_out, pytest.raises(SourceError, match=r"row group 0.*cannot be decoded"):
        for _ in catalogue.read(0, share_out=share_out):
            pass
