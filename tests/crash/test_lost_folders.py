"""A cache folder that goes, fails or is another's while training needs it, or from the beginning."""

from __future__ import annotations

import os
import shutil
import stat

import pytest
from tests.strategies import write_files

import stoker

NUM_ROWS = 600


@pytest.fixture
def dataset(tmp_path):
    return stoker.Dataset(write_files(tmp_path / "data", [NUM_ROWS], row_group_size=20), chunk_size=1_000)


def ids_of(loader):
    return sorted(x for batch in loader for x in batch["id"].tolist())


def loader_of(dataset, cache, **options):
    return stoker.Loader(dataset, batch_size=20, shuffle=True, window=3, num_threads=1, cache=cache, **options)


def remove(folder):
    gone = folder.rename(folder.with_name("gone"))
    while gone.exists():
        shutil.rmtree(gone, ignore_errors=True)  # a thread may still write to it


def move(folder):
    folder.rename(folder.with_name("elsewhere"))


@pytest.mark.parametrize("lose", [remove, move])
def test_a_folder_that_goes_while_training_is_made_anew_and_said_once(dataset, tmp_path, lose, caplog):
    cache = tmp_path / "cache"
    with loader_of(dataset, cache) as loader:
        seen = []
        for epoch in range(3):
            for step, batch in enumerate(loader):
                seen += batch["id"].tolist()
                if (epoch, step) == (1, 3):
                    lose(cache)
        assert sorted(seen) == sorted(3 * list(range(NUM_ROWS)))
        before = loader.stats()
        assert ids_of(loader) == list(range(NUM_ROWS))
        assert loader.stats().since(before).num_built == 0 or lose is remove
    assert len([record for record in caplog.records if "removed or moved" in record.message]) <= 1
    with loader_of(dataset, cache) as loader:
        assert ids_of(loader) == list(range(NUM_ROWS))


@pytest.mark.parametrize("name", ["chunks", "tmp", "datasets", "checked", "source"])
@pytest.mark.parametrize("lose", [remove, move])
def test_a_folder_in_the_cache_that_goes_while_training_is_made_anew(dataset, tmp_path, name, lose):
    cache = tmp_path / "cache"
    with loader_of(dataset, cache) as loader:
        next(iter(loader))
        lose(cache / name)
        assert ids_of(loader) == list(range(NUM_ROWS))
        assert ids_of(loader) == list(range(NUM_ROWS))
        assert stat.S_IMODE((cache / name).stat().st_mode) == 0o700
    with loader_of(dataset, cache) as loader:
        assert ids_of(loader) == list(range(NUM_ROWS))
        assert loader.stats().num_built < 5  # what was being written then was used from memory


def test_where_the_folder_cannot_be_made_anew_training_goes_on_and_takes_it_up_when_it_can(dataset, tmp_path, caplog):
    cache = tmp_path / "cache"
    with loader_of(dataset, cache, cache_limit="1GB") as loader:
        next(iter(loader))
        cache.rename(tmp_path / "elsewhere")  # in one step: threads write to it meanwhile
        cache.write_text("in the way")
        for _ in range(2):
            assert ids_of(loader) == list(range(NUM_ROWS))
        told = [record.message for record in caplog.records]
        assert len(set(told)) == len(told) <= 2  # each reason once: it was not there, and then a file was
        assert f"the cache {cache} cannot be written to: Not a directory" in caplog.text
        cache.unlink()
        assert ids_of(loader) == list(range(NUM_ROWS))
        assert len(list((cache / "chunks").iterdir())) > 1


def test_folders_and_files_are_this_users_alone_whatever_the_umask(dataset, tmp_path):
    before = os.umask(0)
    try:
        with loader_of(dataset, tmp_path / "cache") as loader:
            list(loader)
        with loader_of(dataset, stoker.Cache(tmp_path / "shared", is_shared=True)) as loader:
            list(loader)
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.lstat().st_mode) for path in (tmp_path / "cache").rglob("*") if not path.is_symlink()}
    assert modes == {0o700, 0o600}
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "shared" / "chunks").iterdir()} == {0o660}
    assert stat.S_IMODE((tmp_path / "shared" / "chunks").stat().st_mode) == 0o2770


@pytest.mark.parametrize(("mode", "who"), [(0o770, "a group"), (0o707, "everybody")])
def test_a_folder_that_others_may_write_to_is_refused_unless_it_is_shared(dataset, tmp_path, mode, who):
    with loader_of(dataset, tmp_path / "cache") as loader:
        list(loader)
    (tmp_path / "cache" / "chunks").chmod(mode)
    with pytest.raises(stoker.CacheError, match=rf"{tmp_path / 'cache' / 'chunks'} may be written to by {who}"):
        loader_of(dataset, tmp_path / "cache")
    if who == "a group":
        with loader_of(dataset, stoker.Cache(tmp_path / "cache", is_shared=True)) as loader:
            assert ids_of(loader) == list(range(NUM_ROWS))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_root_uses_no_other_users_cache_without_a_word(dataset, tmp_path):
    with loader_of(dataset, tmp_path / "cache") as loader:
        list(loader)
    os.chown(tmp_path / "cache" / "chunks", 12345, 12345)
    with pytest.raises(stoker.CacheError, match=r"belongs to user 12345.*is_shared=True"):
        loader_of(dataset, tmp_path / "cache")
    with loader_of(dataset, stoker.Cache(tmp_path / "cache", is_shared=True)) as loader:
        assert ids_of(loader) == list(range(NUM_ROWS))


@pytest.mark.parametrize("verify", ["boot", "always"])
def test_a_disk_that_gives_other_bytes_is_noticed_where_every_opening_looks(dataset, tmp_path, verify):
    with loader_of(dataset, stoker.Cache(tmp_path / "cache", verify=verify)) as loader:
        expected = [batch["id"].tolist() for batch in loader]
        path = min((tmp_path / "cache" / "chunks").iterdir())
        about = path.stat()
        data = bytearray(path.read_bytes())
        data[4100] ^= 1  # in the first record
        path.write_bytes(data)
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))  # as if nothing had been written
        loader.set_epoch(0)
        assert [batch["id"].tolist() for batch in loader] == expected or verify == "boot"
        assert loader.stats().num_mended == (verify == "always")


def test_a_chunk_that_changes_is_noticed_when_its_window_opens(dataset, tmp_path):
    with loader_of(dataset, tmp_path / "cache") as loader:
        expected = [batch["id"].tolist() for batch in loader]
        path = min((tmp_path / "cache" / "chunks").iterdir())
        data = bytearray(path.read_bytes())
        data[4100] ^= 1
        path.unlink()
        path.write_bytes(data)
        loader.set_epoch(0)
        assert [batch["id"].tolist() for batch in loader] == expected
        assert loader.stats().num_mended == 1


def test_a_scrub_finds_what_the_disk_has_lost_while_nobody_uses_it_and_the_next_use_mends_it(dataset, tmp_path, caplog):
    with loader_of(dataset, tmp_path / "cache") as loader:
        expected = [batch["id"].tolist() for batch in loader]
    path = min((tmp_path / "cache" / "chunks").iterdir())
    data = bytearray(path.read_bytes())
    data[4100] ^= 1
    path.write_bytes(data)
    with loader_of(dataset, stoker.Cache(tmp_path / "cache", scrub="1GB")) as loader:
        while path.exists():  # nobody has asked for it
            pass
        assert [batch["id"].tolist() for batch in loader] == expected
        assert loader.stats().num_mended == 1
    assert "the checksum of 'records' differs; it was removed" in caplog.text


def test_two_ways_to_say_a_limit_are_one_too_many(dataset, tmp_path):
    with pytest.raises(ValueError, match="told twice"):
        loader_of(dataset, stoker.Cache(tmp_path / "cache", limit="1GB"), cache_limit="1GB")
