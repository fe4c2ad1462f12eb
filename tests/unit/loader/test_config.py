"""What is chosen where the user chose nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.loader.config import default_prefetch


@pytest.mark.parametrize(
    ("batch_bytes", "expected"), [(None, 12), (0.5, 40), (640 * 4096, 40), (4 << 20, 32), (1 << 30, 12)]
)
def test_small_batches_are_made_further_ahead(batch_bytes, expected):
    assert default_prefetch(batch_bytes) == expected


@given(st.floats(min_value=0, max_value=1e15), st.booleans())
def test_more_than_the_least_never_takes_more_than_128_mib_or_twice_as_much_of_a_device(batch_bytes, crosses):
    num_ahead = default_prefetch(batch_bytes, crosses=crosses)
    assert 12 <= num_ahead <= 40
    assert num_ahead == 12 or num_ahead * batch_bytes <= (256 if crosses else 128) << 20
    assert num_ahead >= default_prefetch(batch_bytes)
