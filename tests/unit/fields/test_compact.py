"""Narrow forms, one by one: what comes back, and what is refused."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.delivered import delivered, spec_of
from tests.strategies import examples

from stoker import Field, FieldError, Scaled

SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=9).filter(lambda shape: shape[0] > 0)
INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
NO_NUMBERS = st.sampled_from([np.nan, np.inf, -np.inf])


def through(values, storage_dtype):
    """The array as a batch has it where it is kept so."""
    found = delivered({"x": values}, {"x": Field(storage_dtype=storage_dtype)})["x"]
    assert (found.dtype, found.shape) == (values.dtype, values.shape)
    return found


@given(st.data(), st.sampled_from(INTEGERS), st.sampled_from(["int64", "uint64"]), SHAPES)
def test_integers_come_back_as_they_were_or_are_refused(data, storage_dtype, wide, shape):
    values = data.draw(
        hnp.arrays(
            wide,
            shape,
            elements=hnp.from_dtype(np.dtype(wide))
            | hnp.from_dtype(np.dtype(storage_dtype)).map(lambda v: abs(int(v))),
        )
    )
    limits = np.iinfo(storage_dtype)
    fits = [limits.min <= int(value) <= limits.max for value in values.reshape(-1)]
    if all(fits):
        np.testing.assert_array_equal(through(values, storage_dtype), values)
        return
    with pytest.raises(FieldError) as caught:
        through(values, storage_dtype)
    first = fits.index(False)
    assert f"column 'x': {values.reshape(-1)[first]} does not fit {storage_dtype}" in str(caught.value)
    assert f"(row {first // values[0].size}, counted from 0, of lake/a.parquet row group 0)" in str(caught.value)


@examples(15)
@given(hnp.arrays(np.bool_, hnp.array_shapes(min_dims=2, max_dims=3, max_side=9)))
def test_bits_come_back_as_they_were(values):
    np.testing.assert_array_equal(through(values, "bits"), values)


@examples(15)
@given(hnp.arrays(np.float32, SHAPES, elements=st.floats(-65504, 65504, width=32) | NO_NUMBERS))
def test_half_floats_are_the_nearest_and_what_is_no_number_stays_none(values):
    np.testing.assert_array_equal(through(values, "float16"), values.astype(np.float16).astype(np.float32))


@examples(15)
@given(hnp.arrays(np.float32, SHAPES, elements=st.floats(-(2.0**127), 2.0**127, width=32) | NO_NUMBERS))
def test_bfloat16_is_within_a_256th_and_keeps_what_is_no_number(values):
    found = through(values, "bfloat16")
    np.testing.assert_array_equal(np.isnan(found), np.isnan(values))
    usual = np.isfinite(values)
    np.testing.assert_array_equal(found[~usual], values[~usual])
    assert (np.abs(found[usual].astype(float) - values[usual]) <= np.abs(values[usual]) / 256 + 1e-38).all()


@pytest.mark.torch
@examples(10)
@given(hnp.arrays(np.float32, SHAPES, elements=st.floats(0, 1, width=32)))
@example(np.array([0.501953125, 0.505859375], np.float32))  # halfway between two
def test_bfloat16_rounds_as_torch_does(values):
    torch = pytest.importorskip("torch")
    nearest = torch.from_numpy(values).to(torch.bfloat16).float()
    np.testing.assert_array_equal(through(values, "bfloat16"), nearest.numpy())


@examples(15)
@given(st.data(), st.floats(-100, 100), st.floats(0.01, 1000), st.sampled_from(["uint8", "uint16"]))
def test_steps_of_a_range_are_half_a_step_off_at_most(data, low, width, dtype):
    scaled = Scaled(low, low + width, dtype)
    values = data.draw(hnp.arrays(np.float64, SHAPES, elements=st.floats(scaled.low, scaled.high)))
    assert (np.abs(through(values, scaled) - values) <= scaled.step / 2 * (1 + 1e-6)).all()


@pytest.mark.parametrize(
    ("values", "storage_dtype"),
    [
        (np.array([1.0, 1e6], np.float32), "float16"),
        (np.array([1.0, 3.4028235e38], np.float32), "bfloat16"),
        (np.array([1.0, 1e300]), "bfloat16"),
        (np.array([0.5, 1.01], np.float32), Scaled(0, 1)),
        (np.array([0.5, np.nan], np.float32), Scaled(0, 1)),
        (np.array([0.5, -np.inf], np.float32), Scaled(0, 1)),
        (np.array([0, -1]), "uint16"),
    ],
)
def test_what_does_not_fit_is_named_with_its_row(values, storage_dtype):
    with pytest.raises(FieldError, match=r"column 'x': .* does not fit .* \(row 1, counted from 0"):
        through(values, storage_dtype)


def test_forms_that_make_no_sense_are_refused_each_with_the_reason():
    cases = [
        ("float16", pa.int64(), "wider floats"),
        ("bfloat16", pa.float16(), "wider floats"),
        ("int32", pa.float32(), "wider integers"),
        ("int32", pa.int32(), "wider integers"),
        ("uint8", pa.list_(pa.bool_(), 3), "wider integers"),
        ("bits", pa.list_(pa.uint8(), 8), "bools"),
        ("bits", pa.bool_(), "stack several"),
        (Scaled(0, 1), pa.int64(), "floats"),
        (Scaled(0, 1, "uint16"), pa.float16(), "wider floats"),
        (Scaled(0, 1e5), pa.float16(), "larger than any float16"),
        (Scaled(-1e39, 1), pa.float32(), "larger than any float32"),
        (Scaled(0, 65504), pa.float16(), "larger than any float16"),  # by its steps, which are rounded up
        (Scaled(0, 1e-6), pa.float16(), "steps of"),
        (Scaled(-3e38, 3e38, "uint16"), pa.float32(), "larger than any float32"),
    ]
    fields = {f"x{i}": Field(storage_dtype=storage_dtype) for i, (storage_dtype, _, _) in enumerate(cases)}
    with pytest.raises(FieldError) as caught:
        spec_of(zip(fields, (kind for _, kind, _ in cases), strict=True), fields)
    _, *lines = str(caught.value).splitlines()
    for i, (line, (_, _, reason)) in enumerate(zip(lines, cases, strict=True)):
        assert line.startswith(f"  field 'x{i}': storage_dtype: ")
        assert reason in line


def test_one_range_is_one_form_however_its_ends_are_written():
    written = [Scaled(0, 1), Scaled(0.0, 1.0), Scaled(np.float32(0), np.int64(1))]
    assert len({str(Field("float32", storage_dtype=scaled).to_json()) for scaled in written}) == 1
    assert "storage_dtype" not in Field("float32").to_json()


def test_arguments_that_are_none_are_refused():
    with pytest.raises(ValueError, match="float8"):
        Field("float32", storage_dtype="float8")
    with pytest.raises(TypeError, match="storage_dtype"):
        Field("float32", storage_dtype=16)
    for low, high in ((1, 1), (2, 1), (0, float("inf")), (float("nan"), 1), (-1e308, 1e308)):
        with pytest.raises(ValueError, match="range"):
            Scaled(low, high)
    with pytest.raises(ValueError, match="int8"):
        Scaled(0, 1, "int8")


@pytest.mark.parametrize("times", [1, 1.5], ids=["whole blocks", "and a part of one"])
def test_every_half_float_is_widened_as_numpy_widens_it(times):
    halves = np.arange(int(times * (1 << 16))).astype(np.uint16).view(np.float16).reshape(-1, 16)
    with np.errstate(invalid="ignore"):
        wide = {"single": halves.astype(np.float32), "double": halves.astype(np.float64)}
    found = delivered(wide, {name: Field(storage_dtype="float16") for name in wide})
    for name, expected in wide.items():
        np.testing.assert_array_equal(found[name], expected)
        np.testing.assert_array_equal(np.signbit(found[name]), np.signbit(expected))
