"""A flipped bit in any file of a cache, and anywhere in it, is found or harmless, and changes no row."""

from __future__ import annotations

import os
import random
import shutil
from contextlib import suppress

import numpy as np
import pytest
from tests.strategies import write_files
from tests.unit.cache.chunk_files import content_of

import stoker
from stoker.cli import main
from stoker.testing import write_parquet


def rows_of(dataset, cache, *, verify="boot"):
    """Return the rows of an epoch, as text, and how many chunks were mended."""
    with stoker.Loader(dataset, batch_size=20, num_threads=1, cache=stoker.Cache(cache, verify=verify)) as loader:
        rows = [{name: field.tolist() for name, field in batch.items()} for batch in loader]
        return rows, loader.stats().num_mended


def test_a_flipped_bit_anywhere_in_a_chunk_is_named_and_found_and_mended(tmp_path, capsys):
    lists = {"near": [[i] * (i % 4) for i in range(60)], "far": [[i] for i in range(60)]}
    lists["deep"] = [[[i], [2, i]] for i in range(60)]
    write_parquet(tmp_path / "a.parquet", {"id": np.arange(60), "x": np.arange(60) / 2, **lists})
    dataset, cache = stoker.Dataset(tmp_path / "a.parquet"), tmp_path / "cache"
    expected, _ = rows_of(dataset, cache)
    (path,) = (cache / "chunks").iterdir()
    sound = path.read_bytes()
    _, arrays, begins = content_of(path)
    places = {name: begins[name] + array.nbytes // 2 for name, array in arrays.items()} | {"length": 1, "header": 300}
    assert {"records", "strips.places", "strips", "deep.offsets", "deep.values.values"} <= places.keys()
    for name, at in places.items():
        for bit in (0, 5):
            path.write_bytes(sound[:at] + bytes([sound[at] ^ 1 << bit]) + sound[at + 1 :])
            is_harmless = name.startswith("padding.")
            assert main(["cache", "verify", str(cache)]) == (0 if is_harmless else 3)
            assert is_harmless or name in ("length", "header") or repr(name) in capsys.readouterr().out
            assert rows_of(dataset, cache) == (expected, not is_harmless), name
            assert path.read_bytes() == sound or is_harmless


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
        return [x for batch in rows_of(dataset, cache, verify=verify)[0] for x in batch["id"]]

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
    assert main(["cache", "verify", str(cache)]) == 0
    assert rows() == list(range(200))
