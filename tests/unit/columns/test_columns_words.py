"""Words to buckets: every word gets what the `xxhash` package says, however many there are and however they lie."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from stoker._native import hash_strings
from stoker.columns.words import Codes

WORDS = st.lists(st.one_of(st.none(), st.binary(max_size=40), st.binary(max_size=300)), max_size=30)


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
    found = Codes(num_buckets=num_buckets).of(array)
    assert found.dtype == np.int64
    assert len(found) == len(array)
    for word, bucket in zip(array.to_pylist(), found.tolist(), strict=True):
        if word is not None:
            assert bucket == expected(word, num_buckets)


@given(sizes=st.lists(st.integers(200, 5_000), min_size=1, max_size=5), seed=st.integers(0, 99))
@example(sizes=[240, 241, 1023, 1024, 1025, 2047, 2048, 2049, 3072], seed=0)
def test_buckets_of_long_words_are_their_hashes(sizes: list[int], seed: int):
    rng = np.random.default_rng(seed)
    words = [rng.bytes(size) for size in sizes]
    found = Codes(num_buckets=10**15).of(pa.array(words, pa.binary()))
    assert found.tolist() == [expected(word, 10**15) for word in words]


def test_words_that_lie_outside_of_their_data_are_an_error():
    data, out = np.zeros(8, np.uint8), np.empty(2, np.int64)
    for offsets in ([0, 4, 9], [0, 5, 4], [-1, 0, 4]):
        with pytest.raises(IndexError, match="outside of its data"):
            hash_strings(data, np.array(offsets), 7, out)
