"""Which store answers a URL."""

from __future__ import annotations

import pytest

from stoker.storage.clients import s3_place, store_of

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


def test_endpoints_of_the_environment_are_left_alone_when_it_says_so():
    assert s3_place({}, {"HOME": "/nowhere", "AWS_ENDPOINT_URL": "http://a:1"}) == ("http://a:1", None)
    told = {"AWS_ENDPOINT_URL": "http://a:1", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true", "HOME": "/nowhere"}
    assert s3_place({}, told) == (None, None)
    assert s3_place({"endpoint_override": "b:1"}, told) == ("https://b:1", None)
