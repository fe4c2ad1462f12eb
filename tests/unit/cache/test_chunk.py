"""The chunk file, as docs/reference/chunk-format.md describes it to readers of other programs."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tests.strategies import examples
from tests.unit.cache.chunk_files import content_of, with_longer_header
from tests.unit.cache.samples import arrays_of, entry, same, same_fields, specs

import stoker
from stoker import Ragged, Spec
from stoker.testing import write_parquet


def loaded(folder, make, num_samples):
    """Load what a transform makes of a file of so many rows; return what came, and what the loader did."""
    if not (folder / "a.parquet").exists():
        write_parquet(folder / "a.parquet", {"id": np.arange(num_samples)})
    dataset = stoker.Dataset(folder / "a.parquet", chunk_size="1GB", transform=make, transform_version="1")
    with stoker.Loader(dataset, batch_size=num_samples, cache=folder / "cache", num_threads=1) as loader:
        (batch,) = loader
        return dict(batch), loader.stats()


def chunk_of(folder):
    (path,) = (folder / "cache" / "chunks").iterdir()
    return path


def header_of(data):
    return data[: 8 + int.from_bytes(data[:8], "little")]


@examples(12)
@given(spec=specs(), num_samples=st.integers(1, 40), seed=st.integers(0, 5))
def test_what_is_delivered_lies_where_the_description_says_and_safetensors_reads_it(spec, num_samples, seed):
    arrays = arrays_of(spec, num_samples, seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        batch, _ = loaded(folder, lambda table: arrays, num_samples)
        data, theirs = chunk_of(folder).read_bytes(), load_file(chunk_of(folder))
        metadata, ours, begins = content_of(chunk_of(folder))
    assert same_fields(batch, arrays)
    header = header_of(data)
    assert len(header) % 4096 == 0
    assert header[37:53].decode() == xxhash.xxh3_64_hexdigest(header[:37] + b"0" * 16 + header[53:])
    assert theirs.keys() == ours.keys()
    assert all(same(array, ours[name]) for name, array in theirs.items())
    assert metadata["checksums"] == {
        name: xxhash.xxh3_64_hexdigest(array.tobytes()) for name, array in ours.items() if "padding." not in name
    }
    assert all(not array.any() for name, array in ours.items() if "padding." in name)
    assert len(data) == max(begins[name] + array.nbytes for name, array in ours.items())
    for name in metadata["checksums"]:
        assert begins[name] % (len(header) if name == "records" else 64) == 0
    if "records" in ours:
        record = np.dtype(metadata["record"])
        records = ours["records"].reshape(-1).view(record)
        assert all(same(np.ascontiguousarray(records[name]), arrays[name]) for name in record.names)
        rest = [begin for name, begin in begins.items() if name in metadata["checksums"] and name != "records"]
        assert all(begin % 4096 == 0 for begin in rest[:1])
        assert all(begin >= begins["records"] + ours["records"].nbytes for begin in rest)


OFFSETS = np.arange(51) * np.arange(51)


@pytest.mark.parametrize(
    ("arrays", "digest"),
    [
        (
            {
                "id": np.arange(50),
                "dense": np.arange(250, dtype=np.float32).reshape(50, 5),
                "flag": np.arange(50) % 3 == 0,
                "history": Ragged(np.arange(2500), OFFSETS),
                "words": Ragged(Ragged(np.arange(5000).astype(np.uint8), np.arange(2501) * 2), OFFSETS),
            },
            "a0dc0812b98d9f13",
        ),
        (
            {
                "id": np.arange(50),
                "word": Ragged(np.arange(2500).astype(np.uint8), OFFSETS),
                "history": Ragged(np.arange(100), np.arange(51) * 2),
                "point": Ragged(np.arange(300, dtype=np.float32).reshape(100, 3), np.arange(51) * 2),
            },
            "b11627aabd74822d",
        ),
    ],
    ids=["lists apart", "lists side by side"],
)
def test_the_same_samples_are_the_same_bytes_as_when_the_format_was_frozen(tmp_path, arrays, digest):
    loaded(tmp_path, lambda table: arrays, 50)
    data = chunk_of(tmp_path).read_bytes()
    start = len(header_of(data))
    if start != 4096:
        pytest.skip("the pages of this machine are larger, and so is what fills them")
    content = json.loads(data[8:start])
    del content["__metadata__"]["about"], content["__metadata__"]["checksum"]  # of where the rows come from
    found = xxhash.xxh3_64_hexdigest(json.dumps(content).encode() + data[start:])
    assert found == digest, "another format needs another FORMAT_VERSION"


def test_a_chunk_of_many_blocks_has_every_row_in_its_place(tmp_path):
    spec = Spec(
        (
            entry("wide", "float32", shape=(100,)),
            entry("flag", "int8"),
            entry("near", "int64", num_levels=1),
            entry("far", "int16", shape=(3,), num_levels=1),
            entry("deep", "uint8", num_levels=2),
        )
    )
    arrays = arrays_of(spec, 40_000)
    batch, _ = loaded(tmp_path, lambda table: arrays, 40_000)
    assert chunk_of(tmp_path).stat().st_size > 8 << 21  # several huge pages
    assert same_fields(batch, arrays)


def test_bytes_between_fields_are_zero_whatever_was_written_before(tmp_path):
    for i in range(6):
        write_parquet(tmp_path / "data" / f"{i}.parquet", {"id": np.arange(900 if i % 2 else 9)})

    def narrow(table):
        num = table.num_rows
        length = 600 if num == 9 else 0  # what lies where the records of the next chunk come to be
        lists = Ragged(np.full(num * length, -1), np.arange(num + 1) * length)
        return {"a": np.full(num, -1, np.int8), "b": np.full((num, 17), -1, np.int16), "lists": lists}

    dataset = stoker.Dataset(tmp_path / "data", transform=narrow, transform_version="1")
    with stoker.Loader(dataset, batch_size=9, cache=tmp_path / "cache", num_threads=1) as loader:
        assert len(list(loader)) == 303
    for path in (tmp_path / "cache" / "chunks").iterdir():
        records = content_of(path)[1]["records"]
        assert records.shape[1] == 64
        assert (records[:, :35] == 255).all()
        assert not records[:, 35:].any()


@pytest.mark.parametrize("num_bytes", [65_536, 16 << 20], ids=["other pages", "as long as may be"])
def test_a_longer_header_is_read_too(tmp_path, num_bytes):
    spec = Spec((entry("id", "int64"), entry("history", "int64", num_levels=1), entry("words", "uint8", num_levels=2)))
    arrays = arrays_of(spec, 50)
    loaded(tmp_path, lambda table: arrays, 50)
    path = chunk_of(tmp_path)
    path.write_bytes(with_longer_header(path.read_bytes(), num_bytes))
    batch, stats = loaded(tmp_path, lambda table: pytest.fail("is there"), 50)
    assert (stats.num_built, stats.num_mended) == (0, 0)
    assert same_fields(batch, arrays)
