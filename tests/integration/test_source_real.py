"""Parquet that others wrote: read as pyarrow reads it, or refused by name."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import Loader
from stoker.errors import SourceError, StokerError
from stoker.source.dataset import Dataset
from stoker.source.schema import flatten
from stoker.spec import Ragged

# Good files whose bytes are not what they should be, or that no reader without keys or against the rules can read.
REFUSED = {
    "datapage_v1-corrupt-checksum.parquet": "CRC",
    "rle-dict-uncompressed-corrupt-checksum.parquet": "CRC",
    "incorrect_map_schema.parquet": "Map keys",
}
# A sound file that crashed one reader: a dictionary of one entry needs no bits for its indices.
SOUND = {"ARROW-GH-43605.parquet"}
# Instants that nanoseconds cannot say: pyarrow lets them wrap around, Stoker refuses them.
WRAPPED = {"int96_from_spark.parquet"}
# Two strings of 1 GiB each: what it decodes to is more than a test should hold.
HUGE = {"large_string_map.brotli.parquet"}


def rows(catalogue):
    tables = [
        table for i in sorted({catalogue.unit(i)[0] for i in range(len(catalogue))}) for _, table in catalogue.read(i)
    ]
    return pa.concat_tables(tables) if tables else catalogue.schema.empty_table()


def cells(table):
    """All values as text: NaN is NaN, and nanoseconds fit."""
    columns = []
    for name in table.schema.names:
        column = table[name]
        columns.append(str((column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()))
    return dict(zip(table.schema.names, columns, strict=True))


def parquet_files(folder, pattern="**/*"):
    found = [p for p in sorted(folder.glob(pattern)) if p.name.endswith((".parquet", ".encrypted"))]
    assert found
    return found


@pytest.mark.parametrize("chunk_size", ["32MiB", "1kB"])
def test_every_readable_file_is_read_as_pyarrow_reads_it(shared_data, chunk_size):
    wrong = []
    for path in parquet_files(shared_data / "parquet-testing" / "data"):
        if path.name.endswith(".encrypted") or path.name in {*REFUSED, *HUGE, *WRAPPED}:
            continue
        catalogue = Dataset(path, chunk_size=chunk_size).open()
        found, expected = rows(catalogue), flatten(pq.ParquetFile(path).read(use_threads=False))
        if cells(found) != cells(expected) or found.schema.types != catalogue.schema.types:
            wrong.append(path.name)
    assert not wrong


def test_every_bad_file_is_an_error_that_names_it(shared_data):
    for path in parquet_files(shared_data / "parquet-testing" / "bad_data"):
        if path.name in SOUND:
            continue
        for chunk_size in ("32MiB", 100):
            with pytest.raises(SourceError) as caught:
                rows(Dataset(path, chunk_size=chunk_size).open())
            assert caught.value.url == str(path)
            assert path.name in str(caught.value)


def test_the_sound_one_among_the_bad_is_read_as_pyarrow_reads_it(shared_data):
    for name in SOUND:
        path = shared_data / "parquet-testing" / "bad_data" / name
        assert cells(rows(Dataset(path).open())) == cells(pq.read_table(path))


def test_files_with_wrong_checksums_or_schemas_are_refused(shared_data):
    for name, says in REFUSED.items():
        with pytest.raises(SourceError, match=says) as caught:
            rows(Dataset(shared_data / "parquet-testing" / "data" / name).open())
        assert name in str(caught.value)


def test_encrypted_files_say_so(shared_data):
    found = [p for p in parquet_files(shared_data / "parquet-testing" / "data") if p.name.endswith(".encrypted")]
    assert len(found) > 10
    for path in found:
        with pytest.raises(SourceError, match="encrypted") as caught:
            Dataset(path).open()
        assert path.name in str(caught.value)


def test_a_petastorm_folder_is_read_as_plain_parquet(shared_data):
    for version in ("0.4.0", "0.7.6"):
        folder = shared_data / "petastorm" / version
        catalogue = Dataset(folder).open()
        assert len(catalogue.files) == 10
        assert catalogue.schema.names[-1] == "partition_key"
        found = rows(catalogue)
        assert found.num_rows == 100
        assert sorted(set(found["partition_key"].to_pylist())) == [f"p_{k}" for k in range(10)]
        one = Dataset(folder, filters=[("partition_key", "=", "p_3")]).open()
        assert cells(rows(one).drop(["partition_key"])) == cells(
            flatten(pq.read_table(next((folder / "partition_key=p_3").glob("*.parquet")), partitioning=None))
        )


def answers():
    """The table of the docs: file -> answer."""
    page = Path(__file__).resolve().parents[2] / "docs" / "data-sets.md"
    rows = re.findall(r"^\| ((?:data|bad_data)/\S+) \| (.*) \|$", page.read_text(), re.MULTILINE)
    return dict(rows)


def test_the_docs_name_every_file(shared_data):
    folder = shared_data / "parquet-testing"
    assert set(answers()) == {str(path.relative_to(folder)) for path in parquet_files(folder)}


def test_every_file_gets_the_answer_that_the_docs_say(shared_data):
    wrong = []
    for name, answer in answers().items():
        try:
            with Loader(Dataset(shared_data / "parquet-testing" / name), batch_size=64) as loader:
                num_samples = sum(len(next(iter(batch.values()))) for batch in map(as_lists, loader))
            found = f"delivered: {num_samples:,} rows"
        except StokerError as error:
            # The column is named by its quotes; what pyarrow says of a broken file changes with its version.
            named = [repr(column) for column in re.findall(r"'([^']+)'", answer)] or [name.rsplit("/", 1)[1]]
            found = f"`{type(error).__name__}`" if all(one in str(error) for one in named) else str(error)
        if not answer.startswith(found):
            wrong.append((name, answer, found))
    assert not wrong


def as_lists(batch):
    """A batch whose fields have the batch's length."""
    return {name: field.offsets[1:] if isinstance(field, Ragged) else field for name, field in batch.items()}
