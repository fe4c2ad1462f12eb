"""Credentials in URLs, options and the environment: nothing that is printed or written has any of them."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

for _module in ("moto", "flask", "flask_cors"):
    pytest.importorskip(_module, reason="needs an S3 server: pip install 'moto[s3]' flask flask-cors")

from tests.integration.s3_server import refusal
from tests.strategies import sample_table

import stoker
from stoker.testing import example_table

PLANTED = "hunter2"  # a part of each of them
QUERY = f"X-Amz-Credential={PLANTED}1&X-Amz-Signature={PLANTED}2&sig={PLANTED}3&x=1&Policy=a"

SCRIPT = """
import stoker
from stoker.testing import *

stored = stoker.Dataset("s3://{bucket}/lake", chunk_size=4000, storage_options={options})
"""


def check(text, *, where):
    place = text.find(PLANTED)
    assert place < 0, (where, text[max(0, place - 200) : place + 20])


@pytest.fixture
def sources(door, tmp_path, monkeypatch):
    """The same rows, as three stores have them: options in a URL, options beside it, and a presigned address."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AZURE_CLIENT_SECRET", "HF_TOKEN"):
        monkeypatch.setenv(name, f"{PLANTED}env")
    bucket = door.make_bucket("credentials")
    for i in range(3):
        door.put_table(f"{bucket}/lake/part-{i}.parquet", sample_table(60, first=60 * i))
    options = door.options() | {
        "access_key": f"{PLANTED}4",
        "secret_key": f"{PLANTED}5",
        "session_token": f"{PLANTED}6",
    }
    query = "&".join(f"{name}={value}" for name, value in options.items())
    name = bucket.removeprefix("s3://")
    (tmp_path / "train.py").write_text(SCRIPT.format(bucket=name, options=options))
    return {"options": (f"s3://{name}/lake", options), "a URL": (f"s3://{name}/lake?{query}", {})}


def written(folder):
    """Yield the name and content of every file below a folder."""
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "train.py":
            yield path, path.read_bytes().decode("latin-1")


@pytest.mark.parametrize("how", [pytest.param("options", marks=pytest.mark.slow), "a URL"])
@pytest.mark.filterwarnings("ignore")
def test_nothing_that_is_printed_or_written_has_credentials(door, sources, how, tmp_path, run, caplog):
    source, options = sources[how]
    trace = stoker.Trace()
    with caplog.at_level(logging.DEBUG):
        dataset = stoker.Dataset(source, storage_options=options, chunk_size=4000)
        with stoker.Loader(dataset, batch_size=8, cache="cache", trace=trace) as loader:
            for _ in loader:
                pass
            texts = [repr(dataset), repr(loader), str(loader.explain(0)), str(loader.stats())]
            texts += [str(run("top", "--once")), str(run("top", "--once", "--json"))]
        trace.write("trace.json")
        target = "train.py:stored" if how == "options" else source
        for arguments in (
            ["inspect", target],
            ["inspect", target, "--json"],
            ["warm", target, "--cache", "cache"],
            ["ready", target, "--cache", "cache", "--steps", "3", "--batch-size", "8", "--json"],
            ["explain", target, "--step", "0", "--batch-size", "8", "--json"],
            ["doctor", target, "--batch-size", "8", "--budget", "1", "--step-time", "0.001", "--html", "page.html"],
            ["cache", "ls", "cache", "--json"],
            ["cache", "ls", "cache"],
            ["cache", "rm", "cache", source, "--yes"],
            ["cache", "rm", "cache", f"{source}x", "--yes"],
        ):
            code, out, errors = run(*arguments)
            assert code in (0, 1, 2), errors
            texts.append(out + errors)
        for status, code in ((403, "AccessDenied"), (400, "ExpiredToken"), (404, "NoSuchKey"), (500, "InternalError")):
            door.fault = lambda environ, status=status, code=code: refusal(status, code)
            try:
                stoker.Dataset(source, storage_options=options).open(wait=lambda seconds: False)
            except stoker.StokerError as error:
                texts.append("".join(traceback.format_exception(error)))
                assert code == "NoSuchKey" or len(texts[-1]) > 100
            finally:
                door.fault = None
        with pytest.raises(ValueError, match="acces_key") as wrong:
            stoker.Dataset(source, storage_options=options | {"acces_key": f"{PLANTED}9"}).open()
        texts.append("".join(traceback.format_exception(wrong.value)))
    for number, text in enumerate(texts):
        check(text, where=number)
    for record in caplog.records:
        check(record.getMessage(), where="log")
    for path, text in written(tmp_path):
        check(text, where=path)


class Presigned(BaseHTTPRequestHandler):
    """Serves one file by ranges, whatever the query."""

    protocol_version = "HTTP/1.1"
    content = b""

    def do_HEAD(self):
        self.answer(200 if self.path.startswith("/a.") else 404, {"Accept-Ranges": "bytes"}, self.content, sends=False)

    def do_GET(self):
        if not self.path.startswith("/a."):
            return self.answer(404, {}, b"", sends=True)
        first, last = map(int, re.findall(r"\d+", self.headers.get("Range", f"0-{len(self.content) - 1}")))
        some, total = self.content[first : last + 1], len(self.content)
        return self.answer(206, {"Content-Range": f"bytes {first}-{first + len(some) - 1}/{total}"}, some, sends=True)

    def answer(self, status, headers, body, *, sends):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": len(body), "ETag": '"1"'}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if sends:
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(content):
    """Give the address of a server that has a file."""
    handler = type("Serving", (Presigned,), {"content": content})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_presigned_address_is_named_without_its_signature(tmp_path, monkeypatch, run, caplog):
    pytest.importorskip("aiohttp")
    import pyarrow.parquet as pq

    monkeypatch.chdir(tmp_path)
    pq.write_table(example_table(90), tmp_path / "a.parquet", row_group_size=30)
    content = (tmp_path / "a.parquet").read_bytes()
    texts = []
    with serving(content) as address, caplog.at_level(logging.DEBUG, logger="stoker"):
        url = f"{address}/a.parquet?{QUERY}"
        with stoker.Loader(stoker.Dataset(url, chunk_size=2500), batch_size=8, cache="cache") as loader:
            list(loader)
            texts += [repr(loader), str(loader.explain(0)), str(run("top", "--once", "--json"))]
        texts += [
            str(run("inspect", url, "--json")),
            str(run("inspect", url)),
            str(run("cache", "ls", "cache", "--json")),
        ]
        texts.append(str(run("explain", url, "--step", "0", "--batch-size", "8", "--json")))
        for bad in (f"{address}/gone.parquet?{QUERY}", f"http://user:{PLANTED}7@127.0.0.1:1/a.parquet?{QUERY}"):
            with pytest.raises(stoker.StokerError) as caught:
                stoker.Dataset(bad).open(wait=lambda seconds: False)
            texts.append("".join(traceback.format_exception(caught.value)))
            texts.append(str(run("inspect", bad)))
    for number, text in enumerate(texts):
        check(text, where=number)
    for record in caplog.records:
        check(record.getMessage(), where="log")
    for path, text in written(tmp_path):
        check(text, where=path)
