"""Hosts, which are folders with caches of their own, and one mirror: what one has built no other builds again."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

for _module in ("moto", "flask", "flask_cors"):
    pytest.importorskip(_module, reason="needs an S3 server: pip install 'moto[s3]' flask flask-cors")

from tests.conftest import REPOSITORY
from tests.crash.builders import dataset_of
from tests.integration.s3_server import refusal
from tests.strategies import write_files

import stoker

pytestmark = pytest.mark.timeout(120)

SIZES = [100, 257, 64, 300]
NUM_ROWS = sum(SIZES)
_numbers = itertools.count()


@pytest.fixture
def data(tmp_path, monkeypatch):
    folder = write_files(tmp_path / "data", SIZES, row_group_size=20)
    (tmp_path / "marks").touch()
    monkeypatch.setenv("STOKER_TEST_DATA", str(folder))
    monkeypatch.setenv("STOKER_TEST_MARKS", str(tmp_path / "marks"))
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY}:{REPOSITORY / 'src'}")
    return folder


@pytest.fixture(params=["S3", pytest.param("a folder", marks=pytest.mark.slow)])
def mirror(request, server, tmp_path, monkeypatch):
    if request.param == "a folder":
        return str(tmp_path / "mirror")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server.endpoint}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return server.make_bucket(f"mirror-{next(_numbers)}") + "/stoker"


def transforms(tmp_path):
    """Return how often each chunk was transformed, by its first row."""
    return Counter(map(int, (tmp_path / "marks").read_text().split()))


def warm(tmp_path, mirror, host, *options):
    """Start `stoker warm` on a host."""
    command = ["warm", str(Path(__file__).with_name("mirrored.py")) + ":dataset", "--cache", str(tmp_path / host)]
    return subprocess.Popen(
        [sys.executable, "-m", "stoker.cli", *command, "--mirror", mirror, "--json", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(process):
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return json.loads(out)


def loader_of(data, tmp_path, host, mirror, **options):
    cache = stoker.Cache(tmp_path / host, mirror=mirror, **options)
    return stoker.Loader(dataset_of(data), batch_size=20, shuffle=True, window=3, num_threads=2, cache=cache)


def rows(loader):
    return sorted(int(x) for batch in loader for x in batch["x"][:, 0])


def everything_is_uploaded(loader):
    while (stats := loader.stats()).num_uploaded < stats.num_built:
        assert not stats.num_mirror_failures
    return stats


def test_parts_on_three_hosts_build_each_chunk_once_though_one_is_killed_and_training_builds_none(
    data, tmp_path, mirror
):
    killed, *others = [warm(tmp_path, mirror, f"warm-{i}", "--part", f"{i}/3") for i in range(3)]
    while len(transforms(tmp_path)) < 4:
        assert killed.poll() is None
    killed.kill()
    killed.communicate()
    before = transforms(tmp_path)
    again = ended(warm(tmp_path, mirror, "warm-of-another-node", "--part", "0/3"))
    told = [ended(process) for process in others]
    counts = transforms(tmp_path)
    assert sum(one["num_chunks"] for one in [again, *told]) == len(counts)
    assert set(counts.values()) <= {1, 2}
    assert sum(counts.values()) - len(counts) <= len(before)
    assert all(one["is_complete"] and not one["num_not_uploaded"] for one in [again, *told])
    for host in ("a", "b", "c"):
        with loader_of(data, tmp_path, host, mirror) as loader:
            assert rows(loader) == list(range(NUM_ROWS))
            assert (loader.stats().num_built, loader.stats().num_fetched) == (0, len(counts))
            assert loader.stats().fetched_bytes == 0
    assert transforms(tmp_path) == counts


def test_what_one_host_builds_while_it_trains_two_others_read_neither_from_the_source_nor_transform(
    data, tmp_path, mirror
):
    with loader_of(data, tmp_path, "a", mirror) as loader:
        assert rows(loader) == list(range(NUM_ROWS))
        num_chunks = everything_is_uploaded(loader).num_built
    counts = transforms(tmp_path)
    assert list(counts.values()) == [1] * num_chunks
    for host in ("b", "c"):
        with loader_of(data, tmp_path, host, mirror) as loader:
            for _ in range(2):
                assert rows(loader) == list(range(NUM_ROWS))
            stats = loader.stats()
            assert (stats.num_built, stats.num_fetched, stats.num_mirror_failures) == (0, num_chunks, 0)
            assert stats.fetched_bytes == 0
            assert f"{num_chunks:,} fetched from the mirror" in str(stats)
    assert transforms(tmp_path) == counts


def test_a_warm_cache_is_put_into_a_mirror_that_comes_later(data, tmp_path, mirror):
    with loader_of(data, tmp_path, "a", None) as loader:
        rows(loader)
        num_chunks = loader.stats().num_built
    assert ended(warm(tmp_path, mirror, "a"))["num_built"] == 0
    assert ended(warm(tmp_path, mirror, "b"))["num_fetched"] == num_chunks


def test_parts_need_no_more_disk_than_a_few_chunks(data, tmp_path, mirror):
    told = ended(warm(tmp_path, mirror, "a", "--part", "0/1", "--cache-limit", "40KB"))
    assert told["is_complete"], told
    assert sum(path.stat().st_size for path in (tmp_path / "a" / "chunks").iterdir()) <= 40_000
    with loader_of(data, tmp_path, "b", mirror) as loader:
        assert rows(loader) == list(range(NUM_ROWS))
        assert loader.stats().num_built == 0


def test_a_mirror_that_stops_and_lies_in_the_middle_changes_no_row(data, tmp_path, server, caplog):
    bucket = server.make_bucket(f"mirror-{next(_numbers)}")
    options = server.options(secret_key="hush-hush")
    with loader_of(data, tmp_path, "a", f"{bucket}/x", mirror_options=options) as loader:
        expected = [batch["x"].tolist() for batch in loader]
        everything_is_uploaded(loader)
    requests = itertools.count()

    def lie_and_stop(environ):
        if "/x/" not in environ["PATH_INFO"] or (number := next(requests)) < 8:
            return None
        if number < 20 and environ["REQUEST_METHOD"] == "GET":
            return refusal(206, "what is no chunk")
        return refusal(403 if number % 2 else 500, "AccessDenied")

    server.fault = lie_and_stop
    with loader_of(data, tmp_path, "b", f"{bucket}/x", mirror_options=options) as loader:
        assert [batch["x"].tolist() for batch in loader] == expected
        stats = loader.stats()
    assert stats.num_built
    assert stats.num_fetched
    assert stats.num_mirror_failures
    assert 1 <= len([record for record in caplog.records if "the mirror" in record.message]) <= 3
    assert "hush" not in caplog.text
    assert not [path for path in (tmp_path / "b").rglob("*") if path.is_file() and b"hush" in path.read_bytes()]
    assert not [request for request in server.requests if "hush" in request]


@pytest.mark.parametrize("what", ["down", "no bucket", "a file"])
def test_a_mirror_that_was_never_there_costs_a_warning(data, tmp_path, server, what, caplog):
    options = server.options()
    if what == "down":
        options["endpoint_override"] = "127.0.0.1:9"
    mirror = f"s3://nobody-has-this-{next(_numbers)}/x"
    if what == "a file":
        options, mirror = None, str(tmp_path / "in-the-way")
        Path(mirror).write_text("no folder")
    with loader_of(data, tmp_path, "a", mirror, mirror_options=options) as loader:
        assert rows(loader) == list(range(NUM_ROWS))
        assert loader.stats().num_built
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert f"the mirror {mirror} cannot be" in caplog.text
