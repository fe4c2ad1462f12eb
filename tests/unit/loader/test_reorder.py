"""Units in another order: every kind of batch, against taking one unit after the other."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from stoker.fields.spec import Deduplicated, Entry, Ragged, Spec
from stoker.loader.gather.assemble import Assembled, SharedRows
from stoker.loader.gather.buffers import BufferPool
from stoker.loader.reorder import reordered
from stoker.loader.units.make import Made, Shaping

SPEC = Spec(
    (
        Entry(name="id", dtype=np.dtype(np.int64)),
        Entry(name="vector", dtype=np.dtype(np.float32), shape=(15,)),
        Entry(name="words", dtype=np.dtype(np.int16), num_levels=2),
        Entry(name="pairs", dtype=np.dtype(np.uint8), shape=(3,), num_levels=1),
        Entry(name="nothing", dtype=np.dtype(np.float32), shape=(0,), num_levels=1),
    )
)
LENGTHS = np.array([2, 0, 3, 1, 0, 4])
ORDER = np.array([5, 0, 4, 2, 1, 3])


def lists_of(lengths, values) -> Ragged:
    return Ragged(values, np.concatenate([[0], np.cumsum(lengths)]))


def assembled_of(lengths, *, spec=SPEC) -> Assembled:
    num = len(lengths)
    records = np.zeros(num, dtype=spec.record_dtype)
    records["id"] = np.arange(num)
    records["vector"] = np.arange(num)[:, None] + np.arange(15) / 100
    total = int(lengths.sum())
    inner = np.arange(total) % 4
    return Assembled(
        spec=spec,
        num_samples=num,
        records=records.view(np.uint8).reshape(num, spec.record_bytes),
        ragged={
            "words": lists_of(lengths, lists_of(inner, np.arange(inner.sum(), dtype=np.int16))),
            "pairs": lists_of(lengths, np.arange(total * 3, dtype=np.uint8).reshape(total, 3)),
            "nothing": lists_of(lengths, np.zeros((total, 0), dtype=np.float32)),
        },
    )


def entry(field, i):
    """Return one entry of a field as plain Python."""
    if isinstance(field, Deduplicated):
        return entry(field.values, int(field.index[i]))
    if isinstance(field, Ragged):
        return [entry(field.values, k) for k in range(field.offsets[i], field.offsets[i + 1])]
    return field[i].tolist()


def made_of(assembled, **changes) -> Made:
    made = Made(assembled.views(), assembled, None, True, assembled.num_samples)
    return made._replace(**changes)


def test_rows_with_lists_of_lists_come_in_the_new_order_and_in_memory_of_their_own():
    made = made_of(assembled_of(LENGTHS))
    before = {name: [entry(field, i) for i in range(6)] for name, field in made.arrays.items()}
    found = reordered(made, ORDER, BufferPool())
    assert list(found.arrays) == list(made.arrays)
    for name, field in found.arrays.items():
        assert [entry(field, i) for i in range(6)] == [before[name][i] for i in ORDER]
        if not isinstance(field, Ragged):
            assert not np.shares_memory(field, made.assembled.records)
    assert np.shares_memory(found.arrays["id"], found.assembled.records)


def test_groups_keep_their_rows_together():
    made = made_of(assembled_of(np.arange(10) % 3))
    borders = np.array([0, 2, 2, 5, 6, 6, 10])
    made.arrays["group_offsets"] = borders
    found = reordered(made, ORDER, BufferPool(), is_grouped=True)
    groups = [list(range(a, b)) for a, b in pairwise(borders)]
    expected = [groups[i] for i in ORDER]
    assert found.arrays["group_offsets"].tolist() == [0, *np.cumsum([len(group) for group in expected])]
    assert found.arrays["id"].tolist() == [row for group in expected for row in group]


def test_a_field_called_like_the_borders_of_groups_is_a_field_like_any_other():
    spec = Spec((Entry(name="group_offsets", dtype=np.dtype(np.int64)),))
    records = np.arange(6).view(np.uint8).reshape(6, 8)
    made = made_of(Assembled(spec=spec, num_samples=6, records=records, ragged={}))
    assert reordered(made, ORDER, BufferPool()).arrays["group_offsets"].tolist() == ORDER.tolist()


def test_windows_over_rows_keep_their_shape_and_their_lists():
    assembled = assembled_of(np.arange(12) % 3)
    fixed = Assembled(spec=Spec(SPEC.fixed), num_samples=12, records=assembled.records, ragged={})
    shaping = Shaping(2, {"id": slice(0, 2), "vector": [1]})
    views = fixed.views()
    arrays = {
        "id": shaping.apply("id", views["id"]),
        "vector": shaping.apply("vector", views["vector"]),
        "pairs": Ragged(assembled.ragged["pairs"], np.arange(7) * 2),
    }
    made = Made(arrays, fixed, shaping, True, 6)
    found = reordered(made, ORDER, BufferPool())
    assert found.arrays["id"].tolist() == arrays["id"][ORDER].tolist()
    assert found.arrays["vector"].tolist() == arrays["vector"][ORDER].tolist()
    assert found.arrays["pairs"].tolist() == [arrays["pairs"][i].tolist() for i in ORDER]


def test_packed_rows_and_what_belongs_to_their_segments():
    tokens = np.arange(6 * 4, dtype=np.int32).reshape(6, 4)
    strided = np.arange(20, dtype=np.int64)[::2]
    arrays = {"tokens": tokens, "label": lists_of(LENGTHS, strided)}
    made = Made(arrays, assembled_of(LENGTHS), None, False, 6)
    found = reordered(made, ORDER, BufferPool())
    assert found.arrays["tokens"].tolist() == tokens[ORDER].tolist()
    assert [entry(found.arrays["label"], i) for i in range(6)] == [entry(arrays["label"], i) for i in ORDER]


def test_what_samples_share_is_kept_once():
    shared = SharedRows(assembled_of(np.array([1, 2])), np.array([0, 1, 1, 0, 1, 0], dtype=np.int32))
    own = Spec((Entry(name="own", dtype=np.dtype(np.int64)),))
    assembled = Assembled(
        spec=own, num_samples=6, records=np.arange(6).view(np.uint8).reshape(6, 8), ragged={}, shared=(shared,),
        names=("own", "vector", "words"),
    )  # fmt: skip
    made = made_of(assembled)
    found = reordered(made, ORDER, BufferPool())
    assert list(found.arrays) == ["own", "vector", "words"]
    for name, field in found.arrays.items():
        assert [entry(field, i) for i in range(6)] == [entry(made.arrays[name], i) for i in ORDER]
    assert found.arrays["vector"].values.shape == (2, 15)


@pytest.mark.parametrize("is_grouped", [False, True])
def test_a_batch_without_units_stays_empty(is_grouped):
    made = made_of(assembled_of(np.array([], dtype=np.int64)))
    if is_grouped:
        made.arrays["group_offsets"] = np.zeros(1, dtype=np.int64)
    found = reordered(made, np.array([], dtype=np.int64), BufferPool(), is_grouped=is_grouped)
    assert found.arrays["id"].shape == (0,)
    assert found.arrays["pairs"].offsets.tolist() == [0]
