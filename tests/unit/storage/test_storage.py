"""Storages: what they list, read and refuse."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pyarrow.fs as pafs
import pytest
from fsspec.implementations.arrow import ArrowFSWrapper, HadoopFileSystem

import stoker
from stoker import SourceError, SourceMissingError
from stoker.storage import storage as storage_module
from stoker.storage.clients import checked_options, client_of
from stoker.storage.failures import NUM_TRIES, RetryingStorage, StoreError, is_transient, translated
from stoker.storage.find_storage import FsspecStorage, storage_for
from stoker.storage.object_store import ObjectStorage
from stoker.storage.storage import LocalStorage
from stoker.storage.urls import common_scheme, local_path, split_query
from stoker.testing import FlakyStorage, MemoryStorage


def local(tmp_path):
    return LocalStorage(), str(tmp_path)


def arrow(tmp_path):
    """As Hadoop's file system is opened: fsspec's view of one of pyarrow's."""
    return FsspecStorage(ArrowFSWrapper(pafs.LocalFileSystem()), root_url="hdfs://host"), f"hdfs://host{tmp_path}"


def memory(tmp_path):
    filesystem = fsspec.filesystem("memory")
    for path in sorted(p for p in tmp_path.rglob("*") if p.is_file()):
        filesystem.pipe(f"{path}", path.read_bytes())
    return storage_for(f"memory:/{tmp_path}"), f"memory:/{tmp_path}"


@pytest.fixture(params=[local, arrow, memory])
def lake(request, tmp_path):
    """A storage as data sets have it, and a folder in it."""
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "b" / "c" / "2.bin").write_bytes(b"0123456789")
    (tmp_path / "b" / "1.bin").write_bytes(b"abc")
    (tmp_path / "a.bin").write_bytes(b"x")
    storage, root = request.param(tmp_path)
    return RetryingStorage(storage, wait=lambda s: None), root


def test_a_folder_is_listed_at_any_depth_sorted_by_url(lake):
    storage, root = lake
    found = storage.list(f"{root}/b")
    assert [(info.url, info.size_bytes) for info in found] == [(f"{root}/b/1.bin", 3), (f"{root}/b/c/2.bin", 10)]
    assert storage.list(f"{root}/nothing") == []


def test_stat_and_list_agree(lake):
    storage, root = lake
    for info in storage.list(f"{root}/b"):
        assert storage.stat(info.url) == info


def test_a_range_is_read_exactly(lake):
    storage, root = lake
    assert bytes(memoryview(storage.read(f"{root}/b/c/2.bin", 3, 4))) == b"3456"
    with pytest.raises(SourceError, match=r"2\.bin"):
        storage.read(f"{root}/b/c/2.bin", 8, 4)


def test_what_is_missing_is_named(lake):
    storage, root = lake
    for url in (f"{root}/nothing.bin", f"{root}/b"):
        with pytest.raises(SourceMissingError) as caught:
            storage.stat(url)
        assert caught.value.url == url
        assert url in str(caught.value)
    with pytest.raises(SourceError):
        storage.read(f"{root}/nothing.bin", 0, 1)


def test_a_large_range_of_a_local_file_is_read_to_its_end_however_little_comes_at_a_time(tmp_path, monkeypatch):
    content = bytes(range(200))
    (tmp_path / "file").write_bytes(content)
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: preadv(fd, [buffers[0][:7]], offset))
    monkeypatch.setattr(storage_module, "LARGE_BYTES", 64)
    url = str(tmp_path / "file")
    assert bytes(LocalStorage().read(url, 30, 100)) == content[30:130]
    with pytest.raises(SourceError, match="gave 80 bytes where 100 were asked for at 120"):
        LocalStorage().read(url, 120, 100)


def test_a_changed_local_file_has_another_version(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"one")
    os.utime(path, ns=(1, 1))
    before = LocalStorage().stat(str(path))
    os.utime(path, ns=(2, 2))
    assert LocalStorage().stat(str(path)).version != before.version


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="regular"):
        LocalStorage().stat(str(tmp_path / "pipe"))


AHEAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += 7200;
    return result;
}
"""
WRITE = """
import sys, time
from pathlib import Path
from stoker.storage.storage import LocalStorage

others, own = map(Path, sys.argv[1:])
others.write_bytes(b"half")
assert time.time() - others.stat().st_mtime > 3600
LocalStorage().write(str(own), b"whole")
"""


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs gcc and LD_PRELOAD")
def test_a_host_whose_clock_is_ahead_leaves_alone_what_others_are_writing(tmp_path):
    others, own, library = tmp_path / "a.stoker-draft", tmp_path / "b", tmp_path / "ahead.so"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-o", library, "-", "-ldl"]
    subprocess.run(command, input=AHEAD.encode(), check=True)
    path = str(Path(stoker.__file__).parents[1])
    environment = os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", WRITE, others, own], env=environment, check=True)
    assert (others.read_bytes(), own.read_bytes()) == (b"half", b"whole")


def test_a_scheme_nobody_knows_is_an_error_that_names_it():
    with pytest.raises(ValueError, match="'nosuch'"):
        storage_for("nosuch://a/b")


@pytest.mark.parametrize(
    ("url", "option"), [("s3://b/a", "region"), ("gs://b/a", "access_token"), ("abfss://b@c.d/a", "account_name")]
)
def test_options_a_client_does_not_take_are_an_error_that_names_those_it_takes(url, option):
    with pytest.raises(ValueError, match=f"'no_such_option'.*{option}"):
        storage_for(url, storage_options={"no_such_option": 1})
    with pytest.raises(ValueError, match="storage_options"):
        storage_for(url, storage_options={option: 7.5})


def test_an_option_of_the_wrong_type_is_named_without_its_value():
    with pytest.raises(ValueError, match="secret_key must be str, not int") as caught:
        storage_for("s3://b/a", storage_options={"secret_key": 7316})
    assert "7316" not in str(caught.value)


def test_local_files_take_no_options():
    with pytest.raises(ValueError, match="local"):
        storage_for("/a", storage_options={"key": "x"})


def test_options_in_a_url_have_the_types_of_the_client():
    options = "?connect_timeout=60&anonymous=false&access_key=1&secret_key=2&region=r"
    assert isinstance(storage_for("s3://bucket/a" + options), ObjectStorage)
    with pytest.raises(ValueError, match=r"connect_timeout.*'soon'"):
        storage_for("s3://bucket/a?connect_timeout=soon&region=r")


def test_an_azure_url_names_container_and_account():
    given = checked_options("abfss", authority="", query="", options={})
    found = client_of("abfss", authority="box@account.dfs.core.windows.net", given=given, environment={})
    assert found.config == {"container_name": "box", "account_name": "account"}
    near = {"blob_storage_authority": "127.0.0.1:1", "blob_storage_scheme": "http"}
    found = client_of("abfss", authority="box@account.dfs.core.windows.net", given=near, environment={})
    assert found.config["endpoint"] == "http://127.0.0.1:1/account"


class _Hadoop(HadoopFileSystem):
    """Hadoop's client, which notes what it is told and connects to nothing."""

    cachable = False

    def __init__(self, **told):
        self.told = told


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("hdfs://name:8020/a/b", {"host": "name", "port": 8020}),
        ("viewfs://cluster/a/b", {"host": "viewfs://cluster", "port": 0}),
    ],
)
def test_hadoops_client_is_told_where_a_file_system_is(url, told):
    fsspec.register_implementation("hdfs", _Hadoop, clobber=True)
    try:
        storage = storage_for(url)
    finally:
        fsspec.register_implementation("hdfs", HadoopFileSystem, clobber=True)
    assert storage._filesystem.told == told
    assert repr(storage) == f"FsspecStorage({url.removesuffix('/a/b')!r})"


def test_an_etag_is_the_version_where_there_is_one():
    class Etags:
        def find(self, path, detail):
            return {"bucket/a": {"name": "bucket/a", "size": 3, "ETag": "e1", "LastModified": "yesterday"}}

        def invalidate_cache(self):
            pass

        def _strip_protocol(self, url):
            return url.removeprefix("x://")

    (info,) = FsspecStorage(Etags(), root_url="x://").list("x://bucket")
    assert (info.url, info.version) == ("x://bucket/a", "e1")


@pytest.mark.parametrize(
    ("given", "expected"),
    [("/a/b/", "/a/b/"), ("/a/../b", "/b"), ("/a//b/.", "/a/b")],
)
def test_local_paths_are_absolute(given, expected):
    assert local_path(given) == expected


def test_options_in_a_url_are_told_from_a_glob():
    assert split_query("s3://b/k?endpoint_override=h") == ("s3://b/k", "endpoint_override=h")
    assert split_query("s3://b/k?.parquet") == ("s3://b/k?.parquet", "")
    assert split_query("/a?b=c") == ("/a?b=c", "")


def test_sources_of_two_stores_are_refused():
    with pytest.raises(ValueError, match="file, s3"):
        common_scheme(["s3://a", "/b"])


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (OSError("error sending request"), True),
        (RuntimeError("throttled"), True),
        (FileNotFoundError(), False),
        (PermissionError(), False),
        (OSError("error sending request for part-00403.parquet"), True),
        (StoreError("503 SlowDown", status=503), True),
        (StoreError("429", status=429), True),
        (StoreError("400 RequestTimeout", status=400), True),
        (StoreError("400 Bad Request", status=400), False),
        (StoreError("400 ExpiredToken", status=400), False),
        (StoreError("401", status=401), False),
        (StoreError("403", status=403), False),
        (StoreError("404", status=404), False),
        (OSError("AccessDenied"), False),
        (OSError("Received redirect without LOCATION"), False),
        (RuntimeError("403 Client Error: Forbidden for url"), False),
        (OSError("NoSuchKey"), False),
        (ValueError(), False),
    ],
)
def test_only_failures_of_the_way_are_transient(error, again):
    assert is_transient(error) is again
    with pytest.raises(SourceError) as caught, translated("u", doing="reading"):
        raise error
    assert is_transient(caught.value) is again


def test_a_read_that_fails_is_tried_again():
    waits = []
    flaky = FlakyStorage(MemoryStorage({"a": b"12345"}), reads=[1, 2, 3])
    assert bytes(memoryview(RetryingStorage(flaky, wait=waits.append).read("a", 1, 2))) == b"23"
    assert len(waits) == 3
    assert waits == sorted(waits)


def test_a_storage_that_stays_down_is_given_up_with_its_name():
    flaky = FlakyStorage(MemoryStorage({"a": b"12345"}), every=1)
    with pytest.raises(SourceError, match=r"reading a failed: connection reset") as caught:
        RetryingStorage(flaky, wait=lambda s: None).read("a", 0, 1)
    assert flaky.num_reads == NUM_TRIES
    assert caught.value.__notes__ == ["given up after 4 tries"]


def test_who_is_told_to_stop_does_not_try_again():
    flaky = FlakyStorage(MemoryStorage({"a": b"12345"}), every=1)
    with pytest.raises(SourceError):
        RetryingStorage(flaky, wait=lambda s: True).read("a", 0, 1)
    assert flaky.num_reads == 1


def test_what_is_missing_is_not_looked_for_twice():
    storage = MemoryStorage()
    with pytest.raises(SourceMissingError):
        RetryingStorage(storage, wait=lambda s: pytest.fail("waited")).stat("a")
    assert storage.num_stats == 1


def test_a_short_read_is_an_error():
    class Short(MemoryStorage):
        def read(self, url, offset, num_bytes):
            return b"x"

    with pytest.raises(SourceError, match="gave 1 of the 5 bytes"):
        RetryingStorage(Short(), wait=lambda s: None).read("a", 0, 5)


def test_a_storage_that_is_there_does_not_wait_until_another_one_is_made():
    has_begun, may_end = threading.Event(), threading.Event()

    def make():
        has_begun.set()
        assert may_end.wait(20)
        return MemoryStorage({"a": b"late"})

    late, there = RetryingStorage(make), RetryingStorage(MemoryStorage({"a": b"there"}))
    with ThreadPoolExecutor(2) as pool:
        of_late = pool.submit(late.read, "a", 0, 4)
        try:
            assert has_begun.wait(20)
            assert bytes(pool.submit(there.read, "a", 0, 5).result(timeout=10)) == b"there"
        finally:
            may_end.set()
        assert bytes(of_late.result(timeout=20)) == b"late"
