"""A web server that is silent, refuses, or asks to wait: an error in time, and no try that cannot help."""

from __future__ import annotations

import io
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow.parquet as pq
import pytest

from stoker import Dataset, SourceError
from stoker.testing import example_table

pytest.importorskip("aiohttp", reason="needs fsspec's client of web servers")
pytest.importorskip("fsspec")


class Server(ThreadingHTTPServer):
    """Serves one object; `refusals` are status and headers of the next answers to reads instead."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        file = io.BytesIO()
        pq.write_table(example_table(10), file)
        self.content = file.getvalue()
        self.refusals = []
        self.num_reads = 0
        self.num_sent = None  # bytes of a body without an end
        self.folder = f"http://127.0.0.1:{self.server_address[1]}/"
        self.url = f"{self.folder}a.parquet"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.answer(200, {"Content-Length": len(self.server.content), "Accept-Ranges": "bytes"})

    def do_GET(self):
        self.server.num_reads += 1
        content, wanted = self.server.content, self.headers.get("Range", "bytes=0-0")
        first, last = (int(part) for part in wanted.removeprefix("bytes=").split("-"))
        body, total = content[first : last + 1], len(content)
        if self.server.num_sent is not None:
            self.send_without_end()
        elif self.server.refusals:
            status, headers = self.server.refusals.pop(0)
            self.answer(status, headers | {"Content-Length": 0})
        else:
            self.answer(206, {"Content-Range": f"bytes {first}-{last}/{total}", "Content-Length": len(body)})
            self.wfile.write(body)

    def send_without_end(self):
        self.close_connection = True
        self.answer(206, {"Connection": "close"})
        with suppress(ConnectionError):
            while True:
                self.wfile.write(bytes(1 << 16))
                self.server.num_sent += 1 << 16

    def answer(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def not_at_all(seconds):
    pytest.fail("waited")


def test_a_store_that_asks_to_wait_is_asked_again_when_it_says(server):
    waits = []
    server.refusals = [(503, {"Retry-After": "7"}), (429, {"Retry-After": "3600"}), (500, {})]
    assert Dataset(server.url).open(wait=waits.append).num_samples.sum() == 10
    assert waits[:2] == [7, 30]  # an hour is too long
    assert 1 < waits[2] < 5
    assert server.num_reads == 4


@pytest.mark.parametrize("status", [401, 403])
def test_who_may_not_read_is_told_what_to_renew_at_once(server, status):
    server.refusals = [(status, {})] * 4
    with pytest.raises(SourceError, match="renew"):
        Dataset(server.url).open(wait=not_at_all)
    assert server.num_reads == 1


def test_a_body_that_never_ends_is_not_read_to_its_end(server):
    server.num_sent = 0
    with pytest.raises(SourceError, match="gives whole objects where ranges are asked for"):
        Dataset(server.url).open(wait=not_at_all)
    server.shutdown()  # the connection has ended
    assert server.num_sent < 32 << 20


def test_a_listing_that_is_too_long_is_refused_and_not_cut_off(server):
    server.num_sent = 0
    with pytest.raises(SourceError, match="list of what is there has more than"):
        Dataset(server.folder).open(wait=not_at_all)
    server.shutdown()
    assert server.num_sent < 128 << 20
