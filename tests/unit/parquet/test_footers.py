"""Footers: read once, kept, and found again while others write theirs; and what is none is refused."""

import contextlib
import io
import random

import pyarrow.parquet as pq
import pytest
from tests.delivered import read
from tests.strategies import nested_table, write_files

from stoker import Dataset, SourceCorruptError, SourceError, StokerError
from stoker.testing import MemoryStorage, write_parquet


def written(*, num_rows=100, row_group_size=30, **options):
    sink = io.BytesIO()
    pq.write_table(nested_table(num_rows), sink, row_group_size=row_group_size, **options)
    return sink.getvalue()


def test_a_footer_larger_than_the_tail_is_read_in_two():
    content = written(num_rows=3000, row_group_size=10)
    assert len(content) > 256 << 10  # no file that is read whole
    storage = MemoryStorage({"f": content})
    catalogue = Dataset("f", storage=storage).open()
    assert storage.num_reads == 2
    assert catalogue.num_samples.sum() == 3000


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "0 bytes"),
        (b"x" * 100, "no Parquet file"),
        (b"PAR1" + b"\xff\xff\xff\x7f" + b"PAR1", "corrupt"),
        (b"PAR1" + bytes(8) + b"\x08\0\0\0PARE", "encrypted"),
        (b"PAR1" + b"junkjunk" + b"\x08\0\0\0PAR1", "cannot be decoded"),
        (written()[:-8] + (1 << 20).to_bytes(4, "little") + b"PAR1", "a footer of 1,048,576 bytes in a file of"),
    ],
)
def test_what_is_no_footer_is_an_error_that_names_the_file(content, says):
    with pytest.raises(SourceError, match=says) as caught:
        Dataset("f", storage=MemoryStorage({"f": content})).open()
    assert caught.value.url == "f"


def test_a_column_of_another_type_than_the_schema_says_is_found():
    content = written()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    at = content.index(b"\x15\x04\x19", footer + 1)  # int64 of the first column chunk, before its encodings
    broken = content[:at] + b"\x15\x0a" + content[at + 2 :]  # as double, of which values have as many bytes
    with pytest.raises(SourceCorruptError, match="row group 0 describes column a otherwise"):
        Dataset("f", storage=MemoryStorage({"f": broken})).open()


def test_flipped_bits_raise_or_are_read_but_never_end_the_process():
    """pyarrow's own accessors abort on some of these; a footer that passes here is safe to decode with."""
    content, rng = written(write_page_index=True), random.Random(7)
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for _ in range(400):
        broken = bytearray(content)
        broken[rng.randrange(footer, len(broken) - 8)] ^= 1 << rng.randrange(8)
        with contextlib.suppress(StokerError):
            Dataset("f", storage=MemoryStorage({"f": bytes(broken)})).open()


def test_integers_of_128_bits_are_named_and_not_called_corrupt(tmp_path):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"a": [1], "wide": polars.Series([1], dtype=polars.Int128)})
    frame.write_parquet(tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"128 bits.* in column 'wide'.*cast") as caught:
        Dataset(tmp_path / "a.parquet").open()
    assert not isinstance(caught.value, SourceCorruptError)


def test_kept_footers_are_found_while_another_process_puts_its_own_in_their_place(tmp_path):
    storage = MemoryStorage()
    for k in range(3):
        write_parquet(storage, {"v": range(10 * k, 10 * k + 10)}, url=f"t/{k}.parquet")
    Dataset("t", storage=storage).open(tmp_path)
    reader = Dataset("t", storage=storage).open(tmp_path)
    values = [table["v"].to_pylist() for _, table in reader.read(0)]
    other = MemoryStorage()  # which has only one of them from now on
    write_parquet(other, {"v": range(20, 30)}, url="t/2.parquet")
    assert len(Dataset("t", storage=other, refresh=True).open(tmp_path)) == 1
    storage.reset_counts()
    values += [table["v"].to_pylist() for k in (1, 2) for _, table in reader.read(k)]
    assert values == [list(range(10 * k, 10 * k + 10)) for k in range(3)]
    assert storage.num_reads == 2  # the values of each
    other.reset_counts()
    (table,) = (table for _, table in Dataset("t", storage=other).open(tmp_path).read(0))
    assert table["v"].to_pylist() == list(range(20, 30))
    assert other.num_reads == 1


def test_kept_footers_of_which_a_bit_is_another_are_what_the_files_say(tmp_path, caplog):
    dataset = Dataset(write_files(tmp_path / "data", [100] * 3), columns=["id"])
    expected = read(dataset)["id"].to_pylist()
    dataset.open(tmp_path / "kept")
    (path,) = (tmp_path / "kept" / "source").glob("footers-*")
    content, chance = path.read_bytes(), random.Random(0)
    for k in range(100):
        damaged = bytearray(content)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged[: chance.randrange(len(damaged))] if k % 5 == 0 else damaged)
        catalogue = dataset.open(tmp_path / "kept")
        assert [row for i in range(3) for _, table in catalogue.read(i) for row in table["id"].to_pylist()] == expected
    assert "is damaged" in caplog.text
    assert "cannot be read" in caplog.text
