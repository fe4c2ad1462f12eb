"""Narrow forms, one by one: what comes back, and what is refused."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stoker import Entry, Field, Scaled, Spec
from stoker.fields.compact import STORAGE_DTYPES, Compact, MisfitError, narrow, plan_compact, widen

SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=9)
INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")


def kept(values, storage_dtype):
    """What is kept of an array, and how it is widened."""
    dtype, shape, compact = plan_compact(storage_dtype, values.dtype, values.shape[1:])
    found = narrow(values, compact, dtype)
    assert found.dtype == dtype
    assert found.shape == (len(values), *shape)
    return found, compact


def through(values, storage_dtype):
    """The array, kept and widened again."""
    found = widen(*kept(values, storage_dtype))
    assert found.dtype == values.dtype
    assert found.shape == values.shape
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
    with pytest.raises(MisfitError) as caught:
        kept(values, storage_dtype)
    first = fits.index(False)
    assert caught.value.index == first // (values[0].size)
    assert str(values.reshape(-1)[first]) == str(caught.value)


@given(hnp.arrays(np.bool_, SHAPES.filter(lambda shape: len(shape) > 1)))
def test_bits_come_back_as_they_were(values):
    assume(values.size)
    np.testing.assert_array_equal(through(values, "bits"), values)
    found, _ = kept(values, "bits")
    assert found.nbytes == len(values) * np.prod(values.shape[1:-1], dtype=int) * -(-values.shape[-1] // 8)


@given(hnp.arrays(np.float32, SHAPES, elements=st.floats(-65504, 65504, width=32)))
def test_half_floats_are_the_nearest(values):
    np.testing.assert_array_equal(through(values, "float16"), values.astype(np.float16).astype(np.float32))


@given(
    hnp.arrays(
        np.float32,
        SHAPES,
        elements=st.floats(-(2.0**127), 2.0**127, width=32) | st.sampled_from([np.nan, np.inf, -np.inf]),
    )
)
def test_bfloat16_is_within_a_256th_and_keeps_what_is_no_number(values):
    found = through(values, "bfloat16")
    np.testing.assert_array_equal(np.isnan(found), np.isnan(values))
    usual = np.isfinite(values)
    np.testing.assert_array_equal(found[~usual], values[~usual])
    assert (np.abs(found[usual].astype(float) - values[usual]) <= np.abs(values[usual]) / 256 + 1e-38).all()


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
        (np.array([0, 1 << 40]), "int32"),
        (np.array([0, -1]), "uint16"),
        (np.array([0, (1 << 64) - 1], np.uint64), "int8"),
    ],
)
def test_what_does_not_fit_is_named_with_its_row(values, storage_dtype):
    with pytest.raises(MisfitError) as caught:
        kept(values, storage_dtype)
    assert caught.value.index == 1


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_what_was_no_number_stays_none(special):
    values = np.array([special, 1.0], np.float32)
    np.testing.assert_array_equal(through(values, "float16"), values)


@pytest.mark.parametrize(
    ("storage_dtype", "dtype", "shape", "reason"),
    [
        ("float16", "int64", (), "wider floats"),
        ("bfloat16", "float16", (), "wider floats"),
        ("int32", "float32", (), "wider integers"),
        ("int32", "int32", (), "wider integers"),
        ("uint8", "bool", (3,), "wider integers"),
        ("bits", "uint8", (8,), "bools"),
        ("bits", "bool", (), "stack several"),
        (Scaled(0, 1), "int64", (), "floats"),
        (Scaled(0, 1, "uint16"), "float16", (), "wider floats"),
        (Scaled(0, 1e5), "float16", (), "larger than any float16"),
        (Scaled(-1e39, 1), "float32", (), "larger than any float32"),
        (Scaled(0, 65504), "float16", (), "larger than any float16"),  # by its steps, which are rounded up
        (Scaled(0, 1e-6), "float16", (), "steps of"),
        (Scaled(-3e38, 3e38, "uint16"), "float32", (), "larger than any float32"),
    ],
)
def test_a_form_that_makes_no_sense_is_refused_with_the_reason(storage_dtype, dtype, shape, reason):
    with pytest.raises(MisfitError, match=reason):
        plan_compact(storage_dtype, np.dtype(dtype), shape)


def test_one_range_is_one_form_however_its_ends_are_written():
    written = [Scaled(0, 1), Scaled(0.0, 1.0), Scaled(np.float32(0), np.int64(1))]
    assert len({str(Field("float32", storage_dtype=scaled).to_json()) for scaled in written}) == 1


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


@pytest.mark.parametrize("storage_dtype", [*STORAGE_DTYPES, Scaled(-1, 1, "uint16")])
def test_entries_and_fields_say_how_they_are_kept_and_json_brings_them_back(storage_dtype):
    field = Field("float32", storage_dtype=storage_dtype)
    assert "storage_dtype" in field.to_json()
    assert "storage_dtype" not in Field("float32").to_json()
    wide = {"b": "bool", "i": "int64", "u": "int64", "f": "float32"}
    kind = (
        "b"
        if storage_dtype == "bits"
        else "f"
        if not isinstance(storage_dtype, str) or "float" in storage_dtype
        else "i"
    )
    dtype, shape, compact = plan_compact(storage_dtype, np.dtype(wide[kind]), (12,))
    entry = Entry(name="x", dtype=dtype, shape=shape, compact=compact)
    spec = Spec((entry, Entry(name="y", dtype=np.dtype(np.int64))))
    assert Spec.from_json(spec.to_json()) == spec
    assert spec.delivered["x"] == Entry(name="x", dtype=np.dtype(wide[kind]), shape=(12,))
    assert spec.record_bytes < spec.delivered.record_bytes
    assert spec.plain_bytes == spec.delivered.unshared_bytes
    assert "kept as" in str(entry)
    assert isinstance(compact, Compact)


@pytest.mark.torch
@given(
    hnp.arrays(np.float32, SHAPES, elements=st.floats(0, 1, width=32)),
    st.sampled_from(["float16", "bfloat16", Scaled(0.0, 1.0), Scaled(-0.1, 1.3, "uint16")]),
)
def test_a_device_widens_floats_to_the_same_bits(values, storage_dtype):
    torch = pytest.importorskip("torch")
    from stoker.torch.copies import widen_tensor

    found, compact = kept(values, storage_dtype)
    np.testing.assert_array_equal(widen_tensor(torch.from_numpy(found), compact).numpy(), widen(found, compact))
    if storage_dtype == "bfloat16":
        nearest = torch.from_numpy(values).to(torch.bfloat16)
        np.testing.assert_array_equal(found.view(np.int16), nearest.view(torch.int16).numpy())


@pytest.mark.torch
@given(st.data(), st.sampled_from([*INTEGERS, "bits"]), SHAPES.filter(lambda shape: len(shape) > 1))
def test_a_device_widens_integers_and_bits_to_the_same(data, storage_dtype, shape):
    torch = pytest.importorskip("torch")
    from stoker.torch.copies import widen_tensor

    dtype = np.dtype(np.bool_ if storage_dtype == "bits" else storage_dtype)
    values = data.draw(hnp.arrays(dtype, shape)).astype(np.bool_ if storage_dtype == "bits" else np.int64)
    assume(values.size)
    found, compact = kept(values, storage_dtype)
    wide = widen_tensor(torch.from_numpy(found), compact)
    assert wide.shape == values.shape
    np.testing.assert_array_equal(wide.numpy(), values)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("times", [1, 1.5], ids=["whole blocks", "and a part of one"])
def test_every_half_float_is_widened_as_numpy_widens_it(dtype, times):
    bits = np.arange(int(times * (1 << 16))).astype(np.uint16)
    records = np.zeros((len(bits) // 16, 24), dtype=np.uint16)
    records[:, 3:19] = bits.reshape(-1, 16)
    halves = records[:, 3:19].view(np.float16)  # as in a batch: a part of each record
    found = widen(halves, Compact("cast", np.dtype(dtype), (16,)))
    expected = halves.astype(dtype)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
