"""What each field becomes: pure decisions from an Arrow schema and the fields asked for, before any row is read."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from operator import itemgetter
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from stoker.arguments import near
from stoker.columns.arrays import integer_fits, is_held, null_error
from stoker.columns.kinds import DType, Levels, ValueKind, kind_of
from stoker.columns.words import Codes, Fill, code_of_fill
from stoker.errors import FieldError
from stoker.fields.compact import MisfitError, plan_compact
from stoker.fields.offsets import Int64
from stoker.fields.spec import Entry, Field, Spec, run_name
from stoker.host.forks import cached_property
from stoker.words import some_of

# What embeddings take without a cast; a field that wants narrower codes says so.
_CODES = np.dtype(np.int64)
_OFFSET_BYTES = 8
_PLAIN = Field()

Match: TypeAlias = tuple[str, Field, tuple[str, ...], bool]
"""A field's key in a batch, what the user asked for (`_PLAIN` for a column that no field names), its columns in their
order, and whether they are stacked to `[N, k]`: true for a pattern or a sequence, even of one column."""
Problem: TypeAlias = tuple[int, tuple[str, ...], str]
"""A column or field that cannot be had: where it stands in the schema, its columns, and why."""


@dataclass(frozen=True, kw_only=True)
class ColumnPlan:
    """How one column becomes numbers."""

    name: str
    number: int  # in the schema
    levels: Levels  # strings that stay bytes are a level of their own
    num_levels: int  # how many of them stay ragged, always the outermost ones
    leaf: ValueKind
    codes: Codes | None  # None where values become no codes and no buckets
    dtype: DType
    value_shape: tuple[int, ...]  # of one innermost value: `()` but for bytes of one length
    shape: tuple[int, ...]  # of one sample, or of one value where the column is ragged
    fill: Fill | None  # number that stands for null, or bytes where words stay words; None makes a null an error
    has_mask: bool  # null samples may become zeros because a mask shows them
    unit: str | None
    casts_late: bool = False  # the cast may be left to whoever packs the stacked field: it cannot change a number

    @cached_property
    def stored_type(self) -> pa.DataType | None:
        """The type in Arrow of which values are taken as they are stored; None where more is to be done."""
        leaf = self.leaf
        is_number = leaf.scale is None and not leaf.is_words and leaf.dtype.kind in "iuf"
        if self.codes is not None or self.levels or not is_number or not (self.casts_late or leaf.dtype == self.dtype):
            return None
        return pa.from_numpy_dtype(leaf.dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class FieldPlan:
    """How one field is made of its columns.

    `alike` has the numbers of its columns in the schema, where it stacks them and all are taken as they are stored, in
    one type. Shape [C].
    """

    columns: tuple[ColumnPlan, ...]
    is_stacked: bool  # even of a single one
    kept: Entry
    mask: Entry | None
    alike: Int64 | None = None

    @cached_property
    def entry(self) -> Entry:
        """What the columns give, as it is delivered."""
        return self.kept.delivered


Share = Mapping[str, Sequence[str]]
"""Field that is the key -> names and patterns of the fields that its equal neighbours share."""


def plan_spec(schema: pa.Schema, fields: Mapping[str, Field], share: Share | None = None) -> Spec:
    """Return what a sample of these columns is: it depends on types and shapes alone, and no value is looked at.

    Fields stand in the order of the schema, a stacked field at the place of its first column, a mask behind its field.

    Raises:
        FieldError: One or more columns or fields cannot be had. One error lists all of them, in the order of the
            schema, each with the reason and the way out.
    """
    spec = Spec(tuple(e for plan in plan_fields(schema, fields) for e in (plan.kept, plan.mask) if e is not None))
    return share_fields(spec, share) if share else spec


def plan_fields(schema: pa.Schema, fields: Mapping[str, Field]) -> list[FieldPlan]:
    """Return how each field is made, in the order of the spec; errors as `plan_spec`."""
    plans, problems = try_plan_fields(schema, fields)
    if not problems:
        return plans
    texts = [text for _, _, text in problems]
    if len(texts) > 1:
        texts = [f"{len(texts)} columns or fields cannot become tensors:", *(f"  {text}" for text in texts)]
    columns = dict.fromkeys(column for _, columns, _ in problems for column in columns)
    raise FieldError("\n".join(texts), columns=list(columns))


def try_plan_fields(schema: pa.Schema, fields: Mapping[str, Field]) -> tuple[list[FieldPlan], list[Problem]]:
    """Return how each field is made, and what stands in the way of the others, in the order of the schema."""
    names = list(schema.names)
    # The first of each: where two columns share a name, that has its own problem.
    numbers = dict(zip(reversed(names), reversed(range(len(names))), strict=True))
    matches, problems = match_fields(names, fields)
    plans: list[FieldPlan] = []
    for key, field, chosen, is_stacked in matches:
        columns: list[ColumnPlan] = []
        # Of thousands of columns, most are of one type. One that a user wrote in Python may have no hash.
        known: dict[object, ColumnPlan] = {}
        for name in chosen:
            number = numbers[name]
            kind = schema.field(number).type
            like = (name,) if isinstance(kind, pa.ExtensionType) else kind  # a type equals a text that names it
            try:
                if like in known:
                    columns.append(replace(known[like], name=name, number=number))
                else:
                    shape = None if is_stacked else field.shape
                    columns.append(_plan_column(name, number, kind, field, shape))
                    known[like] = columns[-1]
            except MisfitError as why:
                problems.append((number, (name,), f"column {name!r} ({kind}): {why}"))
        if len(columns) == len(chosen):
            try:
                plans.append(_plan_field(key, field, columns, schema, is_stacked=is_stacked))
            except MisfitError as why:
                problems.append((numbers[chosen[0]], chosen, f"field {key!r}: {why}"))
    return plans, sorted(problems, key=itemgetter(0))


def match_fields(names: Sequence[str], fields: Mapping[str, Field]) -> tuple[list[Match], list[Problem]]:
    """Return every field with its columns in the order of the spec, and what went wrong.

    A field stands where its first column stands in `names`. Columns that no field uses come as they are.
    """
    place: dict[str, int] = {}
    problems: list[Problem] = []
    for i, name in enumerate(names):
        if place.setdefault(name, i) != i:
            text = f"column {name!r}: the schema has two columns of this name; rename one"
            problems.append((i, (name,), text))
    matches: list[Match] = []
    owner: dict[str, str] = {}
    for behind, (name, field) in enumerate(fields.items(), len(names)):
        patterns = name if field.columns is None else field.columns
        columns: dict[str, None] = {}
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            found = _named(pattern, place)
            columns.update(dict.fromkeys(found))
            if not found:
                problems.append((behind, (pattern,), _nothing_named(name, pattern, field, names)))
        for column in list(columns):
            other = owner.setdefault(column, name)
            if other != name:
                text = f"column {column!r}: both field {other!r} and field {name!r} use it; give it to one of them"
                problems.append((place[column], (column,), text))
                del columns[column]
        if columns:
            is_name = isinstance(patterns, str) and (patterns in place or set(patterns).isdisjoint("*?["))
            matches.append((name, field, tuple(columns), not is_name and field.columns is not None))
    made_of = {name: chosen for name, _, chosen, _ in matches}
    for name in place:
        if name in owner:
            continue
        matches.append((name, _PLAIN, (name,), False))
        if name in made_of:
            text = f"field {name!r} is made of {', '.join(map(repr, made_of[name][:3]))}, but this column comes under"
            end = "the same name; name the field otherwise or leave the column out"
            problems.append((place[name], (name,), f"column {name!r}: {text} {end}"))
    matches.sort(key=lambda match: min(place[column] for column in match[2]))
    taken = {name for name, *_ in matches}
    for name, field, chosen, _ in matches:
        mask = f"{name}_mask"
        if field.mask and mask in taken:
            text = f"its mask would be called {mask!r}, but there is a field of this name; name one of them otherwise"
            problems.append((place[chosen[0]], chosen, f"field {name!r}: {text}"))
    return matches, problems


def _named(pattern: str, names: Collection[str]) -> list[str]:
    """Return what a name or a pattern names. A column may be called "a[0]": a name that is there is a name."""
    return [pattern] if pattern in names else [name for name in names if fnmatch.fnmatchcase(name, pattern)]


def _nothing_named(name: str, pattern: str, field: Field, names: Sequence[str]) -> str:
    subject = f"field {name!r}" if field.columns is None else f"field {name!r}: columns={pattern!r}"
    inside = [repr(column) for column in names if column.startswith(f"{pattern}.")]
    hint = f"did you mean {' or '.join(inside[:3])}?" if inside else near(pattern, names)
    there = some_of(list(map(repr, names)), 8) or "none"
    return f"{subject} names no column; {hint or f'there are {there}'}"


def _plan_field(
    name: str, field: Field, plans: Sequence[ColumnPlan], schema: pa.Schema, *, is_stacked: bool
) -> FieldPlan:
    shape, unit, alike = plans[0].shape, plans[0].unit, None
    if is_stacked:
        plans, shape, unit = _stack(field, plans)
        stored = plans[0].stored_type
        if all(plan.stored_type == stored == schema.field(plan.number).type for plan in plans):
            alike = np.array([plan.number for plan in plans], np.int64)
    kept = Entry(name=name, dtype=plans[0].dtype, shape=shape, num_levels=plans[0].num_levels, unit=unit)
    if field.storage_dtype is not None:
        try:
            dtype, kept_shape, compact = plan_compact(field.storage_dtype, kept.dtype, kept.shape)
        except MisfitError as why:
            raise MisfitError(f"storage_dtype: {why}") from None
        kept = replace(kept, dtype=dtype, shape=kept_shape, compact=compact)
    mask = None
    if field.mask:
        mask = Entry(name=f"{name}_mask", dtype=np.dtype(np.bool_), shape=shape if is_stacked else ())
    return FieldPlan(columns=tuple(plans), is_stacked=is_stacked, kept=kept, mask=mask, alike=alike)


def _stack(field: Field, plans: Sequence[ColumnPlan]) -> tuple[list[ColumnPlan], tuple[int, ...], str | None]:
    """Return the columns of a stacked field in one dtype, its shape and unit."""
    for plan in plans:
        if plan.num_levels or plan.shape:
            what = "lists" if plan.num_levels else f"arrays of shape {list(plan.shape)}"
            raise MisfitError(
                f"column {plan.name!r} holds {what}, and only columns of one number a row can be stacked; give it a "
                f"field of its own, named without a pattern, or join the arrays in a transform"
            )
    shape = (len(plans),) if field.shape is None else field.shape
    if int(np.prod(shape, dtype=np.int64)) != len(plans):
        raise MisfitError(f"shape={shape} does not hold the {len(plans)} columns that are stacked")
    units = list(dict.fromkeys(plan.unit for plan in plans))
    # As floats decimals have no unit; as integers cents would stand beside whole numbers unseen.
    has_unscaled = plans[0].dtype.kind in "iu" and any(plan.leaf.scale is not None for plan in plans)
    if len(units) > 1 and (field.dtype is None or has_unscaled):
        raise MisfitError(
            f"its columns have different units ({', '.join(unit or 'none' for unit in units)}); say a float dtype if "
            "that is meant, or bring them to one unit in a transform"
        )
    dtypes = {plan.dtype for plan in plans}
    dtype = np.result_type(*dtypes)
    # NumPy calls it safe to make floats of integers of eight bytes.
    if not all(np.can_cast(one, dtype) and not (dtype.kind == "f" and one in (np.int64, np.uint64)) for one in dtypes):
        names = ", ".join(sorted(one.name for one in dtypes))
        raise MisfitError(f"its columns have the dtypes {names}, which no dtype holds exactly; say which one you want")
    # Whoever packs may widen integers to the eight bytes that hold them exactly: that needs no check.
    is_wide = dtype.kind in "iu" and dtype.itemsize == 8
    late = [
        is_wide and plan.codes is None and plan.leaf.dtype.kind in "iu" and np.can_cast(plan.leaf.dtype, dtype)
        for plan in plans
    ]
    plans = [
        replace(plan, dtype=dtype, casts_late=is_late) if is_late or plan.dtype != dtype else plan
        for plan, is_late in zip(plans, late, strict=True)
    ]
    return plans, shape, units[0] if len(units) == 1 else None


def _plan_column(name: str, number: int, kind: pa.DataType, field: Field, sized: tuple[int, ...] | None) -> ColumnPlan:
    """Return how a column becomes numbers, each sample of shape `sized` where that is given."""
    levels, leaf = kind_of(kind)
    codes = _codes_of(field, leaf)
    value_shape: tuple[int, ...] = ()
    if codes is None and leaf.is_words:
        num_bytes = leaf.width if field.num_bytes is None else field.num_bytes
        if num_bytes is None:
            levels = (*levels, None)
        else:
            value_shape = (num_bytes,)
    if sized is not None:
        levels = _size_levels(levels, leaf, value_shape, sized)
    num_levels = max((i + 1 for i, size in enumerate(levels) if size is None), default=0)
    if num_levels > 2:
        is_text = leaf.is_words and codes is None and not value_shape
        deeper = "; vocabulary=, hash_buckets= or num_bytes= would make one number of each string" if is_text else ""
        raise MisfitError(
            f"lists of lists of lists are more levels than the two a ragged field can have{deeper}; leave it out "
            "(columns= without it), or flatten it in a transform"
        )
    shape = tuple(size for size in leaf.dimensions(levels)[num_levels:] if size is not None) + value_shape
    dtype, unit = leaf.dtype if codes is None else _CODES, leaf.unit if codes is None else None
    if field.dtype is not None:
        dtype = np.dtype(field.dtype)
    if dtype.kind in "iu" and leaf.scale:
        unit = f"1e{-leaf.scale}"
    return ColumnPlan(
        name=name,
        number=number,
        levels=levels,
        num_levels=num_levels,
        leaf=leaf,
        codes=codes,
        dtype=dtype,
        value_shape=value_shape,
        shape=shape if sized is None else sized,
        fill=None if field.fill is None else _fill_of(field.fill, leaf, codes, dtype, value_shape, levels),
        has_mask=field.mask,
        unit=unit,
    )


def _codes_of(field: Field, leaf: ValueKind) -> Codes | None:
    """Return how values become codes where a field asks for it; what they cannot become is a `MisfitError`."""
    dtype = None if field.dtype is None else np.dtype(field.dtype)
    if field.vocabulary is not None or field.hash_buckets is not None:
        option = "hash_buckets" if field.vocabulary is None else "vocabulary"
        if leaf.dtype.kind not in "iu":  # words are bytes, and times integers
            raise MisfitError(f"{option}= is for strings and integers, and these are {leaf.called}; use a dtype")
        codes = [(field.hash_buckets or 0) - 1]
        if field.vocabulary is not None:
            wanted: type = str if leaf.is_words else Integral  # NumPy's integers are no int
            odd = [word for word in field.vocabulary if not isinstance(word, wanted) or isinstance(word, bool)]
            if odd:
                asked = "strings" if wanted is str else "integers"
                raise MisfitError(f"its vocabulary holds {odd[0]!r}, but the column holds {leaf.called}; give {asked}")
            codes = [len(field.vocabulary) - 1, field.unknown or 0]
        for code in codes:
            if not integer_fits(code, dtype or _CODES):
                raise MisfitError(f"the code {code} does not fit {(dtype or _CODES).name}; use a wider dtype")
        return Codes(words=field.vocabulary, unknown=field.unknown, num_buckets=field.hash_buckets)
    if field.num_bytes is not None and not leaf.is_words:
        raise MisfitError(f"num_bytes= is for strings and binary, and these are {leaf.called}; use a dtype")
    if field.num_bytes is not None and (leaf.width or 0) > field.num_bytes:
        raise MisfitError(f"its values have {leaf.width} bytes, more than num_bytes={field.num_bytes}")
    if leaf.is_words and dtype not in (None, np.dtype(np.uint8)):
        raise MisfitError(
            f"{leaf.called} cannot become {dtype} on their own; say how with vocabulary=, hash_buckets= or num_bytes= "
            f"(or leave the dtype out to have the bytes)"
        )
    if leaf.scale is not None and dtype is not None and dtype.kind == "b":
        raise MisfitError("decimals cannot become bool; compare them in a transform")
    return None


def _size_levels(levels: Levels, leaf: ValueKind, value_shape: tuple[int, ...], wanted: tuple[int, ...]) -> Levels:
    """Return the levels with the length that `shape=` gives them."""
    full = (*leaf.dimensions(levels), *value_shape)
    inner = tuple(k for k in full if k is not None)
    num_wanted, num_inner = (int(np.prod(shape, dtype=np.int64)) for shape in (wanted, inner))
    sizes = [want for have, want in zip(full, wanted, strict=False) if have is None]
    if len(full) == len(inner):
        if num_wanted != num_inner:
            raise MisfitError(f"shape={wanted} does not hold the {num_inner} values of shape {inner}")
    elif len(full) == len(inner) + 1:
        size, rest = divmod(num_wanted, num_inner) if num_inner else (wanted[0] if wanted else 0, 0)
        if rest or not wanted:
            raise MisfitError(f"shape={wanted} is no whole number of values of shape {inner}")
        sizes = [size]
    elif len(full) != len(wanted) or any(have not in (None, want) for have, want in zip(full, wanted, strict=True)):
        text = ", ".join("*" if k is None else str(k) for k in full)
        raise MisfitError(f"shape={wanted} does not fit lists of lists of shape [{text}]; give every dimension")
    given = iter(sizes)
    return tuple(next(given) if size is None else size for size in levels)


def _fill_of(
    fill: float | str,
    leaf: ValueKind,
    codes: Codes | None,
    dtype: DType,
    value_shape: tuple[int, ...],
    levels: Levels,
) -> Fill:
    """Return what stands for null among the values delivered."""
    code = None if codes is None else code_of_fill(fill, leaf, codes)
    if code is not None:
        return code
    if codes is None and leaf.is_words:
        if not isinstance(fill, str):
            raise MisfitError(f"fill={fill!r} must be a string here; fill='' stands for no bytes")
        word = fill.encode()
        if value_shape and len(word) > value_shape[0]:
            raise MisfitError(f"fill={fill!r} has {len(word)} bytes, more than {value_shape[0]}")
        if not value_shape and levels[-1] not in (None, len(word)):
            raise MisfitError(f"fill={fill!r} has {len(word)} bytes, but shape= asks for {levels[-1]}")
        return word
    if isinstance(fill, str):
        raise MisfitError(f"fill={fill!r} must be a number here")
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            if np.isfinite(float(fill)) and not np.isfinite(np.array(float(fill)).astype(dtype)):
                raise MisfitError(f"fill={fill!r} is too large for {dtype.name}")
        return fill
    if not is_held(fill, dtype):
        raise MisfitError(f"fill={fill!r} is no {dtype.name}; use another fill, or a dtype that holds it")
    return int(fill)


def check_nulls(null_counts: Mapping[str, int | None], fields: Mapping[str, Field], *, where: str) -> None:
    """Raise a `FieldError` where columns hold nulls, and their fields neither a fill nor a mask.

    Nulls are those that footers count, None where they do not; of columns without lists alone, since Parquet counts
    empty lists among them.
    """
    matches, _ = match_fields(list(null_counts), fields)
    unanswered = [
        column for _, field, chosen, _ in matches if field.fill is None and not field.mask for column in chosen
    ]
    found = {column: num for column in unanswered if (num := null_counts[column] or 0) > 0}
    if found:
        raise null_error(found, where=where)


def share_fields(spec: Spec, share: Share) -> Spec:
    """Return the spec with the fields that are shared marked; a key itself is shared by its equal neighbours, too."""
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
            found = _named(pattern, names)
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


@dataclass(frozen=True, kw_only=True)
class ColumnAnswer:
    """What becomes of one column, or why it is refused and what to do."""

    column: str
    arrow_type: str
    field: str | None = None  # key in a batch
    becomes: str | None = None  # the array as a text: "float32 [40]"
    sample_bytes: float | None = None  # that it adds to a sample; None where nobody said how long lists are on average
    is_exact: bool = False  # every sample takes exactly so many bytes
    problem: str | None = None


def plan_table(
    schema: pa.Schema, fields: Mapping[str, Field], *, values_per_sample: Mapping[str, float]
) -> list[ColumnAnswer]:
    """Return what becomes of each column, in the order of the schema; refused columns say why.

    Of ragged columns `sample_bytes` is an estimate, by the mean number of innermost values in a sample where footers
    know it; bytes count as values where strings stay strings.
    """
    plans, problems = try_plan_fields(schema, fields)
    by_column = {column.name: plan for plan in plans for column in plan.columns}
    answers: list[ColumnAnswer] = []
    for field in schema:
        name, kind = field.name, str(field.type)
        found = [text for _, columns, text in problems if name in columns]
        if name not in by_column or found:
            answers.append(ColumnAnswer(column=name, arrow_type=kind, problem="; ".join(found)))
            continue
        plan = by_column[name]
        answers.append(
            ColumnAnswer(
                column=name,
                arrow_type=kind,
                field=plan.entry.name,
                becomes=str(plan.kept).removeprefix(f"{plan.kept.name}: "),
                sample_bytes=_sample_bytes(plan, values_per_sample.get(name)),
                is_exact=not plan.entry.is_ragged,
            )
        )
    others = [(columns, text) for _, columns, text in problems if not set(columns) & set(schema.names)]
    return answers + [ColumnAnswer(column=columns[0], arrow_type="", problem=text) for columns, text in others]


def _sample_bytes(plan: FieldPlan, mean: float | None) -> float | None:
    """Return the bytes one of the field's columns adds to a sample, its share of the mask included."""
    entry, mask = plan.kept, 0 if plan.mask is None else 1
    if not entry.is_ragged:
        return entry.value_bytes // (len(plan.columns) if plan.is_stacked else 1) + mask
    return None if mean is None else _OFFSET_BYTES + mean * entry.value_bytes + mask
