"""What can be counted: every wrong argument is an error at once, and identities tell units apart."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from stoker import Entry, Spec
from stoker.dataset.units.kinds import Grouped, NGram, Pack, Weighted
from stoker.loader.config import parse_unit


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"group_by": "q", "weights": "w"}, ValueError, "group_by and weights each say"),
        ({"weights": "w", "sequence": NGram(length=2)}, ValueError, "weights and sequence each say"),
        ({"group_by": []}, ValueError, "group_by names no column"),
        ({"group_by": ["q", "q"]}, ValueError, "group_by names 'q' twice"),
        ({"group_by": 3}, TypeError, "group_by must be a name or a sequence of names"),
        ({"weights": ["w"]}, TypeError, "weights must be the name of a column"),
        ({"sequence": "tokens"}, TypeError, "sequence must be a stoker.NGram or a stoker.Pack"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        parse_unit(**({"group_by": None, "weights": None, "sequence": None} | arguments))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: NGram(), ValueError, "give fields at their offsets"),
        (lambda: NGram({}), ValueError, "names no offset"),
        (lambda: NGram({0: []}), ValueError, "names no field"),
        (lambda: NGram({"0": ["a"]}), TypeError, "an offset is an integer"),
        (lambda: NGram({0: ["a"], 2: ["a"]}, length=2), ValueError, "offsets 0 to 2 are 3 rows, not 2"),
        (lambda: NGram(length=0), ValueError, "length must be at least 1"),
        (lambda: NGram(length=2, stride=0), ValueError, "stride must be at least 1"),
        (lambda: NGram(length=2, stride=1, overlap=False), ValueError, "overlap=False is a stride"),
        (lambda: NGram(length=2, max_gap=1), ValueError, "name the timestamp"),
        (lambda: NGram(length=2, timestamp="t", max_gap=-1), ValueError, "must not be negative"),
        (lambda: NGram(length=2, timestamp="t", max_gap="1s"), TypeError, "a number or a timedelta"),
        (lambda: Pack("", length=8), TypeError, "name the ragged field"),
        (lambda: Pack("t", length=0), ValueError, "length must be at least 1"),
        (lambda: Pack("t", length=8, together=["t"]), ValueError, "is the field that is packed"),
        (lambda: Pack("t", length=8, together="a", per_segment="a"), ValueError, "be per_segment at once"),
        (lambda: Pack("t", length=8, pad={"x": 1}), ValueError, "pad names 'x', which is not packed"),
        (lambda: Pack("t", length=8, pad="0"), TypeError, "pad must be a number"),
        (lambda: Pack("t", length=8, together="a", end={"a": 1}), ValueError, "must say the token"),
        (lambda: Pack("t", length=8, split=1), TypeError, "split must be True or False"),
    ],
)
def test_descriptions_check_themselves(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_an_identity_differs_exactly_where_units_do():
    unit = [
        Grouped(keys=("a",)),
        Grouped(keys=("a", "b")),
        Weighted(column="a"),
        NGram(length=2),
        NGram(length=3),
        NGram(length=2, stride=2),
        NGram(length=2, keys="a"),
        NGram(length=2, timestamp="t"),
        NGram(length=2, timestamp="t", max_gap=1),
        NGram(length=2, timestamp="t", max_gap=timedelta(seconds=1)),
        Pack("t", length=8),
        Pack("t", length=8, split=False),
        Pack("t", length=8, end=1),
        Pack("u", length=8),
    ]
    assert len({one.identity for one in unit}) == len(unit)
    assert NGram(length=2, overlap=False).identity == NGram(length=2, stride=2).identity
    assert NGram({-1: ["a"], 0: ["b"]}).identity == NGram(length=2).identity
    assert Pack("t", length=8, pad=1, per_segment="x").identity == Pack("t", length=8).identity
    assert max(len(Grouped(keys=tuple(f"column_{i}" for i in range(99))).identity), 0) < 120


def test_fields_of_a_window_come_at_their_own_offsets():
    ngram = NGram({1: ["a", "c"], -2: ["a"], 0: ["b"]})
    assert ngram.length == 4
    spec = Spec(tuple(Entry(name=name, dtype=np.dtype(np.int8)) for name in "abcd"))
    assert ngram.windowed(spec) == {"a": (0, 3), "b": (2,), "c": (3,)}
    assert NGram(length=2).windowed(spec) == dict.fromkeys("abcd", (0, 1))


def test_values_that_pack_puts_in_are_completed_for_every_field():
    pack = Pack("t", length=8, together=["l", "m"], pad={"l": -100}, end=7)
    assert pack.pad == {"t": 0, "l": -100, "m": 0}
    assert pack.end == {"t": 7, "l": -100, "m": 0}
