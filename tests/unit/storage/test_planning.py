"""What numbers and texts alone decide: ranges to read, patience, the store that a URL leads to, its client's limits."""

from __future__ import annotations

import itertools
import math
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples

from stoker import SourceError
from stoker.storage.clients import checked_options, client_of, store_of
from stoker.storage.failures import RetryingStorage
from stoker.storage.fetch import SLACK_BYTES, ByteRange, RequestTimes, fetch, plan_ranges
from stoker.storage.find_storage import FsspecStorage
from stoker.storage.storage import ObjectInfo

SIZE = 16_384

spans = st.lists(
    st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(sorted).map(lambda pair: ByteRange(*pair)), max_size=8
)


@given(spans, st.integers(0, 300))
def test_ranges_cover_every_chunk_and_lie_apart(chunks, hole):
    ranges = plan_ranges(chunks, size_bytes=SIZE, max_hole_bytes=hole)
    for start, stop in chunks:
        if start < stop:
            assert any(r.start <= start and min(stop + SLACK_BYTES, SIZE) <= r.stop for r in ranges)
    for before, after in itertools.pairwise(ranges):
        assert after.start - before.stop > hole
    assert all(0 <= r.start < r.stop <= SIZE for r in ranges)


class Zeros:
    """A storage of one object, which notes where it is read."""

    info = ObjectInfo(url="a", size_bytes=1 << 40, version="1")

    def __init__(self):
        self.asked = []

    def stat(self, url):
        return self.info

    def read(self, url, offset, num_bytes):
        self.asked.append((offset, offset + num_bytes))
        return memoryview(np.zeros(num_bytes, np.uint8))


@examples(30)
@given(st.integers(0, 10**9), st.integers(1, 10**8))
def test_requests_cut_a_range_evenly(start, length):
    storage, most = Zeros(), 16 << 20
    fetch(storage.info, storage, [ByteRange(start, start + length)], RequestTimes())
    requests = sorted(storage.asked)
    sizes = [stop - begin for begin, stop in requests]
    assert (requests[0][0], requests[-1][1]) == (start, start + length)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(requests))
    assert len(requests) == -(-length // most)
    assert max(sizes) <= most
    assert len({*sizes[:-1]}) <= 1
    assert max(sizes) - sizes[-1] < len(sizes)


def test_holes_are_as_large_as_what_comes_while_a_request_waits():
    times = RequestTimes()
    assert (times.hole_bytes, times.most_waste) == (4 << 10, 0.08)  # nothing is known yet
    times.note(40_000, 0.03)
    times.note(2_000_000, 1.03)
    assert (times.hole_bytes, times.most_waste) == (61_200, 0.25)
    times.note(198_000_000, 0.53)
    assert times.hole_bytes == 1 << 20
    near = RequestTimes()
    near.note(1_000, 0.0001)
    near.note(1 << 20, 0.01)
    assert near.hole_bytes == 10_601


@pytest.mark.parametrize("num_bytes", [1_000, 5_000, 100_000])
@pytest.mark.parametrize(("latency_s", "most"), [(0.03, 1.3), (0.003, 1.1)])
def test_of_every_tenth_column_little_more_is_read_than_is_needed(num_bytes, latency_s, most):
    times = RequestTimes()
    for _ in range(3):
        times.note(1 << 20, latency_s + 0.005)
    chunks = [ByteRange(start, start + num_bytes) for start in range(4, 1000 * num_bytes, 10 * num_bytes)]
    ranges = plan_ranges(chunks, size_bytes=1 << 40, max_hole_bytes=times.hole_bytes, most_waste=times.most_waste)
    assert sum(stop - start for start, stop in ranges) <= most * (num_bytes + SLACK_BYTES) * len(chunks)


def test_how_long_a_request_may_take_is_told_by_requests_for_as_many_bytes():
    times = RequestTimes()
    for _ in range(15):
        times.note(100, 0.001)
    assert times.patience_s(100) == math.inf  # too few are known
    times.note(100, 2.0)
    assert times.patience_s(100) == 0.5
    assert times.patience_s(1_000_000) == math.inf
    assert not times.may_hedge()  # no more than one in twenty
    for _ in range(10):
        times.note(127, 1.0)
    assert times.patience_s(64) == 4.0
    assert [times.may_hedge(), times.may_hedge()] == [True, False]


def test_a_client_without_time_limits_of_its_own_is_given_up():
    is_over = threading.Event()

    class Silent:
        def info(self, path):
            is_over.wait(60)

        def invalidate_cache(self):
            pass

        def _strip_protocol(self, url):
            return url

    storage = RetryingStorage(FsspecStorage(Silent(), root_url="x://", answer_s=0.05), wait=lambda seconds: None)
    with pytest.raises(SourceError, match="nothing answers at the store") as caught:
        storage.stat("x://a")
    is_over.set()
    assert caught.value.__notes__ == ["given up after 4 tries"]


# ---------------------------------------------------------------------- clients


def client(options=None, **environment):
    """How the client of a bucket is made."""
    given = checked_options("s3://bucket", {"region": "r", **(options or {})})
    return client_of("s3", authority="bucket", given=given, environment={"HOME": "/nowhere", **environment})


def test_a_client_gives_up_in_seconds_unless_told_otherwise():
    limits = client().limits
    assert limits["read_timeout"].total_seconds() <= 5
    assert limits["connect_timeout"].total_seconds() <= 3
    assert client({"request_timeout": 60}).limits["read_timeout"].total_seconds() == 60
    assert client({"request_timeout": 600}).limits["timeout"].total_seconds() == 600


def test_endpoints_of_the_environment_are_left_alone_when_it_says_so():
    ignored = {"AWS_ENDPOINT_URL": "http://a:1", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}
    assert client(AWS_ENDPOINT_URL="http://a:1").config["aws_endpoint_url_s3"] == "http://a:1"
    assert client(**ignored).config["aws_endpoint_url_s3"] == "https://s3.r.amazonaws.com"
    assert client({"endpoint_override": "b:1"}, **ignored).config["aws_endpoint_url_s3"] == "https://b:1"


# ---------------------------------------------------------------------- which store answers a URL

KEY = "AccountKey=c2VjcmV0;"


def store(url, options=None, **environment):
    return store_of(url, options=options or {}, environment={"HOME": "/nowhere", **environment})


@pytest.mark.parametrize(
    ("url", "one", "other"),
    [
        ("gs://lake", {"STORAGE_EMULATOR_HOST": "http://a:1"}, {"STORAGE_EMULATOR_HOST": "http://b:1"}),
        ("s3://lake", {"AWS_REGION": "us-east-1"}, {"AWS_REGION": "cn-north-1"}),
        ("s3://lake", {"AWS_REGION": "us-east-1"}, {"AWS_DEFAULT_REGION": "us-gov-west-1"}),
        ("s3a://lake", {}, {"AWS_ENDPOINT_URL": "http://b:1"}),
        ("simplecache::s3://lake", {}, {"AWS_ENDPOINT_URL": "http://b:1"}),
        (
            "az://lake",
            {"AZURE_STORAGE_CONNECTION_STRING": f"AccountName=a;{KEY}BlobEndpoint=http://h:1/a"},
            {"AZURE_STORAGE_CONNECTION_STRING": f"AccountName=a;{KEY}BlobEndpoint=http://h:2/a"},
        ),
        ("abfs://lake/a", {"AZURE_STORAGE_ACCOUNT_NAME": "a"}, {"AZURE_STORAGE_ACCOUNT_NAME": "b"}),
        ("hf://datasets/a/b", {}, {"HF_ENDPOINT": "https://mirror"}),
    ],
)
def test_what_the_environment_says_of_the_place_counts(url, one, other):
    assert store(url, **one) != store(url, **other)


@pytest.mark.parametrize(
    ("url", "one", "other"),
    [
        ("s3://lake", {"AWS_REGION": "us-east-1"}, {"AWS_REGION": "eu-west-1"}),  # a name is one bucket in all of them
        ("s3://lake", {"AWS_ACCESS_KEY_ID": "a"}, {"AWS_ACCESS_KEY_ID": "b"}),
        (
            "az://lake",
            {"AZURE_STORAGE_CONNECTION_STRING": f"AccountName=a;{KEY}"},
            {"AZURE_STORAGE_CONNECTION_STRING": "AccountName=a;AccountKey=b3RoZXI="},
        ),
        ("/data/lake", {}, {"AWS_ENDPOINT_URL": "http://b:1"}),
        ("gs://lake", {}, {"AWS_ENDPOINT_URL": "http://b:1"}),
    ],
)
def test_what_it_says_of_others_and_of_who_asks_does_not(url, one, other):
    assert store(url, **one) == store(url, **other)


def test_an_endpoint_is_one_however_it_is_named():
    by_options = store("s3://lake", {"endpoint_override": "h:1", "scheme": "http"})
    assert by_options == store("s3://lake", {"endpoint_override": "http://H:1/"}) | {"scheme": "http"}
    assert by_options == store("s3://lake", AWS_ENDPOINT_URL="http://h:1")
    assert by_options == store("s3://lake?endpoint_override=h:1&scheme=http")


def test_options_of_fsspec_count_inside_of_others_too_and_secrets_never():
    near = {"client_kwargs": {"endpoint_url": "http://a:1", "verify": False}, "key": "x", "secret": "y"}
    far = {"client_kwargs": {"endpoint_url": "http://b:1", "verify": False}, "key": "x", "secret": "y"}
    assert store("s3a://lake", near) != store("s3a://lake", far)
    for name in ("token", "password", "sas_token", "account_key", "default_block_size", "connect_timeout"):
        assert store("odd://lake", {name: "x"}) == store("odd://lake")
