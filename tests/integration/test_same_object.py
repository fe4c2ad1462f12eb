"""What is the same object: the store it comes from, and all that the store tells of it."""

from __future__ import annotations

import hashlib
import io
import itertools
import logging
import os
import zipfile
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

for _module in ("moto", "flask", "flask_cors"):
    pytest.importorskip(_module, reason="needs an S3 server: pip install 'moto[s3]' flask flask-cors")
fsspec = pytest.importorskip("fsspec", reason="pip install stoker[fsspec]")

from fsspec.spec import AbstractFileSystem
from tests.integration.s3_server import S3Server

from stoker import Dataset, Loader, SourceChangedError

pytestmark = pytest.mark.timeout(60)

_numbers = itertools.count()


def parquet(first, *, statistics=True):
    """A file of 100 rows; without statistics, every one of them has the same size and the same footer."""
    file = io.BytesIO()
    options = {"use_dictionary": False, "compression": "none", "write_statistics": statistics}
    pq.write_table(pa.table({"v": pa.array(range(first, first + 100), pa.int64())}), file, **options)
    return file.getvalue()


def first_row(source, cache=None, **options):
    """Read all of a source through a loader; its first value."""
    with Loader(Dataset(source, **options), batch_size=100, cache=cache) as loader:
        (batch,) = loader
        return int(batch["v"][0])


@pytest.fixture(scope="module")
def two_servers():
    """Two S3 servers with the same bucket names and other objects in them."""
    servers = S3Server(), S3Server()

    def other(environ):
        bucket, slash, key = environ["PATH_INFO"][1:].partition("/")
        environ["PATH_INFO"] = f"/{bucket}-of-two{slash}{key}"
        for name in ("RAW_URI", "REQUEST_URI"):
            environ[name] = environ[name].replace(bucket, f"{bucket}-of-two", 1)

    yield (*servers, other)
    for server in servers:
        server.stop()


@pytest.fixture
def lakes(two_servers, monkeypatch):
    """A URL, and the endpoints of the two servers: rows from 0 on at the first, from 1,000 on at the second."""
    first, second, other = two_servers
    name = f"lake-{next(_numbers)}"
    first.make_bucket(name)
    first.make_bucket(f"{name}-of-two")
    first.put(f"s3://{name}/data/a.parquet", parquet(0, statistics=False))
    first.put(f"s3://{name}-of-two/data/a.parquet", parquet(1_000, statistics=False))
    second.fault = other
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    return f"s3://{name}/data", f"http://{first.endpoint}", f"http://{second.endpoint}"


def _variable(name):
    def choose(endpoint, monkeypatch, tmp_path):
        monkeypatch.setenv(name, endpoint)
        return "", {}

    return choose


def _config(text):
    def choose(endpoint, monkeypatch, tmp_path):
        (tmp_path / "config").write_text(text.format(endpoint=endpoint))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.setenv("AWS_PROFILE", "lab")
        return "", {}

    return choose


def _options(endpoint, monkeypatch, tmp_path):
    scheme, _, host = endpoint.partition("://")
    return "", {"endpoint_override": host, "scheme": scheme}


def _query(endpoint, monkeypatch, tmp_path):
    return f"?endpoint_override={endpoint.partition('://')[2]}&scheme=http", {}


@pytest.mark.parametrize(
    "choose",
    [
        _variable("AWS_ENDPOINT_URL"),
        _variable("AWS_ENDPOINT_URL_S3"),
        _config("[profile lab]\nendpoint_url = {endpoint}\n"),
        _config("[profile lab]\nservices = near\n[services near]\ns3 =\n  endpoint_url = {endpoint}\n"),
        _options,
        _query,
    ],
    ids=["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "profile", "services", "options", "query"],
)
def test_two_stores_behind_one_name_are_two_data_sets(lakes, monkeypatch, tmp_path, choose):
    url, *endpoints = lakes
    for expected, endpoint in [(0, endpoints[0]), (1_000, endpoints[1]), (0, endpoints[0])]:
        query, options = choose(endpoint, monkeypatch, tmp_path)
        assert first_row(url + query, tmp_path / "cache", storage_options=options) == expected


def test_one_store_is_the_same_whoever_asks_and_however_it_is_named(lakes, two_servers, monkeypatch, tmp_path):
    url, endpoint, _ = lakes
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    assert first_row(url, tmp_path) == 0
    two_servers[0].requests.clear()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody-else")
    assert first_row(url, tmp_path) == 0
    assert (
        first_row(url, tmp_path, storage_options={"endpoint_override": endpoint, "secret_key": "x", "access_key": "y"})
        == 0
    )
    assert two_servers[0].requests == []


def test_an_object_replaced_within_a_second_by_one_of_its_size_is_another(lakes, two_servers, monkeypatch, tmp_path):
    url, endpoint, _ = lakes
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    assert first_row(url, tmp_path) == 0
    catalogue = Dataset(url).open()
    list(catalogue.read(0))  # what was read whole with its footer
    two_servers[0].put(f"{url}/a.parquet", parquet(7, statistics=False))
    assert first_row(url, tmp_path) == 0  # a store that was opened before is not asked
    with pytest.raises(SourceChangedError):
        list(catalogue.read(0))
    assert first_row(url, tmp_path, refresh=True) == 7
    assert first_row(url, tmp_path) == 7


def test_a_local_file_replaced_with_its_size_and_its_time_of_modification_is_another(tmp_path):
    path = tmp_path / "lake" / "a.parquet"
    path.parent.mkdir()
    path.write_bytes(parquet(0, statistics=False))
    before = path.stat()
    assert first_row(path, tmp_path / "cache") == 0
    catalogue = Dataset(path).open()
    path.write_bytes(parquet(7, statistics=False))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(SourceChangedError):
        list(catalogue.read(0))
    assert first_row(path, tmp_path / "cache") == 7


class _Telling(AbstractFileSystem):
    """Files in memory, of which `told` is all that is known beside their sizes."""

    protocol = "telling"
    told: tuple[str, ...] = ()
    contents: ClassVar[dict[str, bytes]] = {}

    def info(self, path, **kwargs):
        name = self._strip_protocol(path)
        if name not in self.contents:
            raise FileNotFoundError(path)
        content = self.contents[name]
        digest = hashlib.sha256(content).hexdigest()
        return {"name": name, "type": "file", "size": len(content), **dict.fromkeys(self.told, digest)}

    def find(self, path, **kwargs):
        return {name: self.info(name) for name in self.contents if name.startswith(self._strip_protocol(path))}

    def cat_file(self, path, start=None, end=None, **kwargs):
        return self.contents[self._strip_protocol(path)][start:end]


@pytest.fixture
def telling(monkeypatch):
    """A function that puts the one file of telling://lake there."""
    fsspec.register_implementation("telling", _Telling, clobber=True)
    monkeypatch.setattr(_Telling, "contents", {})
    return lambda content: _Telling.contents.__setitem__("lake/a.parquet", content)


@pytest.mark.parametrize(
    "field",
    ["ETag", "etag", "generation", "blob_id", "sha", "hex", "md5", "checksum", "mtime", "LastModified", "modify",
     "modificationTime", "created", "last_commit"],
)  # fmt: skip
def test_whatever_a_file_system_of_fsspec_tells_of_a_version_counts(field, tmp_path, telling, monkeypatch, caplog):
    monkeypatch.setattr(_Telling, "told", (field,))
    telling(parquet(0, statistics=False))
    assert first_row("telling://lake", tmp_path) == 0
    catalogue = Dataset("telling://lake").open()
    telling(parquet(7, statistics=False))
    with pytest.raises(SourceChangedError):
        list(catalogue.read(0))
    assert first_row("telling://lake", tmp_path, refresh=True) == 7
    assert not caplog.records


def test_where_a_store_tells_no_version_that_is_said_and_refresh_compares_footers(tmp_path, telling, caplog):
    telling(parquet(10))
    with caplog.at_level(logging.WARNING, "stoker"):
        assert first_row("telling://lake", tmp_path) == 10
    (record,) = caplog.records
    assert "telling://lake" in record.getMessage()
    assert "neither version nor time" in record.getMessage()
    telling(parquet(17))
    assert first_row("telling://lake", tmp_path) == 10
    assert first_row("telling://lake", tmp_path, refresh=True) == 17
    assert first_row("telling://lake", tmp_path) == 17


def test_files_of_one_name_in_two_archives_are_two(tmp_path):
    for i, name in enumerate(["one.zip", "two.zip"]):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("lake/a.parquet", parquet(1_000 * i, statistics=False))
    for source in ("zip://lake", "zip://lake/a.parquet", "zip://lake/*.parquet", "zip://"):
        for expected, name in [(0, "one.zip"), (1_000, "two.zip")]:
            assert first_row(f"{source}::file://{tmp_path}/{name}", tmp_path / "cache") == expected


def test_options_that_lead_to_another_store_count_and_credentials_do_not(telling):
    telling(parquet(0))
    found = [
        Dataset("telling://lake", storage_options=options).open().fingerprint
        for options in ({"host": "a"}, {"host": "b"}, {"host": "b", "token": "x"}, {"host": "b", "password": "y"})
    ]
    assert len(set(found)) == 2
