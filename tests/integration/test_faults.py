"""The fault matrix: whatever a store does, right rows or the documented error, in time, with nothing left behind."""

from __future__ import annotations

import base64
import functools
import hmac
import io
import itertools
import multiprocessing
import shutil
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

for _module in ("moto", "flask", "flask_cors", "aiohttp", "fsspec"):
    pytest.importorskip(_module, reason="needs servers: pip install 'moto[s3]' flask flask-cors aiohttp fsspec")

from tests.integration import faults
from tests.integration.faults import FAULTS, OPERATIONS, RANKS, SCHEMES, Door
from tests.integration.s3_server import S3Server

from stoker import Dataset, Loader, SourceChangedError, SourceError, SourceMissingError

pytestmark = pytest.mark.timeout(120)

# Larger than what is read whole with its footer, so that footers and ranges are requests of their own.
NUM_ROWS, NUM_FILES = 40_000, 2
LIMIT_S = 0.5  # without a byte
CELL_S = 60
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_numbers = itertools.count()


@functools.cache
def content(number: int, version: int) -> bytes:
    """A file whose rows count on from version * 1,000,000; of one size whatever the version."""
    first = version * 1_000_000 + number * NUM_ROWS
    noise = np.random.default_rng(first).random(NUM_ROWS)
    file = io.BytesIO()
    table = pa.table({"id": pa.array(range(first, first + NUM_ROWS), pa.int64()), "noise": noise})
    pq.write_table(table, file, compression="none", use_dictionary=False, write_statistics=False)
    return file.getvalue()


class Objects:
    """The objects of one cell, in a server of its kind."""

    def __init__(self, url: str, options: dict[str, object], put, delete) -> None:
        self.url, self.options, self.put, self.delete = url, options, put, delete

    def happen(self, what: str) -> None:
        for i in range(NUM_FILES):
            if what == "change":
                self.put(f"{i}.parquet", content(i, 1))
            else:
                self.delete(f"{i}.parquet")


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


@pytest.fixture(scope="module")
def moto():
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def azurite(tmp_path_factory):
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("needs Azurite: npm install -g azurite")
    folder = tmp_path_factory.mktemp("azurite")
    command = [program, "--blobPort", "0", "--location", str(folder), "--skipApiVersionCheck", "--disableTelemetry"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    line = next(line for line in process.stdout if "successfully listens on" in line)
    reading = threading.Thread(target=process.stdout.read, name="azurite")
    reading.start()
    yield line.rpartition("//")[2].strip()
    process.terminate()
    process.wait()
    reading.join()
    process.stdout.close()


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    folder = tmp_path_factory.mktemp("web")
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Files, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="web")
        thread.start()
        yield folder, f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def doors():
    made: dict[str, Door] = {}
    yield lambda upstream: made.setdefault(upstream, made.get(upstream) or Door(upstream))
    for door in made.values():
        door.stop()


@pytest.fixture
def objects(request, scheme, doors):
    """The door of a scheme's server, and fresh objects behind it."""
    name = f"bucket{next(_numbers):05}"
    if scheme in ("s3", "gs"):
        server = request.getfixturevalue("moto")
        bucket = server.make_bucket(name)
        door = doors(server.endpoint)
        options = {"endpoint_override": door.place, "scheme": "http", "request_timeout": LIMIT_S, "anonymous": True}
        found = Objects(
            f"{scheme}://{name}/lake/",
            options | ({"region": "us-east-1"} if scheme == "s3" else {}),
            lambda key, body: server.put(f"{bucket}/lake/{key}", body, acl="public-read"),
            lambda key: server.delete(f"{bucket}/lake/{key}"),
        )
    elif scheme == "http":
        import aiohttp

        folder, place = request.getfixturevalue("web")
        door = doors(place)
        (folder / name).mkdir()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=3, sock_read=LIMIT_S)
        found = Objects(
            f"http://{door.place}/{name}/",
            {"client_kwargs": {"timeout": timeout}, "skip_instance_cache": True},
            lambda key, body: (folder / name / key).write_bytes(body),
            lambda key: (folder / name / key).unlink(),
        )
    else:
        from obstore.store import AzureStore

        place = request.getfixturevalue("azurite")
        door = doors(place)
        known = {"account_name": "devstoreaccount1", "account_key": KEY}
        endpoint = {"endpoint": f"http://{place}/devstoreaccount1", "container_name": name}
        store = AzureStore(config=known | endpoint, client_options={"allow_http": True})
        make_container(place, name)
        near = {"blob_storage_authority": door.place, "blob_storage_scheme": "http", "request_timeout": LIMIT_S}
        found = Objects(
            f"abfss://{name}@devstoreaccount1.dfs.core.windows.net/lake/",
            known | near,
            lambda key, body: store.put(f"lake/{key}", body),
            lambda key: store.delete(f"lake/{key}"),
        )
    door.spoil(None, "", found.happen)
    for i in range(NUM_FILES):
        found.put(f"{i}.parquet", content(i, 0))
    yield door, found
    door.over.set()
    door.spoil(None, "", lambda what: None)


def make_container(place: str, name: str) -> None:
    """Make a container, which the client cannot: by a request signed with the account's key."""
    now = formatdate(usegmt=True)
    known = {"x-ms-date": now, "x-ms-version": "2020-10-02"}
    lines = "".join(f"{header}:{value}\n" for header, value in known.items())
    account = "devstoreaccount1"
    text = "PUT" + "\n" * 12 + f"{lines}/{account}/{account}/{name}\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), "sha256")).decode()
    headers = known | {"Authorization": f"SharedKey {account}:{signature}", "Content-Length": "0", "Host": place}
    answer = faults.ask(place, "PUT", f"/{account}/{name}?restype=container", list(headers.items()))
    assert answer.status == 201, answer.body


def at_once(seconds: float) -> None:
    """A pause that is none."""


def read_all(objects: Objects) -> list[int]:
    """Open and read without pauses between tries; the ids."""
    catalogue = Dataset(objects.url, storage_options=objects.options).open(wait=at_once)
    return [int(i) for k in range(len(catalogue)) for _, table in catalogue.read(k) for i in table["id"].to_numpy()]


def read_share(objects: Objects, cache: Path, rank: int, world_size: int) -> list[int]:
    """What one rank reads of an epoch; the ids."""
    dataset = Dataset(objects.url, storage_options=objects.options, columns=["id"])
    with Loader(dataset, batch_size=4_000, cache=cache, rank=rank, world_size=world_size) as loader:
        return [int(i) for batch in loader for i in batch["id"]]


def told(call) -> tuple[list[int], Exception | None]:
    try:
        return call(), None
    except SourceError as error:
        return [], error


def check_error(error: Exception, outcome: str, objects: Objects) -> None:
    assert error.url.startswith(objects.url.rstrip("/"))
    text, notes = str(error), getattr(error, "__notes__", [])
    if outcome == faults.MISSING:
        assert isinstance(error, SourceMissingError), text
    elif outcome == faults.CHANGED:
        assert isinstance(error, SourceChangedError), text
    elif outcome == faults.REFUSED:
        assert "credentials" in text, text
        assert "renew" in text, text
        assert not any("given up" in note for note in notes)
    elif outcome == faults.GIVEN_UP:
        assert any("given up after 4 tries" in note for note in notes) or isinstance(error, SourceChangedError), text
    else:
        assert type(error) is not SourceChangedError, text


ALL = set(range(NUM_FILES * NUM_ROWS))
CELLS = [
    pytest.param(
        scheme,
        operation,
        fault,
        ranks,
        id=f"{scheme}-{operation}-{fault.name}-{ranks}".replace(" ", "_"),
        # Of every kind some run always, the others in the long form.
        marks=[] if scheme == "s3" and ranks == "1" and i % 3 == j else [pytest.mark.slow],
    )
    for scheme in SCHEMES
    for j, operation in enumerate(OPERATIONS)
    for i, fault in enumerate(FAULTS)
    for ranks in RANKS
    if ranks == "1" or (fault.times is not None or fault.outcome in (faults.REFUSED, faults.MISSING, faults.ROWS))
]


@pytest.mark.parametrize(("scheme", "operation", "fault", "ranks"), CELLS)
def test_rows_are_right_or_the_documented_error_comes_in_time(objects, scheme, operation, fault, ranks, tmp_path):
    door, found = objects
    outcome = faults.outcome_of(fault, operation, scheme)
    door.spoil(fault, operation, found.happen)
    begin = time.monotonic()
    if ranks == "1":
        results = [told(lambda: read_all(found))]
    elif ranks == "4 threads":
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda r: told(lambda: read_share(found, tmp_path, r, 4)), range(4)))
    else:
        results = in_processes(found, tmp_path)
    assert time.monotonic() - begin < CELL_S
    assert door.num_spoiled
    errors = [error for _, error in results if error is not None]
    ids = {i % 1_000_000 for rows, _ in results for i in rows}
    if outcome == faults.ROWS:
        assert not errors
        assert ids == ALL
    else:
        assert errors
        for error in errors:
            check_error(error, outcome, found)


def in_processes(objects: Objects, cache: Path) -> list[tuple[list[int], Exception | None]]:
    """The same in four forks of this process."""
    fork = multiprocessing.get_context("fork")

    def work(rank: int, answers) -> None:
        rows, error = told(lambda: read_share(objects, cache, rank, 4))
        notes = getattr(error, "__notes__", [])
        answers.send((rows, None if error is None else (type(error), str(error), error.url, notes)))

    results = []
    pipes = [fork.Pipe(duplex=False) for _ in range(4)]
    children = [fork.Process(target=work, args=(rank, pipes[rank][1])) for rank in range(4)]
    for child in children:
        child.start()
    for child, (answers, _) in zip(children, pipes, strict=True):
        assert answers.poll(CELL_S)
        rows, said = answers.recv()
        error = None
        if said is not None:
            error = said[0](said[1], url=said[2])
            error.__notes__ = said[3]
        results.append((rows, error))
        child.join(30)
        assert child.exitcode == 0
    return results


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize(
    ("scheme", "fault"),
    [
        pytest.param(scheme, fault, id=f"{scheme}-{fault.name}".replace(" ", "_"), marks=marks)
        for scheme in SCHEMES
        for fault in FAULTS
        for marks in [[] if scheme == "s3" and fault.name in ("503", "vanished") else [pytest.mark.slow]]
    ],
)
def test_a_warm_cache_asks_nothing_whatever_the_store_does(objects, fault, ranks, tmp_path):
    door, found = objects
    assert set(read_share(found, tmp_path, 0, 1)) == ALL
    door.spoil(fault, "range", found.happen)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda r: read_share(found, tmp_path, r, ranks), range(ranks)))
    assert set().union(*results) == ALL
    assert door.num_requests == 0


def test_the_table_of_the_documentation_is_what_is_tested():
    page = Path(__file__).parents[2] / "docs" / "reference" / "faults.md"
    assert faults.table() in page.read_text()
