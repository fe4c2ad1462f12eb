"""Stores that send other bytes than were asked for, or do not answer: right, or an error that says what to do."""

from __future__ import annotations

import itertools
import socket
import threading

import numpy as np
import pytest

for _module in ("moto", "flask", "flask_cors"):
    pytest.importorskip(_module, reason="needs an S3 server: pip install 'moto[s3]' flask flask-cors")

from tests.strategies import check_samples, sample_table
from werkzeug.wrappers import Response

import stoker

pytestmark = pytest.mark.timeout(60)

NUM_ROWS = 300


@pytest.fixture
def lake(server):
    bucket = server.make_bucket("bucket-of-lies")
    for i in range(3):
        server.put_table(f"{bucket}/lake/part-{i}.parquet", sample_table(100, first=100 * i))
    return f"{bucket}/lake"


def again_at_once(seconds: float) -> None:
    """A pause that is none."""


def short(sound: Response) -> Response:
    return answer(sound, sound.data[:-7])


def by_one(sound: Response) -> Response:
    return answer(sound, sound.data[:-1])


def empty(sound: Response) -> Response:
    return answer(sound, b"")


def cut_off(sound: Response) -> Response:
    return answer(sound, iter([sound.data[:-7]]), length=len(sound.data))


def short_of_unknown_length(sound: Response) -> Response:
    return answer(sound, iter([sound.data[: len(sound.data) // 2]]))


def long(sound: Response) -> Response:
    return answer(sound, sound.data + b"more")


def short_and_whole(sound: Response) -> Response:
    return Response(sound.data[:-7], 200, {"ETag": sound.headers["ETag"]})


def nothing(sound: Response) -> Response:
    return Response(b"", 204)


LIES = [short, by_one, empty, cut_off, short_of_unknown_length, long, short_and_whole, nothing]


def answer(sound: Response, body, *, length: int | None = None) -> Response:
    headers = {name: sound.headers[name] for name in ("Content-Range", "ETag")}
    return Response(body, 206, headers if length is None else headers | {"Content-Length": str(length)})


def lying(server, lie, *, num_lies: int | None):
    """Return a fault of the server: the first answers to reads of ranges are lies; None for all."""
    left = itertools.count() if num_lies is None else iter(range(num_lies))
    lock = threading.Lock()

    def fault(environ):
        if environ["REQUEST_METHOD"] != "GET" or "HTTP_RANGE" not in environ:
            return None
        with lock:
            if next(left, None) is None:
                return None
        return lie(Response.from_app(server.inner, dict(environ)))

    return fault


def ids(lake, server) -> list[int]:
    dataset = stoker.Dataset(lake, storage_options=server.options())
    with stoker.Loader(dataset, batch_size=64) as loader:
        found = []
        for batch in loader:
            check_samples(batch)
            found += [int(i) for i in batch["id"]]
        return found


def error_of(dataset) -> stoker.SourceError:
    with pytest.raises(stoker.SourceError) as caught:
        dataset.open(wait=again_at_once)
    return caught.value


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_of_another_length_is_asked_for_again_and_never_believed(server, lake, lie):
    server.fault = lying(server, lie, num_lies=2)
    assert ids(lake, server) == list(range(NUM_ROWS))
    server.fault = lying(server, lie, num_lies=None)
    error = error_of(stoker.Dataset(lake, storage_options=server.options()))
    assert error.url is not None
    assert error.url.startswith(lake)
    assert error.__notes__ == ["given up after 4 tries"]


def test_bytes_that_end_as_memory_was_marked_are_read(server, lake):
    # A read is told from a short one by its last bytes: whatever they are, it is believed when it is whole.
    bucket = lake.removesuffix("/lake")
    rng = np.random.default_rng(0)
    tables = [sample_table(int(n), first=int(n)) for n in rng.integers(1, 40, 60)]
    for i, table in enumerate(tables):
        server.put_table(f"{bucket}/many/{i:03}.parquet", table)
    found = ids(f"{bucket}/many", server)
    assert found == [int(one) for table in tables for one in table["id"].to_numpy()]


@pytest.fixture
def dead_port():
    """A port of this machine at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@pytest.mark.parametrize("scheme", ["http", "https", "gs", "abfss", "hdfs"])
def test_a_store_that_nobody_answers_for_is_told_from_one_that_holds_nothing(dead_port, scheme, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "CLOUD_STORAGE_EMULATOR_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    place = f"127.0.0.1:{dead_port}"
    url, options, way_out = {
        "http": (f"http://{place}/a.parquet", {}, "check the network"),
        "https": (f"https://{place}/a.parquet", {}, "check the network"),
        "gs": (
            "gs://box/a.parquet",
            {"endpoint_override": place, "scheme": "http", "anonymous": True},
            "endpoint_override",
        ),
        "abfss": (
            "abfss://box@account.dfs.core.windows.net/a.parquet",
            {"account_key": KEY, "blob_storage_authority": place, "blob_storage_scheme": "http"},
            "check the network",
        ),
        "hdfs": (f"hdfs://{place}/a.parquet", {}, "JAVA_HOME"),
    }[scheme]
    if scheme.startswith("http"):
        pytest.importorskip("aiohttp", reason="http:// through fsspec needs aiohttp")
    error = error_of(stoker.Dataset(url, storage_options=options))
    assert not isinstance(error, stoker.SourceMissingError)
    assert error.url == url
    assert way_out in str(error)
    assert len(str(error)) < 400
    assert "::" not in str(error)


def test_google_without_credentials_says_what_to_set(server, lake, monkeypatch, tmp_path):
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("GCE_METADATA_ROOT", f"127.0.0.1:{taken.getsockname()[1]}")
        options = {"endpoint_override": server.endpoint, "scheme": "http"}
        error = error_of(stoker.Dataset("gs://box/a.parquet", storage_options=options))
    assert "GOOGLE_APPLICATION_CREDENTIALS" in str(error)
    assert "anonymous=True" in str(error)
    assert len(str(error)) < 600
    assert "::" not in str(error)


def test_azure_without_credentials_says_what_to_set(server, monkeypatch, tmp_path):
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    options = {"blob_storage_authority": server.endpoint, "blob_storage_scheme": "http"}
    error = error_of(stoker.Dataset("abfss://box@account.dfs.core.windows.net/a.parquet", storage_options=options))
    assert "account_key" in str(error)
    assert len(str(error)) < 600
    assert "::" not in str(error)
