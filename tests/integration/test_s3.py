"""s3:// end to end, against a server on loopback: what is found, what is asked for, and what goes wrong."""

from __future__ import annotations

import io
import itertools
import json
import multiprocessing
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

for _module in ("moto", "flask", "flask_cors"):
    pytest.importorskip(_module, reason="needs an S3 server: pip install 'moto[s3]' flask flask-cors")

from tests.integration.s3_server import S3Server, refusal
from tests.integration.web_server import serving
from tests.strategies import check_samples, sample_table, write_files

import stoker
from stoker import Dataset, Loader, SourceChangedError, SourceError, SourceMissingError

pytestmark = pytest.mark.timeout(60)

_numbers = itertools.count()


@pytest.fixture
def bucket(server):
    return server.make_bucket(f"bucket-{next(_numbers)}")


@pytest.fixture
def lake(server, bucket):
    """Two days of three files of 100 rows."""
    for i in range(6):
        server.put_table(f"{bucket}/lake/day={i // 3}/part-{i}.parquet", sample_table(100, first=100 * i))
    server.put(f"{bucket}/lake/_SUCCESS", b"")
    server.put(f"{bucket}/lake/day=0/", b"")  # what a console leaves for a folder
    return f"{bucket}/lake"


def again_at_once(seconds: float) -> None:
    """A pause that is none."""


def rows(source, server, **options):
    """Open the data set and read it all; the ids, in order."""
    catalogue = Dataset(source, storage_options=server.options(**options)).open(wait=again_at_once)
    return [int(i) for k in range(len(catalogue)) for _, t in catalogue.read(k) for i in t["id"].to_numpy()]


def failure(source, server, **options):
    """The error of opening the data set."""
    with pytest.raises(SourceError) as caught:
        Dataset(source, storage_options=server.options(**options)).open(wait=again_at_once)
    return caught.value


def test_partitions_below_a_folder_become_columns(server, lake):
    catalogue = Dataset(lake, storage_options=server.options()).open()
    assert len(catalogue.files) == 6
    assert catalogue.schema.names[-1] == "day"
    (_, table), *_ = catalogue.read(len(catalogue) - 1)
    assert set(table["day"].to_pylist()) == {1}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([""], 600),
        (["/"], 600),
        (["/day=1/part-4.parquet"], 100),
        (["/**/part-[02].parquet"], 200),
        (["/day=*"], 600),
        (["/day=1/*.parquet"], 300),
        (["/day=0/part-0.parquet", "/day=1"], 400),
    ],
)
def test_a_folder_an_object_a_glob_and_a_list_are_found(server, lake, names, expected):
    found = rows([lake + name for name in names], server)
    assert len(found) == len(set(found)) == expected


def test_a_filter_on_a_partition_reads_its_objects_alone(server, lake):
    dataset = Dataset(lake, filters=[("day", "=", 1)], storage_options=server.options())
    with Loader(dataset, batch_size=64) as loader:
        ids = [int(i) for batch in loader for i in batch["id"]]
    assert sorted(ids) == list(range(300, 600))


def test_epochs_are_the_same_from_a_cold_and_a_warm_cache_and_the_second_start_asks_for_nothing(server, lake, tmp_path):
    def epochs():
        dataset = Dataset(lake, storage_options=server.options())
        with Loader(dataset, batch_size=64, shuffle=True, seed=7, cache=tmp_path / "cache") as loader:
            found = []
            for _ in range(2):
                for batch in loader:
                    check_samples(batch)
                    found.append(np.array(batch["id"]))
            return np.concatenate(found), loader.stats().num_built

    first, num_built = epochs()
    assert sorted(first) == sorted([*range(600), *range(600)])
    assert num_built == 6
    assert server.requests
    server.requests.clear()
    second, num_built = epochs()
    np.testing.assert_array_equal(first, second)
    assert num_built == 0
    assert server.requests == []


def test_the_first_start_lists_once_and_reads_of_every_object_its_footer(server, lake):
    # Each once, which a storage that counts shows (`test_source.py`). Here a busy server may fail an answer, and it is
    # asked again.
    Dataset(lake + "/", storage_options=server.options()).open()
    assert {request for request in server.requests if "list-type" in request} == {server.requests[0]}
    reads = {request for request in server.requests if request.startswith("GET") and "list-type" not in request}
    assert len(reads) == 6


@pytest.mark.parametrize(
    "key",
    [
        "a b/c d.parquet",
        "ü/日本.parquet",
        "a+b/c&d=e.parquet",
        "100%/a%20b.parquet",
        "a#b/c'(d)!.parquet",
        "run[3]/a*b?.parquet",
        "back\\slash/{x}.parquet",
        " a /-b .parquet",
        "k=%41/tab.parquet",
    ],
)
def test_keys_stand_in_urls_as_they_are(server, bucket, key):
    server.put_table(f"{bucket}/{key}", sample_table(10))
    server.put_table(f"{bucket}/a b.parquet", sample_table(10, first=10))
    assert rows(f"{bucket}/{key}", server) == list(range(10))
    assert rows(f"{bucket}/{key.split('/')[0]}", server) == list(range(10))
    (file,) = Dataset(f"{bucket}/{key.split('/')[0]}", storage_options=server.options()).open().files
    assert file.url == f"{bucket}/{key}"


def test_a_question_mark_before_an_equals_sign_is_written_as_a_set(server, bucket):
    server.put_table(f"{bucket}/a?x=1.parquet", sample_table(10))
    with pytest.raises(ValueError, match=r"'x'.*written \[\?\]"):
        rows(f"{bucket}/a?x=1.parquet", server)
    assert rows(f"{bucket}/a[?]x=1.parquet", server) == list(range(10))


@pytest.mark.parametrize("key", ["a//b.parquet", "a/../b.parquet", "./b.parquet", "a/tab\t.parquet"])
def test_a_key_that_the_client_cannot_ask_for_is_an_error_that_says_so(server, bucket, key):
    server.put_table(f"{bucket}/{key}", sample_table(10))
    with pytest.raises(SourceError, match=r"no key with '//'"):
        rows(f"{bucket}/{key}", server)


def test_more_objects_than_one_page_are_all_found(server, bucket, monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "20")  # instead of 1,000
    for i in range(50):
        server.put_table(f"{bucket}/many/{i:05}.parquet", sample_table(2, first=2 * i))
    found = Dataset(f"{bucket}/many", storage_options=server.options()).open().files
    assert [file.url for file in found] == [f"{bucket}/many/{i:05}.parquet" for i in range(50)]
    assert len([request for request in server.requests if "list-type" in request]) == 3


def test_where_listings_have_milliseconds_and_headers_seconds_nothing_has_changed(server, lake):
    # So do MinIO and Ceph.
    server.rewrite = lambda body: body.replace(b".000Z<", b".123Z<")
    assert len(rows(lake, server)) == 600


def test_an_object_overwritten_after_listing_is_an_error_that_names_it(server, lake):
    catalogue = Dataset(lake, storage_options=server.options()).open()
    url = catalogue.files[0].url
    list(catalogue.read(0))  # what was read whole with its footer
    server.put_table(url, sample_table(99))
    with pytest.raises(SourceChangedError, match="refresh=True") as caught:
        list(catalogue.read(0))
    assert caught.value.url == url


@pytest.mark.parametrize("name", ["/nothing.parquet", "/nothing", "/no*.parquet", "-nosuch/a.parquet", "-nosuch"])
def test_a_missing_bucket_or_key_is_named_at_once(server, bucket, name):
    error = failure(bucket + name, server)
    assert isinstance(error, SourceMissingError)
    assert error.url == bucket + name
    assert bucket + name in str(error)
    assert len(server.requests) <= 4


def test_unknown_credentials_are_refused_with_the_way_out(server, lake):
    server.require_users(True)
    try:
        error = failure(lake, server, access_key="nobody", secret_key="nothing")
    finally:
        server.require_users(False)
    assert error.url == lake
    assert "credentials" in str(error)
    assert len(server.requests) <= 2


@pytest.mark.parametrize(
    ("status", "code", "way_out"),
    [
        (403, "AccessDenied", "credentials"),
        (403, "InvalidAccessKeyId", "credentials"),
        (403, "SignatureDoesNotMatch", "credentials"),
        (400, "ExpiredToken", "credentials"),
        (301, "PermanentRedirect", "region"),
        (400, "AuthorizationHeaderMalformed", "region"),
    ],
)
def test_what_a_store_refuses_is_not_asked_for_again(server, lake, status, code, way_out):
    server.fault = lambda environ: refusal(status, code)
    for url in (lake + "/", lake + "/day=0/part-0.parquet"):  # listed, and looked up
        server.requests.clear()
        error = failure(url, server)
        assert error.url == url
        assert way_out in str(error)
        assert "storage_options" in str(error)
        assert len(server.requests) <= 2


@pytest.mark.parametrize("column", ["narrow", "wide"])
def test_a_refused_read_says_why_however_short_it_is(server, bucket, column):
    # The client has nowhere to put an answer that is longer than what was asked for, and forgets it.
    table = pa.table({"narrow": np.zeros(50_000, np.int8), "wide": np.random.default_rng(0).random(50_000)})
    server.put_table(f"{bucket}/a.parquet", table, row_group_size=len(table))
    catalogue = Dataset(f"{bucket}/a.parquet", columns=[column], storage_options=server.options()).open()
    server.fault = lambda environ: refusal(403, "AccessDenied") if environ["REQUEST_METHOD"] == "GET" else None
    with pytest.raises(SourceError, match=r"AccessDenied.*credentials"):
        list(catalogue.read(0))


def test_a_store_that_stays_down_is_given_up_with_its_name(server, lake):
    server.fault = lambda environ: refusal(503, "SlowDown")
    error = failure(lake + "/", server)
    assert "SlowDown" in str(error)
    assert error.__notes__ == ["given up after 4 tries"]
    assert len(server.requests) == 4  # the client below does not try again by itself


def test_a_server_that_never_answers_is_given_up(server, lake):
    over = threading.Event()

    def fault(environ):
        over.wait(50)
        return refusal(500, "InternalError")

    server.fault = fault
    dataset = Dataset(lake, storage_options=server.options(request_timeout=0.3))
    try:
        with pytest.raises(SourceError, match="nothing came within the time limit") as caught:
            dataset.open(wait=lambda seconds: True)
    finally:
        over.set()
    assert caught.value.url == lake


@pytest.mark.slow  # The client tries again for 12 s
def test_a_server_that_goes_away_in_mid_epoch_ends_the_epoch_with_the_object(lake, tmp_path):
    server = S3Server()
    dataset = Dataset(lake, storage_options=server.options(), chunk_size="2KB")
    found = []
    try:
        with Loader(dataset, batch_size=10, window=1, prefetch=1, cache=tmp_path) as loader:
            with pytest.raises(SourceError) as caught:  # noqa: PT012
                for batch in loader:
                    found.extend(batch["id"])
                    if len(found) == 10:
                        server.stop()
            assert caught.value.url.startswith(lake)
            assert "endpoint_override" in str(caught.value)
        assert found == list(range(len(found)))
        assert 10 <= len(found) < 600
    finally:
        if len(found) < 10:
            server.stop()


def test_nobody_listens_at_the_endpoint(server, lake):
    gone = S3Server()
    gone.stop()
    error = failure(lake, gone)
    assert error.url == lake
    assert "endpoint_override" in str(error)


def test_public_objects_are_read_without_credentials_and_private_ones_are_refused(server, bucket, monkeypatch):
    server.put_table(f"{bucket}/public.parquet", sample_table(10), acl="public-read")
    server.put_table(f"{bucket}/private.parquet", sample_table(10))
    options = {"access_key": None, "secret_key": None, "anonymous": True}
    assert rows(f"{bucket}/public.parquet", server, **options) == list(range(10))
    assert "credentials" in str(failure(f"{bucket}/private.parquet", server, **options))


def test_options_may_stand_in_the_url_and_beside_it(server, lake):
    query = f"?endpoint_override={server.endpoint}&scheme=http&connect_timeout=60&anonymous=false"
    keys = {"access_key": "test", "secret_key": "test", "region": "us-east-1"}
    assert len(Dataset(lake + query, storage_options=keys).open().files) == 6
    with pytest.raises(ValueError, match=r"'nosuch'.*endpoint_override"):
        Dataset(lake + query + "&nosuch=1").open()


def test_the_environment_names_endpoint_and_credentials(server, bucket, monkeypatch):
    server.put_table(f"{bucket}/a b.parquet", sample_table(10))
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server.endpoint}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    for options in (None, {"region": "us-east-1"}):
        catalogue = Dataset(f"{bucket}/a b.parquet", storage_options=options).open()
        assert catalogue.num_samples.sum() == 10


def test_what_options_say_of_an_endpoint_counts_more_than_the_environment(server, lake, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://127.0.0.1:1")
    options = server.options(endpoint_override=f"http://{server.endpoint}/", scheme=None)
    assert len(Dataset(lake, storage_options=options).open().files) == 6
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{server.endpoint}")  # and of its variables this one
    keys = {name: options[name] for name in ("access_key", "secret_key", "region")}
    assert len(Dataset(lake, storage_options=keys).open().files) == 6


@pytest.fixture
def signed(server, tmp_path, monkeypatch):
    """The keys with which requests were signed, and their tokens, or what was posted; the settings are the test's."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server.endpoint}")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    found = []

    def note(environ):
        key, more = re.search("Credential=([^/]*)/", environ["HTTP_AUTHORIZATION"])[1], None
        if environ["REQUEST_METHOD"] == "POST":
            more = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            environ["wsgi.input"] = io.BytesIO(more)
        found.append((key, more or environ.get("HTTP_X_AMZ_SECURITY_TOKEN")))

    server.fault = note
    return found


def test_a_profile_gives_keys_or_says_what_signs_in_and_the_environment_counts_more(
    lake, signed, tmp_path, monkeypatch
):
    monkeypatch.setenv("AWS_PROFILE", "lab")
    (tmp_path / "credentials").write_text("[lab]\naws_access_key_id = key\naws_secret_access_key = secret\n")
    (tmp_path / "config").write_text("[profile lab]\nregion = eu-west-1\n")
    Dataset(lake).open()
    assert set(signed) == {("key", None)}
    signed.clear()
    keys = json.dumps({"Version": 1, "AccessKeyId": "made", "SecretAccessKey": "secret", "SessionToken": "token"})
    (tmp_path / "keys").write_text(keys)
    text = f"[profile sso]\nregion = eu-west-1\ncredential_process = cat {tmp_path}/keys\n"
    (tmp_path / "config").write_text(text)
    Dataset(lake, storage_options={"profile": "sso"}).open()
    assert set(signed) == {("made", "token")}
    signed.clear()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    Dataset(lake, storage_options={"profile": "sso"}).open()
    assert set(signed) == {("mine", None)}


def test_a_role_is_taken_on(server, lake, signed, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    role = {"role_arn": "arn:aws:iam::123456789012:role/reader", "external_id": "lab"}
    assert len(Dataset(lake, storage_options=role).open().files) == 6
    (asked,) = {more for key, more in signed if key == "mine"}
    assert b"ExternalId=lab" in asked
    assert all(token for key, token in signed if key != "mine")


def test_an_azure_url_names_container_and_account(server):
    server.fault = lambda environ: refusal(404, "BlobNotFound")
    near = {"blob_storage_authority": server.endpoint, "blob_storage_scheme": "http", "account_key": "c2VjcmV0"}
    with pytest.raises(SourceMissingError):
        Dataset("abfss://box@account.dfs.core.windows.net/a.parquet", storage_options=near).open(wait=again_at_once)
    assert server.requests
    assert all(re.match("(HEAD|GET) /account/box([/?]|$)", request) for request in server.requests)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_forked_from_one_that_has_read_reads_by_itself(server, lake):
    catalogue = Dataset(lake, columns=["id"], storage_options=server.options()).open()

    def read():
        opened = Dataset(lake, columns=["id"], storage_options=server.options()).open()
        return [[table["id"].to_pylist() for _, table in one.read(0)] for one in (catalogue, opened)]

    expected = read()
    fork = multiprocessing.get_context("fork")
    answers, answer = fork.Pipe(duplex=False)
    children = [fork.Process(target=lambda: answer.send(read())) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(30)
    assert [child.exitcode for child in children] == [0, 0]
    assert [answers.recv() for _ in children] == [expected] * 2
    assert read() == expected


FORKED = """
import json, os, signal, sys
from obstore.store import S3Store
import stoker

url, options = sys.argv[1], json.loads(sys.argv[2])
keys = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}
endpoint = f"http://{options['endpoint_override']}"
used = S3Store(url.split("/")[2], endpoint=endpoint, client_options={"allow_http": True}, **keys)
assert sum(map(len, used.list())) == 8
dataset = stoker.Dataset(url, storage_options=options)
child = os.fork()
if not child:
    signal.alarm(30)  # ends a child that hangs
    os._exit(len(dataset.open().files))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_process_forked_from_one_that_has_used_the_client_by_itself_reads_too(server, lake):
    environment = os.environ | {"PYTHONPATH": str(Path(stoker.__file__).parents[1])}
    script = [sys.executable, "-W", "ignore", "-c", FORKED, lake, json.dumps(server.options())]
    assert subprocess.run(script, env=environment, check=True, capture_output=True, text=True).stdout == "6\n"


def test_credentials_in_a_url_are_refused_since_urls_are_shown():
    with pytest.raises(ValueError, match="storage_options") as caught:
        Dataset("s3://me:hush@bucket/a").open()
    assert "hush" not in str(caught.value)


@pytest.fixture
def web(tmp_path):
    pytest.importorskip("fsspec", reason="http:// is opened through fsspec: pip install 'stoker[fsspec]'")
    pytest.importorskip("aiohttp", reason="http:// through fsspec needs aiohttp")
    with serving(tmp_path) as place:
        yield f"http://{place}"


def test_http_is_read_through_fsspec(web, tmp_path):
    write_files(tmp_path / "lake", [50, 70])
    for source, expected in (
        (f"{web}/lake/part-00001.parquet", 70),
        (f"{web}/lake/", 120),
        (f"{web}/lake/*.parquet", 120),
    ):
        with Loader(Dataset(source), batch_size=16) as loader:
            num_samples = 0
            for batch in loader:
                check_samples(batch)
                num_samples += len(batch["id"])
        assert num_samples == expected
    with pytest.raises(SourceMissingError, match=r"nothing\.parquet"):
        Dataset(f"{web}/lake/nothing.parquet").open()


def test_without_fsspec_a_data_set_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ValueError, match=r"pip install stoker\[fsspec\]"):
        Dataset("memory://a").open()
