"""A vocabulary: which values a column has, found by one pass over it, and the code that each of them keeps."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias, overload

import pyarrow as pa
import pyarrow.compute as pc

from stoker.arguments import integer
from stoker.arrow import is_list, is_text
from stoker.dataset.catalogue import Catalogue, OnCount
from stoker.errors import FieldError
from stoker.host.machine import num_cores

if TYPE_CHECKING:
    from stoker.dataset.dataset import Dataset

FORMAT_VERSION = 1

Value: TypeAlias = "str | int"


@dataclass(frozen=True, kw_only=True)
class Vocabulary(Sequence["Value"]):
    """The values of a column in the order of their codes: what `Field(vocabulary=...)` takes.

        vocabulary = stoker.Vocabulary.from_column(dataset, "word", min_count=5)
        vocabulary.save("word.json")
        ...
        vocabulary = stoker.Vocabulary.load("word.json")
        fields = {"word": stoker.Field("int32", vocabulary=vocabulary, unknown=len(vocabulary))}

    The order depends on the data alone: the most frequent value first, equally frequent ones by their own order.

    Attributes:
        column: Name of the column that was counted.
        values: Value of each code, without null. Shape [V].
        version: 1 for a vocabulary that was counted anew, one more each time it was extended.
        fingerprint: Of the data set that was counted last.
    """

    column: str
    values: tuple[Value, ...]
    version: int = 1
    fingerprint: str = ""

    @classmethod
    def from_column(
        cls,
        dataset: Dataset,
        column: str,
        *,
        min_count: int = 1,
        max_size: int | None = None,
        extend: Vocabulary | None = None,
        num_threads: int | None = None,
        on_progress: Callable[[int, int], object] | None = None,
    ) -> Self:
        """Read one column once, and return its vocabulary.

        Rows that the filter of the data set drops are not counted; its fields and transform do not matter. Of lists,
        the values inside are counted. All different values are held in memory while they are counted.

        Args:
            dataset: Where the column is.
            column: Name of a column of strings or integers, or of lists of them; members of structs are dotted.
            min_count: Leave out values that occur less often.
            max_size: Keep so many of the most frequent values at most; None keeps all.
            extend: An older vocabulary: its values keep their codes, and new ones come behind them.
            num_threads: Threads that read; default: the cores of this process.
            on_progress: Called with the fragments that are done, and how many there are.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: `min_count` or `max_size` is out of range, or `extend` is longer than `max_size`.
            FieldError: There is no such column, or it holds neither strings nor integers.
            SourceError: It cannot be read.
        """
        min_count = integer(min_count, "min_count")
        max_size = None if max_size is None else integer(max_size, "max_size")
        num_threads = num_cores() if num_threads is None else integer(num_threads, "num_threads")
        if extend is not None and not isinstance(extend, Vocabulary):
            raise TypeError(f"extend must be a stoker.Vocabulary, such as Vocabulary.load gives, not {extend!r}")
        kept = () if extend is None else extend.values
        if max_size is not None and len(kept) > max_size:
            raise ValueError(f"the vocabulary to extend has {len(kept):,} values, more than max_size={max_size:,}")
        catalogue = dataset.open(num_threads=num_threads)
        counts = _count_values(catalogue, column, num_threads, on_progress)
        for value in kept:
            counts.pop(value, None)
        new = sorted((pair for pair in counts.items() if pair[1] >= min_count), key=lambda pair: (-pair[1], pair[0]))
        values = [*kept, *(value for value, _ in new)][:max_size]
        version = 1 if extend is None else extend.version + 1
        return cls(column=column, values=tuple(values), version=version, fingerprint=catalogue.fingerprint)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the vocabulary that `save` wrote.

        Raises:
            ValueError: The file holds no vocabulary, or one of a newer Stoker.
            OSError: It cannot be read.
        """
        try:
            found = json.loads(Path(path).read_text("utf-8"))
            version = found["stoker_vocabulary"]
            about = {name: found[name] for name in ("column", "version", "fingerprint")}
            made = cls(values=tuple(found["values"]), **about)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no vocabulary that Stoker wrote: {error!r}") from None
        if version != FORMAT_VERSION:
            raise ValueError(f"{path} has format {version!r}, and this Stoker reads format {FORMAT_VERSION}")
        return made

    def save(self, path: str | Path) -> None:
        """Write the vocabulary as JSON, whole or not at all."""
        about = {"column": self.column, "version": self.version, "fingerprint": self.fingerprint}
        content = {"stoker_vocabulary": FORMAT_VERSION, **about, "values": self.values}
        beside = Path(f"{path}.{os.getpid()}.tmp")
        try:
            beside.write_text(json.dumps(content, ensure_ascii=False, indent=1), "utf-8")
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)

    @overload
    def __getitem__(self, index: int) -> Value: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Value]: ...
    def __getitem__(self, index: int | slice) -> Value | Sequence[Value]:
        return self.values[index]

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"<Vocabulary of {self.column}: {len(self):,} values, version {self.version}>"


def _count_values(
    catalogue: Catalogue, column: str, num_threads: int, on_progress: Callable[[int, int], object] | None
) -> Counter[Value]:
    types = catalogue.types_of([column], num_threads=num_threads)
    inner = kind = types.field(0).type
    while is_list(inner) or pa.types.is_dictionary(inner):
        inner = inner.value_type
    if not is_text(inner) and not pa.types.is_integer(inner):
        what = f"{column} is {kind}: a vocabulary is of strings or integers, or of lists of them"
        raise FieldError(what, columns=[column])
    counts: Counter[Value] = Counter()
    lock = threading.Lock()

    def count(_: int, rows: pa.Table, __: object) -> None:
        values = rows.column(0)
        while is_list(values.type):
            values = pc.list_flatten(values)
        values = values.cast(pa.large_string()) if values.type == pa.string_view() else values
        pairs = pc.value_counts(values)
        found = dict(zip(pairs.field("values").to_pylist(), pairs.field("counts").to_pylist(), strict=True))
        found.pop(None, None)
        with lock:
            counts.update(found)

    tell: OnCount | None = None if on_progress is None else lambda num_done, num, _: on_progress(num_done, num)
    catalogue.read_every(types, count, num_threads=num_threads, on_progress=tell)
    return counts
