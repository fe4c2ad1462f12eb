"""What the user can ask the order to count instead of rows: descriptions that check themselves, before any I/O."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import ClassVar, TypeAlias

import numpy as np

from stoker.arguments import explain_arguments, flag, integer, names
from stoker.dataset.runs import RunRule
from stoker.errors import FieldError
from stoker.fields.spec import Entry, Spec
from stoker.hashing import fingerprint

# A text that names what is counted goes into saved positions, which stay under 1 kB.
_MAX_SHOWN = 80
_MOST = 2**31 - 1  # places in a row are int32

Number: TypeAlias = int | float


class SamplingUnit:
    """Anything that can be counted in place of rows.

    Attributes:
        kind: What it is called in fingerprints.
        decides: Its attributes that decide which rows make which unit, beside `runs`.
        runs: What its rows have in common; None where that does not matter.
    """

    kind: ClassVar[str]
    decides: ClassVar[tuple[str, ...]] = ()
    runs: RunRule | None = None

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    def __hash__(self) -> int:
        return hash(self.identity)

    @property
    def identity(self) -> str:
        """Text that stands for it: equal exactly where the same rows make the same units."""
        told = self.told()
        told = told if len(told) <= _MAX_SHOWN else told[: _MAX_SHOWN - 3] + "..."
        return f"{told} [{fingerprint('units', self.to_json())[:16]}]"

    @abstractmethod
    def told(self) -> str:
        """Return what is counted, in words."""

    def to_json(self) -> dict[str, object]:
        """Return everything that decides which rows make which unit."""
        decides = {name: getattr(self, name) for name in self.decides}
        return {"kind": self.kind, **decides, **({} if self.runs is None else self.runs.to_json())}

    def check(self, spec: Spec) -> None:
        """Raise where batches of it cannot have the fields that are asked for; before anything is counted."""

    @property
    def rule(self) -> RunRule | None:
        """What its rows have in common; None where all rows of the data set are one run."""
        return self.runs if self.runs is not None and self.runs.columns else None


class Grouped(SamplingUnit):
    """Runs of consecutive rows with equal keys: `Loader(group_by=...)`."""

    kind = "groups"

    def __init__(self, *, keys: tuple[str, ...]) -> None:
        self.keys, self.runs = keys, RunRule(keys=keys)

    def told(self) -> str:
        """Return what is counted, in words."""
        return f"groups of {', '.join(self.keys)}"


class Weighted(SamplingUnit):
    """Draws by a column of weights: `Loader(weights=...)`."""

    kind, decides = "weights", ("column",)

    def __init__(self, *, column: str) -> None:
        self.column = column

    def told(self) -> str:
        """Return what is counted, in words."""
        return f"draws by {self.column}"


@explain_arguments({})
class NGram(SamplingUnit):
    """Windows over consecutive rows of one key, for `Loader(sequence=...)`: a batch gives [B, L, ...] of each field.

        key          a   a   a   a   a │ b   b   b   b
        time         0   1   2   9  10 │ 0   1   2   3          length=3, max_gap=5
                    └─────────┘        │└─────────┘
                                       │    └─────────┘         rows 0-2 of a; 9 and 10 are too few

    A window never crosses from one chunk to the next: those that would are left out, counted, and reported by
    `Loader.units`. Chunks are cut between runs wherever row groups allow it.

    Args:
        fields: Offset -> fields wanted there, such as `{-1: ["image"], 0: ["image", "speed"], 1: ["speed"]}`: a field
            comes as [B, L, ...], L being the offsets that name it, in their order. None, beside `length`: every field
            at every offset. A ragged field comes as B times L lists, `field[b][k]`.
        length: Rows of a window where `fields` does not say.
        keys: Columns that must be equal within a window: one name or several.
        timestamp: Column that the rows of a key are sorted by; going backwards is an error.
        max_gap: How far neighbours may lie apart in it: a number, or a `timedelta` for dates and times.
        stride: Rows from the beginning of a window to that of the next.
        overlap: False is a stride of a whole window, so that no row is in two of them.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: Two contradict each other, or one is out of range.
    """

    kind, decides = "ngram", ("length", "stride")

    def __init__(
        self,
        fields: Mapping[int, Sequence[str]] | None = None,
        *,
        length: int | None = None,
        keys: str | Sequence[str] = (),
        timestamp: str | None = None,
        max_gap: Number | timedelta | None = None,
        stride: int | None = None,
        overlap: bool = True,
    ) -> None:
        wanted = None if fields is None else _offsets(fields)
        if wanted is not None:
            low, high = min(wanted), max(wanted)
            span = high - low + 1
            if length is not None and length != span:
                raise ValueError(f"NGram: fields at offsets {low} to {high} are {span} rows, not {length}")
            length = span
        elif length is None:
            raise ValueError("NGram: give fields at their offsets, such as {0: ['x'], 1: ['x', 'y']}, or a length")
        overlap = flag(overlap, "NGram: overlap")
        if stride is not None and not overlap:
            raise ValueError("NGram: overlap=False is a stride of the window's length; give one of the two")
        self.fields, self.length = wanted, integer(length, "NGram: length", at_most=_MOST)
        self.stride = integer(stride, "NGram: stride") if stride is not None else 1 if overlap else self.length
        if timestamp is not None and (not isinstance(timestamp, str) or not timestamp):
            raise TypeError(f"NGram: timestamp must be the name of a column, not {timestamp!r}")
        self.timestamp, self.max_gap = timestamp, None if max_gap is None else _checked_gap(max_gap)
        if max_gap is not None and timestamp is None:
            raise ValueError("NGram: max_gap is a distance in time: name the timestamp column too")
        self.keys = names(keys, "NGram: keys")
        self.runs = RunRule(keys=self.keys, timestamp=timestamp, max_gap=self.max_gap)

    def __repr__(self) -> str:
        parts = [f"length={self.length}"] if self.fields is None else [repr({k: [*v] for k, v in self.fields.items()})]
        parts += [f"keys={list(self.keys)}"] if self.keys else []
        parts += [f"{name}={getattr(self, name)!r}" for name in ("timestamp", "max_gap") if getattr(self, name)]
        return f"NGram({', '.join(parts)}, stride={self.stride})"

    def told(self) -> str:
        """Return what is counted, in words."""
        keys = f" of {', '.join(self.keys)}" if self.keys else ""
        return f"windows of {self.length} rows{keys}"

    def check(self, spec: Spec) -> None:
        """Raise where there is no such field."""
        self.windowed(spec)

    def windowed(self, spec: Spec) -> dict[str, tuple[int, ...]]:
        """Return the fields that windows deliver, in the spec's order, and the rows of a window at which they do."""
        if self.fields is None:
            return dict.fromkeys(spec.names, tuple(range(self.length)))
        first = min(self.fields)
        found: dict[str, list[int]] = {}
        for offset in sorted(self.fields):
            for name in self.fields[offset]:
                found.setdefault(name, []).append(offset - first)
        if missing := sorted(found.keys() - set(spec.names)):
            names = ", ".join(spec.names)
            raise FieldError(f"NGram: there is no field {missing[0]!r}; there are {names}", columns=missing)
        return {name: tuple(found[name]) for name in spec.names if name in found}


@explain_arguments({})
class Pack(SamplingUnit):
    """Ragged fields packed into rows of one length, for `Loader(sequence=...)`.

        documents     aaaaa bbb cccccccc ...
        tokens        a a a a a b b b │ c c c c c c c c │ ...    [B, length]
        segment_ids   1 1 1 1 1 2 2 2 │ 1 1 1 1 1 1 1 1 │        0 is padding, 1 the first document of the row
        positions     0 1 2 3 4 0 1 2 │ 0 1 2 3 4 5 6 7 │        within the document, as far as it stands in this row
        cu_seqlens    0         5       8                 16     int32, of the rows one behind the other

    With `split`, the documents of a chunk stand one behind the other and are cut every `length` tokens: only the last
    row of a chunk has padding. Without, a document is cut only where it is longer than a row, and its pieces are put
    where they leave the least room (best fit, longest first): more padding, no document torn without need. Either way
    every token of every chunk is in exactly one place, and documents of two chunks never share a row.

    Fixed-width fields are a document's, not a token's: those in `per_segment` come as `Ragged`, one value a segment;
    the others are not delivered. Ragged fields that are not named are not delivered either.

    Args:
        field: The ragged field with the tokens.
        length: Tokens of a row.
        together: Ragged fields with as many values a document, such as labels or masks, packed alike.
        per_segment: Fixed-width fields wanted for each segment.
        split: Whether documents may be cut to fill a row.
        pad: Value where there is no token; or field -> value.
        end: Token put behind each document, and counted; or field -> value. For fields that it does not name it is
            their `pad`. None puts none.
        cu_seqlens: Whether batches also get what attention over sequences of several lengths takes, such as
            `flash_attn_varlen_func` with the rows as [B * length, ...]: `cu_seqlens`, where each segment and each row's
            padding begins, and the end; and `max_seqlen`, the longest of them, an int.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: Two contradict each other, or one is out of range.
    """

    kind, decides = "pack", ("field", "length", "split", "num_ends")

    def __init__(
        self,
        field: str,
        *,
        length: int,
        together: str | Sequence[str] = (),
        per_segment: str | Sequence[str] = (),
        split: bool = True,
        pad: Number | Mapping[str, Number] = 0,
        end: Number | Mapping[str, Number] | None = None,
        cu_seqlens: bool = False,
    ) -> None:
        if not isinstance(field, str) or not field:
            raise TypeError(f"Pack: name the ragged field to pack, not {field!r}")
        self.field, self.length = field, integer(length, "Pack: length", at_most=_MOST)
        self.together, self.per_segment = names(together, "Pack: together"), names(per_segment, "Pack: per_segment")
        if field in (*self.together, *self.per_segment):
            raise ValueError(f"Pack: {field!r} is the field that is packed; name only the others beside it")
        if twice := sorted(set(self.together) & set(self.per_segment)):
            raise ValueError(f"Pack: {twice[0]!r} cannot be packed and be per_segment at once")
        self.split, self.cu_seqlens = flag(split, "Pack: split"), flag(cu_seqlens, "Pack: cu_seqlens")
        self.packed = packed = (field, *self.together)  # what comes as [B, length]
        pads = _values(pad, packed, "pad") if isinstance(pad, Mapping) else dict.fromkeys(packed, _number(pad, "pad"))
        self.pad: Mapping[str, Number] = dict.fromkeys(packed, 0) | pads
        self.end: Mapping[str, Number] | None = None
        if end is not None:
            ends = _values(end, packed, "end") if isinstance(end, Mapping) else {field: _number(end, "end")}
            if field not in ends:
                raise ValueError(f"Pack: end must say the token that ends a document of {field!r}")
            self.end = {**self.pad, **ends}
        self.num_ends = 0 if self.end is None else 1  # tokens put behind each document

    def __repr__(self) -> str:
        return f"Pack({self.field!r}, length={self.length}, split={self.split})"

    def told(self) -> str:
        """Return what is counted, in words."""
        return f"rows of {self.length:,} {self.field}, {'cut' if self.split else 'best fit'}"

    def check(self, spec: Spec) -> None:
        """Raise where fields cannot be packed; see `SamplingUnit.check`."""
        entries = {entry.name: entry for entry in spec}
        wanted = (*self.packed, *self.per_segment)
        if missing := [name for name in wanted if name not in entries]:
            raise FieldError(f"Pack: there is no field {missing[0]!r}; there are {', '.join(entries)}", columns=missing)
        for name in self.packed:
            entry = entries[name]
            if entry.num_levels != 1:
                way = "name it in per_segment" if not entry.is_ragged else "unfold it in a transform"
                raise FieldError(f"Pack: {entry} is not one list a row, so it cannot be packed; {way}", columns=[name])
            if entry.deduplicated_by is not None:
                raise FieldError(
                    f"Pack: {name!r} is shared by {entry.deduplicated_by!r}, what is packed belongs to its own row: "
                    "leave it out of deduplicate=",
                    columns=[name],
                )
            if entry.compact is not None and entry.compact.form != "cast":
                raise FieldError(
                    f"Pack: {entry} cannot be packed in that form; take an integer or float16, or no storage_dtype",
                    columns=[name],
                )
            _check_fits(entry, self.pad[name], "pad")
            if self.end is not None:
                _check_fits(entry, self.end[name], "end")
        for name in self.per_segment:
            if entries[name].is_ragged:
                raise FieldError(
                    f"Pack: {entries[name]} is ragged, and per_segment is for fixed-width fields; where it has as many "
                    f"values a row as {self.field!r}, name it in together",
                    columns=[name],
                )


def _offsets(fields: object) -> dict[int, tuple[str, ...]]:
    if not isinstance(fields, Mapping):
        raise TypeError(f"NGram: fields must be a mapping of offsets to names, not {fields!r}")
    if not fields:
        raise ValueError("NGram: fields names no offset")
    found = {}
    for offset, wanted in fields.items():
        if isinstance(offset, bool) or not isinstance(offset, int | np.integer):
            raise TypeError(f"NGram: an offset is an integer, not {offset!r}")
        found[int(offset)] = names(wanted, f"NGram: fields[{offset}]")
    if not any(found.values()):
        raise ValueError("NGram: fields names no field")
    return dict(sorted(found.items()))


def _checked_gap(gap: object) -> Number | timedelta:
    if isinstance(gap, np.generic):
        gap = gap.item()
    if isinstance(gap, bool) or not isinstance(gap, int | float | timedelta):
        raise TypeError(f"NGram: max_gap must be a number or a timedelta, not {gap!r}")
    if not (gap >= timedelta(0) if isinstance(gap, timedelta) else gap >= 0):
        raise ValueError(f"NGram: max_gap must not be negative, got {gap!r}")
    return gap


def _values(values: Mapping[str, Number], packed: Sequence[str], what: str) -> dict[str, Number]:
    for name in values:
        if name not in packed:
            raise ValueError(f"Pack: {what} names {name!r}, which is not packed; packed are {', '.join(packed)}")
    return {str(name): _number(value, what) for name, value in values.items()}


def _number(value: object, what: str) -> Number:
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, int | float) or (isinstance(value, float) and math.isinf(value) and what == "end"):
        raise TypeError(f"Pack: {what} must be a number, not {value!r}")
    return value


def _check_fits(entry: Entry, value: float, what: str) -> None:
    """Raise where a value would come out as another one."""
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            is_same = entry.dtype.kind == "f" or np.array(value).astype(entry.dtype) == value
            np.array(value, dtype=entry.dtype)
        except (OverflowError, ValueError):
            is_same = False
    if not is_same:
        raise ValueError(f"Pack: {what} {value!r} is no {entry.dtype.name}, which {entry.name!r} holds")
