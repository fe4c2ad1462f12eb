"""The same rows, as every writer that users have writes them: a name of each file, and a function that writes it."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Write: TypeAlias = Callable[[Path], object]

NULLS = ("none", "some", "all")
CODECS = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")
_AT = dt.datetime(2024, 2, 29, 13, 5, 7, 123456)


def _values(num_rows: int) -> dict[str, pa.Array]:
    """Columns of every type that a Parquet file may have, without nulls."""
    i, rng = np.arange(num_rows), np.random.default_rng(5)
    n = i.tolist()
    words = ["", "ä", "w" * 70, "DE", "FR", "日本"]
    floats = np.where(i % 7 == 0, np.nan, np.where(i % 7 == 1, -0.0, i / 3))
    integers: dict[str, Any] = {}
    for bits in (8, 16, 32, 64):
        for name in (f"int{bits}", f"uint{bits}"):
            info = np.iinfo(name)
            integers[name] = rng.integers(info.min, info.max, size=num_rows, endpoint=True, dtype=name)
            integers[name][: min(2, num_rows)] = [info.min, info.max][:num_rows]
    decimals = {
        f"decimal_{precision}_{scale}": pa.array(
            [Decimal((-1) ** k * (k * 7919 % 10**precision)).scaleb(-scale) for k in n], pa.decimal128(precision, scale)
        )
        for precision, scale in ((4, 2), (9, 0), (10, 3), (18, 18), (19, 5), (38, 10))
    }
    return {
        **{name: pa.array(values) for name, values in integers.items()},
        "few": pa.array(i % 5),
        "steps": pa.array(i * 1000 + 7),
        "float16": pa.array(floats.astype(np.float16)),
        "float32": pa.array(floats.astype(np.float32)),
        "float64": pa.array(floats),
        "bool": pa.array(i % 3 == 0),
        "bools": pa.array(i > num_rows // 2),
        "date32": pa.array([k * 37 - 9000 for k in n], pa.date32()),
        "date64": pa.array([(k - 9) * 86_400_000 for k in n], pa.date64()),
        "time32": pa.array([k * 1000 % 86_400_000 for k in n], pa.time32("ms")),
        "time64_us": pa.array([k * 999_983 for k in n], pa.time64("us")),
        "time64_ns": pa.array([k * 999_983 for k in n], pa.time64("ns")),
        "timestamp_s": pa.array(n, pa.timestamp("s")),
        "timestamp_ms": pa.array([k * 10**9 for k in n], pa.timestamp("ms", "Europe/Berlin")),
        "timestamp_us": pa.array([253402210800000000 + k for k in n], pa.timestamp("us", "UTC")),
        "timestamp_ns": pa.array([k * 10**15 + 1 for k in n], pa.timestamp("ns")),
        "duration": pa.array(n, pa.duration("us")),
        **decimals,
        "decimal256": pa.array([Decimal(k) * 10**40 for k in n], pa.decimal256(60, 5)),
        "string": pa.array([words[k % 6] for k in n]),
        "words": pa.array([f"{words[k % 6]}{k}" for k in n]),
        "large_string": pa.array([f"prefix/{k:05d}" for k in n], pa.large_string()),
        "string_view": pa.array([f"prefix/{k:05d}" for k in n], pa.string_view()),
        "binary": pa.array([bytes([k % 256]) * (k % 5) for k in n]),
        "binary_view": pa.array([bytes([k % 256]) * (k % 5) for k in n], pa.binary_view()),
        "fixed": pa.array([(k * 7).to_bytes(5, "big") for k in n], pa.binary(5)),
        "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([uuid.UUID(int=k).bytes for k in n], pa.binary(16))),
        "dictionary": pa.array([words[k % 6] for k in n]).dictionary_encode(),
        "list": pa.array([list(range(k % 4)) for k in n], pa.list_(pa.int16())),
        "large_list": pa.array([[k / 3] * (k % 3) for k in n], pa.large_list(pa.float32())),
        "list_view": pa.array([[k] * (k % 3) for k in n], pa.list_view(pa.int64())),
        "fixed_list": pa.array([[k, k + 1] for k in n], pa.list_(pa.int32(), 2)),
        "empty_lists": pa.array([[]] * num_rows, pa.list_(pa.int64())),
        "lists": pa.array([[[k], [], [k, k]][: k % 4] for k in n], pa.list_(pa.list_(pa.int64()))),
        "list_of_words": pa.array([["a", "", "bc"][: k % 4] for k in n], pa.list_(pa.string())),
        "list_of_bools": pa.array([[True, False, True][: k % 4] for k in n], pa.list_(pa.bool_())),
        "list_of_dates": pa.array([[k, 0][: k % 3] for k in n], pa.list_(pa.date32())),
        "struct": pa.array([{"x": k, "y": {"z": [k], "w": words[k % 6]}} for k in n]) if n else _struct(),
        "map": pa.array([[(f"k{j}", j) for j in range(k % 3)] for k in n], pa.map_(pa.string(), pa.int32())),
        "list_of_structs": pa.array([[{"a": k}] * (k % 3) for k in n], pa.list_(pa.struct([("a", pa.int64())]))),
    }


def _struct() -> pa.Array:
    inner = pa.struct([("z", pa.list_(pa.int64())), ("w", pa.string())])
    return pa.array([], pa.struct([("x", pa.int64()), ("y", inner)]))


def table(num_rows: int, nulls: str) -> pa.Table:
    """Return rows of every type, and their numbers as `id`.

    Args:
        num_rows: How many.
        nulls: One of `NULLS`: which values are null, beside those of `id`.
    """
    keep = {"none": lambda k: True, "some": lambda k: k % 5 != 2 and k % 11 != 0, "all": lambda k: False}[nulls]
    places = pa.array([k if keep(k) else None for k in range(num_rows)], pa.int64())
    columns = {"id": pa.array(np.arange(num_rows))}
    for name, values in _values(num_rows).items():
        columns[name] = values if nulls == "none" else _taken(values, places)
    return pa.table(columns)


def _taken(values: pa.Array, places: pa.Array) -> pa.Array:
    if isinstance(values, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(values.type, values.storage.take(places))
    if "view" in str(values.type):  # Arrow cannot take from these
        objects = values.to_pylist()
        return pa.array([None if place is None else objects[place] for place in places.to_pylist()], values.type)
    return values.take(places)


# ---------------------------------------------------------------- pyarrow


def _encodings(rows: pa.Table, options: Mapping[str, Any], seed: int) -> dict[str, str]:
    """Return an encoding for each leaf column that has several, drawn."""
    draw = random.Random(seed)
    sink = pa.BufferOutputStream()
    pq.write_table(rows.slice(0, 0), sink, **options)
    schema = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    known = {
        "BOOLEAN": ["PLAIN", "RLE"],
        "INT32": ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"],
        "INT64": ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"],
        "FLOAT": ["PLAIN", "BYTE_STREAM_SPLIT"],
        "DOUBLE": ["PLAIN", "BYTE_STREAM_SPLIT"],
        "BYTE_ARRAY": ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"],
        "FIXED_LEN_BYTE_ARRAY": ["PLAIN", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"],
    }
    leaves = [schema.column(i) for i in range(len(schema.names))]
    leaves = [leaf for leaf in leaves if leaf.path != "dictionary"]  # which pyarrow cannot read of DELTA_BYTE_ARRAY
    return {leaf.path: draw.choice(known[leaf.physical_type]) for leaf in leaves if leaf.physical_type in known}


def write_with_empty_groups(path: Path, rows: pa.Table, *, row_group_size: int, **options: Any) -> None:
    """Write row groups without rows before, between and behind those with rows."""
    with pq.ParquetWriter(path, rows.schema, **options) as writer:
        writer.write_table(rows.slice(0, 0))
        for start in range(0, rows.num_rows, row_group_size):
            writer.write_table(rows.slice(start, row_group_size))
            writer.write_table(rows.slice(0, 0))


def pyarrow_files(rows: pa.Table, *, seed: int) -> Iterator[tuple[str, Write]]:
    """Yield files with options drawn; over many seeds all pairs of options come."""
    draw = random.Random(seed)
    for codec in CODECS:
        options: dict[str, Any] = {
            "compression": codec,
            "version": draw.choice(["1.0", "2.4", "2.6"]),
            "data_page_version": draw.choice(["1.0", "2.0"]),
            "use_dictionary": draw.choice([True, True, False]),
            "write_statistics": draw.choice([True, False]),
            "store_schema": draw.choice([True, True, False]),
            "data_page_size": draw.choice([None, 1, 64, 500]),
            "dictionary_pagesize_limit": draw.choice([None, 100, 2000]),
            "write_page_index": draw.choice([True, False]),
            "write_page_checksum": draw.choice([True, False]),
            "store_decimal_as_integer": draw.choice([True, False]),
            "use_compliant_nested_type": draw.choice([True, True, False]),
            "use_deprecated_int96_timestamps": draw.choice([False, False, True]),
            "use_content_defined_chunking": draw.choice([False, False, True]),
        }
        kept = rows
        if options["version"] != "2.6":  # has no nanoseconds, which it would round
            kept = kept.drop_columns(["timestamp_ns", "time64_ns"])
        if options["use_deprecated_int96_timestamps"]:
            kept = kept.drop_columns(["timestamp_us"])  # in the year 9999, which INT96 holds and nanoseconds do not
        if not options["use_dictionary"] and draw.choice([True, True, False]):
            options["column_encoding"] = _encodings(kept, options, seed)
        group = draw.choice([rows.num_rows or 1, 13, 1 + rows.num_rows // 2])
        if draw.choice([True, False, False]):
            yield f"pyarrow {options} empty groups", partial(_pyarrow_empty, kept, group, options)
        else:
            yield f"pyarrow {options} {group}", partial(_pyarrow, kept, group, options)


def _pyarrow(rows: pa.Table, group: int, options: Mapping[str, Any], path: Path) -> None:
    pq.write_table(rows, path, row_group_size=group, **options)


def _pyarrow_empty(rows: pa.Table, group: int, options: Mapping[str, Any], path: Path) -> None:
    write_with_empty_groups(path, rows, row_group_size=group, **options)


# ---------------------------------------------------------------- polars


def polars_files(rows: pa.Table) -> Iterator[tuple[str, Write]]:
    """Yield files as polars writes them."""
    import polars as pl

    unknown = ("float16", "duration", "decimal256", "uuid", "map", "fixed", "time32", "date64", "list_view")
    frame = pl.from_arrow(rows.drop_columns(list(unknown)))
    assert isinstance(frame, pl.DataFrame)
    frame = frame.with_columns(pl.col("few").cast(pl.String).cast(pl.Categorical).alias("categorical"))
    codecs = ("uncompressed", "snappy", "gzip", "brotli", "lz4", "zstd")
    for codec, group, statistics, page in zip(
        codecs, (None, 13, 50, None, 7, None), (True, False, "full", True, False, True), itertools.cycle((None, 50))
    ):
        options = {"compression": codec, "row_group_size": group, "statistics": statistics, "data_page_size": page}
        yield f"polars {options}", partial(_polars, frame, options)
    yield "polars", partial(_polars, frame, {})
    yield "polars sink", lambda path: frame.lazy().sink_parquet(path)


def _polars(frame: Any, options: Mapping[str, Any], path: Path) -> None:
    frame.write_parquet(path, **options)


# ---------------------------------------------------------------- DuckDB


def duckdb_files(rows: pa.Table, *, nulls: str) -> Iterator[tuple[str, Write]]:
    """Yield files as DuckDB writes them."""
    unknown = ["float16", "decimal256", "duration", "date64", "time64_ns", "binary_view"]
    # What pyarrow cannot read either: DuckDB's arrays with nulls, and its deltas of more than 32 bits.
    unknown += ["int32", "uint32"] + (["fixed_list"] if nulls != "none" else [])
    kept = rows.drop_columns(unknown)
    more = """select *, id::hugeint as huge, id::uhugeint as uhuge, (id % 3)::varchar::enum('0', '1', '2') as kind,
        to_timestamp(id * 1000) as tz, id::varchar::blob as bytes, [id, null, 3] as with_nulls,
        {'a': id, 'b': [id::varchar]} as nested, id::varchar::json as doc, (id / 7)::decimal(9, 3) as price,
        array_value(id, id + 1)::integer[2] as pair from t"""
    for codec, version, group in zip(
        ("uncompressed", "snappy", "gzip", "brotli", "lz4_raw", "zstd"),
        itertools.cycle(("v1", "v2")),
        (9, 50, 9, 50, 9, 50),
    ):
        options = f"format parquet, codec {codec}, parquet_version {version}, row_group_size {group}"
        yield f"duckdb {options}", partial(_duckdb, kept, more, options)
    yield (
        "duckdb no dictionary",
        partial(_duckdb, kept, more, "format parquet, dictionary_size_limit 1, parquet_version v2"),
    )
    yield "duckdb", partial(_duckdb, kept, "select * from t", "format parquet")


def _duckdb(rows: pa.Table, query: str, options: str, path: Path) -> None:
    import duckdb

    with duckdb.connect() as connection:
        connection.register("t", rows)
        connection.sql(f"copy ({query}) to '{path}' ({options})")


# ---------------------------------------------------------------- pandas and fastparquet

_OF_NUMPY = ("id", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "few", "steps")
_OF_PANDAS = (*_OF_NUMPY, "float32", "float64", "bool", "string", "words", "timestamp_ns", "timestamp_ms")


def pandas_files(rows: pa.Table) -> Iterator[tuple[str, Write]]:
    """Yield files as pandas writes them through pyarrow: with its index, nullable types, categories."""
    import pandas as pd

    frame = rows.select(_OF_PANDAS).to_pandas()
    yield "pandas", frame.to_parquet
    yield "pandas index", lambda path: frame.set_index("words").to_parquet(path)
    yield "pandas two", lambda path: frame.set_index(["few", "id"]).to_parquet(path, compression="gzip")
    yield "pandas nullable", lambda path: frame.convert_dtypes().to_parquet(path)
    yield "pandas pyarrow", lambda path: rows.to_pandas(types_mapper=pd.ArrowDtype).to_parquet(path)
    yield (
        "pandas categories",
        lambda path: frame.assign(string=frame["string"].astype("category")).to_parquet(path, row_group_size=13),
    )


def fastparquet_files(rows: pa.Table, *, nulls: str) -> Iterator[tuple[str, Write]]:
    """Yield files as fastparquet writes them."""
    import fastparquet
    import pandas as pd

    names = (*_OF_PANDAS, "bools") if nulls == "none" else (*_OF_PANDAS[-6:-1], "id")
    frame = rows.select(names).to_pandas()
    for name in ("string", "words"):
        frame[name] = pd.array(frame[name].tolist(), dtype="object")
    frame["category"] = frame["string"].astype("category")
    frame["bytes"] = pd.array([None if word is None else word.encode() for word in rows["words"].to_pylist()], "object")
    if nulls == "some":
        nullable = rows.select(["int32", "int64", "uint8", "bool"]).to_pandas(
            types_mapper={
                pa.int32(): pd.Int32Dtype(),
                pa.int64(): pd.Int64Dtype(),
                pa.uint8(): pd.UInt8Dtype(),
                pa.bool_(): pd.BooleanDtype(),
            }.get
        )
        frame = frame.drop(columns=["bool"]).assign(**{name: nullable[name] for name in nullable.columns})
    for codec, groups, options in (
        (None, [0], {}),
        ("SNAPPY", [0, 13, 50], {"stats": True}),
        ("GZIP", [0], {"times": "int96"}),
        ("ZSTD", [0, 50], {"stats": False}),
        ("LZ4_RAW", [0], {"has_nulls": False} if nulls == "none" else {}),
        ("BROTLI", [0, 1], {"write_index": True}),
    ):
        some = [start for start in groups if start < max(1, len(frame))]
        yield f"fastparquet {codec} {groups} {options}", partial(_fastparquet, fastparquet, frame, codec, some, options)


def _fastparquet(module: Any, frame: Any, codec: str | None, groups: list[int], options: Any, path: Path) -> None:
    module.write(str(path), frame, compression=codec, row_group_offsets=groups, **options)


# ---------------------------------------------------------------- Spark

_OF_SPARK = {
    "byte": "cast(id % 100 as tinyint)",
    "short": "cast(id * 300 as smallint)",
    "int": "cast(id * 7919 as int)",
    "long": "id * 9007199254740993",
    "float": "cast(id / 3 as float)",
    "double": "if(id % 7 = 0, double('nan'), id / 3)",
    "bool": "id % 3 = 0",
    "string": "concat('word ', id % 6)",
    "binary": "encode(string(id), 'utf-8')",
    "date": "date_add(date'2024-02-29', int(id))",
    "timestamp": "timestamp_seconds(id * 100000)",
    "timestamp_ntz": "timestamp_ntz'2024-02-29 13:05:07.123456'",
    "decimal_4": "cast(id / 100 as decimal(4, 2))",
    "decimal_18": "cast(id as decimal(18, 3))",
    "decimal_38": "cast(id as decimal(38, 10))",
    "list": "sequence(0, id % 4)",
    "list_of_words": "array('a', '', string(id))",
    "empty": "cast(array() as array<bigint>)",
    "lists": "array(array(id), cast(array() as array<bigint>))",
    "struct": "named_struct('x', id, 'y', named_struct('z', array(id)))",
    "map": "map('k', id)",
    "list_of_structs": "array(named_struct('a', id))",
}


def spark_files(session: Any, num_rows: int, *, nulls: str) -> Iterator[tuple[str, Write]]:
    """Yield files as Spark writes them."""
    is_null = {"none": "false", "some": "id % 5 = 2 or id % 11 = 0", "all": "true"}[nulls]
    columns = [f"if({is_null}, null, {made}) as {name}" for name, made in _OF_SPARK.items()]
    frame = session.range(0, num_rows, 1, 1).selectExpr("id", *columns)
    codecs = ("none", "snappy", "gzip", "lz4_raw", "zstd")
    for codec, version, times, legacy in zip(
        codecs,
        itertools.cycle(("PARQUET_1_0", "PARQUET_2_0")),
        itertools.cycle(("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS")),
        itertools.cycle(("false", "false", "true")),
        strict=False,
    ):
        options = {"compression": codec, "parquet.writer.version": version, "parquet.page.size": "400"}
        yield f"spark {options} {times} {legacy}", partial(_spark, session, frame, options, times, legacy)


def _spark(session: Any, frame: Any, options: Mapping[str, str], times: str, legacy: str, path: Path) -> None:
    session.conf.set("spark.sql.parquet.outputTimestampType", times)
    session.conf.set("spark.sql.parquet.writeLegacyFormat", legacy)
    folder = path.with_suffix(".spark")
    frame.write.mode("overwrite").options(**options).parquet(folder.as_uri())
    (part,) = folder.glob("part-*.parquet")
    part.replace(path)
