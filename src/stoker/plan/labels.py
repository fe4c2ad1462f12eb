"""A column's values as labels, for measuring how well an order mixes: that column alone is read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stoker.dataset.catalogue import Catalogue
from stoker.dataset.dataset import Dataset
from stoker.dataset.mixture import naming
from stoker.dataset.runs import comparable, comparable_type
from stoker.errors import FieldError
from stoker.fields.offsets import Int64
from stoker.loader.orders import Orders
from stoker.plan.known import Known
from stoker.sampling.epoch import Order
from stoker.sampling.quality import Quality, quality
from stoker.sampling.units import Units

# Up to so many different values, each is a class of its own; beyond, they are cut into so many classes of equal size:
# chi-square wants a few samples of each class in a batch.
MAX_CLASSES = 64
# Words are counted in memory while they are read.
_MAX_WORDS = 1_000_000
# Borders of ranges come from so many values, evenly spread.
_SAMPLED_VALUES = 1_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class Labels:
    """The class of every sample.

    Attributes:
        codes: Class of each sample in the fixed order. Shape [samples].
        counts: Samples of each class. Shape [C].
        are_values: Whether each class is one value, not a range of them.
    """

    codes: npt.NDArray[np.uint8]
    counts: Int64
    are_values: bool


def read_labels(datasets: Mapping[str, Dataset], column: str, *, num_threads: int = 8) -> tuple[Labels, ...]:
    """Return the class of every sample by a column's value; data sets have their classes in common.

    Up to 64 different values are classes, null is one of them; more numbers, dates or words are cut into 64 ranges of
    about equal size, in their own order.

    Args:
        datasets: Name -> samples; a data set's filter counts, its fields and transform do not.
        column: The column, which all of them have.
        num_threads: Threads that read it.

    Raises:
        FieldError: A data set has no such column, its values cannot be sorted into classes, or they are numbers in one
            data set and words in another.
        SourceError: It cannot be read.
    """
    catalogues = {}
    for name, dataset in datasets.items():
        with naming(name):
            catalogues[name] = _open_column(dataset, column, num_threads)
    kinds = {name: catalogue.schema.field(0).type for name, catalogue in catalogues.items()}
    are_numbers = {name: _is_number(comparable_type(kind)) for name, kind in kinds.items()}
    if len(set(are_numbers.values())) > 1:
        told = ", ".join(f"{kind} in {name!r}" for name, kind in kinds.items())
        raise FieldError(
            f"column {column!r} is {told}: values that cannot be compared are no common labels", columns=[column]
        )
    words = None if all(are_numbers.values()) else _Words(column)
    convert = _as_floats if words is None else words.convert
    parts = [_read_values(catalogue, convert, num_threads) for catalogue in catalogues.values()]
    together = np.concatenate(parts)
    classes = _classes(together if words is None else words.ranked(together))
    ends = np.cumsum([part.size for part in parts])[:-1]
    return tuple(
        Labels(
            codes=codes,
            counts=np.bincount(codes, minlength=classes.counts.size).astype(np.int64),
            are_values=classes.are_values,
        )
        for codes in np.split(classes.codes, ends)
    )


def _open_column(dataset: Dataset, column: str, num_threads: int) -> Catalogue:
    # As few columns make larger fragments, but the samples and their order are the same.
    catalogue = dataset.with_columns([column]).open(None, num_threads=num_threads)
    if catalogue.schema.names != [column]:
        raise FieldError(
            f"column {column!r} is a struct of {len(catalogue.schema)} columns; name one: "
            f"{', '.join(catalogue.schema.names)}",
            columns=[column],
        )
    kind = comparable_type(catalogue.schema.field(0).type)
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        raise FieldError(
            f"column {column!r} ({kind}) has no classes to count; choose one of numbers, dates or words",
            columns=[column],
        )
    return catalogue


def _read_values(
    catalogue: Catalogue, convert: Callable[[pa.ChunkedArray], npt.NDArray[Any]], num_threads: int
) -> npt.NDArray[Any]:
    starts = np.concatenate([[0], np.cumsum(catalogue.num_samples)])
    values = np.empty(int(starts[-1]), dtype=np.float64 if convert is _as_floats else np.int32)

    def take(j: int, table: pa.Table, _: object) -> None:
        values[starts[j] : starts[j + 1]] = convert(table.column(0))

    catalogue.read_every(catalogue.schema, take, num_threads=num_threads)
    return values


def label_quality(
    known: Known, orders: Orders, labels: Sequence[Labels], *, batch_size: int, epoch: int, num_batches: int
) -> Quality:
    """Return how well the order of a loader mixes these labels; see `stoker.sampling.quality.quality`.

    Where the order counts units, each has the label of its first row.

    Args:
        known: The data sets.
        orders: Their orders.
        labels: Of each data set's rows.
        batch_size: Samples of a global batch.
        epoch: Which epoch.
        num_batches: How many batches to look at, at most.

    Raises:
        ValueError: As `quality` says.
    """

    @lru_cache(maxsize=2 * len(labels))
    def labels_in(which: int, own_epoch: int) -> Labels:
        units = orders.units_in(which, own_epoch)
        if units is None:
            return labels[which]
        return _unit_labels(labels[which], units, num_samples=known.datasets[which].num_samples)

    def label_of(which: int, own_epoch: int, place: Int64) -> npt.NDArray[np.uint8]:
        codes: npt.NDArray[np.uint8] = labels_in(which, own_epoch).codes[place]
        return codes

    order = orders.order_in(epoch)
    files, num_files = [], 0
    for one in known.datasets:
        files.append(one.catalogue.file_of_chunk + num_files)
        num_files += len(one.catalogue.files)
    return quality(
        order,
        batch_size=batch_size,
        label_of=label_of,
        label_counts=[
            labels_in(which, epoch if isinstance(order, Order) else 0).counts for which in range(len(labels))
        ],
        epoch=epoch,
        num_batches=num_batches,
        files=files,
    )


def _unit_labels(labels: Labels, units: Units, *, num_samples: Int64) -> Labels:
    """Return the class of every unit of an epoch: that of its first row.

    Args:
        labels: Of the rows.
        units: What the order counts, in one epoch.
        num_samples: Rows of each chunk. Shape [K].
    """
    starts = np.concatenate([[0], np.cumsum(num_samples)])
    codes = [np.empty(0, np.uint8)]
    for chunk, num in enumerate(units.num_units.tolist()):
        if num:
            row, offsets = units.rows(np.full(num, chunk, dtype=np.int64), np.arange(num, dtype=np.int64))
            codes.append(labels.codes[starts[chunk] + row[offsets[:-1]]])
    found = np.concatenate(codes)
    counts = np.bincount(found, minlength=len(labels.counts)).astype(np.int64)
    return Labels(codes=found, counts=counts, are_values=labels.are_values)


def _as_floats(column: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """Return numbers and times as floats, NaN for null."""
    column = comparable(column)
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    values: npt.NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy()
    return values


class _Words:
    """Words as numbers in the order in which they come, -1 for null."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._mutex = threading.Lock()
        self._number_of: dict[Any, int] = {}

    def convert(self, column: pa.ChunkedArray) -> npt.NDArray[np.int32]:
        if not pa.types.is_dictionary(column.type):
            column = pc.dictionary_encode(comparable(column))
        encoded = column.unify_dictionaries()
        if not encoded.num_chunks:
            return np.empty(0, np.int32)
        words = encoded.chunk(0).dictionary.to_pylist()
        with self._mutex:
            numbers = [self._number_of.setdefault(word, len(self._number_of)) for word in words]
            if len(self._number_of) > _MAX_WORDS:
                raise FieldError(
                    f"column {self._column!r} has more than {_MAX_WORDS:,} different words, too many to be a label; "
                    f"choose a column such as a label, a day or a country",
                    columns=[self._column],
                )
        table = np.array([*numbers, -1], dtype=np.int32)
        indices = [chunk.indices.fill_null(len(numbers)).to_numpy(zero_copy_only=False) for chunk in encoded.chunks]
        codes: npt.NDArray[np.int32] = table[np.concatenate(indices)]
        return codes

    def ranked(self, values: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        """Return the numbers of words in alphabetical order, NaN for null."""
        words = sorted(self._number_of)
        place = np.empty(len(words) + 1)
        place[[self._number_of[word] for word in words]] = np.arange(len(words))
        place[-1] = np.nan
        ranks: npt.NDArray[np.float64] = place.take(values.astype(np.int64), mode="wrap")
        return ranks


def _classes(values: npt.NDArray[np.float64]) -> Labels:
    """Return values as classes: one each while they are few, else ranges with as many samples each as can be."""
    looked_at = values[:: max(1, values.size // _SAMPLED_VALUES)]
    borders = np.unique(looked_at[~np.isnan(looked_at)])
    is_null = np.isnan(values)
    are_values = borders.size <= MAX_CLASSES and bool(np.isin(values[~is_null], borders).all())
    if not are_values:
        borders = np.unique(np.quantile(looked_at[~np.isnan(looked_at)], np.arange(MAX_CLASSES) / MAX_CLASSES))
    codes = np.maximum(np.searchsorted(borders, values, side="right") - 1, 0)
    codes[is_null] = borders.size
    counts = np.bincount(codes, minlength=borders.size + 1)
    return Labels(
        codes=codes.astype(np.uint8),
        counts=counts.astype(np.int64) if counts[-1] else counts[:-1].astype(np.int64),
        are_values=are_values,
    )


def _is_number(kind: pa.DataType) -> bool:
    return any(check(kind) for check in (pa.types.is_primitive, pa.types.is_decimal))
