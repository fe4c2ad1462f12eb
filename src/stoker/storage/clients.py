"""The clients of stores that pyarrow.fs has: made of a URL, of options and of what is good for a training run.

Left to themselves they try for minutes before they say that a store is gone, in which the step that waits for the batch
says nothing. Here each gives up in seconds, and trying again is done in one place, `storage/retry.py`.
"""

from __future__ import annotations

import configparser
import re
import socket
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pyarrow.fs as pafs

# A packet that was lost on the way to the store is sent again after 1 and 3 s: less would give up before.
_CONNECT_TIMEOUT_S = 3.0
# Without a single byte, on any system: the client measures its flow. With 4 tries a store that accepts connections and
# says nothing is given up after 25 s, one that stops in the midst of an answer after 50 s.
_REQUEST_TIMEOUT_S = 5.0
# Google's client tries for 15 minutes by itself.
_GCS_RETRY_LIMIT = timedelta(seconds=1)

_CLIENTS = {
    "s3": "S3FileSystem",
    "gs": "GcsFileSystem",
    "gcs": "GcsFileSystem",
    "abfs": "AzureFileSystem",
    "abfss": "AzureFileSystem",
    "hdfs": "HadoopFileSystem",
    "viewfs": "HadoopFileSystem",
}
ARROW_SCHEMES = frozenset(_CLIENTS)


class WrongArgumentError(ValueError):
    """An argument that only making the client shows to be wrong: a plain `ValueError` to the user."""


def filesystem_for(
    scheme: str, *, authority: str, query: str, options: Mapping[str, Any], environment: Mapping[str, str]
) -> pafs.FileSystem:
    """Return the file system that opens URLs of a scheme of `ARROW_SCHEMES`.

    Args:
        scheme: Such as "s3".
        authority: What stands behind it: the bucket, "container@account.host", or host and port.
        query: Options from the URL, "endpoint_override=localhost:9000&scheme=http".
        options: The arguments of the client; they count more than those from the URL.
        environment: The variables of the environment.

    Blocks:
        For a bucket of Amazon's without a region among the options: on one request that asks for it.

    Raises:
        WrongArgumentError: The client does not know an option or take its value, or this pyarrow lacks the client.
        FileNotFoundError: There is no such bucket.
    """
    if "@" in authority and scheme in ("s3", "gs", "gcs"):
        # Error messages and logs show URLs.
        raise WrongArgumentError(
            f"{scheme}://...@{authority.rsplit('@', 1)[1]}: credentials do not belong into a URL, "
            "give them in storage_options"
        )
    client = getattr(pafs, _CLIENTS[scheme], None)
    if client is None:
        raise WrongArgumentError(f"this pyarrow was built without {_CLIENTS[scheme]}, which {scheme}:// needs")
    names = option_names(client)
    try:
        given = checked({**_from_query(query), **options}, names=names, scheme=scheme)
    except WrongArgumentError as error:
        hint = "; in a URL, a '?' that is part of a key is written [?]" if query else ""
        raise WrongArgumentError(f"{error}{hint}") from None
    try:
        if scheme == "s3":
            arguments = s3_arguments(given, environment=environment)
            if "region" not in arguments and "endpoint_override" not in arguments:
                arguments.update(_region_of(authority))
            return client(**arguments)
        if scheme in ("gs", "gcs"):
            return client(**{"retry_time_limit": _GCS_RETRY_LIMIT, **_google_endpoint(environment), **given})
        if not given:
            return pafs.FileSystem.from_uri(f"{scheme}://{authority}/")[0]
        if scheme in ("abfs", "abfss"):
            account = authority.rpartition("@")[2].partition(".")[0]
            return client(**{**({"account_name": account} if "@" in authority else {}), **given})
        host, _, port = authority.partition(":")
        return client(**{"host": host or "default", "port": int(port or 0), **given})
    except (TypeError, ValueError) as error:
        raise WrongArgumentError(f"storage_options for {scheme}: {error}") from error


def address_of(
    scheme: str, *, authority: str, options: Mapping[str, Any], environment: Mapping[str, str]
) -> tuple[str, int] | None:
    """Return host and port of a store whose client waits for minutes for a connection; None where it is another's.

    Arguments as of `filesystem_for`.
    """
    if any(name.lower() in ("https_proxy", "http_proxy", "all_proxy") and environment[name] for name in environment):
        return None
    if scheme in ("gs", "gcs"):
        if environment.get("CLOUD_STORAGE_EMULATOR_ENDPOINT"):
            return None
        options = {**_google_endpoint(environment), **options}
        place, http = str(options.get("endpoint_override") or "storage.googleapis.com"), options.get("scheme")
    elif scheme in ("abfs", "abfss"):
        account = str(options.get("account_name") or authority.rpartition("@")[2].partition(".")[0])
        place, http = str(options.get("blob_storage_authority") or ".blob.core.windows.net"), None
        place, http = account + place if place.startswith(".") else place, options.get("blob_storage_scheme")
    else:
        return None
    host, _, port = place.rpartition("://")[2].partition(":")
    return host, int(port) if port.isdigit() else 80 if http == "http" else 443


def reach(host: str, port: int) -> None:
    """Connect to a store, and hang up.

    Raises:
        ConnectionError: Nothing answers.
    """
    try:
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ConnectionError(f"nothing answers at {host}:{port} ({error})") from error


def web_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of fsspec's client of web servers, with time limits: its own is five minutes."""
    try:
        import aiohttp
    except ImportError:
        return dict(options)  # fsspec says so
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=_REQUEST_TIMEOUT_S)
    return {**options, "client_kwargs": {"timeout": timeout, **options.get("client_kwargs", {})}}


def option_names(client: type) -> tuple[str, ...]:
    """Return the arguments of one of pyarrow's clients, which are known from its first line of help alone."""
    line = (client.__doc__ or "").strip().partition("\n")[0]
    inside = re.sub(r"\([^()]*\)", "", line.partition("(")[2].rpartition(")")[0])
    parts = (part.partition("=")[0].partition(":")[0].split() for part in inside.split(","))
    return tuple(part[-1] for part in parts if part and part[-1] != "*")


def checked(given: Mapping[str, Any], *, names: tuple[str, ...], scheme: str) -> dict[str, Any]:
    """Return `given` as it is.

    Raises:
        WrongArgumentError: A name is not among `names`.
    """
    if names and (unknown := sorted(set(given) - set(names))):
        raise WrongArgumentError(
            f"storage_options for {scheme} do not have {', '.join(map(repr, unknown))}; they are {', '.join(names)}"
        )
    return dict(given)


def s3_arguments(given: Mapping[str, Any], *, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments for S3: what is given, the endpoint of the environment, and time limits.

    Args:
        given: Arguments of `pyarrow.fs.S3FileSystem`; an endpoint may have its scheme, "http://localhost:9000".
        environment: Where endpoints are looked for, and the profile: see `s3_endpoint`.
    """
    arguments = dict(given)
    endpoint = s3_endpoint(arguments, environment)
    arguments.pop("endpoint_override", None)
    if endpoint:
        scheme, _, host = endpoint.rpartition("://")
        arguments["endpoint_override"] = host.rstrip("/")
        if scheme:
            arguments.setdefault("scheme", scheme)
    arguments.setdefault("connect_timeout", _CONNECT_TIMEOUT_S)
    arguments.setdefault("request_timeout", _REQUEST_TIMEOUT_S)
    arguments.setdefault("allow_delayed_open", True)  # what is written is one request, where it is small
    if "retry_strategy" not in arguments:
        arguments["retry_strategy"] = pafs.AwsStandardS3RetryStrategy(max_attempts=1)
    return arguments


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


def aws_profile(given: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the profile in use; those of S3 among its services as "s3.endpoint_url"."""
    home = environment.get("HOME") or "~"
    name = given.get("profile") or environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE") or "default"
    found: dict[str, str] = {}
    for variable, file in (("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials")):
        path = Path(environment.get(variable) or f"{home}/.aws/{file}").expanduser()
        parser = configparser.RawConfigParser(strict=False, default_section="", delimiters=("=",), allow_no_value=True)
        try:
            parser.read_string(path.read_text())
        except (OSError, ValueError, configparser.Error):  # Amazon's client says what is wrong with it
            continue
        section = next((one for one in (f"profile {name}", str(name)) if parser.has_section(one)), None)
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


def _google_endpoint(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the server that stands for Google's own, where the environment names one as Google's clients read it."""
    scheme, _, host = environment.get("STORAGE_EMULATOR_HOST", "").rpartition("://")
    return {"endpoint_override": host.rstrip("/"), "scheme": scheme or "http"} if host else {}


def _region_of(bucket: str) -> dict[str, str]:
    """Return the region of a bucket of Amazon's as an argument; nothing where it cannot be told."""
    try:
        return {"region": pafs.resolve_s3_region(bucket)}
    except OSError as error:
        if f"'{bucket}' not found" in str(error):
            raise FileNotFoundError(f"no bucket {bucket}") from error
        return {}  # behind a proxy or an endpoint of a private network: environment and profile name it then


def _from_query(query: str) -> dict[str, Any]:
    """Return the options of a URL's query, with the types that the clients want."""
    return {name: _value(name, text) for name, text in parse_qsl(query, keep_blank_values=True)}


def _value(name: str, text: str) -> bool | float | str:
    try:
        if name in ("connect_timeout", "request_timeout"):
            return float(text)
        if name in ("load_frequency", "replication", "buffer_size", "default_block_size"):
            return int(text)
    except ValueError:
        raise WrongArgumentError(f"{name} in a URL must be a number, not {text!r}") from None
    return text.lower() == "true" if text.lower() in ("true", "false") else text
