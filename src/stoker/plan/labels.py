"""A column's values as labels, for measuring how well an order mixes: that column alone is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stoker.dataset.catalogue import Catalogue
from stoker.dataset.dataset import Dataset
from stoker.dataset.mixture import naming
from stoker.dataset.runs import comparable, comparable_type
from stoker.errors import FieldError
from stoker.fields.offsets import Int64, offsets_of
from stoker.loader.orders import Orders
from stoker.plan.known import Known
from stoker.sampling.epoch import Order
from stoker.sampling.quality import Quality, quality
from stoker.sampling.units import Units

# Up to so many different values, each is a class of its own; beyond, they are cut into so many classes of equal size:
# chi-square wants a few samples of each class in a batch.
MAX_CLASSES = 64
# Different words, which are all kept in memory.
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
    is_number = all(are_numbers.values())
    parts = [_read_column(catalogue, is_number, num_threads) for catalogue in catalogues.values()]
    together = [one for part in parts for one in part]
    values = np.concatenate([np.empty(0), *together]) if is_number else _ranks(together, column)
    codes, are_values = _classes(values)
    num_classes = len(np.bincount(codes))
    ends = np.cumsum([catalogue.num_samples.sum() for catalogue in catalogues.values()])[:-1]
    return tuple(
        Labels(codes=one, counts=np.bincount(one, minlength=num_classes).astype(np.int64), are_values=are_values)
        for one in np.split(codes, ends)
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


def _read_column(
    catalogue: Catalogue, is_number: bool, num_threads: int
) -> list[npt.NDArray[np.float64] | pa.DictionaryArray]:
    """Return the values of each fragment: numbers and times as floats, NaN for null; words as a dictionary."""
    found = [np.empty(0)] * len(catalogue)

    def take(j: int, table: pa.Table, _: object) -> None:
        column = comparable(table.column(0))
        if not is_number:
            found[j] = column.cast(pa.large_binary()).combine_chunks().dictionary_encode()
            return
        if pa.types.is_temporal(column.type):
            column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
        found[j] = column.cast(pa.float64(), safe=False).to_numpy()

    catalogue.read_every(catalogue.schema, take, num_threads=num_threads)
    return found


def _ranks(parts: Sequence[pa.DictionaryArray], column: str) -> npt.NDArray[np.float64]:
    """Return the places of words in their own order, NaN for null."""
    unified = pa.chunked_array([one for one in parts if len(one)], pa.dictionary(pa.int32(), pa.large_binary()))
    chunks = unified.unify_dictionaries().chunks
    words = chunks[0].dictionary if chunks else pa.array([], pa.large_binary())
    if len(words) > _MAX_WORDS:
        raise FieldError(
            f"column {column!r} has more than {_MAX_WORDS:,} different words, too many to be a label; choose a column "
            "such as a label, a day or a country",
            columns=[column],
        )
    ranks = np.full(len(words) + 1, np.nan)
    ranks[pc.array_sort_indices(words).to_numpy()] = np.arange(len(words))
    codes = [chunk.indices.fill_null(len(words)).to_numpy(zero_copy_only=False) for chunk in chunks]
    return np.asarray(ranks[np.concatenate([np.empty(0, np.int32), *codes])])


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
    first_files = np.cumsum([0, *(len(one.catalogue.files) for one in known.datasets)]).tolist()
    return quality(
        order,
        batch_size=batch_size,
        label_of=label_of,
        label_counts=[
            labels_in(which, epoch if isinstance(order, Order) else 0).counts for which in range(len(labels))
        ],
        epoch=epoch,
        num_batches=num_batches,
        files=[one.catalogue.file_of_chunk + first for one, first in zip(known.datasets, first_files, strict=False)],
    )


def _unit_labels(labels: Labels, units: Units, *, num_samples: Int64) -> Labels:
    """Return the class of every unit of an epoch: that of its first row.

    Args:
        labels: Of the rows.
        units: What the order counts, in one epoch.
        num_samples: Rows of each chunk. Shape [K].
    """
    codes, starts = [np.empty(0, np.uint8)], offsets_of(num_samples)
    for chunk, num in enumerate(units.num_units.tolist()):
        if num:
            row, offsets = units.rows(np.full(num, chunk, dtype=np.int64), np.arange(num, dtype=np.int64))
            codes.append(labels.codes[starts[chunk] + row[offsets[:-1]]])
    found = np.concatenate(codes)
    counts = np.bincount(found, minlength=len(labels.counts)).astype(np.int64)
    return Labels(codes=found, counts=counts, are_values=labels.are_values)


def _classes(values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.uint8], bool]:
    """Return the class of each value, the last one that of null, and whether each class is one value.

    One class a value while these are few, else ranges with as many samples each as can be.
    """
    looked_at = values[:: max(1, values.size // _SAMPLED_VALUES)]
    looked_at = looked_at[~np.isnan(looked_at)]
    borders, is_null = np.unique(looked_at), np.isnan(values)
    are_values = borders.size <= MAX_CLASSES and bool(np.isin(values[~is_null], borders).all())
    if not are_values:
        borders = np.unique(np.quantile(looked_at, np.arange(MAX_CLASSES) / MAX_CLASSES))
    codes = np.maximum(np.searchsorted(borders, values, side="right") - 1, 0).astype(np.uint8)
    codes[is_null] = borders.size
    return codes, are_values


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind))
