"""Hosts, which are folders with caches of their own, and a mirror: what comes from it, and what is not believed."""

from __future__ import annotations

import json

import pytest
from tests.processes import wait_until
from tests.strategies import write_files
from tests.unit.cache.chunk_files import with_longer_header

import stoker
from stoker import Cache
from stoker.cli import main

NUM_ROWS = 200


class Hosts:
    """Hosts that load the same rows, and the folder that is their mirror."""

    def __init__(self, folder):
        self.folder, self.mirror = folder, folder / "mirror"
        self.data = write_files(folder / "data", [NUM_ROWS], row_group_size=20)

    def load(self, host, *, has_mirror=True, **options):
        """Load an epoch on a host, and wait until what it built is uploaded; return what it did."""
        cache = Cache(self.folder / host, mirror=self.mirror if has_mirror else None, **options)
        dataset = stoker.Dataset(self.data, chunk_size="1kB")
        with stoker.Loader(dataset, batch_size=20, num_threads=1, cache=cache) as loader:
            assert [x for batch in loader for x in batch["id"].tolist()] == list(range(NUM_ROWS))
            if has_mirror:
                wait_until(lambda: loader.stats().num_uploaded >= loader.stats().num_built)
            return loader.stats()

    def warm(self, host, capsys):
        """Have the chunks of a host uploaded by the command, and return what it says."""
        arguments = [self.data, "--chunk-size", "1kB", "--cache", self.folder / host, "--mirror", self.mirror]
        assert main(["warm", *map(str, arguments), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    def chunks(self, host):
        return {path.name: path.read_bytes() for path in (self.folder / host / "chunks").iterdir()}

    def objects(self):
        return {path.name: path.read_bytes() for path in self.mirror.iterdir()}


@pytest.fixture
def hosts(tmp_path):
    return Hosts(tmp_path)


def damaged(data, at):
    """Return a chunk file of which a bit is another one, or that is cut short."""
    at = {"length": 3, "header": 200, "record": 8 + int.from_bytes(data[:8], "little"), "end": len(data) - 1}[at]
    return data[:at] if at == len(data) - 1 else data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def test_chunks_that_one_host_has_built_are_fetched_by_another_and_are_the_same_files(hosts):
    first = hosts.load("a")
    second = hosts.load("b")
    assert first.num_uploaded == first.num_built == second.num_fetched == 10
    assert (second.num_built, second.num_uploaded, second.num_mirror_failures) == (0, 0, 0)
    assert hosts.chunks("a") == hosts.chunks("b") == hosts.objects()


def test_what_is_there_is_not_put_there_again(hosts, capsys):
    hosts.load("a")
    before = {path: path.stat().st_mtime_ns for path in hosts.mirror.iterdir()}
    hosts.load("b", has_mirror=False)
    assert hosts.warm("b", capsys)["num_not_uploaded"] == 0
    assert {path: path.stat().st_mtime_ns for path in hosts.mirror.iterdir()} == before


@pytest.mark.parametrize("at", ["length", "header", "record", "end"])
def test_a_damaged_chunk_is_not_taken_and_what_is_built_in_its_place_mends_the_mirror(hosts, at, caplog):
    hosts.load("a")
    sound = hosts.objects()
    path = hosts.mirror / min(sound)
    path.write_bytes(damaged(sound[path.name], at))
    stats = hosts.load("b")
    assert (stats.num_built, stats.num_fetched, stats.num_mirror_failures) == (1, 9, 1)
    assert "holds what is damaged" in caplog.text
    assert list((hosts.folder / "b" / "tmp").iterdir()) == []
    assert hosts.objects() == hosts.chunks("b") == sound


def test_a_sound_chunk_under_another_name_is_not_taken(hosts):
    hosts.load("a")
    one, other, *_ = sorted(hosts.mirror.iterdir())
    other.write_bytes(one.read_bytes())
    stats = hosts.load("b")
    assert (stats.num_built, stats.num_mirror_failures) == (1, 1)
    assert hosts.chunks("b") == hosts.chunks("a")


def test_a_chunk_with_as_long_a_header_as_the_format_allows_is_fetched(hosts):
    hosts.load("a")
    path = min(hosts.mirror.iterdir())
    path.write_bytes(with_longer_header(path.read_bytes(), 16 << 20))
    stats = hosts.load("b")
    assert (stats.num_fetched, stats.num_mirror_failures) == (10, 0)
    assert hosts.chunks("b") == hosts.objects()


def test_chunks_for_which_the_folder_has_no_room_come_and_go_through_memory(hosts):
    hosts.load("a")
    stats = hosts.load("b", limit=1)
    assert (stats.num_built, stats.num_mirror_failures) == (0, 0)
    assert stats.num_fetched >= 10
    assert hosts.chunks("b") == {}


def test_what_is_damaged_here_is_not_put_there(hosts, capsys):
    hosts.load("a", has_mirror=False)
    sound = hosts.chunks("a")
    path = hosts.folder / "a" / "chunks" / min(sound)
    path.write_bytes(damaged(sound.pop(path.name), "record"))
    hosts.warm("a", capsys)
    assert hosts.objects() == sound


@pytest.mark.parametrize(
    "url",
    ["s3://AKIA:hush@bucket/x", "s3://bucket/x?secret_key=hush", "https://me:hush@host/x", "abfss://a:hush@b.dfs/x"],
)
def test_a_url_with_what_may_be_credentials_is_refused_without_showing_them(url):
    with pytest.raises(ValueError, match="mirror_options") as caught:
        Cache("/nvme", mirror=url)
    assert "hush" not in str(caught.value)


def test_options_of_a_mirror_are_shown_nowhere(tmp_path):
    cache = Cache(tmp_path / "cache", mirror="s3://bucket/x", mirror_options={"secret_key": "hush"})
    assert "hush" not in repr(cache)
    with pytest.raises(ValueError, match="without a mirror"):
        Cache(tmp_path / "cache", mirror_options={"secret_key": "hush"})
    with pytest.raises(TypeError, match="mirror"):
        Cache(tmp_path / "cache", mirror=7)


@pytest.mark.parametrize(
    ("mirror", "options", "says"), [("s3://bucket/x", {"nope": 1}, "nope"), ("nobody://x/y", None, "nobody")]
)
def test_a_mirror_that_no_client_can_open_is_a_wrong_argument(tmp_path, mirror, options, says):
    dataset = stoker.Dataset(write_files(tmp_path / "data", [10]))
    with pytest.raises(ValueError, match=says):
        stoker.Loader(dataset, batch_size=5, cache=Cache(tmp_path / "cache", mirror=mirror, mirror_options=options))
