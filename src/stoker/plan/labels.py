"""A column's values as labels, for measuring how well an order mixes: that column alone is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stoker.dataset.catalogue import Catalogue
from stoker.dataset.runs import comparable, comparable_type
from stoker.errors import FieldError
from stoker.fields.offsets import Int64, offsets_of
from stoker.loader.opened import naming
from stoker.loader.orders import Orders
from stoker.plan.known import NUM_THREADS
from stoker.sampling.quality import Quality, quality
from stoker.sampling.units import Units

# Up to so many different values, each is a class of its own; beyond, they are cut into so many classes of equal size:
# chi-square wants a few samples of each class in a batch.
MAX_CLASSES = 64
# Different words, which are all kept in memory.
_MAX_WORDS = 1_000_000
# Borders of ranges come from so many values, evenly spread.
_SAMPLED_VALUES = 1_000_000


Labels: TypeAlias = "npt.NDArray[np.uint8]"
"""The class of every sample of a data set, in the fixed order."""


def read_labels(catalogues: Mapping[str, Catalogue], column: str) -> tuple[list[Labels], bool]:
    """Return the class of every sample by a column's value, of each data set, and whether each class is one value.

    Data sets have their classes in common. Up to 64 different values are classes, null is one of them; more numbers,
    dates or words are cut into 64 ranges of about equal size, in their own order. Of a data set its filter counts, its
    columns, fields and transform do not.

    Raises:
        FieldError: A data set has no such column, its values cannot be sorted into classes, or they are numbers in one
            data set and words in another.
    """
    types: dict[str, pa.Schema] = {}
    are_numbers = set[bool]()
    for name, catalogue in catalogues.items():
        with naming(name):
            types[name] = catalogue.types_of([column], num_threads=NUM_THREADS)
            kind = comparable_type(types[name].field(0).type)
            if pa.types.is_nested(kind) or pa.types.is_null(kind):
                raise FieldError(
                    f"column {column!r} ({kind}) has no classes to count; choose one of numbers, dates or words",
                    columns=[column],
                )
            are_numbers.add(bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind)))
    if len(are_numbers) > 1:
        told = ", ".join(f"{schema.field(0).type} in {name!r}" for name, schema in types.items())
        raise FieldError(
            f"column {column!r} is {told}: values that cannot be compared are no common labels", columns=[column]
        )
    together: list[Any] = []  # of each fragment: numbers and times as floats, NaN for null; words as a dictionary
    for name, catalogue in catalogues.items():
        found: list[Any] = [np.empty(0)] * len(catalogue)

        def take(j: int, table: pa.Table, _: object, found: list[Any] = found) -> None:
            found[j] = (_numbers if True in are_numbers else _words)(comparable(table.column(0)))

        catalogue.read_every(types[name], take, num_threads=NUM_THREADS)
        together += found
    values = np.concatenate([np.empty(0), *together]) if True in are_numbers else _ranks(together, column)
    codes, are_values = _classes(values)
    ends = np.cumsum([catalogue.num_samples.sum() for catalogue in catalogues.values()])[:-1]
    return np.split(codes, ends), are_values


def _numbers(column: pa.ChunkedArray) -> Any:
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    return column.cast(pa.float64(), safe=False).to_numpy()


def _words(column: pa.ChunkedArray) -> pa.DictionaryArray:
    return column.cast(pa.large_binary()).combine_chunks().dictionary_encode()


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
    orders: Orders, labels: Sequence[Labels], *, batch_size: int, epoch: int, num_batches: int
) -> Quality:
    """Return how well an order mixes the labels of each data set's rows; see `stoker.sampling.quality.quality`.

    Where the order counts units, each has the label of its first row.
    """
    order, datasets = orders.order, orders.opened.datasets
    num_classes = max(int(one.max(initial=0)) for one in labels) + 1

    @lru_cache(maxsize=2 * len(labels))
    def labels_in(which: int, own_epoch: int) -> Labels:
        units = orders.units_in(which, own_epoch)
        if units is None:
            return labels[which]
        return _unit_labels(labels[which], units, num_samples=datasets[which].num_samples)

    def label_of(which: int, own_epoch: int, place: Int64) -> Labels:
        return np.asarray(labels_in(which, own_epoch)[place])

    first_epoch = epoch if order.is_alone else 0
    counts = [np.bincount(labels_in(which, first_epoch), minlength=num_classes) for which in range(len(labels))]
    first_files = np.cumsum([0, *(len(one.catalogue.files) for one in datasets)]).tolist()
    return quality(
        order,
        label_of=label_of,
        label_counts=counts,
        files=np.concatenate(
            [one.catalogue.file_of_chunk + first for one, first in zip(datasets, first_files, strict=False)]
        ),
        batch_size=batch_size,
        epoch=epoch,
        num_batches=num_batches,
    )


def _unit_labels(labels: Labels, units: Units, *, num_samples: Int64) -> Labels:
    """Return the class of every unit of an epoch: that of its first row. Rows of each chunk have the shape [K]."""
    codes: list[Labels] = [np.empty(0, np.uint8)]
    starts = offsets_of(num_samples)
    for chunk, num in enumerate(units.num_units.tolist()):
        if num:
            row, offsets = units.rows(np.full(num, chunk, dtype=np.int64), np.arange(num, dtype=np.int64))
            codes.append(labels[starts[chunk] + row[offsets[:-1]]])
    return np.concatenate(codes)


def _classes(values: npt.NDArray[np.float64]) -> tuple[Labels, bool]:
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
