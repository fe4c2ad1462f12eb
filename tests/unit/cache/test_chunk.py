import json
import tempfile
from bisect import bisect_right
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tests.strategies import examples
from tests.unit.cache.chunk_files import about_of, header_of, opened, read_arrays, write_chunk
from tests.unit.cache.samples import SPEC, arrays_of, entry, same_fields, specs

from stoker import ChunkCorruptError, FieldError, FieldMismatchError, Ragged, Spec
from stoker.cache import tables
from stoker.cache.format import PAGE_BYTES, check_arrays, chunk_arrays, read_lengths
from stoker.cache.tables import make_strips
from stoker.cache.write import describe_record


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "chunk.safetensors"
    write_chunk(path, arrays_of(SPEC, 50), SPEC, num_samples=50, about={"url": "lake/a.parquet"}, page_bytes=4096)
    return path


@examples(20)
@given(spec=specs(), num_samples=st.integers(0, 40), seed=st.integers(0, 5))
def test_what_was_written_is_read_by_us_and_by_safetensors(spec, num_samples, seed):
    arrays = arrays_of(spec, num_samples, seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chunk.safetensors"
        size_bytes = write_chunk(path, arrays, spec, num_samples=num_samples)
        header = header_of(path)
        assert header.size_bytes == size_bytes == path.stat().st_size
        assert header.spec == spec
        assert header.num_samples == num_samples
        assert same_fields(read_arrays(path), arrays)
        theirs = load_file(path)
        for name, place in header.arrays.items():
            assert theirs[name].shape == place.shape
            assert theirs[name].dtype == place.dtype
            assert xxhash.xxh3_64_hexdigest(theirs[name].tobytes()) == place.checksum
        assert all(not filler.any() for name, filler in theirs.items() if name not in header.arrays)


@given(spec=specs(), num_samples=st.integers(0, 40))
def test_records_fill_whole_pages_and_other_arrays_begin_at_cache_lines(spec, num_samples):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chunk.safetensors"
        write_chunk(path, arrays_of(spec, num_samples), spec, num_samples=num_samples)
        header = header_of(path)
    assert ("records" in header.arrays) == (spec.record_bytes > 0)
    assert list(header.arrays) == chunk_arrays(spec)
    rest = [name for name in header.arrays if name != "records"]
    for name, place in header.arrays.items():
        assert place.offset_bytes % (PAGE_BYTES if name == "records" else 64) == 0
        assert place.offset_bytes + place.size_bytes + (64 if name == "strips" else 0) <= header.size_bytes
    if rest and "records" in header.arrays:
        records = header.arrays["records"]
        assert header.arrays[rest[0]].offset_bytes % PAGE_BYTES == 0
        assert all(header.arrays[name].offset_bytes >= records.offset_bytes + records.size_bytes for name in rest)


def test_a_chunk_of_many_blocks_has_every_row_in_its_place(tmp_path):
    spec = Spec((entry("a", "float32", shape=(100,)), entry("b", "int8")))
    arrays = arrays_of(spec, 20_000)
    write_chunk(tmp_path / "chunk", arrays, spec, num_samples=20_000)
    assert same_fields(read_arrays(tmp_path / "chunk"), arrays)


def test_bytes_between_fields_are_zero_whatever_was_packed_before(tmp_path):
    wide = Spec((entry("a", "int64", shape=(8,)),))
    write_chunk(tmp_path / "wide", {"a": np.full((9, 8), -1)}, wide, num_samples=9)
    narrow = Spec((entry("a", "int8"), entry("b", "int16", shape=(17,))))
    write_chunk(
        tmp_path / "narrow", {"a": np.full(9, 1, np.int8), "b": np.full((9, 17), 2, np.int16)}, narrow, num_samples=9
    )
    place = header_of(tmp_path / "narrow").arrays["records"]
    records = np.fromfile(tmp_path / "narrow", np.uint8, place.size_bytes, offset=place.offset_bytes)
    records = records.reshape(place.shape)
    assert narrow.record_bytes == 64
    assert not records[:, 35:].any()
    assert records[:, :35].any(axis=0)[::2].all()


def test_arrays_of_any_strides_are_written_in_order(tmp_path):
    spec = Spec((entry("a", "int64", shape=(3,)), entry("r", "int32", shape=(2,), num_levels=1)))
    a = np.arange(30).reshape(3, 10).T
    values = np.arange(40, dtype=np.int32).reshape(2, 20).T
    arrays = {"a": a, "r": Ragged(values[::2], np.arange(11, dtype=np.int64))}
    write_chunk(tmp_path / "chunk", arrays, spec, num_samples=10)
    back = read_arrays(tmp_path / "chunk")
    np.testing.assert_array_equal(back["a"], a)
    np.testing.assert_array_equal(back["r"].values, values[::2])


@given(spec=specs())
def test_the_record_is_described_as_numpy_takes_it(spec):
    described = describe_record(spec)
    if spec.record_bytes:
        assert np.dtype(json.loads(json.dumps(described))) == spec.record_dtype
    else:
        assert described == {}


def test_a_header_says_what_made_the_chunk(path):
    assert about_of(path) == {"url": "lake/a.parquet"}


def test_the_same_chunk_is_the_same_bytes_today_as_when_the_format_was_frozen(tmp_path):
    offsets = np.arange(51) * np.arange(51)
    arrays = {
        "id": np.arange(50),
        "dense": np.arange(250, dtype=np.float32).reshape(50, 5),
        "flag": np.arange(50) % 3 == 0,
        "history": Ragged(np.arange(2500), offsets),
        "words": Ragged(Ragged(np.arange(5000).astype(np.uint8), np.arange(2501) * 2), offsets),
    }
    write_chunk(tmp_path / "chunk", arrays, SPEC, num_samples=50, about={"url": "lake/a"}, page_bytes=4096)
    digest = xxhash.xxh3_64_hexdigest((tmp_path / "chunk").read_bytes())
    assert digest == "f9c9470f402af856", "another format needs another FORMAT_VERSION"


def test_lists_side_by_side_are_the_same_bytes_today_as_when_their_format_was_frozen(tmp_path):
    offsets = np.arange(51) * np.arange(51)
    arrays = {
        "id": np.arange(50),
        "word": Ragged(np.arange(2500).astype(np.uint8), offsets),
        "history": Ragged(np.arange(100), np.arange(51) * 2),
        "point": Ragged(np.arange(300, dtype=np.float32).reshape(100, 3), np.arange(51) * 2),
    }
    spec = Spec(
        (
            entry("id", "int64"),
            entry("word", "uint8", num_levels=1),
            entry("history", "int64", num_levels=1),
            entry("point", "float32", shape=(3,), num_levels=1),
        )
    )
    write_chunk(tmp_path / "chunk", arrays, spec, num_samples=50, about={"url": "lake/a"}, page_bytes=4096)
    assert [one.name for one in spec.strip] == ["history", "point", "word"]
    digest = xxhash.xxh3_64_hexdigest((tmp_path / "chunk").read_bytes())
    assert digest == "887518770fdc2d5b", "another format needs another FORMAT_VERSION"


def test_a_chunk_with_its_lists_in_other_arrays_is_refused(tmp_path, monkeypatch):
    spec = Spec((entry("a", "int8", num_levels=1), entry("b", "int32", num_levels=1)))
    arrays = arrays_of(spec, 20)
    with monkeypatch.context() as patched:
        patched.setattr(Spec, "strip", ())
        patched.setattr(Spec, "apart", spec.ragged)
        write_chunk(tmp_path / "old", arrays, spec, num_samples=20)
    with pytest.raises(ChunkCorruptError, match="arrays are not those of its fields"):
        header_of(tmp_path / "old")


@examples(15)
@given(spec=specs(), num_samples=st.integers(0, 40), piece_bytes=st.sampled_from([8, 40, 200, 1 << 20]))
def test_strips_laid_in_any_pieces_are_the_same(spec, num_samples, piece_bytes):
    arrays = arrays_of(spec, num_samples)
    strips = make_strips(spec, arrays)
    if strips is None:
        return
    begins, lay = strips[1].tolist(), strips[2]
    laid = np.empty(begins[-1], np.uint8)
    lay(laid, 0, num_samples)
    lists = [arrays[one.name] for one in spec.strip]
    strip = [
        b"".join(one.values[one.offsets[i] : one.offsets[i + 1]].tobytes() for one in lists) for i in range(num_samples)
    ]
    one_by_one = b"".join(one + bytes(-len(one) % 8) for one in strip)
    assert laid.tobytes() == one_by_one
    start = 0
    while start < num_samples:
        stop = max(start + 1, bisect_right(begins, begins[start] + piece_bytes) - 1)
        part = np.empty(begins[stop] - begins[start], np.uint8)
        lay(part, start, stop)
        assert part.tobytes() == one_by_one[begins[start] : begins[stop]]
        start = stop


def test_lists_that_cannot_be_counted_are_refused(monkeypatch):
    monkeypatch.setattr(tables, "_MOST_NUMBER", 30)
    spec = Spec((entry("a", "int8", num_levels=1), entry("b", "int64", num_levels=1)))
    with pytest.raises(FieldError, match="chunk_size="):
        make_strips(spec, arrays_of(spec, 50))


@pytest.mark.parametrize("name", ["history", "words", "near", "far"])
def test_the_lengths_of_lists_are_read_without_their_values(tmp_path, name):
    spec = Spec((*SPEC, entry("near", "int16", num_levels=1), entry("far", "int64", shape=(2,), num_levels=1)))
    arrays = arrays_of(spec, 50)
    write_chunk(tmp_path / "chunk", arrays, spec, num_samples=50)
    header = header_of(tmp_path / "chunk")
    with opened(tmp_path / "chunk") as fd:
        np.testing.assert_array_equal(read_lengths(fd, header, spec[name]), np.diff(arrays[name].offsets))


def test_a_file_cut_off_anywhere_is_corrupt(path, tmp_path):
    data = path.read_bytes()
    for length in [*range(0, len(data), 97), len(data) - 1]:
        (tmp_path / "cut").write_bytes(data[:length])
        with pytest.raises(ChunkCorruptError, match="cut"):
            header_of(tmp_path / "cut")
    (tmp_path / "longer").write_bytes(data + b"\0")
    with pytest.raises(ChunkCorruptError, match="its header says"):
        header_of(tmp_path / "longer")


def test_a_file_whose_blocks_were_never_written_is_corrupt(path, tmp_path):
    (tmp_path / "zeros").write_bytes(bytes(path.stat().st_size))
    with pytest.raises(ChunkCorruptError, match="zeros"):
        header_of(tmp_path / "zeros")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"\x10" + bytes(7) + b'{"a":1}', b"{" * 40_000])
def test_what_is_no_chunk_is_corrupt(content, tmp_path):
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(ChunkCorruptError, match="other"):
        header_of(tmp_path / "other")


def test_a_damaged_array_is_named(path):
    place = header_of(path).arrays["history.values"]
    data = bytearray(path.read_bytes())
    data[place.offset_bytes + 3] ^= 4
    path.write_bytes(data)
    header = header_of(path)
    with opened(path) as fd, pytest.raises(ChunkCorruptError, match=r"history\.values"):
        check_arrays(fd, header, path=path)
    with pytest.raises(ChunkCorruptError):
        read_arrays(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": None}, "'id' is missing"),
        ({"id": np.zeros(50, np.int32)}, "'id' should be id: int64, but its dtype is int32"),
        ({"id": np.zeros(49, np.int64)}, "shape"),
        ({"dense": np.zeros((50, 4), np.float32)}, "shape"),
        ({"dense": Ragged(np.zeros(0, np.float32), np.zeros(51, np.int64))}, "it is ragged"),
        ({"history": np.zeros(50, np.int64)}, "it is not ragged"),
        ({"history": Ragged(np.zeros(3, np.int64), np.zeros(51, np.int64))}, "offsets do not rise"),
        ({"history": Ragged(np.zeros(0, np.int64), np.zeros(51, np.int32))}, "offsets are int32"),
        ({"history": Ragged(Ragged(np.zeros(0, np.int64), np.zeros(1, np.int64)), np.zeros(51, np.int64))}, "more"),
        ({"words": Ragged(np.zeros(0, np.uint8), np.zeros(51, np.int64))}, "1 level"),
        ({"more": np.zeros(50)}, "'more' is none"),
    ],
)
def test_arrays_that_do_not_fit_the_spec_are_refused_before_anything_is_written(change, reason, tmp_path):
    arrays = {name: array for name, array in (arrays_of(SPEC, 50) | change).items() if array is not None}
    with pytest.raises(FieldMismatchError, match=reason):
        write_chunk(tmp_path / "chunk", arrays, SPEC, num_samples=50)
    assert not (tmp_path / "chunk").exists()


def test_fields_that_would_share_an_array_are_refused(tmp_path):
    spec = Spec((entry("a", "int64", num_levels=2), entry("a.values", "int64", num_levels=1)))
    with pytest.raises(FieldError, match="rename one"):
        write_chunk(tmp_path / "chunk", arrays_of(spec, 3), spec, num_samples=3)


def test_the_page_of_another_machine_is_read_too(tmp_path):
    arrays = arrays_of(SPEC, 50)
    write_chunk(tmp_path / "chunk", arrays, SPEC, num_samples=50, page_bytes=65536)
    assert header_of(tmp_path / "chunk").arrays["records"].offset_bytes == 65536
    assert same_fields(read_arrays(tmp_path / "chunk"), arrays)


def test_the_checksum_of_the_header_stands_where_the_documentation_says(path):
    data = path.read_bytes()
    page = Path(__file__).parents[3] / "docs" / "reference" / "chunk-format.md"
    assert "stands at bytes 37 to 52" in page.read_text()
    start = 8 + int.from_bytes(data[:8], "little")
    header = data[:37] + b"0" * 16 + data[53:start]
    assert data[37:53].decode() == xxhash.xxh3_64_hexdigest(header)
