"""What tests of object stores share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def door():
    """An S3 server that the whole module asks."""
    for module in ("moto", "flask", "flask_cors"):
        pytest.importorskip(module, reason="needs an S3 server: pip install 'moto[s3]' flask flask-cors")
    from tests.integration.s3_server import S3Server

    server = S3Server()
    yield server
    server.stop()


@pytest.fixture
def server(door):
    """The same, without what a test before had it answer."""
    yield door
    door.fault = door.rewrite = None
    door.requests.clear()
