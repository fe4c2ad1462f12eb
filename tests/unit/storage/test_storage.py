"""What stores give, as data sets show it: what is listed and read, what is refused, and what is tried again."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.arrow import ArrowFSWrapper, HadoopFileSystem
from tests.strategies import write_files

import stoker
from stoker import Dataset, SourceError, SourceMissingError
from stoker.testing import FlakyStorage, MemoryStorage, example_table, write_parquet


def parquet(num_rows=10):
    file = io.BytesIO()
    pq.write_table(example_table(num_rows), file)
    return file.getvalue()


CONTENT = parquet()


def at_once(seconds):
    """A pause that is none."""


def not_at_all(seconds):
    pytest.fail("waited")


def ids(catalogue):
    return [i for k in range(len(catalogue)) for _, table in catalogue.read(k) for i in table["id"].to_pylist()]


class Hadoop(HadoopFileSystem):
    """Hadoop's client, which notes what it is told, and gives the files of this machine."""

    cachable = False

    def __init__(self, **told):
        ArrowFSWrapper.__init__(self, pafs.LocalFileSystem())
        type(self).told = told


@pytest.fixture
def hadoop():
    fsspec.register_implementation("hdfs", Hadoop, clobber=True)
    yield Hadoop
    fsspec.register_implementation("hdfs", HadoopFileSystem, clobber=True)


@pytest.fixture(params=["local", "hdfs", "memory"])
def lake(request, tmp_path, hadoop):
    """A folder in a store of each kind."""
    for name, num_rows in (("b/c/2.parquet", 10), ("b/1.parquet", 3), ("a.parquet", 1)):
        write_parquet(tmp_path / name, example_table(num_rows))
    if request.param == "memory":
        filesystem = fsspec.filesystem("memory")
        for path in tmp_path.rglob("*.parquet"):
            filesystem.pipe(str(path), path.read_bytes())
    return {"local": str(tmp_path), "hdfs": f"hdfs://host{tmp_path}", "memory": f"memory:/{tmp_path}"}[request.param]


def test_a_folder_is_listed_at_any_depth_sorted_by_url_and_read(lake):
    catalogue = Dataset(f"{lake}/b").open()
    assert [file.url for file in catalogue.files] == [f"{lake}/b/1.parquet", f"{lake}/b/c/2.parquet"]
    assert ids(catalogue) == [*range(3), *range(10)]


def test_a_file_is_the_same_whether_it_is_listed_or_named(lake):
    listed = Dataset(f"{lake}/b").open().files
    assert Dataset([file.url for file in listed]).open().files == listed


@pytest.mark.parametrize("name", ["nothing.parquet", "b/nothing"])
def test_what_is_missing_is_named_and_not_waited_for(lake, name):
    with pytest.raises(SourceMissingError) as caught:
        Dataset(f"{lake}/{name}").open(wait=not_at_all)
    assert caught.value.url == f"{lake}/{name}"
    assert f"{lake}/{name}" in str(caught.value)


@pytest.mark.parametrize("name", ["{}/", "{}/.", "{}//b/..", "{}/b/../b/.."])
def test_local_names_are_absolute_and_short(tmp_path, name):
    write_parquet(tmp_path / "b" / "a.parquet", example_table(3))
    (file,) = Dataset(name.format(tmp_path)).open().files
    assert file.url == f"{tmp_path}/b/a.parquet"


def test_an_equals_sign_behind_a_question_mark_is_a_part_of_a_local_name(tmp_path):
    path = write_parquet(tmp_path / "a?b=c.parquet", example_table(3))
    assert ids(Dataset(path).open()) == [0, 1, 2]


ENDS_EARLY = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(not ENDS_EARLY.exists(), reason="no file that is shorter than the system says")
def test_a_local_file_that_ends_before_its_end_is_an_error_that_says_so():
    with pytest.raises(SourceError, match=r"gave \d+ bytes where [\d,]+ were asked for at [\d,]+"):
        Dataset(ENDS_EARLY).open(wait=not_at_all)


ODD_HOST = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = REAL(clock_gettime)(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += 7200;
    return result;
}
static size_t little(int fd, size_t size) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t end = readlink(link, path, sizeof path);
    return size > 1000 && end > 8 && !memcmp(path + end - 8, ".parquet", 8) ? 1000 : size;
}
ssize_t pread64(int fd, void *to, size_t size, off64_t offset) {
    return REAL(pread64)(fd, to, little(fd, size), offset);
}
ssize_t preadv64(int fd, const struct iovec *to, int num, off64_t offset) {
    struct iovec some = {to->iov_base, little(fd, to->iov_len)};
    return REAL(preadv64)(fd, &some, 1, offset);
}
"""
TRAIN = """
import os, sys, time
from pathlib import Path
import stoker

data, folder = sys.argv[1], Path(sys.argv[2])
others = folder / "mirror" / "a.stoker-draft"
others.parent.mkdir()
others.write_bytes(b"half")
left = others.with_name("b.stoker-draft")  # of a host that was killed long ago
left.write_bytes(b"half")
os.utime(left, (0, 0))
assert time.time() - others.stat().st_mtime > 3600
cache = stoker.Cache(folder / "cache", mirror=folder / "mirror")
with stoker.Loader(stoker.Dataset(data), batch_size=100, cache=cache) as loader:
    print([int(i) for batch in loader for i in batch["id"]] == [*range(500)])
    while loader.stats().num_uploaded < loader.stats().num_built:
        assert not loader.stats().num_mirror_failures
print(others.read_bytes(), left.exists(), len(list(others.parent.glob("*.safetensors"))))
"""


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs gcc and LD_PRELOAD")
def test_a_host_that_reads_little_at_a_time_reads_all_and_one_whose_clock_is_ahead_removes_old_drafts_alone(tmp_path):
    data, library = write_files(tmp_path / "data", [300, 200]), tmp_path / "odd.so"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-o", library, "-", "-ldl"]
    subprocess.run(command, input=ODD_HOST.encode(), check=True)
    environment = os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": str(Path(stoker.__file__).parents[1])}
    command = [sys.executable, "-c", TRAIN, data, tmp_path]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.stdout == "True\nb'half' False 2\n", done.stderr


# ---------------------------------------------------------------------- which store, and what it takes


def test_a_scheme_nobody_knows_is_an_error_that_names_it():
    with pytest.raises(ValueError, match="'nosuch'"):
        Dataset("nosuch://a/b").open()


def test_sources_of_two_stores_are_refused():
    with pytest.raises(ValueError, match="file, s3"):
        Dataset(["s3://a", "/b"])


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("/a", {"key": "x"}, "local"),
        ("s3://b/a", {"endpoint_url": "h"}, r"'endpoint_url'.*access_key.*anonymous.*region.*endpoint_override"),
        ("gs://b/a", {"no_such_option": 1}, r"'no_such_option'.*access_token"),
        ("abfss://b@c.d/a", {"no_such_option": 1}, r"'no_such_option'.*account_name"),
        ("s3://b/a", {"region": 7316}, "storage_options.*region must be str, not int"),
        ("gs://b/a", {"access_token": 7316}, "storage_options.*access_token must be str, not int"),
        ("abfss://b@c.d/a", {"account_key": 7316}, "storage_options.*account_key must be str, not int"),
        ("s3://b/a", {"endpoint_override": 7316}, "storage_options.*endpoint_override must be str, not int"),
        ("s3://b/a?connect_timeout=soon&region=r", {}, r"connect_timeout.*'soon'"),
        ("s3://b/a?connect_timeout=nan&region=r", {}, "connect_timeout must be a number of seconds, not nan"),
        ("gs://b/a", {"request_timeout": 0}, "request_timeout must be a number of seconds, not 0"),
    ],
)
def test_an_option_that_a_client_does_not_take_is_named_without_its_value(url, options, words):
    with pytest.raises(ValueError, match=words) as caught:
        Dataset(url, storage_options=options).open(wait=not_at_all)
    assert "7316" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("hdfs://name:8020{}", {"host": "name", "port": 8020}),
        ("viewfs://cluster{}", {"host": "viewfs://cluster", "port": 0}),
    ],
)
def test_hadoops_client_is_told_where_a_file_system_is(tmp_path, hadoop, url, told):
    url = url.format(write_parquet(tmp_path / "a.parquet", example_table(3)))
    (file,) = Dataset(url).open().files
    assert file.url == url
    assert hadoop.told == told


class One(fsspec.AbstractFileSystem):
    """One object, of which several things are told."""

    protocol = "one"
    cachable = False

    def info(self, path, **_):
        if path != "bucket/a.parquet":
            raise FileNotFoundError(path)
        return {"name": path, "size": len(CONTENT), "type": "file", "LastModified": "yesterday", "ETag": "e1"}

    def find(self, path, **_):
        return {"bucket/a.parquet": self.info("bucket/a.parquet")}

    def cat_file(self, path, start=None, end=None, **_):
        return CONTENT[start:end]


def test_an_etag_is_the_version_where_there_is_one():
    fsspec.register_implementation("one", One, clobber=True)
    for source in ("one://bucket", "one://bucket/a.parquet"):
        (file,) = Dataset(source).open().files
        assert (file.url, file.version) == ("one://bucket/a.parquet", "e1")


def test_a_storage_that_is_there_does_not_wait_until_another_one_is_made():
    has_begun, may_end = threading.Event(), threading.Event()

    class Late(One):
        protocol = "late"

        def __init__(self, **told):
            has_begun.set()
            assert may_end.wait(20)
            super().__init__(**told)

    fsspec.register_implementation("late", Late, clobber=True)
    there = Dataset("a.parquet", storage=MemoryStorage({"a.parquet": CONTENT}))
    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(Dataset("late://bucket/a.parquet").open)
        try:
            assert has_begun.wait(20)
            assert ids(pool.submit(there.open).result(timeout=10)) == [*range(10)]
        finally:
            may_end.set()
        assert ids(late.result(timeout=20)) == [*range(10)]


# ---------------------------------------------------------------------- what goes wrong


class AnswerError(OSError):
    """What a client raises of an answer with a number."""

    def __init__(self, words, *, status):
        super().__init__(words)
        self.status = status


EXPIRED = "AWS Error UNKNOWN (HTTP status 400): Unable to parse ExceptionName: ExpiredToken Message: no"


@pytest.mark.parametrize(
    ("error", "again", "words"),
    [
        (ConnectionResetError("connection reset"), True, r"reading a\.parquet failed: connection reset"),
        (TimeoutError(), True, "reading"),
        (OSError("error sending request"), True, "check the network"),
        (RuntimeError("throttled"), True, "throttled"),
        (OSError("error sending request for part-00403.parquet"), True, "check the network"),
        (AnswerError("503 SlowDown", status=503), True, "SlowDown"),
        (AnswerError("429", status=429), True, "429"),
        (AnswerError("400 RequestTimeout", status=400), True, "RequestTimeout"),
        (FileNotFoundError(), False, "nothing is stored"),
        (PermissionError(), False, "renew"),
        (AnswerError("400 Bad Request", status=400), False, "renew.*region"),
        (AnswerError("400 ExpiredToken", status=400), False, "have expired: renew them"),
        (AnswerError("401", status=401), False, "renew"),
        (AnswerError("403", status=403), False, "renew"),
        (AnswerError("404", status=404), False, "nothing is stored"),
        (OSError("AccessDenied"), False, "renew"),
        (OSError(EXPIRED), False, "have expired: renew them"),
        (OSError("Received redirect without LOCATION"), False, "region"),
        (RuntimeError("403 Client Error: Forbidden for url"), False, "renew"),
        (OSError("NoSuchKey"), False, "nothing is stored"),
        (ValueError("no"), False, "no"),
    ],
)
def test_only_failures_of_the_way_are_tried_again(error, again, words):
    flaky = FlakyStorage(MemoryStorage({"a.parquet": CONTENT}), every=1, error=lambda: error)
    with pytest.raises(SourceError, match=words) as caught:
        Dataset("a.parquet", storage=flaky).open(wait=at_once if again else not_at_all)
    assert caught.value.url == "a.parquet"
    assert flaky.num_reads == (4 if again else 1)
    assert getattr(caught.value, "__notes__", []) == (["given up after 4 tries"] if again else [])


def test_a_read_that_fails_is_tried_again_behind_longer_and_longer_pauses():
    waits = []
    flaky = FlakyStorage(MemoryStorage({"a.parquet": CONTENT}), reads=[1, 2, 3])
    assert ids(Dataset("a.parquet", storage=flaky).open(wait=waits.append)) == [*range(10)]
    assert len(waits) == 3
    assert waits == sorted(waits)


def test_who_is_told_to_stop_does_not_try_again():
    flaky = FlakyStorage(MemoryStorage({"a.parquet": CONTENT}), every=1)
    with pytest.raises(SourceError):
        Dataset("a.parquet", storage=flaky).open(wait=lambda seconds: True)
    assert flaky.num_reads == 1


def test_a_short_read_is_an_error():
    class Short(MemoryStorage):
        def read(self, url, offset, num_bytes):
            return b"x"

    with pytest.raises(SourceError, match=rf"gave 1 of the {len(CONTENT):,} bytes"):
        Dataset("a.parquet", storage=Short({"a.parquet": CONTENT})).open(wait=at_once)
