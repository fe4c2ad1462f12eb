"""Words to buckets: every word gets what the `xxhash` package says, however many there are and however they lie."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from stoker import loops
from stoker.source.columns.words import Buckets, number_words

WORDS = st.lists(st.one_of(st.none(), st.binary(max_size=40), st.binary(max_size=300)), max_size=30)


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    assert loops.find("stoker.source.columns.hash_kernels") is not None


def expected(word: bytes, num_buckets: int) -> int:
    return xxhash.xxh3_64_intdigest(word) % num_buckets


@given(
    words=WORDS,
    num_buckets=st.integers(1, (1 << 62) - 1),
    first=st.integers(0, 3),
    kind=st.sampled_from([pa.binary(), pa.large_binary()]),
)
@example(words=[bytes(range(n)) for n in range(256)], num_buckets=(1 << 62) - 1, first=0, kind=pa.binary())
@example(words=[bytes(i % 7 for i in range(n)) for n in range(230, 260)], num_buckets=7, first=3, kind=pa.binary())
def test_bucket_of_each_word_is_its_hash(words: list[bytes | None], num_buckets: int, first: int, kind: pa.DataType):
    array = pa.array(words, kind)[first:]
    found = number_words(array, Buckets(num_buckets=num_buckets))
    assert found.dtype == np.int64
    assert len(found) == len(array)
    for word, bucket in zip(array.to_pylist(), found.tolist(), strict=True):
        if word is not None:
            assert bucket == expected(word, num_buckets)


@given(words=WORDS, num_buckets=st.integers(1, 1 << 40))
def test_loops_and_the_package_say_the_same(words: list[bytes | None], num_buckets: int):
    array = pa.array(words, pa.binary())
    way = Buckets(num_buckets=num_buckets)
    there = np.array([word is not None for word in words], bool)
    by_loops = number_words(array, way)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "find", lambda name: None)
        without = number_words(array, way)
    assert by_loops[there].tolist() == without[there].tolist()
