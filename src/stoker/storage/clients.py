"""What leads to a store and lets us in: options as users spell them, the environment and profiles, for its client.

The spellings are those of pyarrow's clients, which users of Parquet know: `access_key`, `endpoint_override`,
`anonymous`. The client of all object stores is obstore (`object_store.py`), which takes others.
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

# A packet that was lost on the way to the store is sent again after 1 and 3 s: less would give up before.
_CONNECT_TIMEOUT_S = 3.0
# Without a single byte. With 4 tries a store that accepts connections and says nothing is given up after 25 s.
READ_TIMEOUT_S = 5.0
# Of one request, however slowly it trickles: 16 MiB at 140 kB/s.
_REQUEST_TIMEOUT_S = 120.0

# Option -> what obstore calls it and its type; "" is taken from us and has no effect, since we only read.
_TIMES = {"connect_timeout": ("", float), "request_timeout": ("", float)}
_PLACE = {"endpoint_override": ("", str), "scheme": ("", str)}
_S3 = {
    "access_key": ("access_key_id", str),
    "secret_key": ("secret_access_key", str),
    "session_token": ("session_token", str),
    "anonymous": ("skip_signature", bool),
    "region": ("region", str),
    "force_virtual_addressing": ("virtual_hosted_style_request", bool),
    **dict.fromkeys(("role_arn", "session_name", "external_id", "profile", "tls_ca_file_path"), ("", str)),
    **dict.fromkeys(("load_frequency", "proxy_options", "retry_strategy", "default_metadata"), ("", object)),
    **dict.fromkeys(("background_writes", "allow_bucket_creation", "allow_bucket_deletion"), ("", bool)),
}
_GOOGLE = {
    "access_token": ("bearer_token", str),
    "anonymous": ("skip_signature", bool),
    "project_id": ("", str),
    **dict.fromkeys(("default_bucket_location", "credential_token_expiration", "retry_time_limit"), ("", object)),
}
_AZURE = {
    "account_name": ("account_name", str),
    "account_key": ("account_key", str),
    "sas_token": ("sas_key", str),
    "tenant_id": ("tenant_id", str),
    "client_id": ("client_id", str),
    "client_secret": ("client_secret", str),
    "anonymous": ("skip_signature", bool),
    **dict.fromkeys(("blob_storage_authority", "blob_storage_scheme"), ("", str)),
    **dict.fromkeys(("dfs_storage_authority", "dfs_storage_scheme"), ("", str)),
}
_OPTIONS: Mapping[str, Mapping[str, tuple[str, type]]] = {
    "s3": {**_S3, **_PLACE, **_TIMES},
    "gs": (_gs := {**_GOOGLE, **_PLACE, **_TIMES}),
    "gcs": _gs,
    "abfs": (_abfs := {**_AZURE, **_TIMES}),
    "abfss": _abfs,
}
# Schemes whose URLs may have options, and whose options are these.
OWN_SCHEMES = frozenset(_OPTIONS)


class WrongArgumentError(ValueError):
    """An argument that only making the client shows to be wrong: a plain `ValueError` to the user."""


class Client(NamedTuple):
    """How the client of an object store is made.

    Attributes:
        kind: Name of its class in `obstore.store`.
        config: Its settings.
        limits: Those of its connections, time limits among them.
        role: For S3: the role to take on, as arguments of `obstore.auth.boto3.StsCredentialProvider`.
        profile: For S3: the profile whose credentials only boto3 gets.
    """

    kind: str
    config: Mapping[str, Any]
    limits: Mapping[str, Any]
    role: Mapping[str, str] | None = None
    profile: str | None = None


def checked_options(scheme: str, *, authority: str, query: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a URL's query and those beside it, which count more, without those that are None.

    Raises:
        WrongArgumentError: One does not exist or has another type, or the URL holds credentials.
    """
    if "@" in authority and scheme in ("s3", "gs", "gcs"):
        # Error messages and logs show URLs.
        raise WrongArgumentError(
            f"{scheme}://...@{authority.rsplit('@', 1)[1]}: credentials do not belong into a URL, "
            "give them in storage_options"
        )
    known = _OPTIONS[scheme]
    given = {**dict(parse_qsl(query, keep_blank_values=True)), **options}
    if unknown := sorted(set(given) - set(known)):
        hint = "; in a URL, a '?' that is part of a key is written [?]" if query else ""
        raise WrongArgumentError(
            f"storage_options for {scheme} do not have {', '.join(map(repr, unknown))}; "
            f"they are {', '.join(known)}{hint}"
        )
    return {name: _typed(scheme, name, value) for name, value in given.items() if value is not None}


def _typed(scheme: str, name: str, value: Any) -> Any:
    kind = _OPTIONS[scheme][name][1]
    if isinstance(value, str) and kind in (bool, float, int):  # as in a URL
        try:
            return value.lower() == "true" if kind is bool else kind(value)
        except ValueError:
            raise WrongArgumentError(f"{name} in a URL must be a number, not {value!r}") from None
    if not isinstance(value, int | float if kind is float else kind):
        raise WrongArgumentError(
            f"storage_options for {scheme}: {name} must be {kind.__name__}, not {type(value).__name__}"
        )
    return value


def client_of(scheme: str, *, authority: str, given: Mapping[str, Any], environment: Mapping[str, str]) -> Client:
    """Return how to make the client of a bucket.

    Args:
        scheme: Such as "s3".
        authority: What stands behind it: the bucket, or "container@account.host".
        given: As `checked_options` returns them.
        environment: The variables of the environment.

    Blocks:
        For a bucket of Amazon's without a region: on one request that asks for it.

    Raises:
        FileNotFoundError: There is no such bucket.
    """
    names = _OPTIONS[scheme]
    config = {names[name][0]: value for name, value in given.items() if names[name][0]}
    limits: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=given.get("connect_timeout", _CONNECT_TIMEOUT_S)),
        "read_timeout": timedelta(seconds=(wait_s := given.get("request_timeout", READ_TIMEOUT_S))),
        "timeout": timedelta(seconds=max(_REQUEST_TIMEOUT_S, wait_s)),
    }
    if scheme == "s3":
        return _s3_client(authority, given, environment, config, limits)
    if scheme in ("gs", "gcs"):
        endpoint = _google_endpoint(given, environment)
        config |= {"base_url": endpoint} if endpoint else {}
        kind, config["bucket"] = "GCSStore", authority
    else:
        config["container_name"], at, host = authority.partition("@")
        config.setdefault("account_name", host.partition(".")[0] or environment.get("AZURE_STORAGE_ACCOUNT_NAME"))
        endpoint = _azure_endpoint(given, config["account_name"], host if at else "")
        config |= {"endpoint": endpoint} if endpoint else {}
        kind = "AzureStore"
    return Client(kind, config, limits | {"allow_http": bool(endpoint and endpoint.startswith("http://"))})


def _s3_client(
    bucket: str,
    given: Mapping[str, Any],
    environment: Mapping[str, str],
    config: dict[str, Any],
    limits: dict[str, Any],
) -> Client:
    profile = aws_profile(given, environment)
    endpoint = s3_endpoint(given, environment)
    region = (
        given.get("region")
        or environment.get("AWS_REGION")
        or environment.get("AWS_DEFAULT_REGION")
        or profile.get("region")
        or (None if endpoint else _region_of(bucket))
        or "us-east-1"
    )
    if endpoint and "://" not in endpoint:
        endpoint = f"{given.get('scheme') or 'https'}://{endpoint}"
    if endpoint is None and (environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")):
        endpoint = f"https://s3.{region}.amazonaws.com"  # they are to be left alone, which obstore does not know
    config |= {"bucket": bucket, "region": region}
    if endpoint:
        config["aws_endpoint_url_s3"] = endpoint.rstrip("/")
        limits["allow_http"] = endpoint.startswith("http://")
    if path := given.get("tls_ca_file_path"):
        limits["root_certificate"] = Path(path).read_bytes()
    if proxy := given.get("proxy_options"):
        limits["proxy_url"] = proxy if isinstance(proxy, str) else "{scheme}://{host}:{port}".format(**proxy)
    is_known = "access_key_id" in config or "skip_signature" in config or environment.get("AWS_ACCESS_KEY_ID")
    if role := given.get("role_arn"):
        named = {"RoleArn": role, "RoleSessionName": given.get("session_name") or "stoker"}
        more = {"ExternalId": given["external_id"]} if given.get("external_id") else {}
        return Client("S3Store", config, limits, role=named | more)
    if is_known or not profile:
        return Client("S3Store", config, limits)
    if "aws_access_key_id" in profile and "role_arn" not in profile:
        names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
        return Client("S3Store", config | {name: profile[name] for name in names if name in profile}, limits)
    if any(re.match("role_arn|sso_|credential_process|source_profile", name) for name in profile):
        return Client("S3Store", config, limits, profile=_profile_name(given, environment))
    return Client("S3Store", config, limits)


def s3_endpoint(given: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    """Return the endpoint of S3 that options, environment and profile name, in this order, as Amazon's clients do."""
    if given.get("endpoint_override"):
        return str(given["endpoint_override"])
    profile = aws_profile(given, environment)
    ignored = environment.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") or profile.get("ignore_configured_endpoint_urls")
    if str(ignored).lower() == "true":
        return None
    return (
        environment.get("AWS_ENDPOINT_URL_S3")
        or environment.get("AWS_ENDPOINT_URL")
        or profile.get("s3.endpoint_url")
        or profile.get("endpoint_url")
    )


def _profile_name(given: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    return str(
        given.get("profile") or environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE") or "default"
    )


def aws_profile(given: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
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
        section = next((one for one in (f"profile {name}", name) if parser.has_section(one)), None)
        if section is None:
            continue
        found.update({key: value.strip() for key, value in parser.items(section) if value})
        services = f"services {found.get('services')}"
        if parser.has_section(services):
            for line in (parser.get(services, "s3", fallback="") or "").splitlines():
                key, equals, value = line.partition("=")
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
        with urllib.request.urlopen(ask, timeout=_CONNECT_TIMEOUT_S) as answer:
            return str(answer.headers["x-amz-bucket-region"] or "") or None
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise FileNotFoundError(f"no bucket {bucket}") from error
        return error.headers["x-amz-bucket-region"]
    except OSError:
        return None  # behind a proxy or an endpoint of a private network: environment and profile name it then


def web_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of fsspec's client of web servers, with time limits: its own is five minutes."""
    try:
        import aiohttp
    except ImportError:
        return dict(options)  # fsspec says so
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=READ_TIMEOUT_S)
    return {**options, "client_kwargs": {"timeout": timeout, **options.get("client_kwargs", {})}}
