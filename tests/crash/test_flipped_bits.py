"""Every bit of a chunk file, one after the other, is protected or padding."""

from __future__ import annotations

import os
import random
import shutil
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples, write_files
from tests.unit.cache import samples
from tests.unit.cache.chunk_files import header_of, read_arrays, write_chunk
from tests.unit.cache.samples import arrays_of, entry, key, same_fields

import stoker
from stoker import ChunkCorruptError, Spec
from stoker.cache import admin
from stoker.cache.store import Store

# Lists in strips, and lists that lie apart.
SPEC = Spec((*samples.SPEC, entry("near", "int16", num_levels=1)))
ARRAYS = arrays_of(SPEC, 30)


@pytest.fixture(scope="module")
def chunk(tmp_path_factory):
    path = tmp_path_factory.mktemp("bits") / "chunk.safetensors"
    write_chunk(path, ARRAYS, SPEC, num_samples=30, page_bytes=4096)
    return path, path.read_bytes(), header_of(path)


def is_padding(header, offset):
    start = min(place.offset_bytes for place in header.arrays.values())
    return offset >= start and not any(
        place.offset_bytes <= offset < place.offset_bytes + place.size_bytes for place in header.arrays.values()
    )


def check_flip(chunk, path, offset, bit):
    _, data, header = chunk
    flipped = bytearray(data)
    flipped[offset] ^= 1 << bit
    path.write_bytes(flipped)
    if is_padding(header, offset):
        assert same_fields(read_arrays(path), ARRAYS)
    else:
        with pytest.raises(ChunkCorruptError):
            read_arrays(path)


@pytest.mark.slow
def test_a_flipped_bit_in_any_byte_is_found_or_harmless(chunk, tmp_path):
    for offset in range(len(chunk[1])):
        check_flip(chunk, tmp_path / "flipped", offset, offset % 8)


@examples(50)
@given(st.data())
def test_any_flipped_bit_is_found_or_harmless(chunk, tmp_path_factory, data):
    offset = data.draw(st.integers(0, len(chunk[1]) - 1))
    check_flip(chunk, tmp_path_factory.getbasetemp() / "flipped", offset, data.draw(st.integers(0, 7)))


@pytest.mark.parametrize(
    "region", ["length", "header", "records", "strips.places", "strips", "words.offsets", "words.values.values"]
)
def test_a_store_discards_a_chunk_with_a_flipped_bit_and_takes_a_new_one(region, tmp_path):
    with Store(tmp_path / "cache") as store:
        store.publish(key(1), ARRAYS, SPEC, num_samples=30)
        path = store.path_of(key(1))
        place = header_of(path).arrays.get(region)
        offset = {"length": 1, "header": 300}[region] if place is None else place.offset_bytes + place.size_bytes // 2
        data = bytearray(path.read_bytes())
        data[offset] ^= 0x20
        path.write_bytes(data)
        with pytest.raises(ChunkCorruptError):
            store.open(key(1))
        assert not store.has(key(1))
        store.publish(key(1), ARRAYS, SPEC, num_samples=30)
        with store.open(key(1)) as opened:
            assert same_fields(read_arrays(opened.path), ARRAYS)
        assert store.counts()["num_mended"] == 1


def flip(path, at):
    """Flip a bit of a file, or of where a link leads."""
    if path.is_symlink():
        text = bytearray(os.fsencode(path.readlink()))
        text[at // 8 % len(text)] ^= 1 << at % 7
        path.unlink()
        with suppress(OSError, ValueError):  # a name that no link can have
            path.symlink_to(os.fsdecode(bytes(text)))
        return
    data = bytearray(path.read_bytes())
    data[at // 8 % len(data)] ^= 1 << at % 8
    path.write_bytes(data)


def restore(template, path, cache):
    path.unlink(missing_ok=True)
    shutil.copy2(template / path.relative_to(cache), path, follow_symlinks=False)


@pytest.mark.parametrize(
    ("num", "seed"),
    [(70, 7), *(pytest.param(1_000, i, marks=[pytest.mark.slow, pytest.mark.timeout(1000)]) for i in range(20))],
)
def test_a_flipped_bit_in_any_file_of_a_cache_changes_no_row_and_leaves_none_unusable(tmp_path, num, seed):
    dataset = stoker.Dataset(write_files(tmp_path / "data", [200], row_group_size=20), chunk_size=1_000)
    cache, template, moments = tmp_path / "cache", tmp_path / "template", random.Random(seed)

    def rows(verify="boot"):
        with stoker.Loader(dataset, batch_size=20, num_threads=1, cache=stoker.Cache(cache, verify=verify)) as loader:
            return [x for batch in loader for x in batch["id"].tolist()]

    rows()
    while not any((cache / "checked").iterdir()):  # noted of chunks that were not written a moment ago
        rows("always")
    shutil.copytree(cache, template, symlinks=True)
    files = [path for path in sorted(cache.rglob("*")) if path.is_symlink() or (path.is_file() and path.stat().st_size)]
    kinds = [[path for path in files if path.parent == folder] for folder in {path.parent for path in files}]
    assert len(kinds) == 5
    for i in range(num):
        path = moments.choice(kinds[i % len(kinds)])
        if not os.path.lexists(path):  # a note of a chunk that was mended
            restore(template, path, cache)
        flip(path, moments.getrandbits(30))
        try:
            assert rows(moments.choice(["boot", "always"])) == list(range(200)), path
        except stoker.CacheError as error:  # of another version, as its marker says now
            if "of version" not in str(error):
                raise
        restore(template, path, cache)
        assert list((cache / "tmp").iterdir()) == []
    with Store(cache) as store:
        assert admin.verify(store).corrupt == ()
    assert rows() == list(range(200))
