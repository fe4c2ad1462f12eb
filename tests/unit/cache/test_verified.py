"""Checksums of a chunk are compared when it is first opened after a start of the machine, and after a touch."""

import os

import pytest
from tests.strategies import write_files

from stoker import Cache, Dataset, Loader
from stoker.cli import main

ROWS = list(range(100))


@pytest.fixture
def dataset(tmp_path):
    return Dataset(write_files(tmp_path / "data", [100], row_group_size=50), columns=["id"], chunk_size="400B")


@pytest.fixture
def cache(tmp_path, dataset):
    assert load(dataset, tmp_path / "cache")[0] == ROWS
    return tmp_path / "cache"


def load(dataset, cache, **options):
    """Return the rows that come, and how many chunks were mended."""
    with Loader(dataset, batch_size=50, num_threads=1, cache=Cache(cache, **options)) as loader:
        return [row for batch in loader for row in batch["id"].tolist()], loader.stats().num_mended


def first_met(cache):
    """Return the cache as a process finds it that has not seen it: in another folder, the same files."""
    other = cache.with_name("found")
    other.mkdir(0o700)
    for path in cache.iterdir():
        path.rename(other / path.name)
    return other


def chunk_of(cache):
    return min((cache / "chunks").iterdir())


def note_of(cache):
    return cache / "checked" / chunk_of(cache).stem


def write_note(cache, *, boot=None):
    """Write down that the chunk was verified as it is now."""
    path, about = note_of(cache), chunk_of(cache).stat()
    boot = boot or str(path.readlink()).split()[0]
    path.unlink()
    path.symlink_to(f"{boot} {about.st_ino} {about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}")


def damaged(path):
    data = bytearray(path.read_bytes())
    data[8 + int.from_bytes(data[:8], "little")] ^= 1  # of the first record
    return bytes(data)


def rewrite(path):
    path.write_bytes(damaged(path))


def lengthen(path):
    with path.open("ab") as file:
        file.write(b"!")


def replace(path):
    about, other = path.stat(), path.with_name("other")
    other.write_bytes(damaged(path))
    os.utime(other, ns=(about.st_atime_ns, about.st_mtime_ns))
    other.replace(path)


def set_back(path):
    about = path.stat()
    path.write_bytes(damaged(path))
    while path.stat().st_ctime_ns == about.st_ctime_ns or path.stat().st_mtime_ns != about.st_mtime_ns:
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))  # until the file system's clock has ticked


def test_what_was_verified_since_the_start_is_not_read_again_unless_each_opening_looks(dataset, cache):
    rewrite(chunk_of(cache))
    write_note(cache)
    rows, num_mended = load(dataset, cache := first_met(cache))
    assert (sorted({*rows} ^ {*ROWS}) != [], num_mended) == (True, 0)
    assert load(dataset, cache, verify="always") == (ROWS, 1)


@pytest.mark.parametrize("touch", [rewrite, lengthen, replace, set_back])
def test_whatever_touches_the_file_makes_its_note_wrong(dataset, cache, touch):
    touch(chunk_of(cache))
    assert load(dataset, first_met(cache)) == (ROWS, 1)


def test_whatever_is_left_of_a_file_is_found_damaged_and_built_anew(dataset, cache):
    path = chunk_of(cache)
    data = path.read_bytes()
    cut = [data[:num] for num in {*range(0, len(data), 97), 1, 7, 8, 9, len(data) - 1}]
    for left in [*cut, bytes(len(data)), b"PAR1", b"PAR1" + data[4:-4] + b"PAR1"]:
        path.write_bytes(left)
        assert load(dataset, cache) == (ROWS, 1), left[:20]
        assert path.read_bytes() == data


@pytest.mark.parametrize("touch", [rewrite, lengthen, replace])
def test_a_process_that_has_opened_the_file_looks_again_once_it_was_touched(dataset, cache, touch):
    touch(chunk_of(cache))
    assert load(dataset, cache) == (ROWS, 1)


def test_a_note_of_another_start_is_wrong(dataset, cache):
    rewrite(chunk_of(cache))
    write_note(cache, boot="another-start")
    assert load(dataset, first_met(cache)) == (ROWS, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_note_of_another_user_is_not_believed(dataset, cache):
    rewrite(chunk_of(cache))
    write_note(cache)
    os.chown(note_of(cache), 12345, 12345, follow_symlinks=False)
    assert load(dataset, first_met(cache)) == (ROWS, 1)


def test_what_goes_takes_its_note_along(dataset, cache):
    assert note_of(cache).is_symlink()
    rewrite(chunk_of(cache))
    assert main(["cache", "verify", str(cache), "--fix"]) == 3
    assert {path.name for path in (cache / "checked").iterdir()} == {path.stem for path in (cache / "chunks").iterdir()}
