"""A table at one version, and what the user names it by."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.arrow import is_text, parts_of
from stoker.dataset.listing import Listed
from stoker.errors import FieldError, SourceError, SourceMissingError
from stoker.parquet.naming import DEFAULT, NAMES, has_ids
from stoker.parquet.schema import Layout
from stoker.storage.each import map_each
from stoker.storage.storage import Storage
from stoker.storage.urls import Source, has_scheme, name_of

Pin: TypeAlias = "int | str | datetime | None"

_TABLE = re.compile(r"(delta|iceberg)://(.*)", re.DOTALL)
_ARGUMENT = {"delta": "version", "iceberg": "snapshot"}


@dataclass(frozen=True, kw_only=True)
class TableSource:
    """A table as the user names it.

    Attributes:
        kind: "delta" or "iceberg".
        place: Its folder, a metadata file of Iceberg's, or what a catalogue calls it.
        pin: Which version: a number, a name, a time; None is the newest one.
        schema_id: Of Iceberg's, where the newest schema is another than that of the snapshot.
    """

    kind: str
    place: str
    pin: Pin = None
    schema_id: int | None = None

    @property
    def argument(self) -> str:
        """The argument of `Dataset` that says which version."""
        return _ARGUMENT[self.kind]

    @property
    def may_be_in_catalog(self) -> bool:
        """Whether the place may be a name in a catalogue, rather than a path or a URL."""
        return (
            self.kind == "iceberg"
            and not has_scheme(self.place)
            and not self.place.startswith(("/", ".", "~", "file:"))
        )

    def to_json(self) -> list[object]:
        """Return what names it, for fingerprints."""
        pin = self.pin.isoformat() if isinstance(self.pin, datetime) else self.pin
        return [self.kind, self.place, type(self.pin).__name__, pin, self.schema_id]


def table_source(sources: Sequence[Source], *, version: Pin, snapshot: Pin) -> TableSource | None:
    """Return the table that the user names; None where it is none."""
    version, snapshot = _checked_pin("version", version), _checked_pin("snapshot", snapshot)
    match = next((match for source in sources if isinstance(source, str) and (match := _TABLE.fullmatch(source))), None)
    for kind, pin in (("delta", version), ("iceberg", snapshot)):
        if pin is not None and (match is None or match[1] != kind):
            hint = " (the version of a transform is transform_version)" if kind == "delta" else ""
            raise ValueError(
                f"{_ARGUMENT[kind]} is for {kind}:// tables, and the source is {str(sources[0])!r}: write "
                f'Dataset("{kind}://...", {_ARGUMENT[kind]}=...){hint}'
            )
    if match is None:
        return None
    if len(sources) > 1:
        raise ValueError(f"{match[0]} is a table, a data set of its own: mix several with stoker.Mixture")
    if not match[2]:
        raise ValueError(f"{match[0]} names no table: write the place of its folder behind {match[1]}://")
    place = match[2].rstrip("/") or "/"
    return TableSource(kind=match[1], place=place, pin=_version(version) if match[1] == "delta" else snapshot)


def _checked_pin(name: str, pin: Pin) -> Pin:
    pin = int(pin) if isinstance(pin, np.integer) else pin
    if pin is None:
        return None
    if isinstance(pin, bool) or not isinstance(pin, int | str | datetime):
        what = "a number or a time" if name == "version" else "a snapshot's id, the name of a branch or tag, or a time"
        raise TypeError(f"{name} must be {what}, not {pin!r}")
    if isinstance(pin, int) and pin < 0:
        raise ValueError(f"{name} must not be negative, got {pin}")
    if pin == "":
        raise ValueError(f"{name} is an empty text")
    return pin


def _version(pin: Pin) -> int | datetime | None:
    """Return a version of Delta's with a time as an aware `datetime`."""
    if isinstance(pin, int | None):
        return pin
    try:
        time = datetime.fromisoformat(pin) if isinstance(pin, str) else pin
    except ValueError:
        raise ValueError(f"version must be a number or a time in ISO 8601, not {pin!r}") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class LakeTable:
    """A table at one version: Delta's, or the id of Iceberg's snapshot.

    Attributes:
        schema: Its columns, with what tells them in files as metadata; see `naming`.
        schema_id: Iceberg's number of the schema.
        partitions: Columns whose values the log tells for every file.
        by_id: Whether columns are found by the ids in the files.
    """

    version: int
    schema: pa.Schema
    schema_id: int | None
    partitions: tuple[str, ...]
    by_id: bool

    def columns(self) -> tuple[pa.Schema, pa.Schema]:
        """Return the columns that its files have, and those whose values the log tells, without metadata."""
        fields = {field.name: field for field in tagged(list(self.schema), lambda _: {})}
        told = pa.schema([fields.pop(name) for name in self.partitions])
        return pa.schema(list(fields.values())), told

    def naming_of(self, names: Sequence[str]) -> list[str]:
        """Return what tells some columns in files, for the keys of chunks."""
        tops = {name.partition(".")[0] for name in names} | set(names)
        one = pa.schema([field for field in self.schema if field.name in tops])
        return str(one.to_string(show_field_metadata=True, truncate_metadata=False)).splitlines()

    def to_schema(self) -> pa.Schema:
        """Return all of it as a schema, which Arrow can write."""
        numbers = {name: getattr(self, name) for name in ("version", "schema_id", "partitions", "by_id")}
        return self.schema.with_metadata({"stoker:table": json.dumps(numbers)})

    @classmethod
    def from_schema(cls, schema: pa.Schema) -> LakeTable:
        """Return what `to_schema` returned."""
        numbers = json.loads(schema.metadata[b"stoker:table"])
        return cls(schema=schema.remove_metadata(), **{**numbers, "partitions": tuple(numbers["partitions"])})


def check_files(table: LakeTable, files: Iterable[tuple[Listed, Layout]]) -> None:
    """Raise where a file is not what its table says, or lacks a column that the log has a value for."""
    missing: dict[int, list[str]] = {}  # of each layout
    for file, layout in files:
        if id(layout) not in missing:
            missing[id(layout)] = _missing_of(table, layout, file)
        for name in missing[id(layout)]:
            if dict(file.partition)[name] is not None:
                raise _not_filled(file.info.url, name, "that of its partition")


def _missing_of(table: LakeTable, layout: Layout, file: Listed) -> list[str]:
    """Return columns of a table that the log may have values for, and a file that is laid out so lacks."""
    url = file.info.url
    if table.by_id and not has_ids(layout.fields) and all(NAMES not in (f.metadata or {}) for f in table.schema):
        raise SourceError(
            f"the columns of {url} have no ids, which the table tells them by, and it has no mapping of names "
            "(schema.name-mapping.default): write one",
            url=url,
        )
    stored = {field.name: field.type for field in layout.named_schema()}
    wanted = [field for field in table.schema if field.name not in table.partitions]
    if wanted and stored.keys().isdisjoint(field.name for field in wanted):
        raise SourceError(f"{url} has none of the columns of its table: its log and its files do not fit", url=url)
    if (lacking := _lacking(stored, wanted)) is not None:
        raise _not_filled(url, lacking, "the column's default")
    for field in wanted:
        kind = stored.get(field.name)
        if kind is not None and not _becomes(kind, field.type):
            raise FieldError(
                f"column {field.name!r} is {kind} in {url} and {field.type} in the table, which it does not become: "
                "rewrite the file",
                columns=[field.name],
            )
    return [name for name in dict(file.partition) if name in {field.name for field in wanted} - stored.keys()]


def _lacking(stored: Mapping[str, pa.DataType], wanted: Iterable[pa.Field]) -> str | None:
    """Return a column, or a part of one, that a file lacks and that has a default in its table."""
    for field in wanted:
        if field.name not in stored:
            if DEFAULT in (field.metadata or {}):
                return str(field.name)
        elif (inside := _lacking_inside(stored[field.name], field.type)) is not None:
            return f"{field.name}.{inside}"
    return None


def _lacking_inside(stored: pa.DataType, wanted: pa.DataType) -> str | None:
    if pa.types.is_struct(stored) and pa.types.is_struct(wanted):
        return _lacking({field.name: field.type for field in stored}, wanted)
    inside = map(_lacking_inside, parts_of(stored), parts_of(wanted))
    return next((name for name in inside if name is not None), None)


def _not_filled(url: str, name: str, value: str) -> FieldError:
    return FieldError(
        f"{url} lacks the column {name!r}, whose value is {value} by the table's log, and Stoker does not fill it in: "
        "rewrite the table's files with the engine that writes it (in Spark, for Iceberg: CALL "
        "catalog.system.rewrite_data_files)",
        columns=[name],
    )


def _becomes(stored: pa.DataType, wanted: pa.DataType) -> bool:
    if stored.equals(wanted) or pa.types.is_nested(wanted) or pa.types.is_dictionary(stored):
        return True
    if is_text(stored) != is_text(wanted):
        return False
    try:
        pa.nulls(0, stored).cast(wanted)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    return True


TableFile: TypeAlias = "tuple[int, Mapping[str, Any], bytes]"
"""What a log says of a file: its size in bytes, values of columns that all of its rows have, and deleted rows."""


def look_up(
    table: LakeTable, files: Mapping[str, TableFile], storage: Storage, *, place: str, num_threads: int
) -> list[Listed]:
    """Return the files of a table, by URL, with what the store says of them: each must be what the log speaks of."""
    if not files:
        raise SourceMissingError(f"the table {place} has no rows in this version", url=place)
    types = {field.name: field.type for field in table.schema}

    def look(url: str) -> Listed:
        size_bytes, values, deleted = files[url]
        try:
            info = storage.stat(url)
        except SourceMissingError as error:
            raise SourceMissingError(
                f"{url} is gone, and version {table.version} of {place} needs it: VACUUM, or expiring snapshots, "
                "removes the files of old versions; read a newer one, or mend the table",
                url=url,
            ) from error
        if info.size_bytes != size_bytes:
            what = f"{url} has {info.size_bytes:,} bytes where the log of {place} says {size_bytes:,}"
            raise SourceError(f"{what}: it was replaced", url=url)
        partition = tuple((name, _text_of(value, types[name])) for name, value in values.items())
        return Listed(info=info, partition=partition, deleted=deleted)

    return map_each(sorted(files), look, num_threads=num_threads)


@contextmanager
def table_errors(table: str, place: str, hints: Mapping[str, str]) -> Iterator[None]:
    """Turn what the library of a table raises into a `SourceError` that names it; `hints` say more of known words."""
    try:
        yield
    except (SourceError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic of Rust is no Exception
        first = [*str(error).strip().splitlines(), type(error).__name__][0]
        said = next((hint for words, hint in hints.items() if words in str(error)), first)
        is_missing = type(error).__name__ in ("TableNotFoundError", "NoSuchTableError")
        kind = SourceMissingError if is_missing else SourceError
        raise kind(f"{table} {place} cannot be read: {said}", url=place) from error


def pack_rows(rows: npt.NDArray[np.int64]) -> bytes:
    """Return row numbers, ascending and each once, as `Listed` keeps them."""
    return np.unique(rows).astype("<i8").tobytes()


def _text_of(value: Any, kind: pa.DataType) -> str | None:
    """Return a partition value as text that `listing.partition_value` reads back."""
    if value is None:
        return None
    scalar = pa.scalar(value, kind)
    if isinstance(scalar, pa.ExtensionScalar):  # the bytes of a UUID
        scalar = scalar.value
    if pa.types.is_time(kind):  # which Arrow reads from no text
        return str(scalar.value)
    if isinstance(scalar.as_py(), bytes):
        return name_of(scalar.as_py())
    return str(scalar.cast(pa.string()).as_py())


def tagged(fields: Sequence[pa.Field], tags: Callable[[pa.Field], Mapping[bytes, bytes]]) -> pa.Schema:
    """Return the columns of a table with Arrow's usual types of texts and lists, and what they are found by in files.

    That is what `tags` returns of a column, or of a member of a struct: see `naming`.
    """

    def one(field: pa.Field) -> pa.Field:
        return pa.field(field.name, of_type(field.type), metadata=tags(field) or None)

    def of_type(kind: pa.DataType) -> pa.DataType:
        if is_text(kind):
            return pa.string()
        if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
            return pa.binary()
        if pa.types.is_struct(kind):
            return pa.struct([one(kind.field(i)) for i in range(kind.num_fields)])
        if pa.types.is_map(kind):
            return pa.map_(of_type(kind.key_type), of_type(kind.item_type))
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        return pa.list_(of_type(kind.value_type)) if is_list else kind

    return pa.schema([one(field) for field in fields])
