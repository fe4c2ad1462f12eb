"""What a data set is made of, as the user says it: checked at once, read later."""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Self, TypeAlias, TypedDict, Unpack, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker.arguments import check_function, flag, function_name, names
from stoker.dataset.filters import needed_columns, parse_filter
from stoker.dataset.survey import Selection
from stoker.dataset.tables.table import table_source
from stoker.errors import without_secrets
from stoker.fields.spec import Field, parse_size
from stoker.parquet.schema import choose_columns, flat_fields
from stoker.storage.find_storage import storage_for
from stoker.storage.storage import LocalStorage, Storage
from stoker.storage.urls import Location, Source, check_name, common_scheme, name_bytes, place_of, scheme_of

Transform: TypeAlias = "Callable[[pa.Table], Mapping[str, np.ndarray[Any, Any]] | pa.Table]"


class DatasetOptions(TypedDict, total=False):
    """The keyword arguments of a data set; `Dataset` says what they mean."""

    version: int | str | datetime | None
    snapshot: int | str | datetime | None
    columns: Sequence[str] | None
    filters: pc.Expression | Sequence[Any] | None
    fields: Mapping[str, Field | str] | None
    transform: Transform | None
    transform_version: str | None
    deduplicate: Mapping[str, str | Sequence[str]] | None
    chunk_size: int | str
    storage: Storage | None
    storage_options: Mapping[str, Any] | None
    refresh: bool


DEFAULTS = {**dict.fromkeys(DatasetOptions.__annotations__), "chunk_size": "32MiB", "refresh": False}


class Description:
    """The arguments of a `Dataset`: which files, columns and rows, and what becomes of them."""

    def __init__(self, source: Source | Sequence[Source], **options: Unpack[DatasetOptions]) -> None:
        given: DatasetOptions = {**cast("DatasetOptions", DEFAULTS), **options}
        self.sources = _checked_sources(source)
        self.table = table_source(self.sources, version=given["version"], snapshot=given["snapshot"])
        self.columns = _checked_columns(given["columns"])
        self.filter = parse_filter(given["filters"])
        self.fields = _checked_fields(given["fields"])
        self.transform, self.transform_version = given["transform"], given["transform_version"]
        self.deduplicate = _checked_deduplicate(given["deduplicate"])
        self._chunk_size = given["chunk_size"]
        self.chunk_bytes = parse_size(self._chunk_size, name="chunk_size")
        if self.chunk_bytes == 0:
            raise ValueError("chunk_size must be positive")
        self.storage, storage_options = given["storage"], given["storage_options"]
        if storage_options is not None and not isinstance(storage_options, Mapping):
            raise TypeError(f"storage_options must be a dict of options, not {storage_options!r}")
        self.storage_options = None if storage_options is None else dict(storage_options)
        self.refresh = flag(given["refresh"], "refresh")
        self._check_transform()
        self._check_storage()

    def _check_storage(self) -> None:
        if self.storage is None:
            scheme = common_scheme(self.named())
            in_catalog = self.table is not None and self.table.may_be_in_catalog
            if scheme == "file" and self.storage_options and not in_catalog:
                raise ValueError(f"storage_options mean nothing for local files, got {sorted(self.storage_options)}")
        elif not isinstance(self.storage, Storage):
            raise TypeError(
                "storage must have list, stat and read (stoker.storage.storage.Storage), "
                f"not {type(self.storage).__name__}"
            )
        elif self.storage_options is not None:
            raise ValueError("storage_options are for the storage that Stoker makes; give them to your own storage")

    def _check_transform(self) -> None:
        if self.transform is None:
            if self.transform_version is not None:
                raise ValueError("transform_version is the version of a transform: give both, or neither")
            return
        check_function(self.transform, "transform", "table")
        if self.transform_version is None:
            raise ValueError(
                'transform needs a version, such as transform_version="1": chunks on disk are found by it, '
                "and a changed function with the old version would be served old chunks"
            )
        if not isinstance(self.transform_version, str) or not self.transform_version:
            raise TypeError(f"transform_version must be a text that is not empty, not {self.transform_version!r}")

    def __repr__(self) -> str:
        sources = [without_secrets(str(source)) for source in self.sources]
        parts = [repr(sources[0] if len(sources) == 1 else sources)]
        if self.table is not None and self.table.pin is not None:
            parts.append(f"{self.table.argument}={self.table.pin!r}")
        told = {
            "columns": self.columns and repr(list(self.columns)),
            "filters": self.filter and repr(str(self.filter)),
            "fields": self.fields and repr(self.fields),
            "transform": self.transform and transform_name(self.transform),
            "transform_version": self.transform_version and repr(self.transform_version),
            "deduplicate": self.deduplicate and repr(self.deduplicate),
            "chunk_size": self._chunk_size != DEFAULTS["chunk_size"] and repr(self._chunk_size),
            "storage": None if self.storage is None else repr(self.storage),
        }
        parts += [f"{name}={text}" for name, text in told.items() if text]
        return f"Dataset({', '.join(parts)})"

    def recipe(self) -> dict[str, object]:
        """Return everything that decides what the rows become, except the source, in values that JSON can write."""
        return {
            "columns": self.columns,
            "filter": None if self.filter is None else self.filter.to_json(),
            "fields": {name: field.to_json() for name, field in self.fields.items()},
            "transform": None if self.transform is None else [transform_name(self.transform), self.transform_version],
            **({"deduplicate": self.deduplicate} if self.deduplicate else {}),
        }

    def select(self, schema: pa.Schema, partitions: pa.Schema) -> Selection:
        """Return which columns and rows are read of files with a common schema, and partition columns.

        Raises:
            FieldError: A column is not there.
            ValueError: The filter does not fit the columns.
        """
        columns = choose_columns(flat_fields([*schema, *partitions]), self.columns)
        # Members of structs may be named by their dotted names in an expression too.
        tops = {*schema.names, *partitions.names}
        dotted = [pa.field(name, kind) for name, kind in flat_fields(schema) if name not in tops]
        known, chosen = pa.schema([*schema, *partitions, *dotted]), self.filter
        expression = None if chosen is None else chosen.bind(known)
        return Selection(
            columns=columns,
            schema=schema,
            partitions=partitions,
            chunk_bytes=self.chunk_bytes,
            filter_schema=known,
            expression=expression,
            prunable=None if chosen is None else chosen.prunable(known, expression),
            filter_columns=pa.schema([]) if chosen is None else needed_columns(known, expression),
        )

    def located(self) -> Self:
        """Return the same data set; a table that is named in a catalogue is then named by the location of its metadata.

        Blocks: on the catalogue, if it is one.
        """
        table = self.table
        if table is None or not table.may_be_in_catalog or self.storage is not None:
            return self
        other = copy.copy(self)
        place = place_of(Path(table.place), is_local=True).name
        if not os.path.lexists(name_bytes(place)):
            from stoker.dataset.tables.iceberg import find_in_catalog

            place, options = find_in_catalog(table.place)
            if scheme_of(place) != "file":
                other.storage_options = {**options, **(self.storage_options or {})}
        other.table = dataclasses.replace(table, place=place)
        return other

    @property
    def is_local(self) -> bool:
        """Whether Stoker reads local files, judged by the names of the sources."""
        return self.storage is None and scheme_of(self.named()[0]) == "file"

    def find_storage(self, environment: Mapping[str, str] | None = None) -> Storage:
        """Return the storage that reads the files; some stores must be asked to make it."""
        if self.storage is not None:
            return self.storage
        if self.is_local:
            return LocalStorage()
        return storage_for(str(self.named()[0]), storage_options=self.storage_options, environment=environment)

    def named(self) -> Sequence[Source]:
        """Return what the user named: the sources, or the place of the table."""
        return self.sources if self.table is None else (self.table.place,)

    def places(self) -> list[Location]:
        """Return the sources as the storage knows them: local ones as absolute paths."""
        is_local = self.is_local and (self.table is None or not self.table.may_be_in_catalog)
        places = [place_of(source, is_local=is_local) for source in self.named()]
        return places if self.table is None else [Location(place.name) for place in places]


def transform_name(transform: Callable[..., Any]) -> str:
    """Return the name that stands for a transform: module and qualified name.

    A script has the same name whether it is run or imported: `train.py` is "train" both times.
    """
    function = transform
    while isinstance(function, functools.partial):
        function = function.func
    module = getattr(function, "__module__", None) or type(function).__module__
    if module in ("__main__", "__mp_main__"):  # the latter: the same script in a spawned process
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        file = getattr(main, "__file__", None)
        module = spec.name if spec is not None else Path(file).stem if file else "__main__"
    return f"{module}.{function_name(function)}"


def _checked_sources(source: object) -> tuple[Source, ...]:
    if isinstance(source, str | os.PathLike):
        sources: list[object] = [source]
    elif isinstance(source, Sequence) and not isinstance(source, bytes | bytearray):
        sources = list(source)
    else:
        listed = ": write sorted(...) of it" if isinstance(source, Iterable) and not hasattr(source, "read") else ""
        raise TypeError(f"source must be a path, a URL, or a list of them, not {type(source).__name__}{listed}")
    if not sources:
        raise ValueError("source is an empty list")
    found: list[Source] = []
    for one in sources:
        if isinstance(one, str):
            found.append(str(one))
        elif isinstance(one, os.PathLike) and isinstance(os.fspath(one), str):
            found.append(Path(os.fspath(one)))
        else:
            raise TypeError(f"source must hold paths and URLs, not {one!r}")
        check_name(found[-1])
    return tuple(found)


def _checked_columns(columns: object) -> tuple[str, ...] | None:
    if columns is None:
        return None
    if isinstance(columns, str | bytes) or not isinstance(columns, Sequence):
        raise TypeError(f"columns must be a list of names, not {columns!r}")
    if strange := [name for name in columns if not isinstance(name, str)]:  # a name may be empty
        raise TypeError(f"columns must be a list of names, but holds {strange[0]!r}")
    if not columns:
        raise ValueError("columns is empty; leave it out to read every column")
    if twice := sorted({name for name in columns if columns.count(name) > 1}):
        raise ValueError(f"columns names {twice[0]!r} twice")
    return tuple(columns)


def _checked_fields(fields: object) -> dict[str, Field]:
    if fields is None:
        return {}
    if not isinstance(fields, Mapping):
        raise TypeError(f"fields must be a mapping of names to stoker.Field, not {type(fields).__name__}")
    found = {}
    for name, field in fields.items():
        if not isinstance(name, str):
            raise TypeError(f"fields: a field is named by a text, not {name!r}")
        if not isinstance(field, Field | str | type | np.dtype):
            raise TypeError(
                f"fields[{name!r}] must be a stoker.Field or the name of a dtype, such as 'float32', not {field!r}"
            )
        found[name] = field if isinstance(field, Field) else Field(cast("str", field))
    return found


def _checked_deduplicate(keys: object) -> dict[str, tuple[str, ...]]:
    if keys is None:
        return {}
    if not isinstance(keys, Mapping):
        raise TypeError(f"deduplicate must be a mapping of a key to its fields, not {type(keys).__name__}")
    found = {}
    for key, fields in keys.items():
        if not isinstance(key, str):
            raise TypeError(f"deduplicate: a key is named by a text, not {key!r}")
        found[key] = names(fields, f"deduplicate[{key!r}]")
        if not found[key]:
            raise ValueError(f"deduplicate[{key!r}] is empty; name the fields that samples of one {key!r} share")
    return found
