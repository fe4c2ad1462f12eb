"""Labels are classes of a column's values, in the order of the samples."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import Dataset, FieldError
from stoker.plan.known import open_known, plan_orders
from stoker.plan.labels import MAX_CLASSES, label_quality
from stoker.plan.labels import read_labels as read_labels_of


def read_labels(dataset, column):
    (labels,), are_values = read_labels_of({"": dataset.open()}, column)
    return labels, are_values


def dataset_of(tmp_path, values, **options):
    half = len(values) // 2
    table = pa.table({"x": values, "id": np.arange(len(values)), "wide": np.zeros(len(values))})
    pq.write_table(table.slice(0, half), tmp_path / "a.parquet", row_group_size=50)
    pq.write_table(table.slice(half), tmp_path / "b.parquet", row_group_size=70)
    return Dataset(tmp_path, **options)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([3, 1, 2, 1] * 50),
        pa.array(["c", "a", "b", "a"] * 50),
        pa.array(["c", "a", "b", "a"] * 50).dictionary_encode(),
        pa.array([b"c", b"a", b"b", b"a"] * 50),
        pa.array([2.5, -1.0, 0.0, -1.0] * 50),
        pa.array([dt.date(2026, 1, day) for day in (3, 1, 2, 1)] * 50),
        pa.array([dt.datetime(2026, 1, day) for day in (3, 1, 2, 1)] * 50),
    ],
    ids=lambda values: str(values.type),
)
def test_few_values_are_a_class_each_in_their_own_order(tmp_path, values):
    labels, are_values = read_labels(dataset_of(tmp_path, values), "x")
    assert are_values
    np.testing.assert_array_equal(labels, [2, 0, 1, 0] * 50)


def test_booleans_are_two_classes(tmp_path):
    labels, _ = read_labels(dataset_of(tmp_path, pa.array([True, False] * 50)), "x")
    np.testing.assert_array_equal(labels, [1, 0] * 50)


@pytest.mark.parametrize("values", [pa.array([1, None, 2, None] * 50), pa.array(["u", None, "v", None] * 50)])
def test_nulls_are_a_class_of_their_own(tmp_path, values):
    labels, _ = read_labels(dataset_of(tmp_path, values), "x")
    np.testing.assert_array_equal(labels, [0, 2, 1, 2] * 50)


@pytest.mark.parametrize("as_words", [False, True])
def test_many_values_are_cut_into_ranges_of_equal_size(tmp_path, as_words):
    values = np.random.default_rng(0).permutation(6400)
    column = pa.array([f"{value:05}" for value in values]) if as_words else pa.array(values)
    labels, are_values = read_labels(dataset_of(tmp_path, column), "x")
    assert not are_values
    np.testing.assert_array_equal(np.bincount(labels), [100] * MAX_CLASSES)
    np.testing.assert_array_equal(labels, values // 100)


def test_a_filter_leaves_labels_only_for_the_rows_that_pass(tmp_path):
    dataset = dataset_of(tmp_path, pa.array([3, 1, 2, 1] * 50), filters=[("x", ">", 1)], chunk_size="1kB")
    np.testing.assert_array_equal(read_labels(dataset, "x")[0], [1, 0] * 50)


def test_lists_and_structs_are_no_labels(tmp_path):
    with pytest.raises(FieldError, match="no classes"):
        read_labels(dataset_of(tmp_path, pa.array([[1]] * 10)), "x")
    with pytest.raises(FieldError, match=r"2 columns: x\.a, x\.b; name"):
        read_labels(dataset_of(tmp_path, pa.array([{"a": 1, "b": 2}] * 10)), "x")


@pytest.mark.parametrize(("window", "is_mixed"), [(1, False), ("all", True)])
def test_a_window_too_small_for_sorted_data_shows(tmp_path, window, is_mixed):
    dataset = dataset_of(tmp_path, pa.array(np.arange(20_000) // 1000), chunk_size="4kB")
    known = open_known(dataset, cache=None)
    orders = plan_orders(known, shuffle=True, seed=1, window=window)
    found = label_quality(orders, [read_labels(dataset, "x")[0]], batch_size=200, epoch=0, num_batches=100)
    assert (found.chi_square < 1.3) == is_mixed
    assert (found.num_files > 1.9) == is_mixed
