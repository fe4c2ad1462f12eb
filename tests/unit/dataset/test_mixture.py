"""A mixture as a description: checked at once, before any data set is opened."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from stoker import Dataset, Entry, Field, FieldError, Loader, Mixture, Scaled, Spec
from stoker.testing import write_parquet

WEB, CODE = Dataset("nowhere/web"), Dataset("nowhere/code")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"datasets": [WEB]}, TypeError, "give a dict, not list"),
        ({"datasets": {}}, ValueError, "at least one data set"),
        ({"datasets": {"web": "nowhere/web"}}, TypeError, r"'web' must be a stoker\.Dataset, not str"),
        ({"datasets": {1: WEB}}, TypeError, "must be a text that is not empty, not 1"),
        ({"weights": [0.7, 0.3]}, TypeError, "weights must name a share for each data set"),
        ({"weights": {"web": 1}}, ValueError, "name no share for 'code'"),
        ({"weights": {"web": 1, "code": 1, "books": 1}}, ValueError, "name 'books', and there is no such data set"),
        ({"weights": {"web": 1, "code": 0}}, ValueError, "weight of 'code' must be positive, not 0"),
        ({"weights": {"web": 1, "code": float("nan")}}, ValueError, "weight of 'code' must be positive"),
        ({"weights": {"web": 1, "code": "1"}}, TypeError, "weight of 'code' must be a number"),
        ({"weights": {"web": 1, "code": True}}, TypeError, "weight of 'code' must be a number"),
        ({"until": "never"}, ValueError, "'first' or 'last', not 'never'"),
        ({"source_field": 3}, TypeError, "name of a field, not 3"),
    ],
)
def test_what_is_wrong_with_a_mixture_is_said_when_it_is_made(arguments, error, message):
    arguments = {"datasets": {"web": WEB, "code": CODE}} | arguments
    with pytest.raises(error, match=message):
        Mixture(arguments.pop("datasets"), **arguments)


def test_weights_may_be_any_numbers_and_come_in_any_order():
    mixture = Mixture({"web": WEB, "code": CODE}, weights={"code": np.float64(0.3), "web": Fraction(7, 10)})
    assert mixture.names == ("web", "code")
    assert list(mixture.weights.items()) == [("web", Fraction(7, 10)), ("code", 0.3)]
    assert "nowhere/code" in repr(mixture)


WORDS = Field("int32", vocabulary=["a", "b"], unknown=9)


@pytest.mark.parametrize(
    "other",
    [
        Field("int32", vocabulary=["b", "a"]),
        Field("int32", vocabulary=["a", "c", "b"]),
        Field("int32", vocabulary=["a", "b", "c"]),  # what is unknown to the first would be "c" here
        Field("int32", vocabulary=["a", "b"], unknown=2),
        Field("int32", hash_buckets=2),
    ],
)
def test_one_value_has_one_code_in_all_data_sets(other):
    first, second = Dataset("nowhere/web", fields={"word": WORDS}), Dataset("nowhere/code", fields={"word": other})
    with pytest.raises(ValueError, match="a value of 'word' would have one code in 'web' and another one in 'code'"):
        Mixture({"web": first, "books": CODE, "code": second})


@pytest.mark.parametrize(
    ("field", "other"),
    [
        (WORDS, WORDS),
        (WORDS, Field("int32")),  # codes already
        (Field(vocabulary=[3, 4]), Field(vocabulary=["3", "4"])),
        (Field(hash_buckets=9), Field(hash_buckets=9)),
    ],
)
def test_equal_codes_may_come_of_columns_of_other_types(field, other):
    first, second = Dataset("nowhere/web", fields={"word": field}), Dataset("nowhere/code", fields={"word": other})
    assert Mixture({"web": first, "code": second}).names == ("web", "code")


def spec(*entries):
    return Spec(tuple(entries))


ID, DENSE = Entry(name="id", dtype=np.dtype("int64")), Entry(name="dense", dtype=np.dtype("float32"), shape=(40,))


def test_equal_specs_are_one():
    mixture = Mixture({"web": WEB, "code": CODE}, source_field="source")
    assert mixture.check_specs({"web": spec(ID, DENSE), "code": spec(ID, DENSE)}) == spec(ID, DENSE)


def test_every_difference_between_specs_is_listed():
    mixture = Mixture({"web": WEB, "code": CODE, "books": WEB})
    wide = Entry(name="dense", dtype=np.dtype("float64"), shape=(41,))
    label = Entry(name="label", dtype=np.dtype("uint8"))
    with pytest.raises(FieldError) as raised:
        mixture.check_specs({"web": spec(ID, DENSE), "code": spec(ID, wide), "books": spec(DENSE, label)})
    for line in (
        "code: has dense: float64[41] where it is dense: float32[40]",
        "books: has no field id: int64",
        "books: has a field more, label: uint8",
    ):
        assert line in str(raised.value)
    assert raised.value.columns == ("dense", "id", "label")


def test_ranges_of_steps_differ_though_all_else_is_the_same(tmp_path):
    datasets = {}
    for name, high in (("web", 1), ("code", 2)):
        write_parquet(tmp_path / name / "a.parquet", {"x": np.linspace(0, 1, 20)})
        datasets[name] = Dataset(tmp_path / name, fields={"x": Field(storage_dtype=Scaled(0, high))})
    with pytest.raises(FieldError, match="code: has x: float64, kept as uint8 steps from 0 to 2 where it is"):
        Loader(Mixture(datasets), batch_size=4)


def test_the_order_of_fields_counts_because_it_is_that_of_a_batch():
    with pytest.raises(FieldError, match="in the order dense, id, not id, dense"):
        Mixture({"web": WEB, "code": CODE}).check_specs({"web": spec(ID, DENSE), "code": spec(DENSE, ID)})


def test_the_source_field_must_not_be_a_field():
    with pytest.raises(ValueError, match="choose another"):
        Mixture({"web": WEB}, source_field="id").check_specs({"web": spec(ID)})
