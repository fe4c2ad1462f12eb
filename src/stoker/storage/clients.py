"""What leads to a store and lets us in: options as users spell them, the environment and profiles, for its client.

    s3://lake/a.parquet   with AWS_ENDPOINT_URL=http://minio-1:9000      one object
    s3://lake/a.parquet   with AWS_ENDPOINT_URL=http://minio-2:9000      another one

The spellings are those of pyarrow's clients, which users of Parquet know: `access_key`, `endpoint_override`,
`anonymous`. The client of all object stores is obstore (`object_store.py`), which takes others. Whatever is kept of a
data set is kept under what leads to its store (`store_of`); credentials do not count: they say who asks.
"""

from __future__ import annotations

import configparser
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from stoker.storage.failures import WrongArgumentError
from stoker.storage.urls import OWN_SCHEMES, has_scheme, scheme_of, split_query

CONNECT_TIMEOUT_S = 3.0  # a packet that was lost on the way is sent again after 1 and 3 s: less would give up before
READ_TIMEOUT_S = 5.0  # without a single byte: with 4 tries, a store that says nothing is given up after 25 s
REQUEST_TIMEOUT_S = 120.0  # of one request, however slowly it trickles: 16 MiB at 140 kB/s

# Option -> what obstore calls it; "" is read here. What pyarrow's clients know besides has no effect on reading.
_S3 = {
    "access_key": "access_key_id",
    "secret_key": "secret_access_key",
    "session_token": "session_token",
    "anonymous": "skip_signature",
    "region": "region",
    "force_virtual_addressing": "virtual_hosted_style_request",
    **dict.fromkeys(("role_arn", "session_name", "external_id", "profile", "tls_ca_file_path", "proxy_options"), ""),
    **dict.fromkeys(("endpoint_override", "scheme"), ""),
}
_GOOGLE = {
    "access_token": "bearer_token",
    "anonymous": "skip_signature",
    **dict.fromkeys(("endpoint_override", "scheme"), ""),
}
_AZURE = {
    **{name: name for name in ("account_name", "account_key", "tenant_id", "client_id", "client_secret")},
    "sas_token": "sas_key",
    "anonymous": "skip_signature",
    **dict.fromkeys(("blob_storage_authority", "blob_storage_scheme"), ""),
}
_OPTIONS = {"s3": _S3, "gs": _GOOGLE, "gcs": _GOOGLE, "abfs": _AZURE, "abfss": _AZURE}
# The others are text.
_KINDS: Mapping[str, type] = {
    **dict.fromkeys(("anonymous", "force_virtual_addressing"), bool),
    **dict.fromkeys(("connect_timeout", "request_timeout"), float),
    "proxy_options": object,
}

# What of our own options leads elsewhere; of fsspec's, all that does not say who asks, and how fast.
_LEADING = ("endpoint_override", "scheme", "account_name", "blob_storage_authority", "blob_storage_scheme")
_NOT_LEADING = re.compile(
    r"key|secret|token|password|passwd|credential|sas|auth|^user|^anon|role|session|cert|timeout|retr|block|buffer|"
    r"cache|concurren|thread|batch|max_|loop|asynchronous|listings|instance|fill|trust_env|get_client"
)
_IN_CONNECTION_STRING = ("accountname", "blobendpoint", "endpointsuffix", "defaultendpointsprotocol")
# Schemes -> the variables that lead their clients elsewhere, whichever these are.
_LEADING_VARIABLES = {
    ("gs", "gcs"): ("STORAGE_EMULATOR_HOST",),
    ("hf",): ("HF_ENDPOINT",),
    ("abfs", "abfss", "az", "adl", "wasb", "wasbs"): ("AZURE_STORAGE_ACCOUNT_NAME",),
}


class Client(NamedTuple):
    """How the client of an object store is made."""

    kind: str  # of `obstore.store`
    config: Mapping[str, Any]
    limits: Mapping[str, Any]  # of its connections
    role: Mapping[str, str] | None = None  # of S3, to take on: arguments of `obstore.auth.boto3.StsCredentialProvider`
    profile: str | None = None  # of S3, whose credentials only boto3 gets


def checked_options(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a URL's query and those beside it, which count more, without those that are None."""
    place, query = split_query(url)
    scheme, authority = scheme_of(url), place.partition("://")[2].partition("/")[0]
    if "@" in authority and scheme in ("s3", "gs", "gcs"):
        # Error messages and logs show URLs.
        raise WrongArgumentError(
            f"{scheme}://...@{authority.rsplit('@', 1)[1]}: credentials do not belong into a URL, "
            "give them in storage_options"
        )
    known = {**_OPTIONS[scheme], "connect_timeout": "", "request_timeout": ""}
    given = {**dict(parse_qsl(query, keep_blank_values=True)), **options}
    if unknown := sorted(set(given) - set(known)):
        hint = "; in a URL, a '?' that is part of a key is written [?]" if query else ""
        raise WrongArgumentError(
            f"storage_options for {scheme} do not have {', '.join(map(repr, unknown))}; "
            f"they are {', '.join(known)}{hint}"
        )
    return {name: _typed(scheme, name, value) for name, value in given.items() if value is not None}


def _typed(scheme: str, name: str, value: Any) -> Any:
    kind = _KINDS.get(name, str)
    if isinstance(value, str) and kind in (bool, float):  # as in a URL
        try:
            value = value.lower() == "true" if kind is bool else float(value)
        except ValueError:
            raise WrongArgumentError(f"{name} in a URL must be a number, not {value!r}") from None
    if not isinstance(value, int | float if kind is float else kind):
        raise WrongArgumentError(
            f"storage_options for {scheme}: {name} must be {kind.__name__}, not {type(value).__name__}"
        )
    if kind is float and isinstance(value, int | float) and not 0 < value < 1e9:
        raise WrongArgumentError(f"storage_options for {scheme}: {name} must be a number of seconds, not {value}")
    return value


def client_of(scheme: str, *, authority: str, given: Mapping[str, Any], environment: Mapping[str, str]) -> Client:
    """Return how to make the client of a bucket, "name" or "container@account.host".

    Blocks: for a bucket of Amazon's without a region, on one request that asks for it; a `FileNotFoundError` says that
    there is none.
    """
    names = _OPTIONS[scheme]
    config = {names[name]: value for name, value in given.items() if names.get(name)}
    limits: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=given.get("connect_timeout", CONNECT_TIMEOUT_S)),
        "read_timeout": timedelta(seconds=(wait_s := given.get("request_timeout", READ_TIMEOUT_S))),
        "timeout": timedelta(seconds=max(REQUEST_TIMEOUT_S, wait_s)),
    }
    if scheme == "s3":
        return _s3_client(given, environment, config | {"bucket": authority}, limits)
    if scheme in ("gs", "gcs"):
        kind, setting, endpoint = "GCSStore", "base_url", _google_endpoint(given, environment)
        config["bucket"] = authority
    else:
        config["container_name"], at, host = authority.partition("@")
        config.setdefault("account_name", host.partition(".")[0] or environment.get("AZURE_STORAGE_ACCOUNT_NAME"))
        kind, setting = "AzureStore", "endpoint"
        endpoint = _azure_endpoint(given, config["account_name"], host if at else "")
    if endpoint:
        config[setting] = endpoint
    return Client(kind, config, limits | {"allow_http": bool(endpoint and endpoint.startswith("http://"))})


def _s3_client(
    given: Mapping[str, Any], environment: Mapping[str, str], config: dict[str, Any], limits: dict[str, Any]
) -> Client:
    profile = _aws_profile(given, environment)
    endpoint, region = _s3_place(given, environment)
    region = region or (None if endpoint else _region_of(config["bucket"])) or "us-east-1"
    if endpoint is None and (environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")):
        endpoint = f"https://s3.{region}.amazonaws.com"  # they are to be left alone, which obstore does not know
    config["region"] = region
    if endpoint:
        config["aws_endpoint_url_s3"] = endpoint
        limits["allow_http"] = endpoint.startswith("http://")
    if path := given.get("tls_ca_file_path"):
        limits["root_certificate"] = Path(path).read_bytes()
    if proxy := given.get("proxy_options"):
        limits["proxy_url"] = proxy if isinstance(proxy, str) else "{scheme}://{host}:{port}".format(**proxy)
    client = Client("S3Store", config, limits)
    if role := given.get("role_arn"):
        named = {"RoleArn": role, "RoleSessionName": given.get("session_name") or "stoker"}
        more = {"ExternalId": given["external_id"]} if given.get("external_id") else {}
        return client._replace(role=named | more)
    if "access_key_id" in config or "skip_signature" in config or environment.get("AWS_ACCESS_KEY_ID"):
        return client
    if "aws_access_key_id" in profile and "role_arn" not in profile:
        names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
        return client._replace(config=config | {name: profile[name] for name in names if name in profile})
    signs_in = any(re.match("role_arn|sso_|credential_process|source_profile", name) for name in profile)
    return client._replace(profile=_profile_name(given, environment)) if signs_in else client


def _s3_place(given: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return the endpoint of S3 and the region that options, environment and profile name, in this order."""
    profile = _aws_profile(given, environment)
    region = given.get("region") or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    ignored = environment.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") or profile.get("ignore_configured_endpoint_urls")
    places = [given.get("endpoint_override")]
    if str(ignored).lower() != "true":
        places += [environment.get("AWS_ENDPOINT_URL_S3"), environment.get("AWS_ENDPOINT_URL")]
        places += [profile.get("s3.endpoint_url"), profile.get("endpoint_url")]
    endpoint = next(filter(None, places), None)
    if endpoint and "://" not in endpoint:
        endpoint = f"{given.get('scheme') or 'https'}://{endpoint}"
    return endpoint.rstrip("/") if endpoint else None, region or profile.get("region")


def _profile_name(given: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    names = given.get("profile"), environment.get("AWS_PROFILE"), environment.get("AWS_DEFAULT_PROFILE")
    return str(next(filter(None, names), "default"))


def _aws_profile(given: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the profile in use; those of S3 among its services as "s3.endpoint_url"."""
    home = environment.get("HOME") or "~"
    name = _profile_name(given, environment)
    found: dict[str, str] = {}
    for variable, file in (("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials")):
        path = Path(environment.get(variable) or f"{home}/.aws/{file}").expanduser()
        parser = configparser.RawConfigParser(strict=False, default_section="", delimiters=("=",), allow_no_value=True)
        try:
            parser.read_string(path.read_text())
        except (OSError, ValueError, configparser.Error):
            continue
        for section in (f"profile {name}", name):
            if parser.has_section(section):
                found.update({key: value.strip() for key, value in parser.items(section) if value})
                break
        services = parser.get(f"services {found.get('services')}", "s3", fallback="") or ""
        for key, equals, value in (line.partition("=") for line in services.splitlines()):
            if equals:
                found[f"s3.{key.strip().lower()}"] = value.strip()
    return found


def _google_endpoint(given: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    """Return the server that stands for Google's own; the environment names one as Google's clients read it."""
    place = given.get("endpoint_override") or environment.get("STORAGE_EMULATOR_HOST")
    default = "https" if given.get("endpoint_override") else "http"
    if not place or "://" in place:
        return place
    return f"{given.get('scheme') or default}://{place}".rstrip("/")


def _azure_endpoint(given: Mapping[str, Any], account: str | None, host: str) -> str | None:
    """Return where blobs are served; None where that is Azure's own place for the account."""
    place = given.get("blob_storage_authority")
    if place is None:
        is_usual = not host or host.endswith((".core.windows.net", ".fabric.microsoft.com"))
        return None if is_usual else f"https://{host.replace('.dfs.', '.blob.')}"
    scheme = given.get("blob_storage_scheme") or "https"
    return f"{scheme}://{account}{place}" if place.startswith(".") else f"{scheme}://{place}/{account}"


def _region_of(bucket: str) -> str | None:
    """Return the region of a bucket of Amazon's, which tells it to everybody; None where it cannot be told."""
    ask = urllib.request.Request(f"https://s3.amazonaws.com/{bucket}", method="HEAD")
    try:
        with urllib.request.urlopen(ask, timeout=CONNECT_TIMEOUT_S) as answer:
            return str(answer.headers["x-amz-bucket-region"] or "") or None
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise FileNotFoundError(f"no bucket {bucket}") from error
        return error.headers["x-amz-bucket-region"]
    except OSError:
        return None  # behind a proxy or an endpoint of a private network: environment and profile name it then


def store_of(url: str, *, options: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, object]:
    """Return what leads to the store of `url`, as JSON can write it; nothing where the URL says all.

    No store is asked. Options may stand in the URL's query, too.
    """
    scheme = scheme_of(url)
    chain = url.partition("::")[2]
    given = {**dict(parse_qsl(split_query(url)[1])), **options}  # checked where a client is made of them
    if chain or scheme not in OWN_SCHEMES:
        leading = _leading_options({**_fsspec_defaults(scheme), **given})
    else:
        leading = {name: str(given[name]) for name in _LEADING if given.get(name) is not None}
    if chain:
        leading["chain"] = chain
    schemes = {scheme, *(scheme_of(part) for part in chain.split("::") if has_scheme(part))}
    if schemes & {"s3", "s3a", "s3n"}:
        leading.update(_leading_to_s3(given, environment))
    for names, variables in _LEADING_VARIABLES.items():
        if schemes & set(names):
            leading.update({name: environment[name].rstrip("/") for name in variables if environment.get(name)})
            if "az" in names:
                leading.update(_in_connection_string(environment.get("AZURE_STORAGE_CONNECTION_STRING", "")))
    return leading


def _leading_to_s3(given: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, object]:
    client = given.get("client_kwargs")  # of s3fs
    named = given.get("endpoint_url") or (client.get("endpoint_url") if isinstance(client, Mapping) else None)
    told = {**given, "endpoint_override": named or given.get("endpoint_override")}
    endpoint, region = _s3_place({name: value and str(value) for name, value in told.items()}, environment)
    if endpoint:
        scheme, _, host = endpoint.partition("://")
        return {"endpoint_override": f"{scheme}://{host.lower()}", "scheme": scheme, "region": region or ""}
    # Of Amazon's own, a name is one bucket in all regions of a partition: the world, China, the government's.
    partition = re.match(r"cn-|us-gov-|[a-z]+-iso[a-z]*-|eusc-", region or "")
    return {"partition": partition[0]} if partition else {}


def _in_connection_string(text: str) -> dict[str, object]:
    pairs = (part.partition("=")[::2] for part in text.split(";"))
    return {name: value for name, value in pairs if name.strip().lower() in _IN_CONNECTION_STRING}


def _leading_options(options: Mapping[str, Any], above: str = "") -> dict[str, object]:
    """Return those of fsspec's that may lead elsewhere, as text: "client_kwargs.endpoint_url" is in a mapping."""
    found: dict[str, object] = {}
    for name, value in options.items():
        whole = f"{above}{name}"
        if isinstance(value, Mapping):
            found.update(_leading_options(value, f"{whole}."))
        elif name == "connection_string":
            found.update(_in_connection_string(str(value)))
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
