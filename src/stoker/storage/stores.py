"""Which store answers a URL: what options, the environment and profiles contribute beside the URL itself.

    s3://lake/a.parquet   with AWS_ENDPOINT_URL=http://minio-1:9000      one object
    s3://lake/a.parquet   with AWS_ENDPOINT_URL=http://minio-2:9000      another one

Whatever is kept of a data set is kept under this. Credentials do not count: they say who asks. No store is asked here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from stoker.storage.clients import OWN_SCHEMES, aws_profile, s3_endpoint
from stoker.storage.urls import has_scheme, scheme_of, split_query

_S3 = ("s3", "s3a", "s3n")
_GOOGLE = ("gs", "gcs")
_AZURE = ("abfs", "abfss", "az", "adl", "wasb", "wasbs")
_GOOGLE_VARIABLES = ("CLOUD_STORAGE_EMULATOR_ENDPOINT", "STORAGE_EMULATOR_HOST", "GOOGLE_CLOUD_UNIVERSE_DOMAIN")
# What clients of pyarrow take that leads elsewhere.
_LEADING = re.compile(r"endpoint|account_name|authority|_scheme|^scheme$|^host$|^port$")
# What clients of fsspec take that does not: who asks, and how fast.
_NOT_LEADING = re.compile(
    r"key|secret|token|password|passwd|credential|sas|auth|^user|^anon|role|session|cert|timeout|retr|block|buffer|"
    r"cache|concurren|thread|batch|max_|loop|asynchronous|listings|instance|fill|trust_env|get_client"
)
_IN_CONNECTION_STRING = ("accountname", "blobendpoint", "endpointsuffix", "defaultendpointsprotocol")


def store_of(url: str, *, options: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, object]:
    """Return what leads to the store of `url`, as JSON can write it; nothing where the URL says all.

    Args:
        url: As the user gave it: options may stand in its query.
        options: Of the store's client.
        environment: The variables of the environment.
    """
    scheme = scheme_of(url)
    if scheme == "file":
        return {}
    if (chain := url.partition("::")[2]) or scheme not in OWN_SCHEMES:
        leading = _flat({**_fsspec_defaults(scheme), **options})
    else:
        given = {**dict(parse_qsl(split_query(url)[1])), **options}
        leading = {name: str(value) for name, value in given.items() if _LEADING.search(name) and value is not None}
    if chain:
        leading["chain"] = chain
    schemes = {scheme, *(scheme_of(part) for part in chain.split("::") if has_scheme(part))}
    if schemes & set(_S3):
        leading.update(_s3({**dict(parse_qsl(split_query(url)[1])), **options}, environment))
    if schemes & set(_GOOGLE):
        leading.update({name: environment[name] for name in _GOOGLE_VARIABLES if environment.get(name)})
    if schemes & set(_AZURE):
        leading.update(_azure(environment))
    if "hf" in schemes and environment.get("HF_ENDPOINT"):
        leading["HF_ENDPOINT"] = environment["HF_ENDPOINT"].rstrip("/")
    return leading


def _s3(given: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, object]:
    client = given.get("client_kwargs")
    named = given.get("endpoint_url") or (client.get("endpoint_url") if isinstance(client, Mapping) else None)
    endpoint = named or s3_endpoint(given, environment)
    region = (
        given.get("region")
        or environment.get("AWS_REGION")
        or environment.get("AWS_DEFAULT_REGION")
        or aws_profile(given, environment).get("region")
        or ""
    )
    if endpoint:
        scheme, _, host = str(endpoint).rpartition("://")
        scheme = scheme or str(given.get("scheme") or "https")
        return {"endpoint_override": f"{scheme}://{host.rstrip('/').lower()}", "scheme": scheme, "region": str(region)}
    # Of Amazon's own, a name is one bucket in all regions of a partition: the world, China, the government's.
    partition = re.match(r"cn-|us-gov-|[a-z]+-iso[a-z]*-|eusc-", str(region))
    return {"partition": partition[0]} if partition else {}


def _azure(environment: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = {}
    if account := environment.get("AZURE_STORAGE_ACCOUNT_NAME"):
        found["AZURE_STORAGE_ACCOUNT_NAME"] = account
    found.update(_of_connection_string(environment.get("AZURE_STORAGE_CONNECTION_STRING", "")))
    return found


def _of_connection_string(text: str) -> dict[str, object]:
    pairs = (part.partition("=")[::2] for part in text.split(";"))
    return {name: value for name, value in pairs if name.strip().lower() in _IN_CONNECTION_STRING}


def _flat(options: Mapping[str, Any], above: str = "") -> dict[str, object]:
    """Return the options that may lead to another store, as text: "client_kwargs.endpoint_url" is in a mapping."""
    found: dict[str, object] = {}
    for name, value in options.items():
        whole = f"{above}{name}"
        if isinstance(value, Mapping):
            found.update(_flat(value, f"{whole}."))
        elif name == "connection_string":
            found.update(_of_connection_string(str(value)))
        elif not _NOT_LEADING.search(str(name)):
            is_plain = value is None or isinstance(value, str | int | float | bool | list | tuple)
            found[whole] = str(value) if is_plain else type(value).__qualname__
    return found


def _fsspec_defaults(scheme: str) -> Mapping[str, Any]:
    """Return what fsspec's own settings, its files and FSSPEC_... variables, add to the options."""
    try:
        from fsspec.config import conf
    except ImportError:
        return {}
    found = conf.get(scheme, {})
    return found if isinstance(found, Mapping) else {}
