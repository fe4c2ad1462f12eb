"""Files of every writer that users have, against pyarrow's own reading of them."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.batches import check_same, contents
from tests.integration.real_files.answers import Source, check_values, explore
from tests.integration.writers import (
    NULLS,
    duckdb_files,
    fastparquet_files,
    pandas_files,
    polars_files,
    pyarrow_files,
    spark_files,
    table,
)

from stoker import Dataset, FieldError, Loader, SourceError


def test_fields_of_a_footer_that_nobody_knows_yet_are_passed_over(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": range(10)}), path)
    content = path.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    footer = content[-8 - length : -8]
    assert footer[-1] == 0
    unknown = {
        "empty list of no kind, as fastparquet writes": b"\x09\x00",
        "empty list": b"\x09\x08",
        "list of bools": b"\x09\x21\x01\x02",
        "set": b"\x0a\x25\x02\x04",
        "empty map": b"\x0b\x00",
        "map of i32 to binary": b"\x0b\x02\x58\x02\x02ab\x04\x01x",
        "uuid": b"\x0d" + bytes(range(16)),
        "struct": b"\x0c\x15\x02\x11\x00",
        "double": b"\x07" + bytes(8),
        "byte": b"\x03\x07",
    }
    for name, field in unknown.items():
        # A field in the long form: its kind, then its number, 100.
        more = footer[:-1] + field[:1] + b"\xc8\x01" + field[1:] + b"\x00"
        path.write_bytes(content[: -8 - length] + more + len(more).to_bytes(4, "little") + b"PAR1")
        with Loader(Dataset(path), batch_size=10, shuffle=False) as loader:
            (batch,) = loader
        assert batch["a"].tolist() == list(range(10)), name


# What no tensor holds, whoever wrote it.
NO_TENSORS = {"map", "list_of_structs"}
MODULES = {
    "pyarrow": "pyarrow",
    "polars": "polars",
    "duckdb": "duckdb",
    "pandas": "pandas",
    "fastparquet": "fastparquet",
}


def files_of(writer, rows, *, nulls, seed=0):
    """Yield a name and a function that writes a file, for each way in which a writer writes some rows."""
    pytest.importorskip(writer)
    if writer == "pyarrow":
        return pyarrow_files(rows, seed=seed)
    if writer == "polars":
        return polars_files(rows)
    if writer == "duckdb":
        return duckdb_files(rows, nulls=nulls)
    return pandas_files(rows) if writer == "pandas" else fastparquet_files(rows, nulls=nulls)


def check_file(path, cache, *, num_rows):
    """Check a file against pyarrow's reading of it: uncached, in chunks of two sizes; and cold and warm alike."""
    source = Source(path=path)
    try:
        source.read()
    except (pa.ArrowException, OSError, ValueError) as error:
        with pytest.raises((SourceError, FieldError)):  # whatever it is, it is said
            list(Loader(Dataset(path), batch_size=7))
        return f"pyarrow cannot read it: {error}"
    explored = explore(source)
    answer = explored.answer
    assert answer.error in (None, "FieldError"), str(answer)
    assert answer.num_rows == num_rows, str(answer)
    kinds = {field.name: field.type for field in pq.read_schema(path)}
    assert all(name in NO_TENSORS or pa.types.is_null(kinds[name]) for name in answer.left_out), str(answer)
    check_values(source, explored)
    asked = explored.asked
    dataset = Dataset(path, columns=asked.columns, fields=asked.fields, chunk_size=20_000)
    seen = []
    for where in (None, cache, cache):
        with Loader(dataset, batch_size=11, seed=4, cache=where) as loader:
            seen.append(contents(loader))
    check_same(seen[1], seen[0])
    check_same(seen[2], seen[0])
    return None


def check_files(files, folder, *, num_rows):
    """Check some files, and return how many pyarrow could read."""
    faults, num_read = [], 0
    for name, write in files:
        path = folder / "a.parquet"
        write(path)
        try:
            num_read += check_file(path, folder / f"cache-{num_read}", num_rows=num_rows) is None
        except Exception as error:
            faults.append(f"{name}: {type(error).__name__}: {error}")
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults)
    return num_read


@pytest.mark.filterwarnings("ignore:Series.values returning")  # fastparquet's call of pandas
@pytest.mark.parametrize("writer", MODULES)
def test_what_every_writer_writes_is_read_as_pyarrow_reads_it(tmp_path, writer):
    files = list(files_of(writer, table(41, "some"), nulls="some"))[3:5]
    assert check_files(files, tmp_path, num_rows=41) == 2


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.filterwarnings("ignore:Series.values returning")
@pytest.mark.parametrize("nulls", NULLS)
@pytest.mark.parametrize("num_rows", [0, 1, 97, 3000])
@pytest.mark.parametrize("writer", MODULES)
def test_all_that_every_writer_writes_is_read_as_pyarrow_reads_it(tmp_path, writer, num_rows, nulls):
    num_read = 0
    for seed in range(4 if writer == "pyarrow" and num_rows < 3000 else 1):
        (tmp_path / str(seed)).mkdir()
        files = files_of(writer, table(num_rows, nulls), nulls=nulls, seed=seed)
        num_read += check_files(files, tmp_path / str(seed), num_rows=num_rows)
    # pyarrow does not read all that it writes: some encodings, drawn by chance, of pages without a single value.
    assert num_read > 4


@pytest.fixture(scope="module")
def spark():
    sql = pytest.importorskip("pyspark.sql")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    session = sql.SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    yield session
    session.stop()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore:PySpark does not yet")
@pytest.mark.parametrize("nulls", NULLS)
@pytest.mark.parametrize("num_rows", [1, 97])
def test_what_spark_writes_is_read_as_pyarrow_reads_it(tmp_path, spark, num_rows, nulls):
    assert check_files(spark_files(spark, num_rows, nulls=nulls), tmp_path, num_rows=num_rows) >= 4
