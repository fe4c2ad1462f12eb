"""The cache folder: what stays in it and what goes, who uses it, and what is found wrong with it."""

import errno
import json
import os
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from tests.processes import in_threads
from tests.unit.cache.limits import file_sizes_limited_to
from xxhash import xxh3_64_hexdigest

import stoker
from stoker import CacheError
from stoker.cli import main
from stoker.testing import write_parquet

NUM_ROWS = 1000  # of a file, which is a chunk


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def lake(tmp_path):
    """Return what makes a data set of some files, by their names; each holds the numbers of its own name."""
    for i, name in enumerate("abcdefghij"):
        numbers = np.arange(i * NUM_ROWS, (i + 1) * NUM_ROWS)
        write_parquet(tmp_path / "data" / f"{name}.parquet", {"id": numbers})
    return lambda names, **options: stoker.Dataset(
        [tmp_path / "data" / f"{name}.parquet" for name in names], chunk_size="8kB", **options
    )


def loader_of(dataset, cache, **options):
    return stoker.Loader(dataset, **{"batch_size": 500, "num_threads": 1, "cache": cache, "prefetch": 1, **options})


def load(dataset, cache, **options):
    """Load an epoch, look at its rows, and return what the loader did."""
    with loader_of(dataset, cache, **options) as loader:
        return epoch(loader)


def epoch(loader):
    before, expected = loader.stats(), loader.num_samples
    rows = [row for batch in loader for row in batch["id"].tolist()]
    assert len(rows) == expected
    assert rows == sorted(set(rows))
    return loader.stats().since(before)


@pytest.fixture
def size(lake, tmp_path):
    """Bytes of each chunk."""
    load(lake("a"), tmp_path / "other")
    (path,) = (tmp_path / "other" / "chunks").iterdir()
    return path.stat().st_size


def num_chunks(cache):
    return len(list((cache / "chunks").iterdir()))


@pytest.fixture
def listed(cache, capsys):
    """List the cache as a command does: data sets by the names of their files, and all that is said."""

    def call():
        assert main(["cache", "ls", str(cache), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        sets = {"".join(Path(url).stem for url in one["urls"]): one for one in found["datasets"]}
        return sets, found

    return call


@pytest.fixture
def present(listed):
    """Return how many chunks of each data set are there."""
    return lambda: {name: one["num_present"] for name, one in listed()[0].items()}


@pytest.fixture
def run(capsys):
    """Run a command; return its exit code and what it says, an object with --json, and its errors."""

    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        out, errors = capsys.readouterr()
        return code, json.loads(out) if out and "--json" in arguments else out, errors

    return call


def enter(cache, fingerprint, *lines, urls=("lake/a",)):
    """Write down a data set, of chunks of these keys, as a cache does."""
    head = json.dumps({"name": f"Dataset({fingerprint})", "urls": urls})
    content = "".join(f"{line}\n" for line in (head, *lines)).encode()
    (cache / "datasets" / fingerprint).write_bytes(content + xxh3_64_hexdigest(content).encode())


# ---------------------------------------------------------------------- the limit


def test_a_chunk_larger_than_the_limit_is_said_once_and_used_from_memory(cache, lake, caplog):
    with loader_of(lake("abcd"), cache, cache_limit=1) as loader:
        for _ in range(2):
            assert epoch(loader).num_reused == 0
    assert num_chunks(cache) == 0
    assert len([record for record in caplog.records if "raise cache_limit" in record.message]) == 1


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="memory is counted in /proc")
@pytest.mark.parametrize("num_files", [40, 1], ids=["files", "parts of a row group"])
def test_of_chunks_in_memory_those_that_were_used_go_and_those_that_nobody_asked_for_never_come(
    cache, tmp_path, num_files
):
    numbers = np.arange(40_000 // num_files)
    for i in range(num_files):
        write_parquet(tmp_path / "data" / f"{i}.parquet", {"id": numbers}, row_group_size=len(numbers))
    dataset = stoker.Dataset(tmp_path / "data", chunk_size="8kB")
    with loader_of(dataset, cache, cache_limit=1, batch_size=1000) as loader:
        most = 0
        for _ in loader:
            num = 0
            for path in Path("/proc/self/fd").iterdir():
                with suppress(FileNotFoundError):  # a thread has closed it since
                    num += "memfd:stoker" in str(path.readlink())
            most = max(most, num)
    assert 8 <= most < 20


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memory that processes share")
def test_ranks_find_what_others_have_in_memory(cache, lake):
    with (
        loader_of(lake("abcdefghij"), cache, cache_limit=1, rank=0, world_size=2) as first,
        loader_of(lake("abcdefghij"), cache, cache_limit=1, rank=1, world_size=2) as second,
    ):
        for one, other in zip(first, second, strict=True):
            assert not {*one["id"].tolist()} & {*other["id"].tolist()}
        assert first.stats().num_built + second.stats().num_built < 15  # of ten, for either of them


def test_a_number_that_a_crash_left_too_high_keeps_nothing_out(cache, lake, size):
    with loader_of(lake("abcd"), cache, cache_limit=2 * size) as loader:
        epoch(loader)
        kept = min((cache / "chunks").iterdir())
        for _ in range(2):
            assert num_chunks(cache) == 2
            (cache / "usage").write_bytes((100 * size).to_bytes(8, "little"))
            kept.unlink(missing_ok=True)  # by hand: nobody accounts for it
            epoch(loader)


def test_data_sets_that_nobody_uses_go_first_the_least_recently_opened_before(cache, lake, size, present):
    for i, names in enumerate(("ab", "cd", "ef")):
        load(lake(names), cache)
        (path,) = [path for path in (cache / "datasets").iterdir() if path.stat().st_mtime > 1000]
        os.utime(path, (i, i))
    load(lake("ab"), cache)  # opened again since
    load(lake("gh"), cache, cache_limit=6 * size)
    assert present() == {"ab": 2, "cd": 0, "ef": 2, "gh": 2}
    with loader_of(lake("ghij"), cache, cache_limit=6 * size) as loader:
        epoch(loader)
        assert present() == {"ab": 2, "cd": 0, "ef": 0, "gh": 2, "ghij": 4}
    # What is evicted leaves no note that it was verified.
    assert {path.name for path in (cache / "checked").iterdir()} == {path.stem for path in (cache / "chunks").iterdir()}


def test_a_data_set_in_use_keeps_its_chunks_when_another_one_or_a_lower_limit_comes(cache, lake, size, present):
    with loader_of(lake("abcd"), cache, cache_limit=4 * size) as loader:
        epoch(loader)
        for names in ("abcd", "efgh"):
            load(lake(names), cache, cache_limit=2 * size)
        assert present() == {"abcd": 4, "efgh": 0}


def test_a_shared_chunk_stays_while_one_of_its_data_sets_is_in_use(cache, lake, size, present):
    load(lake("ab"), cache)
    stats = load(lake("bcd"), cache, cache_limit=2 * size)
    assert stats.num_reused == 1
    assert present() == {"ab": 1, "bcd": 2}


def test_a_lower_limit_takes_effect_when_the_data_set_is_opened_by_nobody_else(cache, lake, size):
    with loader_of(lake("abcdef"), cache) as loader:
        epoch(loader)
        loader_of(lake("abcdef"), cache, cache_limit=4 * size).close()
        assert num_chunks(cache) == 6
    loader_of(lake("abcdef"), cache, cache_limit=4 * size).close()
    assert num_chunks(cache) == 4


def test_a_limit_of_file_sizes_is_named_with_the_way_out(cache, tmp_path):
    write_parquet(tmp_path / "a.parquet", {"id": np.arange(2_000_000)})
    with (
        file_sizes_limited_to(8 << 20),
        pytest.raises(CacheError, match=rf"{cache} cannot be written to: .*`ulimit -f`.*chunk_size") as caught,
    ):
        load(stoker.Dataset(tmp_path / "a.parquet"), cache)
    assert caught.value.path == cache
    assert f"it does not fit into memory: {os.strerror(errno.EFBIG)}" in "".join(caught.value.__notes__)


def test_to_explain_steps_is_no_miss_of_their_chunks(cache, lake):
    with loader_of(lake("abcdefgh"), cache) as loader:
        for step in range(len(loader)):
            assert loader.explain(step)
        load(lake("abcdefgh"), cache)  # as another job does
        epoch(loader)
        assert loader.stats().num_missed <= 3  # with which it has begun


# ---------------------------------------------------------------------- the folder


@pytest.mark.parametrize("content", ["{", "[]", "", "\0" * 100, '{"version": 7}', "[" * 100_000])
def test_a_damaged_metadata_file_is_written_anew(cache, lake, content):
    load(lake("ab"), cache)
    (cache / "stoker-cache.json").write_text(content)
    assert load(lake("ab"), cache).num_built == 0
    assert json.loads((cache / "stoker-cache.json").read_text()) == {"format": "stoker-cache", "version": 2}


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("stoker-cache.json", '{"format": "stoker-cache", "version": 99}', "version 99.*give another folder"),
        ("holiday.jpg", "", r"no Stoker cache: it holds 'holiday\.jpg'"),
    ],
)
def test_a_folder_of_another_version_or_of_something_else_is_refused_and_left_as_it_is(
    cache, lake, name, content, match
):
    cache.mkdir()
    (cache / name).write_text(content)
    with pytest.raises(CacheError, match=match):
        loader_of(lake("a"), cache)
    assert [(path.name, path.read_text()) for path in cache.iterdir()] == [(name, content)]


def test_many_may_open_a_new_folder_at_once(cache, lake):
    for loader in in_threads(lambda name: loader_of(lake(name), cache), "abcdefgh"):
        loader.close()
    assert json.loads((cache / "stoker-cache.json").read_text())["version"] == 2
    assert (cache / "locks").stat().st_size == 0
    assert sorted(path.name for path in cache.iterdir()) == [
        "checked", "chunks", "datasets", "locks", "source", "stoker-cache.json", "tmp", "usage",
    ]  # fmt: skip


# ---------------------------------------------------------------------- looking after it


def test_chunks_of_no_data_set_are_told_apart(cache, lake, listed):
    load(lake("abc"), cache)
    os.utime(next((cache / "datasets").iterdir()), (0, 0))
    path = min((cache / "chunks").iterdir())
    path.rename(path.with_name("00" * 16 + ".safetensors"))
    loader_of(lake("abc"), cache).close()
    sets, found = listed()
    assert found["unclaimed"] == {"num_chunks": 1, "size_bytes": found["size_bytes"] - sets["abc"]["size_bytes"]}
    assert (sets["abc"]["num_chunks"], sets["abc"]["opened"] > 0) == (3, True)


def test_a_data_set_whose_file_is_damaged_is_entered_anew(cache, lake, listed):
    load(lake("ab"), cache)
    path = next((cache / "datasets").iterdir())
    before = path.read_bytes()
    path.write_text("{")
    assert listed()[0] == {}
    load(lake("ab"), cache)
    assert path.read_bytes() == before
    assert [*listed()[0]] == ["ab"]


def test_a_stray_file_among_the_chunks_is_told_and_removed_when_asked(cache, lake, run):
    load(lake("ab"), cache)
    stray = cache / "chunks" / "notes.txt"
    stray.touch()
    for arguments, is_left in ((), True), (("--fix",), False):
        code, found, _ = run("cache", "verify", cache, "--json", *arguments)
        assert (code, found["num_chunks"], found["strays"]) == (0, 2, [str(stray)])
        assert stray.exists() == is_left


def test_rm_takes_a_data_set_but_not_what_others_share_or_use(cache, lake, run, present, size):
    load(lake("ab"), cache)
    load(lake("bc"), cache)
    with loader_of(lake("de"), cache) as first:
        epoch(first)
        loader_of(lake("de"), cache).close()  # which ends no use but its own
        code, _, errors = run("cache", "rm", cache, "--all", "--yes")
        assert (code, "is in use" in errors) == (1, True)
    code, found, _ = run("cache", "rm", cache, first_url(lake("ab")), "--yes", "--json")
    assert (code, found["freed_bytes"]) == (0, size)
    assert present() == {"bc": 2, "de": 2}
    assert run("cache", "rm", cache, "--all", "--yes", "--json")[1]["freed_bytes"] == 4 * size
    assert (num_chunks(cache), present()) == (0, {})


def first_url(dataset):
    return str(dataset.sources[0])


NAMES = [
    (["lake/a"], ["aa11", "aa22"]),
    (["lake/a/"], ["aa11", "aa22"]),
    (["aa2"], ["aa22"]),
    (["BB"], ["bb33"]),
    (["lake/c", "aa1", "bb33"], ["aa11", "bb33"]),
    (["aa"], "2 fingerprints begin with 'aa': aa11, aa22"),
    (["lake"], "no data set 'lake' in the cache; there is"),
    ([""], "no data set ''"),
]


@pytest.mark.parametrize(("names", "expected"), NAMES)
def test_data_sets_are_named_by_their_source_or_the_beginning_of_their_fingerprint(cache, run, lake, names, expected):
    loader_of(lake("a"), cache).close()
    for path in (*(cache / "datasets").iterdir(), *(cache / "chunks").iterdir()):
        path.unlink()
    for i, (fingerprint, *urls) in enumerate([("bb33", "lake/b", "lake/c"), ("aa22", "lake/a"), ("aa11", "lake/a/")]):
        enter(cache, fingerprint, "k", urls=urls)
        os.utime(cache / "datasets" / fingerprint, (i, i))
    code, found, errors = run("cache", "rm", cache, *names, "--yes", "--json")
    if code:
        assert code == 2
        assert expected in " ".join(errors.split())
    else:
        assert sorted(found["removed"]) == expected


def test_no_file_beside_the_cache_is_removed_whatever_a_data_set_says_its_chunks_are(cache, lake, tmp_path, run, size):
    other = tmp_path / "model.safetensors"
    other.write_bytes(bytes(100))
    load(lake("abc"), cache)
    (path,) = (cache / "datasets").iterdir()
    keys = ["../../model", str(tmp_path / "model"), "a\0b", *(chunk.stem for chunk in (cache / "chunks").iterdir())]
    enter(cache, path.name, *keys)
    loader_of(lake("abc"), cache, cache_limit=size).close()  # which removes what is beyond the limit
    assert num_chunks(cache) == 1
    load(lake("d"), cache, cache_limit=size)  # which evicts
    assert run("cache", "rm", cache, "--all", "--yes")[0] == 0
    assert (num_chunks(cache), other.exists()) == (0, True)


# ---------------------------------------------------------------------- other processes


FORKS = """
import os, sys
import stoker

loader = stoker.Loader(stoker.Dataset(sys.argv[1]), batch_size=500, cache=sys.argv[2], num_threads=1)
if child := os.fork():
    os.waitpid(child, 0)
else:
    loader.close()
print("forked", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs forks")
def test_a_fork_ends_no_use_of_its_parent_and_has_none_once_that_has_ended(cache, lake, run):
    path = first_url(lake("a"))
    environment = os.environ | {"PYTHONPATH": str(Path(stoker.__file__).parents[1])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-W", "ignore", "-c", FORKS, path, str(cache)]
    with subprocess.Popen(command, env=environment, text=True, **pipes) as parent, closing(parent.stdin):
        assert parent.stdout.readline() == "forked\n"  # by the fork, which lives until its input ends
        assert "is in use" in run("cache", "rm", cache, "--all", "--yes")[2]
        parent.kill()
        parent.wait()
        assert run("cache", "rm", cache, "--all", "--yes")[0] == 0
    assert num_chunks(cache) == 0
