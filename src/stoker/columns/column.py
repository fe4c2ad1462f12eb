"""How one column becomes numbers, and why it cannot: pure decisions from its type and what its field asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from numbers import Integral

import numpy as np
import pyarrow as pa

from stoker.columns.kinds import WORDS, ColumnKind, DType, Form, Level, Refusal, ValueKind, kind_of
from stoker.columns.match import Match
from stoker.columns.nulls import Fill, fill_of
from stoker.columns.numeric import integer_fits
from stoker.columns.words import Buckets, Codes, FixedBytes, Way
from stoker.fields.spec import Field

_WHOLE = (Form.INTEGER, Form.TIME)
# What embeddings take without a cast; a field that wants narrower codes says so.
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
        casts_late: Whether the cast may be left to whoever packs the stacked field: it cannot change a number.
    """

    name: str
    levels: tuple[Level, ...]
    leaf: ValueKind
    way: Way | None
    dtype: DType
    value_shape: tuple[int, ...]
    num_levels: int
    shape: tuple[int, ...]
    fill: Fill | None
    has_mask: bool
    unit: str | None
    casts_late: bool = False

    @property
    def stored_type(self) -> pa.DataType | None:
        """The type in Arrow of which values are taken as they are stored; None where more is to be done."""
        is_plain = self.way is None and not self.levels and self.leaf.form in (Form.INTEGER, Form.FLOAT)
        if not is_plain or not (self.casts_late or self.leaf.storage == self.dtype):
            return None
        return _stored_type(self.leaf.storage)


@cache
def _stored_type(dtype: DType) -> pa.DataType:
    return pa.from_numpy_dtype(dtype)


def plan_column(name: str, kind: pa.DataType, match: Match) -> ColumnPlan | str:
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
    fill = fill_of(field, leaf, way, dtype, levels)
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
        return Codes(words=field.vocabulary, unknown=field.unknown)
    if field.hash_buckets is not None:
        return Buckets(num_buckets=field.hash_buckets)
    if field.num_bytes is not None:
        return FixedBytes(num_bytes=field.num_bytes)
    return None


def _way_problem(field: Field, kind: ColumnKind) -> str | None:
    """Return why the options of a field do not fit the values of the column, None where they do."""
    form = kind.leaf.form
    dtype = None if field.dtype is None else np.dtype(field.dtype)
    if field.vocabulary is not None:
        if form not in WORDS + _WHOLE:
            return f"vocabulary= is for strings and integers, and these are {form.value}; use a dtype"
        wanted: type = str if form in WORDS else Integral  # NumPy's integers are no int
        odd = [word for word in field.vocabulary if not isinstance(word, wanted) or isinstance(word, bool)]
        if odd:
            asked = "strings" if wanted is str else "integers"
            return f"its vocabulary holds {odd[0]!r}, but the column holds {form.value}; give {asked}"
        codes = [len(field.vocabulary) - 1, *([] if field.unknown is None else [field.unknown])]
        return _codes_problem(codes, dtype or _CODES)
    if field.hash_buckets is not None:
        if form not in WORDS + _WHOLE:
            return f"hash_buckets= is for strings and integers, and these are {form.value}; use a dtype"
        return _codes_problem([field.hash_buckets - 1], dtype or _CODES)
    if field.num_bytes is not None:
        if form not in WORDS:
            return f"num_bytes= is for strings and binary, and these are {form.value}; use a dtype"
        if form is Form.FIXED_BYTES and kind.leaf.width > field.num_bytes:
            return f"its values have {kind.leaf.width} bytes, more than num_bytes={field.num_bytes}"
    if form in WORDS and dtype not in (None, np.dtype(np.uint8)):
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
