"""Whoever may write to a cache folder puts links and devices there: nothing outside is touched, by root either."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples, write_files

import stoker
from stoker.cli import main

PLACES = (
    "stoker-cache.json", "usage", "locks", "chunks", "tmp", "datasets", "checked", "source", "overflow",
    "chunks/{key}", "chunks/{key}.safetensors", "chunks/other.safetensors", "chunks/notes", "tmp/{key}.1xdead-0",
    "tmp/notes", "datasets/{dataset}", "datasets/other", "datasets/.new", "checked/{key}", "checked/other",
    "source/{source}", "source/other",
)  # fmt: skip
THINGS = (
    "link to folder",
    "link to file",
    "link to nothing",
    "second name",
    "folder",
    "fifo",
    "socket",
    "device",
    "file",
)
NUM_ROWS = 120


def snapshot(folder: Path) -> dict[str, object]:
    """Return everything about a tree but when it was read and how many names its files have."""
    found: dict[str, object] = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        about = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(about.st_mode) else None
        found[str(path)] = (about.st_mode, about.st_uid, about.st_gid, about.st_mtime_ns, about.st_ino, content)
    return found


def put(thing: str, path: Path, outside: Path) -> None:
    """Put a thing in the place of what lies there, keeping the content of a folder that becomes a link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:  # a pipe, too: whoever writes to one waits for a reader
        path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    if thing == "link to folder":
        path.symlink_to(outside / "folder")
    elif thing == "link to file":
        path.symlink_to(outside / "folder" / "file")
    elif thing == "link to nothing":
        path.symlink_to(outside / "new")
    elif thing == "second name":
        path.hardlink_to(outside / "folder" / "file")
    elif thing == "folder":
        (path / "inner").mkdir(parents=True)
    elif thing == "fifo":
        os.mkfifo(path)
    elif thing == "socket":
        with socket.socket(socket.AF_UNIX) as one, inside(path.parent):
            one.bind(path.name)
    elif thing == "device":
        with suppress(PermissionError):
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7))  # /dev/full
    else:
        path.write_bytes(b"{")


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder: the names of sockets are short."""
    before = Path.cwd()
    os.chdir(folder)
    yield
    os.chdir(before)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A data set, and a cache that has all of it."""
    folder = tmp_path_factory.mktemp("made")
    dataset = stoker.Dataset(write_files(folder / "data", [NUM_ROWS], row_group_size=20), chunk_size=1_000)
    with stoker.Loader(dataset, batch_size=20, cache=folder / "cache") as loader:
        list(loader)
    return dataset, folder / "cache"


@examples(12)
@given(things=st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(THINGS)), min_size=1, max_size=4))
def test_nothing_outside_a_cache_is_touched_whatever_lies_in_it(made, things):
    check(made, things)


@pytest.mark.parametrize("place", ["chunks", "tmp", "datasets", "checked", "source"])
def test_a_folder_of_the_cache_that_is_a_link_is_an_error_that_names_it(made, place):
    with tree(made) as (cache, outside):
        put("link to folder", cache / place, outside)
        with pytest.raises(stoker.CacheError, match=rf"{cache / place} is a link where a folder of the cache"):
            stoker.Loader(made[0], batch_size=20, cache=cache)


def loader_of(dataset, **options):
    """Return a loader; a `CacheError` says what is in the way."""
    return stoker.Loader(dataset, batch_size=20, num_threads=1, **options)


def check(made, things) -> None:
    dataset, template = made
    names = {
        "key": min(path.stem for path in (template / "chunks").iterdir()),
        "dataset": min(path.name for path in (template / "datasets").iterdir()),
        "source": min(path.name for path in (template / "source").iterdir()),
    }
    with tree(made) as (cache, outside):
        for place, thing in things:
            with suppress(OSError):  # in something that is no folder any more
                put(thing, cache / place.format_map(names), outside)
        before = snapshot(outside)
        for limit in (None, "3kB"):
            with suppress(stoker.CacheError), loader_of(dataset, cache=cache, cache_limit=limit) as loader:
                assert [x for batch in loader for x in batch["id"].tolist()] == list(range(NUM_ROWS))
            assert snapshot(outside) == before
        for arguments in (["ls", cache], ["verify", cache, "--fix"], ["rm", cache, "--all", "--yes"]):
            main(["cache", *map(str, arguments)])
            assert snapshot(outside) == before


@contextmanager
def tree(made) -> Iterator[tuple[Path, Path]]:
    """Give a cache of one's own, and a folder outside of it."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        outside = Path(name) / "outside"
        (outside / "folder" / "deeper").mkdir(parents=True)
        for path in ("file", "one.safetensors", "deeper/two.safetensors", "deeper/file"):
            (outside / "folder" / path).write_bytes(b"do not touch")
        shutil.copytree(made[1], Path(name) / "cache", symlinks=True)
        yield Path(name) / "cache", outside
