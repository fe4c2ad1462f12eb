"""What each field becomes: pure decisions from an Arrow schema and the fields asked for, before any row is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral

import numpy as np
import pyarrow as pa

from stoker.errors import FieldError
from stoker.source.columns.kinds import DType, Form, Kind, Leaf, Level, Refusal, kind_of
from stoker.source.columns.match import Match, Problem, mask_name, match_fields
from stoker.source.columns.numeric import exact_bits, integer_fits
from stoker.source.columns.words import (
    MISSING,
    Buckets,
    FixedBytes,
    Vocabulary,
    Way,
    bytes_as_binary,
    number_integers,
    number_words,
)
from stoker.spec import Entry, Field, Spec

Fill = bool | int | float | bytes

_WORDS = (Form.BYTES, Form.FIXED_BYTES)
_WHOLE = (Form.INTEGER, Form.TIME)
_CODES = np.dtype(np.int64)


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
        num_levels: Levels that stay ragged, always the outermost ones.
        shape: Shape of one sample, or of one value where the column is ragged.
        fill: Number that stands for null, or bytes where words stay words; None makes a null an error.
        has_mask: Whether null samples may become zeros because a mask shows them.
        unit: What one step of the number means.
        casts_late: Whether the cast may be left to the copy into the stacked array: it checks as much there.
    """

    name: str
    levels: tuple[Level, ...]
    leaf: Leaf
    way: Way | None
    dtype: DType
    value_shape: tuple[int, ...]
    num_levels: int
    shape: tuple[int, ...]
    fill: Fill | None
    has_mask: bool
    unit: str | None
    casts_late: bool = False


@dataclass(frozen=True, kw_only=True)
class FieldPlan:
    """How one field is made of its columns, and the entries it gives: its own and its mask's."""

    match: Match
    columns: tuple[ColumnPlan, ...]
    entry: Entry
    mask: Entry | None


def plan_fields(schema: pa.Schema, fields: Mapping[str, Field]) -> list[FieldPlan]:
    """Return how each field is made, in the order of the spec.

    Raises:
        FieldError: A column or field cannot be had; one error lists them all in the order of the schema.
    """
    plans, problems = try_plan_fields(schema, fields)
    if problems:
        raise _all_problems(problems)
    return plans


def try_plan_fields(schema: pa.Schema, fields: Mapping[str, Field]) -> tuple[list[FieldPlan], list[Problem]]:
    """Return how each field is made, and what stands in the way of the others."""
    names = list(schema.names)
    matches, problems = match_fields(names, fields)
    plans: list[FieldPlan] = []
    for match in matches:
        plan = _plan_field(match, schema, names)
        if isinstance(plan, FieldPlan):
            plans.append(plan)
        else:
            problems.extend(plan)
    return plans, sorted(problems, key=lambda problem: problem.place)


def spec_of_plans(plans: Sequence[FieldPlan]) -> Spec:
    """Return the spec that the plans give."""
    entries: list[Entry] = []
    for plan in plans:
        entries.append(plan.entry)
        if plan.mask is not None:
            entries.append(plan.mask)
    return Spec(tuple(entries))


def _all_problems(problems: Sequence[Problem]) -> FieldError:
    columns = list(dict.fromkeys(column for problem in problems for column in problem.columns))
    if len(problems) == 1:
        return FieldError(problems[0].text, columns=columns)
    lines = "".join(f"\n  {problem.text}" for problem in problems)
    return FieldError(f"{len(problems)} columns or fields cannot become tensors:{lines}", columns=columns)


def _plan_field(match: Match, schema: pa.Schema, names: Sequence[str]) -> FieldPlan | list[Problem]:
    plans: list[ColumnPlan] = []
    problems: list[Problem] = []
    for name in match.columns:
        # Names, not `schema.field(name)`: that fails where two columns share one, which has its own problem.
        kind = schema.field(names.index(name)).type
        plan = _plan_column(name, kind, match)
        if isinstance(plan, str):
            text = f"column {name!r} ({kind}): {plan}"
            problems.append(Problem(place=names.index(name), columns=(name,), text=text))
        else:
            plans.append(plan)
    if problems:
        return problems
    place = names.index(match.columns[0])
    if match.is_stacked:
        stacked = _stack(match, plans)
        if isinstance(stacked, str):
            text = f"field {match.name!r}: {stacked}"
            return [Problem(place=place, columns=match.columns, text=text)]
        plans, shape, unit = stacked
    else:
        shape, unit = plans[0].shape, plans[0].unit
    entry = Entry(name=match.name, dtype=plans[0].dtype, shape=shape, num_levels=plans[0].num_levels, unit=unit)
    mask = None
    if match.field.mask:
        mask_shape = shape if match.is_stacked else ()
        mask = Entry(name=mask_name(match.name), dtype=np.dtype(np.bool_), shape=mask_shape)
    return FieldPlan(match=match, columns=tuple(plans), entry=entry, mask=mask)


def _plan_column(name: str, kind: pa.DataType, match: Match) -> ColumnPlan | str:
    """Return how a column becomes numbers, or why it cannot."""
    known = kind_of(kind)
    if isinstance(known, Refusal):
        return known.reason
    field, leaf = match.field, known.leaf
    levels = known.levels
    way = _way_of(field)
    problem = _way_problem(field, known)
    if problem is not None:
        return problem
    value_shape: tuple[int, ...] = ()
    if isinstance(way, FixedBytes):
        value_shape = (way.num_bytes,)
    elif way is None and leaf.form is Form.FIXED_BYTES:
        value_shape = (leaf.width,)
    elif way is None and leaf.form is Form.BYTES:
        levels = (*levels, Level(size=None))
    wanted = field.shape
    if wanted is not None and not match.is_stacked:
        sized = _size_levels(levels, value_shape, wanted)
        if isinstance(sized, str):
            return sized
        levels = sized
    num_levels = max((i + 1 for i, level in enumerate(levels) if level.size is None), default=0)
    if num_levels > 2:
        deeper = "; vocabulary=, hash_buckets= or num_bytes= would make one number of each string"
        return (
            f"lists of lists of lists are more levels than the two a ragged field can have"
            f"{deeper if leaf.form is Form.BYTES and way is None else ''}; leave it out (columns= without it), or "
            f"flatten it in a transform"
        )
    if any(level.permutation is not None for level in levels[:num_levels]):
        return "a permuted tensor cannot be ragged; reorder it in a transform"
    shape = sum((level.shape for level in levels[num_levels:]), ()) + value_shape
    if wanted is not None and not match.is_stacked:
        shape = wanted
    dtype, unit = _dtype_of(field, leaf, way)
    fill = _fill_of(field, leaf, way, dtype, levels)
    if isinstance(fill, str):
        return fill
    return ColumnPlan(
        name=name,
        levels=levels,
        leaf=leaf,
        way=way,
        dtype=dtype,
        value_shape=value_shape,
        num_levels=num_levels,
        shape=shape,
        fill=fill,
        has_mask=field.mask,
        unit=unit,
    )


def _way_of(field: Field) -> Way | None:
    if field.vocabulary is not None:
        return Vocabulary(words=field.vocabulary, unknown=field.unknown)
    if field.hash_buckets is not None:
        return Buckets(num_buckets=field.hash_buckets)
    if field.num_bytes is not None:
        return FixedBytes(num_bytes=field.num_bytes)
    return None


def _way_problem(field: Field, kind: Kind) -> str | None:
    """Return why the options of a field do not fit the values of the column, None where they do."""
    form = kind.leaf.form
    dtype = None if field.dtype is None else np.dtype(field.dtype)
    if field.vocabulary is not None:
        if form not in _WORDS + _WHOLE:
            return f"vocabulary= is for strings and integers, and these are {form.value}; use a dtype"
        wanted: type = str if form in _WORDS else Integral  # NumPy's integers are no int
        odd = [word for word in field.vocabulary if not isinstance(word, wanted) or isinstance(word, bool)]
        if odd:
            asked = "strings" if wanted is str else "integers"
            return f"its vocabulary holds {odd[0]!r}, but the column holds {form.value}; give {asked}"
        codes = [len(field.vocabulary) - 1, *([] if field.unknown is None else [field.unknown])]
        return _codes_problem(codes, dtype or _CODES)
    if field.hash_buckets is not None:
        if form not in _WORDS + _WHOLE:
            return f"hash_buckets= is for strings and integers, and these are {form.value}; use a dtype"
        return _codes_problem([field.hash_buckets - 1], dtype or _CODES)
    if field.num_bytes is not None:
        if form not in _WORDS:
            return f"num_bytes= is for strings and binary, and these are {form.value}; use a dtype"
        if form is Form.FIXED_BYTES and kind.leaf.width > field.num_bytes:
            return f"its values have {kind.leaf.width} bytes, more than num_bytes={field.num_bytes}"
    if form in _WORDS and dtype not in (None, np.dtype(np.uint8)):
        return (
            f"{form.value} cannot become {dtype} on their own; say how with vocabulary=, hash_buckets= or num_bytes= "
            f"(or leave the dtype out to have the bytes)"
        )
    if form is Form.DECIMAL and dtype is not None and dtype.kind == "b":
        return "decimals cannot become bool; compare them in a transform"
    return None


def _codes_problem(codes: Sequence[int], dtype: DType) -> str | None:
    for code in codes:
        if not integer_fits(code, dtype):
            return f"the code {code} does not fit {dtype.name}; use a wider dtype"
    return None


def _size_levels(
    levels: tuple[Level, ...], value_shape: tuple[int, ...], wanted: tuple[int, ...]
) -> tuple[Level, ...] | str:
    """Return the levels with the length that `shape=` gives them, or why it cannot."""
    varying = [i for i, level in enumerate(levels) if level.size is None]
    ask = f"shape={wanted}"
    inner = sum((level.shape for level in levels), ()) + value_shape  # varying levels add nothing
    num_wanted, num_inner = int(np.prod(wanted, dtype=np.int64)), int(np.prod(inner, dtype=np.int64))
    if not varying:
        return levels if num_wanted == num_inner else f"{ask} does not hold the {num_inner} values of shape {inner}"
    if len(varying) == 1:
        size, rest = divmod(num_wanted, num_inner) if num_inner else (wanted[0] if wanted else 0, 0)
        if rest or not wanted:
            return f"{ask} is no whole number of values of shape {inner}"
        return tuple(replace(level, size=size) if i in varying else level for i, level in enumerate(levels))
    full = sum(((None,) if level.size is None else level.shape for level in levels), ()) + value_shape
    if len(full) != len(wanted) or any(have not in (None, want) for have, want in zip(full, wanted, strict=True)):
        text = ", ".join("*" if k is None else str(k) for k in full)
        return f"{ask} does not fit lists of lists of shape [{text}]; give every dimension"
    sizes = iter(wanted)
    sized: list[Level] = []
    for level in levels:
        taken = [next(sizes) for _ in (level.shape or (0,))]
        sized.append(replace(level, size=taken[0]) if level.size is None else level)
    return tuple(sized)


def _dtype_of(field: Field, leaf: Leaf, way: Way | None) -> tuple[DType, str | None]:
    """Return what the values become and what one step of the number means."""
    if isinstance(way, Vocabulary | Buckets):
        return (_CODES if field.dtype is None else np.dtype(field.dtype)), None
    if isinstance(way, FixedBytes):
        return np.dtype(np.uint8), None
    dtype = leaf.dtype if field.dtype is None else np.dtype(field.dtype)
    if leaf.form is Form.DECIMAL and dtype.kind in "iu" and leaf.scale != 0:
        return dtype, f"1e{-leaf.scale}"
    return dtype, leaf.unit


def _fill_of(field: Field, leaf: Leaf, way: Way | None, dtype: DType, levels: Sequence[Level]) -> Fill | str | None:
    """Return what stands for null among the values delivered, or (as str) why that cannot be."""
    fill = field.fill
    if fill is None:
        return None
    if isinstance(way, Vocabulary | Buckets):
        return _fill_code(fill, leaf, way, dtype)
    if leaf.form in _WORDS:
        if not isinstance(fill, str):
            return f"fill={fill!r} must be a string here; fill='' stands for no bytes"
        word = fill.encode()
        room = way.num_bytes if isinstance(way, FixedBytes) else leaf.width
        if leaf.form is Form.FIXED_BYTES or isinstance(way, FixedBytes):
            return word if len(word) <= room else f"fill={fill!r} has {len(word)} bytes, more than {room}"
        size = levels[-1].size
        if size is not None and size != len(word):
            return f"fill={fill!r} has {len(word)} bytes, but shape= asks for {size}"
        return word
    return _fill_number(fill, dtype)


def _fill_number(fill: float | str, dtype: DType) -> Fill | str:
    if isinstance(fill, str):
        return f"fill={fill!r} must be a number here"
    value = float(fill)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            too_large = np.isfinite(value) and not np.isfinite(np.array(value).astype(dtype))
        return f"fill={fill!r} is too large for {dtype.name}" if too_large else fill
    if not np.isfinite(value) or value != int(value) or not integer_fits(int(fill), dtype):
        return f"fill={fill!r} is no {dtype.name}; use another fill, or a dtype that holds it"
    return int(fill)


def _fill_code(fill: float | str, leaf: Leaf, way: Vocabulary | Buckets, dtype: DType) -> Fill | str:
    """Return the code of a fill: that of the word it is, or the number itself where the column holds words."""
    if leaf.form in _WORDS:
        if not isinstance(fill, str):
            limit = len(way.words) if isinstance(way, Vocabulary) else way.num_buckets
            if isinstance(way, Buckets) and not 0 <= fill < limit:
                return f"fill={fill!r} is no bucket of {limit}"
            return _fill_number(fill, dtype)
        code = int(number_words(bytes_as_binary(pa.array([fill])), way)[0])
    else:
        if isinstance(fill, str) or fill != int(fill):
            return f"fill={fill!r} must be an integer here: the value that stands for null"
        try:
            code = int(number_integers(np.array([int(fill)], leaf.storage), way)[0])
        except OverflowError:
            return f"fill={fill!r} does not fit {leaf.storage.name}"
    if code != MISSING:
        return code
    unknown = way.unknown if isinstance(way, Vocabulary) else None
    return f"fill={fill!r} is not in the vocabulary; add it, or give unknown=" if unknown is None else unknown


def _stack(match: Match, plans: Sequence[ColumnPlan]) -> tuple[list[ColumnPlan], tuple[int, ...], str | None] | str:
    """Return the columns of a stacked field in one dtype, its shape and unit, or why they cannot be stacked."""
    field = match.field
    for plan in plans:
        if plan.num_levels or plan.shape:
            what = "lists" if plan.num_levels else f"arrays of shape {list(plan.shape)}"
            return (
                f"column {plan.name!r} holds {what}, and only columns of one number a row can be stacked; give it a "
                f"field of its own, named without a pattern, or join the arrays in a transform"
            )
    num_columns = len(plans)
    shape: tuple[int, ...] = (num_columns,)
    if field.shape is not None:
        if int(np.prod(field.shape, dtype=np.int64)) != num_columns:
            return f"shape={field.shape} does not hold the {num_columns} columns that are stacked"
        shape = field.shape
    units = list(dict.fromkeys(plan.unit for plan in plans))
    # As floats decimals have no unit; as integers cents would stand beside whole numbers unseen.
    has_unscaled = plans[0].dtype.kind in "iu" and any(plan.leaf.form is Form.DECIMAL for plan in plans)
    if len(units) > 1 and (field.dtype is None or has_unscaled):
        return f"its columns have different units ({', '.join(unit or 'none' for unit in units)}); {_UNITS}"
    dtypes = {plan.dtype for plan in plans}
    if len(dtypes) == 1:
        dtype = plans[0].dtype
    else:
        dtype = np.result_type(*dtypes)
        inexact = [plan for plan in plans if not _holds_exactly(dtype, plan.dtype)]
        if inexact:
            names = ", ".join(sorted(d.name for d in dtypes))
            return f"its columns have the dtypes {names}, which no dtype holds exactly; say which one you want"
        plans = [replace(plan, dtype=dtype) for plan in plans]
    late = [replace(plan, casts_late=_may_cast_late(plan)) for plan in plans]
    return late, shape, units[0] if len(units) == 1 else None


_UNITS = "say a float dtype if that is meant, or bring them to one unit in a transform"


def _holds_exactly(dtype: DType, source: DType) -> bool:
    if source.kind in "iu" and dtype.kind == "f":
        return exact_bits(dtype) >= exact_bits(source)
    return bool(np.can_cast(source, dtype, "safe"))


def _may_cast_late(plan: ColumnPlan) -> bool:
    """Whether plain assignment into an array of the plan's dtype checks all that `cast_numbers` would."""
    if plan.way is not None or plan.leaf.form is Form.DECIMAL:
        return False
    source = plan.leaf.dtype
    return bool(np.can_cast(source, plan.dtype, "safe")) or (source.kind in "f" and plan.dtype.kind == "f")
