"""The lists of several windows as those of one: wherever each lies, in any order."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.gather.borders import Strips, join_strips
from stoker.gather.take import copy_fields
from stoker.offsets import offsets_of

VALUE_BYTES = np.array([8, 4, 1], dtype=np.int64)


@st.composite
def windows(draw):
    """Some windows: memory of their own, and in it strips of three fields for some rows, in any order."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    found = []
    for _ in range(draw(st.integers(1, 4))):
        num = draw(st.integers(0, 40))
        counts = rng.integers(0, draw(st.integers(1, 60)), (3, num))
        sizes = -(-(counts * VALUE_BYTES[:, None]).sum(axis=0) // 8) * 8
        begins = offsets_of(sizes)
        memory = rng.integers(0, 256, int(begins[-1]) + 64, dtype=np.uint8)
        first = begins[:-1] + np.cumsum(counts * VALUE_BYTES[:, None], axis=0) - counts * VALUE_BYTES[:, None]
        row = rng.permutation(num)
        offsets = np.zeros((3, num + 1), dtype=np.int64)
        np.cumsum(counts[:, row], axis=1, out=offsets[:, 1:])
        sources = np.ascontiguousarray(first[:, row])
        found.append((memory, Strips((memory.ctypes.data, memory.nbytes), sources, offsets, VALUE_BYTES)))
    return found, rng


def lists_of(memory, strips):
    """Return the bytes of every list, field by field."""
    counts = np.diff(strips.offsets, axis=1)
    return [
        [
            bytes(memory[begin : begin + count * size])
            for begin, count in zip(sources.tolist(), lengths.tolist(), strict=True)
        ]
        for sources, lengths, size in zip(strips.sources, counts, VALUE_BYTES.tolist(), strict=True)
    ]


@given(made=windows(), is_placed=st.booleans())
@pytest.mark.parametrize("compiled", [True, False])
def test_lists_of_several_windows_are_copied_as_those_of_one(made, is_placed, compiled):
    found, rng = made
    expected = [list(chain(*fields)) for fields in zip(*(lists_of(*window) for window in found), strict=True)]
    num = len(expected[0])
    places = rng.permutation(num) if is_placed else None
    if places is not None:
        order = np.argsort(places)
        expected = [[field[i] for i in order] for field in expected]
    strips = join_strips([one for _, one in found], places, compiled=compiled)
    taken = copy_fields(
        strips.memory,
        strips.sources,
        VALUE_BYTES,
        strips.offsets,
        lambda num_bytes: np.empty(num_bytes, dtype=np.uint8),
        compiled=compiled,
    )
    for field, offsets, begin, size in zip(expected, taken.offsets, taken.begins, VALUE_BYTES, strict=True):
        assert np.diff(offsets).tolist() == [len(one) // size for one in field]
        assert bytes(taken.values[begin : begin + offsets[-1] * size]) == b"".join(field)


@given(made=windows())
def test_some_fields_are_chosen_in_order(made):
    found, _ = made
    strips = found[0][1]
    some = strips.only([0, 2])
    np.testing.assert_array_equal(some.sources, strips.sources[[0, 2]])
    np.testing.assert_array_equal(some.offsets, strips.offsets[[0, 2]])
    assert some.value_bytes.tolist() == [8, 1]
    assert some.region == strips.region
