"""An S3 server on loopback: moto behind a door that counts requests and can fail them."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
from werkzeug.test import Client
from werkzeug.wrappers import Response

# Gives the answer to a request (its WSGI environment), or None to let the server answer.
Fault = Callable[[dict[str, Any]], "Response | None"]

_SECRETS = {"access_key": "test", "secret_key": "test"}


def refusal(status: int, code: str) -> Response:
    """The answer of a store that refuses, as S3 words it."""
    body = f"<Error><Code>{code}</Code><Message>not today</Message></Error>"
    return Response(body, status=status, content_type="application/xml")


class S3Server:
    """An S3 server in threads of this process. All servers of a process hold the same buckets.

    Attributes:
        inner: The server behind the door.
        requests: Method and path with query of every request over the network, in order of their coming.
        fault: What to answer in place of the server.
        rewrite: What becomes of the body of a listing.
    """

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.inner = DomainDispatcherApplication(create_backend_app)
        self._client = Client(self.inner)
        self._lock = threading.Lock()
        self.requests: list[str] = []
        self.fault: Fault | None = None
        self.rewrite: Callable[[bytes], bytes] | None = None
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        # Answers that are being held back must not hold back the end of the test.
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name="s3")
        self._thread.start()

    def _answer(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        query = environ.get("QUERY_STRING", "")
        with self._lock:
            self.requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}{'?' + query if query else ''}")
        answer = None if self.fault is None else self.fault(environ)
        if answer is not None:
            return answer(environ, start)
        if self.rewrite is not None and "list-type=2" in query:
            given = Response.from_app(self.inner, environ)
            return Response(self.rewrite(given.get_data()), content_type=given.content_type)(environ, start)
        return self.inner(environ, start)

    @property
    def endpoint(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._server.server_port}"

    def options(self, **more: object) -> dict[str, object]:
        """The storage_options that lead here."""
        return {"endpoint_override": self.endpoint, "scheme": "http", "region": "us-east-1", **_SECRETS, **more}

    def make_bucket(self, name: str, **headers: str) -> str:
        """Make a bucket; nothing of it goes over the network or is counted."""
        assert self._put(f"/{name}", b"", headers) == 200
        return f"s3://{name}"

    def put(self, url: str, content: bytes, **headers: str) -> None:
        """Store an object, without the network."""
        bucket, _, key = url.removeprefix("s3://").partition("/")
        assert self._put(f"/{bucket}/{quote(key, safe='/=')}", content, headers) == 200

    def put_table(self, url: str, table: pa.Table, *, row_group_size: int = 64, **headers: str) -> None:
        """Store a Parquet file, without the network."""
        file = io.BytesIO()
        pq.write_table(table, file, row_group_size=row_group_size)
        self.put(url, file.getvalue(), **headers)

    def _put(self, path: str, content: bytes, headers: dict[str, str]) -> int:
        names = {f"x-amz-{name}": value for name, value in headers.items()}
        return self._client.put(path, data=content, headers={"Authorization": "AWS test:test", **names}).status_code

    def delete(self, url: str) -> None:
        """Remove an object, without the network."""
        bucket, _, key = url.removeprefix("s3://").partition("/")
        assert self._client.delete(f"/{bucket}/{quote(key, safe='/=')}").status_code == 204

    def require_users(self, required: bool) -> None:
        """Check names and signatures from now on, or let everybody in."""
        self._client.post("/moto-api/reset-auth", data=b"0" if required else b"inf")

    def stop(self) -> None:
        """Go away: connections are refused from here on."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
