"""A web server on loopback that gives files of a folder, whole or in ranges."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Files(SimpleHTTPRequestHandler):
    def do_GET(self):
        path = Path(self.translate_path(self.path))
        wanted = self.headers.get("Range")
        if wanted is None or not path.is_file():
            return super().do_GET()
        first, last = (int(part) for part in wanted.removeprefix("bytes=").split("-"))
        body = path.read_bytes()
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{min(last, len(body) - 1)}/{len(body)}")
        self.send_header("Content-Length", str(len(body[first : last + 1])))
        self.end_headers()
        self.wfile.write(body[first : last + 1])
        return None

    def end_headers(self):
        path = Path(self.translate_path(self.path))
        if path.is_file():
            self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
        super().end_headers()

    def log_message(self, *args):
        pass


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder; give host and port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Files, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="web")
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
