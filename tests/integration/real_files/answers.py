"""Load a file; where it is refused, load what can be loaded of it. All of it is compared with pyarrow's reading."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.integration.real_files.oracle import NO_FILL, delivered, expected, fill_for, flat_columns

import stoker
from stoker import Field

# Each way to cut into chunks and batches must give the same rows.
WHOLE = "32MiB"
_BATCH_SIZES = (1000, 7)
_MAX_BATCHES = 400
# So small that row groups are split, and so large that a file has few chunks.
_NUM_PARTS = 9


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What became of one source.

    Attributes:
        error: Class of the first error, None where everything is delivered at once.
        columns: Columns that the error names.
        reason: The reason it gives, in short.
        filled: Columns that came after a fill.
        left_out: Columns that cannot come at all.
        num_rows: Rows that came in the end, None where nothing can.
        num_fields: Fields that came in the end.
    """

    error: str | None = None
    columns: tuple[str, ...] = ()
    reason: str = ""
    filled: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    num_rows: int | None = None
    num_fields: int = 0

    def __str__(self) -> str:
        came = ""
        if self.num_rows is not None:
            came = f"{_count(self.num_rows, 'row')}, {_count(self.num_fields, 'field')}"
        if self.error is None:
            return f"delivered: {came}"
        named = f" {_few(self.columns)}:" if self.columns else ""
        text = f"refused: {self.error}:{named} {self.reason}"
        ways = [f"With fill or mask for {self._these(self.filled)}"] if self.filled else []
        if self.left_out:
            ways.append(f"without {_few(self.left_out)}" if ways else f"Without {self._these(self.left_out)}")
        return f"{text}. {' and '.join(ways)}: {came}" if came else text

    def _these(self, names: Sequence[str]) -> str:
        if set(names) != set(self.columns):
            return _few(names)
        return "them" if len(names) > 1 else "it"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where rows are, and how pyarrow reads them.

    Attributes:
        path: A file, or a folder with hive partitions.
    """

    path: Path

    def files(self) -> list[Path]:
        return [self.path] if self.path.is_file() else sorted(self.path.glob("*/*.parquet"))

    def read(self) -> pa.Table:
        """All rows, with partition columns last; checksums of pages are checked."""
        tables = []
        for path in self.files():
            table = pq.ParquetFile(path, page_checksum_verification=True).read().replace_schema_metadata(None)
            table.validate(full=True)
            if path != self.path:
                key, value = path.parent.name.split("=")
                table = table.append_column(key, pa.array([value] * table.num_rows, pa.string()))
            tables.append(table)
        return pa.concat_tables(tables)

    def types(self) -> dict[str, pa.DataType] | None:
        """Dotted names and types of the columns; None where pyarrow cannot read them."""
        try:
            schema = pq.read_schema(self.files()[0])
        except (pa.ArrowException, OSError, ValueError, TypeError):
            return None
        if self.path.is_dir():
            schema = schema.append(pa.field(self.files()[0].parent.name.split("=")[0], pa.string()))
        return {name: kind for name, (kind, _) in flat_columns(schema.empty_table()).items()}


@dataclass(frozen=True, kw_only=True)
class Try:
    """Arguments of a `Dataset`."""

    columns: tuple[str, ...] | None = None
    fields: Mapping[str, Field] = field(default_factory=dict)


Columns = Mapping[str, tuple[pa.DataType, list[Any]]]


@dataclass(frozen=True, kw_only=True)
class Explored:
    """What a source answers, and what to ask of it so that all that can come comes; None where nothing can."""

    answer: Answer
    asked: Try | None


def explore(source: Source) -> Explored:
    """Load a source, and load it again without what was refused, until something is delivered.

    Raises:
        AssertionError: An error does not name what it must.
    """
    types = source.types()
    fills: set[str] = set()
    left_out: set[str] = set()
    first: Answer | None = None
    while True:
        asked = _asked(types, fills, left_out)
        try:
            spec, num_rows = _spec(source, asked)
            break
        except stoker.FieldError as error:
            types = _checked_columns(error, types)
            for_nulls = re.search(r"has [\d,]+ nulls?\b", str(error)) is not None
            (fills if for_nulls else left_out).update(error.columns)
            if first is None:
                reason = "nulls, and no fill or mask" if for_nulls else _type_reason(str(error))
                first = Answer(error="FieldError", columns=error.columns, reason=reason)
            if left_out == set(types):
                return Explored(answer=replace(first, left_out=tuple(types)), asked=None)
        except stoker.SourceError as error:
            check_names_file(error, source.path)
            if first is not None:
                raise AssertionError(f"first {first}, then {error}") from error
            return Explored(answer=Answer(error=type(error).__name__, reason=_short(str(error), source)), asked=None)
    answer = replace(
        first or Answer(),
        filled=tuple(name for name in types or () if name in fills),
        left_out=tuple(name for name in types or () if name in left_out),
        num_rows=num_rows,
        num_fields=len(spec),
    )
    return Explored(answer=answer, asked=asked)


def _checked_columns(error: stoker.FieldError, types: Mapping[str, pa.DataType] | None) -> Mapping[str, pa.DataType]:
    assert error.columns
    assert all(f"{name!r}" in str(error) for name in error.columns), error
    assert types is not None, f"pyarrow does not read the schema, and Stoker says: {error}"
    assert set(error.columns) <= set(types), error.columns
    return types


def check_names_file(error: stoker.SourceError, path: Path) -> None:
    """Check that an error says which file it is about."""
    assert error.url == str(path), error.url
    assert str(path) in str(error), f"the error does not name the file: {error}"


def check_values(source: Source, explored: Explored) -> None:
    """Load a source in several ways, and compare every value with what pyarrow reads.

    Raises:
        AssertionError: A value, a count or a dtype differs.
    """
    if explored.asked is None:
        return
    truth = flat_columns(source.read())
    fills, left_out = set(explored.answer.filled), set(explored.answer.left_out)
    num_rows = max((len(values) for _, values in truth.values()), default=0)
    assert explored.answer.num_rows == num_rows
    small = max(1, sum(path.stat().st_size for path in source.files()) // _NUM_PARTS)
    for chunk_size in (WHOLE, small):
        for batch_size in _BATCH_SIZES:
            if num_rows <= _MAX_BATCHES * batch_size:
                _compare(source, truth, fills, left_out, batch_size=batch_size, chunk_size=chunk_size)
    if fills:
        _compare(source, truth, fills, left_out, batch_size=1000, chunk_size=WHOLE, by_mask=True)
        _compare(source, truth, fills, left_out, batch_size=1000, chunk_size=small, by_mask=True)


def check_refusal(source: Source, explored: Explored) -> None:
    """Try to read with pyarrow what Stoker says it cannot read: neither may be able to.

    Raises:
        AssertionError: pyarrow reads it, with page checksums verified.
    """
    if explored.answer.error in ("SourceError", "SourceCorruptError"):
        try:
            source.read()
        except (pa.ArrowException, OSError, ValueError, TypeError):
            return
        raise AssertionError(f"pyarrow reads {source.path}, and Stoker says {explored.answer}")


def _type_reason(message: str) -> str:
    """The reason in an error about columns, without the way out behind it."""
    if "INT96" in message:
        return "INT96 timestamps outside of the years 1677 to 2262"
    found = re.search(r"\): ([^;]+);", message)
    assert found is not None, message
    return found[1]


def _short(message: str, source: Source) -> str:
    """The message without the path, fit for a cell of a table."""
    text = message.replace(f" of {source.path}", "").replace(f"{source.path}", "")
    return re.sub(r"^: |^is ", "", re.sub(r"\s+", " ", text.replace("|", "/")).strip()).rstrip(".")


def _asked(
    types: Mapping[str, pa.DataType] | None, fills: set[str], left_out: set[str], *, masked: Sequence[str] = ()
) -> Try:
    """Return arguments that fill these columns and leave those out; the ones in `masked` get a mask and no fill."""
    if types is None or not (fills or left_out):
        return Try()
    fields = {
        name: Field(mask=True) if name in masked else Field(fill=fill_for(types[name])) for name in fills - left_out
    }
    columns = tuple(name for name in types if name not in left_out)
    return Try(columns=columns if left_out else None, fields=fields)


def _has_inner_null(value: Any) -> bool:
    return isinstance(value, list) and any(inner is None or _has_inner_null(inner) for inner in value)


def _loader(source: Source, asked: Try, *, batch_size: int, chunk_size: str | int) -> stoker.Loader:
    dataset = stoker.Dataset(source.path, columns=asked.columns, fields=asked.fields, chunk_size=chunk_size)
    return stoker.Loader(dataset, batch_size=batch_size, num_threads=2)


def _spec(source: Source, asked: Try) -> tuple[stoker.Spec, int]:
    with _loader(source, asked, batch_size=1, chunk_size=WHOLE) as loader:
        return loader.spec, loader.num_samples


def _compare(
    source: Source,
    truth: Columns,
    fills: set[str],
    left_out: set[str],
    *,
    batch_size: int,
    chunk_size: str | int,
    by_mask: bool = False,
) -> None:
    """Compare every value of every batch, and the shape of every batch."""
    # A mask alone does not reach nulls inside lists: those columns keep their fill.
    masked = [name for name in fills if by_mask and not any(_has_inner_null(value) for value in truth[name][1])]
    asked = _asked({name: kind for name, (kind, _) in truth.items()}, fills, left_out, masked=masked)
    if by_mask:
        asked = replace(asked, fields={name: replace(field, mask=True) for name, field in asked.fields.items()})
    names = [name for name in truth if name not in left_out]
    got: dict[str, list[Any]] = {name: [] for name in names}
    masks: dict[str, list[bool]] = {name: [] for name in names if by_mask and name in fills}
    num_rows = max((len(values) for _, values in truth.values()), default=0)
    with _loader(source, asked, batch_size=batch_size, chunk_size=chunk_size) as loader:
        assert [entry.name for entry in loader.spec] == list(_with_masks(names, masks)), str(loader.spec)
        assert loader.num_samples == num_rows
        steps = 0
        for batch in loader:
            steps += 1
            size = min(batch_size, num_rows - (steps - 1) * batch_size)
            for name in names:
                part = delivered(truth[name][0], batch[name])
                assert len(part) == size, f"{name}: {len(part)} of {size}"
                got[name] += part
            for name, mask in masks.items():
                mask += batch[f"{name}_mask"].tolist()
        assert steps == len(loader) == -(-num_rows // batch_size)
    for name in names:
        kind, values = truth[name]
        fill = asked.fields[name].fill if name in asked.fields else NO_FILL
        want = expected(kind, values, fill=fill)
        if got[name] != want:
            row = next(i for i in range(num_rows) if got[name][i] != want[i])
            raise AssertionError(f"{name} ({kind}), row {row}: {got[name][row]!r} is not {want[row]!r}")
    for name, mask in masks.items():
        assert mask == [value is not None for value in truth[name][1]], name


def _with_masks(names: Sequence[str], masks: Mapping[str, Any]) -> Iterator[str]:
    for name in names:
        yield name
        if name in masks:
            yield f"{name}_mask"
