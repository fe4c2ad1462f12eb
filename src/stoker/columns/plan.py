"""What each field becomes: pure decisions from an Arrow schema and the fields asked for, before any row is read.

match_fields     which columns each field is made of
plan_column      how one column becomes numbers
try_plan_fields  both, and stacks
share_fields     which fields neighbours share
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.arguments import near
from stoker.columns.arrays import exact_bits, integer_fits, null_error
from stoker.columns.kinds import WORDS, DType, Form, Level, Refused, ValueKind, kind_of
from stoker.columns.words import Buckets, Codes, Fill, FixedBytes, Way, code_of_fill
from stoker.errors import FieldError
from stoker.fields.compact import plan_compact
from stoker.fields.spec import Entry, Field, Spec, run_name
from stoker.words import some_of

_WHOLE = (Form.INTEGER, Form.TIME)
# What embeddings take without a cast; a field that wants narrower codes says so.
_CODES = np.dtype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Match:
    """A field and its columns.

    Attributes:
        name: Key of the field in a batch.
        field: What the user asked for; a plain `Field()` for a column that no field names.
        columns: Names, in the order in which they are stacked.
        is_stacked: Whether the columns are stacked to `[N, k]`; true for a pattern or a sequence, even of one column.
    """

    name: str
    field: Field
    columns: tuple[str, ...]
    is_stacked: bool


@dataclass(frozen=True, kw_only=True)
class ColumnPlan:
    """How one column becomes numbers.

    Attributes:
        name: Name of the column.
        levels: Levels of lists, outermost first; strings that stay bytes are a level of their own.
        leaf: The innermost values.
        way: How words become numbers, None where nothing is asked.
        dtype: What the values become.
        value_shape: Shape of one innermost value: `()` but for binary of one length.
        shape: Shape of one sample, or of one value where the column is ragged.
        fill: Number that stands for null, or bytes where words stay words; None makes a null an error.
        has_mask: Whether null samples may become zeros because a mask shows them.
        unit: What one step of the number means.
        casts_late: Whether the cast may be left to whoever packs the stacked field: it cannot change a number.
    """

    name: str
    levels: tuple[Level, ...]
    leaf: ValueKind
    way: Way | None
    dtype: DType
    value_shape: tuple[int, ...]
    shape: tuple[int, ...]
    fill: Fill | None
    has_mask: bool
    unit: str | None
    casts_late: bool = False

    @property
    def num_levels(self) -> int:
        """Levels that stay ragged, always the outermost ones."""
        return _num_ragged(self.levels)

    @property
    def is_coded(self) -> bool:
        """Whether it has words, without lists around them, each of which becomes a number."""
        return isinstance(self.way, Codes | Buckets) and self.leaf.form is Form.BYTES and not self.levels

    @cached_property
    def stored_type(self) -> pa.DataType | None:
        """The type in Arrow of which values are taken as they are stored; None where more is to be done."""
        is_plain = self.way is None and not self.levels and self.leaf.form in (Form.INTEGER, Form.FLOAT)
        if not is_plain or not (self.casts_late or self.leaf.storage == self.dtype):
            return None
        return pa.from_numpy_dtype(self.leaf.storage)


@dataclass(frozen=True, kw_only=True, eq=False)
class FieldPlan:
    """How one field is made of its columns.

    Attributes:
        match: The field, and the names of its columns.
        columns: How each becomes numbers.
        entry: What it gives.
        mask: What its mask gives, where it has one.
        kept: How its own entry is kept.
        alike: Numbers of its columns in the schema, where it stacks several that are taken as they are stored, all in
            one type. Shape [C].
    """

    match: Match
    columns: tuple[ColumnPlan, ...]
    entry: Entry
    mask: Entry | None
    kept: Entry
    alike: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A column or field that cannot be had: where it stands in the schema, what it is called, and why."""

    place: int
    columns: tuple[str, ...]
    text: str


def plan_fields(schema: pa.Schema, fields: Mapping[str, Field]) -> list[FieldPlan]:
    """Return how each field is made, in the order of the spec.

    Raises:
        FieldError: A column or field cannot be had; one error lists them all in the order of the schema.
    """
    plans, problems = try_plan_fields(schema, fields)
    if not problems:
        return plans
    texts = [problem.text for problem in problems]
    if len(texts) > 1:
        texts = [f"{len(texts)} columns or fields cannot become tensors:", *(f"  {text}" for text in texts)]
    columns = dict.fromkeys(column for problem in problems for column in problem.columns)
    raise FieldError("\n".join(texts), columns=list(columns))


def try_plan_fields(schema: pa.Schema, fields: Mapping[str, Field]) -> tuple[list[FieldPlan], list[Problem]]:
    """Return how each field is made, and what stands in the way of the others, in the order of the schema."""
    names = list(schema.names)
    # The first of each: where two columns share a name, that has its own problem.
    numbers = dict(zip(reversed(names), reversed(range(len(names))), strict=True))
    matches, problems = match_fields(names, fields)
    plans: list[FieldPlan] = []
    for match in matches:
        columns, wrong = _plan_columns(match, schema, numbers)
        problems += wrong
        if not wrong:
            try:
                plans.append(_plan_field(match, columns, schema, numbers))
            except Refused as why:
                place = numbers[match.columns[0]]
                problems.append(Problem(place=place, columns=match.columns, text=f"field {match.name!r}: {why}"))
    return plans, sorted(problems, key=lambda problem: problem.place)


def spec_of_plans(plans: Sequence[FieldPlan]) -> Spec:
    """Return the spec that the plans give."""
    return Spec(tuple(entry for plan in plans for entry in (plan.kept, plan.mask) if entry is not None))


def match_fields(names: Sequence[str], fields: Mapping[str, Field]) -> tuple[list[Match], list[Problem]]:
    """Return every field with its columns in the order of the spec, and what went wrong.

    A field stands where its first column stands in `names`. Columns that no field uses come as they are.
    """
    place: dict[str, int] = {}
    problems: list[Problem] = []

    def wrong(at: int, columns: Sequence[str], text: str) -> None:
        problems.append(Problem(place=at, columns=tuple(columns), text=text))

    for i, name in enumerate(names):
        if place.setdefault(name, i) != i:
            wrong(i, [name], f"column {name!r}: the schema has two columns of this name; rename one")
    matches: list[Match] = []
    owner: dict[str, str] = {}
    for behind, (name, field) in enumerate(fields.items(), len(names)):
        patterns = [name] if field.columns is None else field.columns
        patterns = [patterns] if isinstance(patterns, str) else patterns
        columns: dict[str, None] = {}
        for pattern in patterns:
            # A column may be called "a[0]": a name that is there is a name, whatever signs are in it.
            found = [pattern] if pattern in place else [n for n in place if fnmatch.fnmatchcase(n, pattern)]
            if not found:
                wrong(behind, [pattern], _nothing_named(name, pattern, field, names))
            columns.update(dict.fromkeys(found))
        for column in list(columns):
            other = owner.setdefault(column, name)
            if other != name:
                text = f"both field {other!r} and field {name!r} use it; give it to one of them"
                wrong(place[column], [column], f"column {column!r}: {text}")
                del columns[column]
        is_name = field.columns is None or (isinstance(field.columns, str) and not _is_pattern(field.columns, place))
        if columns:
            matches.append(Match(name=name, field=field, columns=tuple(columns), is_stacked=not is_name))
    plain = [Match(name=name, field=Field(), columns=(name,), is_stacked=False) for name in place if name not in owner]
    taken = {match.name: match for match in matches}
    for match in plain:
        if match.name in taken:
            made_of = ", ".join(map(repr, taken[match.name].columns[:3]))
            text = f"field {match.name!r} is made of {made_of}, but this column comes under the same name"
            end = "name the field otherwise or leave the column out"
            wrong(place[match.name], [match.name], f"column {match.name!r}: {text}; {end}")
    matches = sorted(matches + plain, key=lambda match: min(place[column] for column in match.columns))
    for match in matches:
        mask = _mask_name(match.name)
        if match.field.mask and any(other.name == mask for other in matches):
            text = f"its mask would be called {mask!r}, but there is a field of this name; name one of them otherwise"
            wrong(place[match.columns[0]], match.columns, f"field {match.name!r}: {text}")
    return matches, problems


def _mask_name(name: str) -> str:
    return f"{name}_mask"


def _is_pattern(name: str, place: Mapping[str, int]) -> bool:
    return name not in place and any(sign in name for sign in "*?[")


def _nothing_named(name: str, pattern: str, field: Field, names: Sequence[str]) -> str:
    subject = f"field {name!r}" if field.columns is None else f"field {name!r}: columns={pattern!r}"
    inside = [column for column in names if column.startswith(f"{pattern}.")]
    alike = inside[:3] or difflib.get_close_matches(pattern, names, n=3, cutoff=0.6)
    if alike:
        return f"{subject} names no column; did you mean {' or '.join(map(repr, alike))}?"
    return f"{subject} names no column; there are {some_of(list(map(repr, names)), 8) or 'none'}"


def _plan_columns(
    match: Match, schema: pa.Schema, numbers: Mapping[str, int]
) -> tuple[list[ColumnPlan], list[Problem]]:
    plans: list[ColumnPlan] = []
    problems: list[Problem] = []
    known: dict[pa.DataType, ColumnPlan] = {}  # of thousands of columns, most are of one type
    for name in match.columns:
        kind = schema.field(numbers[name]).type
        try:
            plan = known[kind] = replace(known[kind], name=name) if kind in known else _plan_column(name, kind, match)
        except Refused as why:
            text = f"column {name!r} ({kind}): {why}"
            problems.append(Problem(place=numbers[name], columns=(name,), text=text))
        else:
            plans.append(plan)
    return plans, problems


def _plan_field(match: Match, plans: Sequence[ColumnPlan], schema: pa.Schema, numbers: Mapping[str, int]) -> FieldPlan:
    shape, unit, alike = plans[0].shape, plans[0].unit, None
    if match.is_stacked:
        plans, shape, unit = _stack(match, plans)
        stored = {plan.stored_type for plan in plans} | {schema.field(numbers[plan.name]).type for plan in plans}
        if len(stored) == 1:
            alike = np.array([numbers[plan.name] for plan in plans], np.int64)
    entry = Entry(name=match.name, dtype=plans[0].dtype, shape=shape, num_levels=plans[0].num_levels, unit=unit)
    kept, mask = entry, None
    if match.field.storage_dtype is not None:
        found = plan_compact(match.field.storage_dtype, entry.dtype, entry.shape)
        if isinstance(found, str):
            raise Refused(f"storage_dtype: {found}")
        dtype, kept_shape, compact = found
        kept = replace(entry, dtype=dtype, shape=kept_shape, compact=compact)
    if match.field.mask:
        mask_shape = shape if match.is_stacked else ()
        mask = Entry(name=_mask_name(match.name), dtype=np.dtype(np.bool_), shape=mask_shape)
    return FieldPlan(match=match, columns=tuple(plans), entry=entry, mask=mask, kept=kept, alike=alike)


def _stack(match: Match, plans: Sequence[ColumnPlan]) -> tuple[list[ColumnPlan], tuple[int, ...], str | None]:
    """Return the columns of a stacked field in one dtype, its shape and unit."""
    field = match.field
    for plan in plans:
        if plan.num_levels or plan.shape:
            what = "lists" if plan.num_levels else f"arrays of shape {list(plan.shape)}"
            raise Refused(
                f"column {plan.name!r} holds {what}, and only columns of one number a row can be stacked; give it a "
                f"field of its own, named without a pattern, or join the arrays in a transform"
            )
    shape = (len(plans),) if field.shape is None else field.shape
    if int(np.prod(shape, dtype=np.int64)) != len(plans):
        raise Refused(f"shape={shape} does not hold the {len(plans)} columns that are stacked")
    units = list(dict.fromkeys(plan.unit for plan in plans))
    # As floats decimals have no unit; as integers cents would stand beside whole numbers unseen.
    has_unscaled = plans[0].dtype.kind in "iu" and any(plan.leaf.form is Form.DECIMAL for plan in plans)
    if len(units) > 1 and (field.dtype is None or has_unscaled):
        raise Refused(
            f"its columns have different units ({', '.join(unit or 'none' for unit in units)}); say a float dtype if "
            "that is meant, or bring them to one unit in a transform"
        )
    dtypes = {plan.dtype for plan in plans}
    dtype = np.result_type(*dtypes)
    if not all(_holds_exactly(dtype, one) for one in dtypes):
        names = ", ".join(sorted(one.name for one in dtypes))
        raise Refused(f"its columns have the dtypes {names}, which no dtype holds exactly; say which one you want")
    plans = [replace(plan, dtype=dtype) for plan in plans]
    late = [replace(plan, casts_late=_may_cast_late(plan)) for plan in plans]
    return late, shape, units[0] if len(units) == 1 else None


def _holds_exactly(dtype: DType, source: DType) -> bool:
    if source.kind in "iu" and dtype.kind == "f":
        return exact_bits(dtype) >= exact_bits(source)
    return bool(np.can_cast(source, dtype, "safe"))


def _may_cast_late(plan: ColumnPlan) -> bool:
    """Whether packing may widen the column: an integer that eight bytes hold exactly, which needs no check."""
    source, target = plan.leaf.storage, plan.dtype
    is_integer = source.kind in "iu" and target.kind in "iu" and plan.way is None and plan.leaf.form is not Form.DECIMAL
    return is_integer and target.itemsize == 8 and bool(np.can_cast(source, target, "safe"))


def _plan_column(name: str, kind: pa.DataType, match: Match) -> ColumnPlan:
    field = match.field
    levels, leaf = kind_of(kind)
    way = _way_of(field, leaf)
    value_shape: tuple[int, ...] = ()
    if isinstance(way, FixedBytes):
        value_shape = (way.num_bytes,)
    elif way is None and leaf.form is Form.FIXED_BYTES:
        value_shape = (leaf.width,)
    elif way is None and leaf.form is Form.BYTES:
        levels = (*levels, Level(size=None))
    is_sized = field.shape is not None and not match.is_stacked
    if is_sized and field.shape is not None:
        levels = _size_levels(levels, value_shape, field.shape)
    num_levels = _num_ragged(levels)
    if num_levels > 2:
        deeper = "; vocabulary=, hash_buckets= or num_bytes= would make one number of each string"
        raise Refused(
            f"lists of lists of lists are more levels than the two a ragged field can have"
            f"{deeper if leaf.form is Form.BYTES and way is None else ''}; leave it out (columns= without it), or "
            f"flatten it in a transform"
        )
    if any(level.permutation is not None for level in levels[:num_levels]):
        raise Refused("a permuted tensor cannot be ragged; reorder it in a transform")
    shape = sum((level.shape for level in levels[num_levels:]), ()) + value_shape
    dtype, unit = _dtype_of(field, leaf, way)
    return ColumnPlan(
        name=name,
        levels=levels,
        leaf=leaf,
        way=way,
        dtype=dtype,
        value_shape=value_shape,
        shape=field.shape if is_sized and field.shape is not None else shape,
        fill=None if field.fill is None else _fill_of(field.fill, leaf, way, dtype, levels),
        has_mask=field.mask,
        unit=unit,
    )


def _num_ragged(levels: Sequence[Level]) -> int:
    return max((i + 1 for i, level in enumerate(levels) if level.size is None), default=0)


def _way_of(field: Field, leaf: ValueKind) -> Way | None:
    """Return how words become numbers as a field asks for it."""
    form, dtype = leaf.form, None if field.dtype is None else np.dtype(field.dtype)
    if field.vocabulary is not None or field.hash_buckets is not None:
        option = "hash_buckets" if field.vocabulary is None else "vocabulary"
        if form not in WORDS + _WHOLE:
            raise Refused(f"{option}= is for strings and integers, and these are {form.value}; use a dtype")
    if field.vocabulary is not None:
        wanted: type = str if form in WORDS else Integral  # NumPy's integers are no int
        odd = [word for word in field.vocabulary if not isinstance(word, wanted) or isinstance(word, bool)]
        if odd:
            asked = "strings" if wanted is str else "integers"
            raise Refused(f"its vocabulary holds {odd[0]!r}, but the column holds {form.value}; give {asked}")
        _check_codes([len(field.vocabulary) - 1, 0 if field.unknown is None else field.unknown], dtype)
        return Codes(words=field.vocabulary, unknown=field.unknown)
    if field.hash_buckets is not None:
        _check_codes([field.hash_buckets - 1], dtype)
        return Buckets(num_buckets=field.hash_buckets)
    if field.num_bytes is not None and form not in WORDS:
        raise Refused(f"num_bytes= is for strings and binary, and these are {form.value}; use a dtype")
    if field.num_bytes is not None and form is Form.FIXED_BYTES and leaf.width > field.num_bytes:
        raise Refused(f"its values have {leaf.width} bytes, more than num_bytes={field.num_bytes}")
    if form in WORDS and dtype not in (None, np.dtype(np.uint8)):
        raise Refused(
            f"{form.value} cannot become {dtype} on their own; say how with vocabulary=, hash_buckets= or num_bytes= "
            f"(or leave the dtype out to have the bytes)"
        )
    if form is Form.DECIMAL and dtype is not None and dtype.kind == "b":
        raise Refused("decimals cannot become bool; compare them in a transform")
    return None if field.num_bytes is None else FixedBytes(num_bytes=field.num_bytes)


def _check_codes(codes: Sequence[int], dtype: DType | None) -> None:
    for code in codes:
        if not integer_fits(code, dtype or _CODES):
            raise Refused(f"the code {code} does not fit {(dtype or _CODES).name}; use a wider dtype")


def _size_levels(levels: tuple[Level, ...], value_shape: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[Level, ...]:
    """Return the levels with the length that `shape=` gives them."""
    varying = [i for i, level in enumerate(levels) if level.size is None]
    ask = f"shape={wanted}"
    inner = sum((level.shape for level in levels), ()) + value_shape  # varying levels add nothing
    num_wanted, num_inner = int(np.prod(wanted, dtype=np.int64)), int(np.prod(inner, dtype=np.int64))
    if not varying:
        if num_wanted != num_inner:
            raise Refused(f"{ask} does not hold the {num_inner} values of shape {inner}")
        return levels
    if len(varying) == 1:
        size, rest = divmod(num_wanted, num_inner) if num_inner else (wanted[0] if wanted else 0, 0)
        if rest or not wanted:
            raise Refused(f"{ask} is no whole number of values of shape {inner}")
        return tuple(replace(level, size=size) if i in varying else level for i, level in enumerate(levels))
    full = sum(((None,) if level.size is None else level.shape for level in levels), ()) + value_shape
    if len(full) != len(wanted) or any(have not in (None, want) for have, want in zip(full, wanted, strict=True)):
        text = ", ".join("*" if k is None else str(k) for k in full)
        raise Refused(f"{ask} does not fit lists of lists of shape [{text}]; give every dimension")
    sizes = iter(wanted)
    sized: list[Level] = []
    for level in levels:
        taken = [next(sizes) for _ in (level.shape or (0,))]
        sized.append(replace(level, size=taken[0]) if level.size is None else level)
    return tuple(sized)


def _dtype_of(field: Field, leaf: ValueKind, way: Way | None) -> tuple[DType, str | None]:
    """Return what the values become and what one step of the number means."""
    if isinstance(way, Codes | Buckets):
        return (_CODES if field.dtype is None else np.dtype(field.dtype)), None
    if isinstance(way, FixedBytes):
        return np.dtype(np.uint8), None
    dtype = leaf.dtype if field.dtype is None else np.dtype(field.dtype)
    if leaf.form is Form.DECIMAL and dtype.kind in "iu" and leaf.scale != 0:
        return dtype, f"1e{-leaf.scale}"
    return dtype, leaf.unit


def _fill_of(fill: float | str, leaf: ValueKind, way: Way | None, dtype: DType, levels: Sequence[Level]) -> Fill:
    """Return what stands for null among the values delivered."""
    if isinstance(way, Codes | Buckets):
        code = code_of_fill(fill, leaf, way)
        return _fill_number(fill, dtype) if code is None else code
    if leaf.form not in WORDS:
        return _fill_number(fill, dtype)
    if not isinstance(fill, str):
        raise Refused(f"fill={fill!r} must be a string here; fill='' stands for no bytes")
    word = fill.encode()
    if leaf.form is Form.FIXED_BYTES or isinstance(way, FixedBytes):
        room = way.num_bytes if isinstance(way, FixedBytes) else leaf.width
        if len(word) > room:
            raise Refused(f"fill={fill!r} has {len(word)} bytes, more than {room}")
    elif levels[-1].size not in (None, len(word)):
        raise Refused(f"fill={fill!r} has {len(word)} bytes, but shape= asks for {levels[-1].size}")
    return word


def _fill_number(fill: float | str, dtype: DType) -> Fill:
    if isinstance(fill, str):
        raise Refused(f"fill={fill!r} must be a number here")
    value = float(fill)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            if np.isfinite(value) and not np.isfinite(np.array(value).astype(dtype)):
                raise Refused(f"fill={fill!r} is too large for {dtype.name}")
        return fill
    if not np.isfinite(value) or value != int(value) or not integer_fits(int(fill), dtype):
        raise Refused(f"fill={fill!r} is no {dtype.name}; use another fill, or a dtype that holds it")
    return int(fill)


def check_nulls(null_counts: Mapping[str, int | None], fields: Mapping[str, Field], *, where: str) -> None:
    """Raise where columns hold nulls that their fields have no answer for; known before any row is read.

    Args:
        null_counts: Nulls by column name, None where the footer does not say. Only columns without lists: for a list
            Parquet counts empty lists among its nulls.
        fields: What the user asked for.
        where: File and row groups that were counted, as a text.

    Raises:
        FieldError: One or more columns have nulls, and their field neither a fill nor a mask.
    """
    matches, _ = match_fields(list(null_counts), fields)
    unanswered = [match for match in matches if match.field.fill is None and not match.field.mask]
    found = {column: num for match in unanswered for column in match.columns if (num := null_counts[column] or 0) > 0}
    if found:
        raise null_error(found, where=where)


Share = Mapping[str, Sequence[str]]
"""Field that is the key -> names and patterns of the fields that its equal neighbours share."""


def share_fields(spec: Spec, share: Share) -> Spec:
    """Return the spec with the fields that are shared marked; a key itself is shared by its equal neighbours, too.

    Args:
        spec: All fields, none marked.
        share: What is asked for.

    Raises:
        FieldError: A key is no field, a pattern finds none, or two keys would share one.
    """
    names = [entry.name for entry in spec]
    owners: dict[str, str] = {}

    def refused(name: str, text: str) -> FieldError:
        return FieldError(f"deduplicate: {text}", columns=[name])

    for key, patterns in share.items():
        if key not in names:
            about = "a key is a field of the batch, so that what is shared can be told from it"
            raise refused(key, f"there is no field {key!r} to share by{_near(key, names)}; {about}")
        run = run_name(key)
        if run in names:
            about = "the name under which chunks keep the run of a sample; call it otherwise"
            raise refused(run, f"the field {run!r} has {about}")
        for pattern in (key, *patterns):
            found = [pattern] if pattern in names else [name for name in names if fnmatch.fnmatchcase(name, pattern)]
            if not found:
                raise refused(pattern, f"{pattern!r} names no field{_near(pattern, names)}")
            for name in found:
                other = owners.setdefault(name, key)
                if other != key:
                    about = "name it under one of them"
                    raise refused(name, f"the field {name!r} is shared by {other!r} and by {key!r}; {about}")
    return Spec(tuple(replace(entry, deduplicated_by=owners.get(entry.name)) for entry in spec))


def _near(name: str, names: Sequence[str]) -> str:
    return f" ({near(name, names) or 'there are ' + some_of(names, 8)})"
