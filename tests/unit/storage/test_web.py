"""A web server that is silent, refuses, or asks to wait: an error in time, and no try that cannot help."""

from __future__ import annotations

import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from stoker import SourceError
from stoker.storage import find_storage
from stoker.storage.failures import NUM_TRIES, RetryingStorage
from stoker.storage.find_storage import FsspecStorage, storage_for

pytest.importorskip("aiohttp", reason="needs fsspec's client of web servers")
fsspec = pytest.importorskip("fsspec")

CONTENT = b"0123456789"


class Server(ThreadingHTTPServer):
    """Serves one object; `refusals` are status, headers and body of the next answers instead."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.refusals = []
        self.num_requests = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.num_sent = None  # bytes of a body without an end
        self.url = f"http://127.0.0.1:{self.server_address[1]}/a.parquet"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.num_requests += 1
        self.server.may_answer.wait(30)
        status, headers, body = 206, {"Content-Range": f"bytes 2-4/{len(CONTENT)}"}, CONTENT[2:5]
        if self.server.refusals:
            status, headers, body = self.server.refusals.pop(0)
        self.send_response(status)
        if self.server.num_sent is not None:
            headers, self.close_connection = headers | {"Connection": "close"}, True
        else:
            headers = {"Content-Length": len(body)} | headers
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        with suppress(ConnectionError):
            while self.server.num_sent is not None:
                self.wfile.write(bytes(1 << 16))
                self.server.num_sent += 1 << 16

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.may_answer.set()
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_store_that_asks_to_wait_is_asked_again_when_it_says(server):
    waits = []
    server.refusals = [(503, {"Retry-After": "7"}, b""), (429, {"Retry-After": "3600"}, b""), (500, {}, b"")]
    storage = RetryingStorage(storage_for(server.url), wait=waits.append)
    assert bytes(storage.read(server.url, 2, 3)) == b"234"
    assert waits[:2] == [7, 30]  # an hour is too long
    assert 1 < waits[2] < 5
    assert server.num_requests == NUM_TRIES


@pytest.mark.parametrize("status", [401, 403])
def test_who_may_not_read_is_told_what_to_renew_at_once(server, status):
    server.refusals = [(status, {}, b"")] * NUM_TRIES
    with pytest.raises(SourceError, match="renew"):
        RetryingStorage(storage_for(server.url), wait=lambda s: pytest.fail("waited")).read(server.url, 2, 3)
    assert server.num_requests == 1


def test_credentials_that_expired_are_not_tried_again():
    class Expired:
        def read(self, url, offset, num_bytes):
            raise OSError(
                "AWS Error UNKNOWN (HTTP status 400): Unable to parse ExceptionName: ExpiredToken Message: no"
            )

    with pytest.raises(SourceError, match="have expired: renew them"):
        RetryingStorage(Expired(), wait=lambda s: pytest.fail("waited")).read("a", 0, 1)


def test_a_server_that_says_nothing_is_given_up(server):
    server.may_answer.clear()
    # As of any scheme: this client has no time limit of its own.
    filesystem = fsspec.filesystem("http", client_kwargs={"timeout": None}, skip_instance_cache=True)
    storage = RetryingStorage(FsspecStorage(filesystem, root_url="http://", answer_s=0.1), wait=lambda s: None)
    with pytest.raises(SourceError, match="nothing answers at the store") as caught:
        storage.read(server.url, 2, 3)
    assert caught.value.__notes__ == ["given up after 4 tries"]


def test_a_body_that_never_ends_is_not_read_to_its_end(server):
    server.num_sent = 0
    with pytest.raises(SourceError, match="gives whole objects where ranges are asked for"):
        RetryingStorage(storage_for(server.url), wait=lambda s: pytest.fail("waited")).read(server.url, 2, 3)
    with pytest.raises(SourceError, match="gives whole objects where ranges are asked for"):
        RetryingStorage(storage_for(server.url), wait=lambda s: pytest.fail("waited")).read(server.url, 2, 1 << 20)
    server.shutdown()  # both connections have ended
    assert server.num_sent < 64 << 20


def test_a_listing_that_is_too_long_is_refused_and_not_cut_off(server, monkeypatch):
    monkeypatch.setattr(find_storage, "_MOST_PAGE_BYTES", 1 << 20)
    server.num_sent = 0
    folder = server.url.removesuffix("a.parquet")
    with pytest.raises(SourceError, match="list of what is there has more than"):
        RetryingStorage(storage_for(folder), wait=lambda s: pytest.fail("waited")).list(folder)
    server.shutdown()
    assert server.num_sent < 64 << 20
