"""How well labels are mixed is measured as a textbook would on the batches that a loader delivers."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import Dataset, Loader

BATCH_SIZE = 20
DAYS = (3, 1, 2, 1)


def dataset_of(tmp_path, values, **options):
    half = len(values) // 2
    num = np.arange(len(values))
    table = pa.table({"x": values, "id": num, "weight": num % 3, "group": num // 7})
    pq.write_table(table.slice(0, half), tmp_path / "a.parquet", row_group_size=50)
    pq.write_table(table.slice(half), tmp_path / "b.parquet", row_group_size=70)
    return Dataset(tmp_path, columns=["id"], chunk_size=400, **options)


def textbook(dataset, classes, *, batch_size=BATCH_SIZE, **options):
    """Return chi-square per degree of freedom of an epoch's full batches, mean, by the class of each id.

    Corrected for drawing without replacement; and the mean number of chunks and of files in a batch.
    """
    with Loader(dataset, batch_size=batch_size, **options) as loader:
        firsts = (b["id"][b["group_offsets"][:-1]] if "group_offsets" in b else b["id"] for b in loader)
        labels = [classes[ids] for ids in firsts]
        told = [loader.explain(step, epoch=0) for step, one in enumerate(labels) if len(one) == batch_size]
    counts = np.bincount(np.concatenate(labels))
    occurring, num, found = counts > 0, counts.sum(), []
    for one in labels[: len(told)]:
        expected = counts[occurring] * (batch_size / num)
        seen = np.bincount(one, minlength=len(counts))[occurring]
        found.append(((seen - expected) ** 2 / expected).sum() / (len(expected) - 1) * (num - 1) / (num - batch_size))
    held = [np.mean([len(np.unique(getattr(one, what))) for one in told]) for what in ("chunk", "file")]
    return [np.mean(found), *held]


def measured(told, dataset, *options, batch_size=BATCH_SIZE):
    return told(dataset, "order quality", "--column", "x", "--batch-size", batch_size, *options)


def check(told, dataset, classes, *options, **loader_options):
    """Check that the command measures what the textbook does on the batches of such a loader."""
    found = measured(told, dataset, "--seed", 3, "--window", 2, "--batches", 10_000, *options)
    expected = textbook(dataset, np.array(classes), shuffle=True, seed=3, window=2, **loader_options)
    names = ("chi_square", "num_chunks_a_batch", "num_files_a_batch")
    np.testing.assert_allclose([found[name] for name in names], expected)
    return found["num_classes"]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([3, 1, 2, 1] * 50),
        pa.array(["c", "a", "b", "a"] * 50),
        pa.array(["c", "a", "b", "a"] * 50).dictionary_encode(),
        pa.array([b"c", b"a", b"b", b"a"] * 50),
        pa.array([2.5, -1.0, 0.0, -1.0] * 50),
        pa.array([dt.date(2026, 1, day) for day in DAYS] * 50),
        pa.array([dt.datetime(2026, 1, day) for day in DAYS] * 50),
    ],
    ids=lambda values: str(values.type),
)
def test_few_values_are_a_class_each(tmp_path, told, values):
    assert check(told, dataset_of(tmp_path, values), [2, 0, 1, 0] * 50) == 3


def test_booleans_are_two_classes(tmp_path, told):
    assert check(told, dataset_of(tmp_path, pa.array([True, False] * 50)), [1, 0] * 50) == 2


@pytest.mark.parametrize("values", [pa.array([1, None, 2, None] * 50), pa.array(["u", None, "v", None] * 50)])
def test_nulls_are_a_class_of_their_own(tmp_path, told, values):
    assert check(told, dataset_of(tmp_path, values), [0, 2, 1, 2] * 50) == 3


@pytest.mark.parametrize("as_words", [False, True])
def test_many_values_are_cut_into_ranges_of_equal_size(tmp_path, told, as_words):
    values = np.random.default_rng(0).permutation(6400)
    column = pa.array([f"{value:05}" for value in values]) if as_words else pa.array(values)
    assert check(told, dataset_of(tmp_path, column), values // 100) == 64


def test_a_filter_leaves_labels_only_for_the_rows_that_pass(tmp_path, told):
    dataset = dataset_of(tmp_path, pa.array([3, 1, 2, 1] * 50), filters=[("x", ">", 1)])
    assert check(told, dataset, [1, 0, 0, 0] * 50) == 2


def test_a_class_that_is_never_drawn_takes_no_degree_of_freedom(tmp_path, told):
    dataset = dataset_of(tmp_path, pa.array([0, 1, 2] * 60))  # as the weights are
    assert check(told, dataset, [0, 1, 2] * 60, "--weights", "weight", weights="weight") == 3


def test_a_group_has_the_label_of_its_first_row(tmp_path, told):
    values = np.arange(1400) % 5
    check(told, dataset_of(tmp_path, pa.array(values)), values, "--group-by", "group", group_by="group")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (pa.array([[1]] * 100), "no classes"),
        (pa.array([{"a": 1, "b": 2}] * 100), "2 columns: x.a, x.b; name"),
        (pa.array([7] * 100), "fewer than two labels occur"),
        (pa.array([1, 2] * 15), "30 samples make fewer than two batches of 20"),
    ],
)
def test_what_gives_no_figure_is_said(tmp_path, told, values, says):
    assert says in measured(told, dataset_of(tmp_path, values))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--window", "all"], "Well mixed: "),
        (["--window", 1], "would bring it to 2."),
        (["--no-shuffle"], "shuffle=True would mix them."),
    ],
)
def test_the_answer_is_a_sentence(tmp_path, told, options, says):
    dataset = dataset_of(tmp_path, pa.array(np.arange(20_000) // 1000))
    assert says in measured(told, dataset, *options, batch_size=200)["sentence"]
