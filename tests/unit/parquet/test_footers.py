"""Footers: read once, kept, and found again while others write theirs."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.strategies import write_files

from stoker import Dataset, SourceCorruptError, SourceError, _native
from stoker.parquet import footers
from stoker.parquet.footers import Footers
from stoker.storage.storage import LocalStorage


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "data", [100] * 5)


def infos_of(folder):
    storage = LocalStorage()
    return storage, [info for info in storage.list(str(folder)) if info.url.endswith(".parquet")]


def test_numbers_of_footers_stay_for_whoever_builds(folder, monkeypatch):
    catalogue = Dataset(folder).open()

    def never(*_, **__):
        raise AssertionError("a footer was checked again")

    monkeypatch.setattr(footers, "read_numbers", never)
    assert sum(table.num_rows for i in range(len(catalogue)) for _, table in catalogue.read(i)) == 500


@pytest.mark.skipif(not _native.can_decompress(6), reason="there is no zstd on this system")
def test_pyarrow_reads_no_footer_again_of_which_our_loops_decode_all(tmp_path, monkeypatch):
    pq.write_table(pa.table({"id": range(500), "x": [0.5] * 500}), tmp_path / "a.parquet", compression="zstd")
    catalogue = Dataset(tmp_path / "a.parquet").open()

    def never(*_, **__):
        raise AssertionError("pyarrow read a footer")

    monkeypatch.setattr(footers, "parse_footer", never)
    ((_, table),) = catalogue.read(0)
    assert table["id"].to_pylist() == list(range(500))


def test_a_footer_that_is_longer_than_its_file_is_corrupt(folder):
    path = min(folder.glob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-8] + (1 << 20).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(SourceCorruptError, match="a footer of 1,048,576 bytes in a file of"):
        Dataset(path).open()


def test_integers_of_128_bits_are_named_and_not_called_corrupt(tmp_path):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"a": [1], "wide": polars.Series([1], dtype=polars.Int128)})
    frame.write_parquet(tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"128 bits.* in column 'wide'.*cast") as caught:
        Dataset(tmp_path / "a.parquet").open()
    assert not isinstance(caught.value, SourceCorruptError)


def test_kept_footers_are_found_while_another_process_puts_its_own_in_their_place(folder, tmp_path):
    storage, infos = infos_of(folder)
    path = tmp_path / "footers.bin"
    first = Footers(storage, path=path)
    for info in infos:
        first.bytes_of(info)
    first.keep(infos)
    expected = [first.bytes_of(info).to_pybytes() for info in infos]

    class Gone:
        def __getattr__(self, name):
            raise AssertionError("the source was asked")

    reader = Footers(Gone(), path=path)
    assert reader.bytes_of(infos[0]).to_pybytes() == expected[0]
    other = Footers(storage, path=path)
    other.bytes_of(infos[-1])
    other.keep(infos[-1:])  # only one of them from now on
    assert [reader.bytes_of(info).to_pybytes() for info in infos] == expected
    assert Footers(Gone(), path=path).bytes_of(infos[-1]).to_pybytes() == expected[-1]


def test_kept_footers_that_cannot_be_read_are_read_from_the_source(folder, tmp_path, caplog):
    storage, infos = infos_of(folder)
    path = tmp_path / "footers.bin"
    path.write_bytes(b"no file of ours")
    found = Footers(storage, path=path)
    assert pq.read_metadata(pa.BufferReader(found.bytes_of(infos[0]))).num_rows == 100
    assert "cannot be read" in caplog.text


def test_kept_footers_of_which_a_bit_is_another_are_what_the_files_say(folder, tmp_path, caplog):
    storage, infos = infos_of(folder)
    path = tmp_path / "footers.bin"
    first = Footers(storage, path=path)
    expected = [first.bytes_of(info).to_pybytes() for info in infos]
    first.keep(infos)
    content, chance = path.read_bytes(), random.Random(0)
    for k in range(200):
        damaged = bytearray(content)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged[: chance.randrange(len(damaged))] if k % 5 == 0 else damaged)
        found = Footers(storage, path=path)
        assert [found.bytes_of(info).to_pybytes() for info in infos] == expected
    assert "is damaged" in caplog.text
    assert "cannot be read" in caplog.text
