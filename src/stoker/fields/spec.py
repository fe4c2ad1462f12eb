"""What a sample is: the fields the user asks for, and the spec they become.

Shapes in this code base carry letters: B batch, N samples in a chunk, K chunks in a window.

    Field      what the user wrote          Field("float32", columns="dense_*")
    Entry      what it became               dense: float32 [40]
    Spec       all entries of a sample, and where the fixed-width ones lie in a record
    tables     how a spec is stored: one row a sample, and one row a run of samples that share values
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

import numpy as np

from stoker.arguments import explain_arguments, flag, integer, names, near
from stoker.fields.compact import Array as Array
from stoker.fields.compact import Compact, StorageDtype, check_storage_dtype
from stoker.fields.ragged import Deduplicated as Deduplicated
from stoker.fields.ragged import Ragged as Ragged
from stoker.host.forks import cached_property

CACHE_LINE_BYTES = 64
# Messages and listings show a field in full, except vocabularies longer than this.
_SHOWN_WORDS = 8


Arrays: TypeAlias = dict[str, "Array | Ragged"]
"""Fields by name. With `deduplicated="unique"` some are `Deduplicated`."""


@explain_arguments({"type": "say dtype=", "default": "say fill=", "fill_value": "say fill=", "na_value": "say fill="})
@dataclass(frozen=True)
class Field:
    """One named array of a sample, as the user asks for it.

    Columns that no field names come as they are, so a field is only needed to change something: stack columns, cast,
    turn strings into numbers, fill nulls.

    Args:
        dtype: NumPy name of the dtype wanted ("float32", "int64", ...); None keeps that of the column.
        columns: The column's name, or glob patterns and names to stack into one `[N, k]` array, in the order of the
            patterns and, within a pattern, of the schema. None means the column with the field's own name.
        shape: Shape of one sample. Needed for lists that all have one length: `shape=(k,)` makes them `[N, k]`.
        vocabulary: For strings, binary, integers and times: each value becomes its index in this sequence.
        unknown: Code of a value outside the vocabulary; None makes such a value an error that names it.
        hash_buckets: For strings, binary, integers and times: a stable hash of the value, in [0, hash_buckets).
        num_bytes: For strings and binary: the value's bytes as `uint8[num_bytes]`, followed by zeros; a longer value is
            an error.
        fill: Value in place of a null. A null list becomes an empty list when `fill` is given.
        mask: Also give the bool field `<name>_mask`, True where the value was there. Nulls become `fill`, or zero.
        storage_dtype: A narrower type in which the field is cached, gathered and copied to a device; batches have it
            in its `dtype` again: "float16" or "bfloat16" for floats, "int32", "uint16", ... for integers, "bits"
            for stacked bools, a `Scaled` for floats of a known range. A value that does not fit is an error.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: Two arguments contradict each other, or a value is out of range.

    Examples:
        >>> Field("float32", columns="dense_*").dtype
        'float32'
    """

    dtype: str | None = None
    columns: str | Sequence[str] | None = field(default=None, kw_only=True)
    shape: tuple[int, ...] | None = field(default=None, kw_only=True)
    vocabulary: Sequence[str | int] | None = field(default=None, kw_only=True)
    unknown: int | None = field(default=None, kw_only=True)
    hash_buckets: int | None = field(default=None, kw_only=True)
    num_bytes: int | None = field(default=None, kw_only=True)
    fill: float | str | None = field(default=None, kw_only=True)
    mask: bool = field(default=False, kw_only=True)
    storage_dtype: StorageDtype | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.storage_dtype is not None:
            check_storage_dtype(self.storage_dtype)
        if self.dtype is not None:
            if not isinstance(self.dtype, str | type | np.dtype):
                raise TypeError(f"Field: dtype must be the name of a dtype, such as 'float32', not {self.dtype!r}")
            try:
                dtype = np.dtype(self.dtype)
            except TypeError:
                raise ValueError(f"Field: {self.dtype!r} is no NumPy dtype; try 'float32' or 'int64'") from None
            if dtype.kind not in "biuf" or dtype.itemsize > 8:
                what = "use a bool, integer or float of 64 bits at most"
                raise ValueError(f"Field: dtype {self.dtype!r} cannot be a tensor; {what}")
            object.__setattr__(self, "dtype", dtype.name)
        ways = [n for n in ("vocabulary", "hash_buckets", "num_bytes") if getattr(self, n) is not None]
        if len(ways) > 1:
            raise ValueError(f"Field: {' and '.join(ways)} are different ways to make numbers; give one")
        for name, least, most in (("hash_buckets", 1, 2**63 - 1), ("num_bytes", 1, 2**31 - 1), ("unknown", None, 0)):
            if getattr(self, name) is not None:
                value = integer(getattr(self, name), f"Field: {name}", at_least=least, at_most=most)
                object.__setattr__(self, name, value)
        if self.unknown is not None and self.vocabulary is None:
            raise ValueError("Field: unknown only means something beside a vocabulary")
        if self.vocabulary is not None:
            object.__setattr__(self, "vocabulary", _checked_vocabulary(self.vocabulary))
            if not self.vocabulary and self.unknown is None:
                raise ValueError("Field: the vocabulary is empty, and without unknown= no value has a code")
        if self.columns is not None:
            is_text = isinstance(self.columns, str)
            found = () if is_text and not self.columns else names(self.columns, "Field: columns")
            if not found:
                raise ValueError("Field: columns names no column; leave it out for the column of the field's own name")
            object.__setattr__(self, "columns", found[0] if is_text else found)
        if self.shape is not None:
            object.__setattr__(self, "shape", _checked_shape(self.shape))
        fill: Any = self.fill
        fill = fill.item() if isinstance(fill, np.generic) else fill
        if not isinstance(fill, int | float | str | None):
            raise TypeError(f"Field: fill must be a number or a text, not {fill!r}")
        object.__setattr__(self, "fill", fill)
        object.__setattr__(self, "mask", flag(self.mask, "Field: mask"))

    def __repr__(self) -> str:
        """Return what was given, a long vocabulary by its length."""
        parts = [] if self.dtype is None else [repr(self.dtype)]
        for one in fields(self)[1:]:
            value = getattr(self, one.name)
            if value == one.default:
                continue
            is_long = one.name == "vocabulary" and len(value) > _SHOWN_WORDS
            parts.append(f"{one.name}=<{len(value):,} values>" if is_long else f"{one.name}={value!r}")
        return f"Field({', '.join(parts)})"

    def to_json(self) -> dict[str, object]:
        """Return everything that decides the field's values, for fingerprints."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}  # columns="x" renames, ["x"] stacks
        found["fill"] = None if self.fill is None else repr(self.fill)
        storage_dtype = found.pop("storage_dtype")
        # Left out where it is not asked for: chunks from before there was such a thing stay what they are.
        return found if storage_dtype is None else {**found, "storage_dtype": repr(storage_dtype)}


def _checked_vocabulary(vocabulary: Any) -> tuple[str | int, ...]:
    if isinstance(vocabulary, str | bytes | bytearray) or not isinstance(vocabulary, Iterable):
        raise TypeError(f"Field: vocabulary must be a sequence of values, not {vocabulary!r}")
    if isinstance(vocabulary, AbstractSet):
        raise TypeError("Field: vocabulary is a set, whose order differs between processes: give sorted(...) of it")
    if isinstance(vocabulary, Mapping):
        raise TypeError("Field: vocabulary is a mapping; give its values in the order of their codes, as a list")
    listed = vocabulary.to_pylist() if hasattr(vocabulary, "to_pylist") else list(vocabulary)
    values = [value.item() if isinstance(value, np.generic) else value for value in listed]
    strange = [value for value in values if isinstance(value, bool) or not isinstance(value, str | int)]
    if strange:
        raise TypeError(f"Field: the vocabulary must hold strings or integers, not {strange[0]!r}")
    if len(set(values)) != len(values):
        raise ValueError("Field: the vocabulary names a value twice")
    return tuple(values)


def _checked_shape(shape: Any) -> tuple[int, ...]:
    if isinstance(shape, int | np.integer):
        shape = (shape,)  # as in NumPy
    if not isinstance(shape, list | tuple):
        raise TypeError(f"Field: shape must be a tuple of integers, not {shape!r}")
    return tuple(integer(size, "Field: a length in shape", at_least=0) for size in shape)


# More levels than lists in any Parquet file have; a file that claims more is refused.
_MAX_LEVELS = 64


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One field of a spec.

    Attributes:
        name: Key of the field in a batch.
        dtype: dtype of its values, as they are kept.
        shape: Shape of one sample, or of one value where the field is ragged; as it is kept.
        num_levels: 0 for fixed-width, 1 for lists, 2 for lists of lists.
        unit: Unit of the numbers, if Arrow's type has one ("us", "days", "ns since 1970"), else None.
        deduplicated_by: Key field: neighbouring samples with the same key share one stored value; None where each
            sample has its own.
        compact: How the field is widened for a batch, if it is stored in a narrower type, else None.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    num_levels: int = 0
    unit: str | None = None
    deduplicated_by: str | None = None
    compact: Compact | None = None

    @property
    def delivered(self) -> Entry:
        """The field as batches have it."""
        if self.compact is None:
            return self
        return replace(self, dtype=self.compact.dtype, shape=self.compact.shape, compact=None)

    @property
    def is_ragged(self) -> bool:
        """Whether samples differ in length."""
        return self.num_levels > 0

    @cached_property
    def value_bytes(self) -> int:
        """Bytes of one sample, or of one value where the field is ragged."""
        return int(self.dtype.itemsize * np.prod(self.shape, dtype=np.int64))

    def to_json(self) -> dict[str, object]:
        """Return the entry as a dict that JSON can write."""
        return {
            "name": self.name,
            "dtype": self.dtype.name,
            "shape": list(self.shape),
            "num_levels": self.num_levels,
            "unit": self.unit,
            # Left out where nothing is shared: what was written before there was sharing stays the same.
            **({} if self.deduplicated_by is None else {"deduplicated_by": self.deduplicated_by}),
            **({} if self.compact is None else {"compact": self.compact.to_json()}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Entry:
        """Return the entry that `to_json` wrote; a number of levels or a size out of range is a ValueError."""
        if not 0 <= data["num_levels"] <= _MAX_LEVELS or any(not 0 <= size < 1 << 40 for size in data["shape"]):
            raise ValueError(f"there is no field of shape {data['shape']} in {data['num_levels']} levels of lists")
        return cls(
            name=data["name"],
            dtype=np.dtype(data["dtype"]),
            shape=tuple(data["shape"]),
            num_levels=data["num_levels"],
            unit=data["unit"],
            deduplicated_by=data.get("deduplicated_by"),
            compact=None if data.get("compact") is None else Compact.from_json(data["compact"]),
        )

    def __str__(self) -> str:
        if self.compact is not None:
            return f"{self.delivered}, kept as {self.compact.told(self.dtype)}"
        shape = "[*]" * self.num_levels + (f"[{', '.join(map(str, self.shape))}]" if self.shape else "")
        unit = f" ({self.unit})" if self.unit else ""
        shared = "" if self.deduplicated_by is None else f", shared by {self.deduplicated_by}"
        return f"{self.name}: {self.dtype.name}{shape}{unit}{shared}"


@dataclass(frozen=True)
class Spec:
    """All fields of a sample, in the order they have in a batch.

    The fixed-width fields of a sample lie side by side in one record of `record_bytes`:

        ┌ widest first, so that each lies on a multiple of its own size ┐
        │ id: int64 │ dense: float32[40]        │ label: uint8 │ padding │
        └─ 0 ───────── 8 ──────────────────────── 168 ──────────── 192 ─┘

    With deduplicated fields, the record of a sample is that of its own fields, followed by the record of each key:

        ┌ tables[0]: one a sample ───┐┌ tables[1]: one a run of equal keys ┐
        │ dense │ label │ its run    ││ query_id │ embedding               │
        └────────────────────────────┘└────────────────────────────────────┘

    Attributes:
        entries: The fields.
        keys: The key fields of deduplication; by default those that the entries name. A spec with only some fields of
            another one is given the keys of that one, so that their records have the same layout.
    """

    entries: tuple[Entry, ...]
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len({*self.names}) < len(self.entries):
            twice = min(name for name in self.names if self.names.count(name) > 1)
            raise ValueError(f"two fields have the name {twice!r}")
        found = dict.fromkeys(entry.deduplicated_by for entry in self.entries if entry.deduplicated_by is not None)
        if not self.keys:
            object.__setattr__(self, "keys", tuple(found))
        elif not found.keys() <= set(self.keys):
            raise ValueError(f"fields are shared by {', '.join(found)}, but the keys are {', '.join(self.keys)}")

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        return "\n".join(map(str, self.entries))

    def __getitem__(self, name: str) -> Entry:
        for entry in self.entries:
            if entry.name == name:
                return entry
        raise KeyError(f"there is no field {name!r}; {near(str(name), self.names) or 'see .names'}")

    @cached_property
    def fixed(self) -> tuple[Entry, ...]:
        """The fixed-width fields, in batch order."""
        return tuple(entry for entry in self.entries if not entry.is_ragged)

    @cached_property
    def ragged(self) -> tuple[Entry, ...]:
        """The ragged fields, in batch order."""
        return tuple(entry for entry in self.entries if entry.is_ragged)

    @cached_property
    def strip(self) -> tuple[Entry, ...]:
        """Of a table: the fields whose lists of one sample lie side by side, in the order in which they lie there.

            ┌ 8 bytes a value first, so that each begins at a multiple of its own size ┐
            │ clicks: int64 │ prices: int64     │ ids: int32 │ words: uint8 │ padding   │
            └─ 0 ─────────── 8·n ─────────────── … ──────────────── a multiple of 8 ────┘

        They are those of one level, where there are several: a sample is then one place to look at, and not one for
        each field. This is part of the chunk format.
        """
        lists = [entry for entry in self.ragged if entry.num_levels == 1 and entry.value_bytes]
        # A value lies at multiples of the widest integer that divides it.
        return tuple(sorted(lists, key=lambda entry: -math.gcd(entry.value_bytes, 8))) if len(lists) > 1 else ()

    @cached_property
    def apart(self) -> tuple[Entry, ...]:
        """Of a table: the ragged fields that lie apart, each in arrays of its own, in batch order."""
        return tuple(one for one in self.ragged if not self.strip or one.num_levels > 1 or not one.value_bytes)

    def only(self, entries: Iterable[Entry]) -> Spec:
        """Return the spec of some of the fields, whose samples lie where those of this one do.

        Of the fixed-width fields that share a table all or none must be there.
        """
        return Spec(tuple(entries), self.keys)

    @cached_property
    def delivered(self) -> Spec:
        """The same fields as batches have them, none kept narrower."""
        return Spec(tuple(entry.delivered for entry in self.entries), self.keys) if self.compact else self

    @cached_property
    def compact(self) -> dict[str, Compact]:
        """The fields that are kept narrower than they are delivered, and how each is widened."""
        return {entry.name: entry.compact for entry in self.entries if entry.compact is not None}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the fields, in batch order."""
        return tuple(entry.name for entry in self.entries)

    @cached_property
    def unshared(self) -> Spec:
        """The spec of the fields that each sample has for itself."""
        return self.only(entry for entry in self.entries if entry.deduplicated_by is None)

    @cached_property
    def tables(self) -> tuple[Spec, ...]:
        """How samples are kept: a spec of what each has for itself, and one for each key of what a run shares.

        The first has a number more for each key, `run_name(key)`: which run of its chunk the sample is in. Where
        nothing is shared, the only table is the spec itself.
        """
        if not self.keys:
            return (self,)
        own = [entry for entry in self.entries if entry.deduplicated_by is None]
        runs = [Entry(name=run_name(key), dtype=np.dtype(np.uint32)) for key in self.keys]
        shared = [
            [replace(e, deduplicated_by=None) for e in self.entries if e.deduplicated_by == key] for key in self.keys
        ]
        return Spec((*own, *runs)), *(Spec(tuple(entries)) for entries in shared)

    @cached_property
    def table_offsets(self) -> tuple[int, ...]:
        """Where the record of each table begins in that of a sample, in bytes."""
        offsets, end = [], 0
        for table in self.tables:
            # As in a record alone: at a multiple of the widest item, and no cache line straddled needlessly.
            step = min(table.record_bytes, CACHE_LINE_BYTES) or 1
            offsets.append(-(-end // step) * step)
            end = offsets[-1] + table.record_bytes
        return tuple(offsets)

    @cached_property
    def record_offsets(self) -> dict[str, int]:
        """Where each fixed-width field begins in a record, in bytes.

        Wider items first and batch order among equals: no field needs padding before it. This is part of the chunk
        format; another rule is another format version.
        """
        if self.keys:
            places = {
                name: begin + offset
                for table, begin in zip(self.tables, self.table_offsets, strict=True)
                for name, offset in table.record_offsets.items()
            }
            return {entry.name: places[entry.name] for entry in self.fixed}
        offsets: dict[str, int] = {}
        end = 0
        for entry in sorted(self.fixed, key=lambda entry: -entry.dtype.itemsize):
            offsets[entry.name] = end
            end += entry.value_bytes
        return offsets

    @cached_property
    def record_bytes(self) -> int:
        """Bytes from one record to the next; 0 where no field is fixed-width.

        Up to a cache line: the next power of two, so that no record straddles two lines and narrow tables stay
        narrow. Beyond: whole cache lines.
        """
        if not self.keys:
            return _record_bytes(self.fixed)
        if not any(entry.value_bytes for entry in self.fixed):
            return 0
        end = self.table_offsets[-1] + self.tables[-1].record_bytes
        step = max(min(table.record_bytes, CACHE_LINE_BYTES) for table in self.tables)
        return -(-end // step) * step

    @cached_property
    def unshared_bytes(self) -> int:
        """Bytes of a record if nothing were shared."""
        return _record_bytes(self.fixed)

    @cached_property
    def plain_bytes(self) -> int:
        """Bytes of a record if nothing were shared or narrower: windows are measured by it, so the order stays."""
        return _record_bytes(self.delivered.fixed)

    @cached_property
    def record_dtype(self) -> np.dtype[Any]:
        """The record as a NumPy structured dtype with one named field an entry."""
        return np.dtype(
            {
                "names": [entry.name for entry in self.fixed],
                "formats": [(entry.dtype, entry.shape) for entry in self.fixed],
                "offsets": [self.record_offsets[entry.name] for entry in self.fixed],
                "itemsize": self.record_bytes,
            }
        )

    def to_json(self) -> list[dict[str, object]]:
        """Return the spec as JSON can write it."""
        return [entry.to_json() for entry in self.entries]

    @cached_property
    def json_text(self) -> str:
        """The same as text: every chunk has it in its header."""
        return json.dumps(self.to_json(), separators=(",", ":"))

    @classmethod
    def from_json(cls, data: Sequence[Mapping[str, Any]]) -> Spec:
        """Return the spec that `to_json` wrote."""
        return cls(tuple(Entry.from_json(entry) for entry in data))


def run_name(key: str) -> str:
    """Return what the number of a sample's run is called in its record."""
    return f"{key}.run"


def _record_bytes(fixed: Sequence[Entry]) -> int:
    size = sum(entry.value_bytes for entry in fixed)
    if size == 0:
        return 0
    if size <= CACHE_LINE_BYTES:
        return max(1 << (size - 1).bit_length(), max(entry.dtype.itemsize for entry in fixed))
    return -(-size // CACHE_LINE_BYTES) * CACHE_LINE_BYTES


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_size(size: int | str, *, name: str) -> int:
    """Return a size in bytes: 1000 for "1kB", 1024 for "1KiB", the number itself for a number.

    What is neither an int nor a string is a TypeError, and what cannot be read a ValueError, about the argument `name`.
    """
    if not isinstance(size, int | np.integer | str) or isinstance(size, bool):
        raise TypeError(f"{name} must be bytes as an int, or a text like '500GB', not {type(size).__name__}")
    if not isinstance(size, str):
        if size < 0:
            raise ValueError(f"{name} must not be negative, got {size}")
        return int(size)
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        raise ValueError(f"{name}: cannot read {size!r} as a size; write '500GB', '64MiB' or a number of bytes")
    number, prefix, binary = match.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** " kmgt".index(prefix.lower() or " "))
