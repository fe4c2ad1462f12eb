"""Strings as codes and buckets: a batch has what each word of the file becomes, however the file keeps it.

Dictionary pages are looked at word by word, plain ones row by row, and a column may turn from one to the other halfway.
None of it may be told from the batches.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples

from stoker import Dataset, Field, FieldError, Loader

KINDS = [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()]
OPTIONS = {
    "compression": st.sampled_from(["none", "snappy", "zstd", "gzip"]),
    "data_page_version": st.sampled_from(["1.0", "2.0"]),
    "data_page_size": st.sampled_from([64, 1_000, 1 << 20]),
    "dictionary_pagesize_limit": st.sampled_from([1 << 20, 300]),
    "write_batch_size": st.sampled_from([7, 1024]),
    "use_dictionary": st.booleans(),
}


def make_words(rng: np.random.Generator, num_rows: int, num_distinct: int, null_share: float) -> list[str | None]:
    pool = [f"{i}-" + "x" * int(rng.integers(0, 12) ** 2) for i in range(num_distinct)]
    return [
        None if missing else pool[k]
        for k, missing in zip(rng.integers(0, num_distinct, num_rows), rng.random(num_rows) < null_share, strict=True)
    ]


def bucket(word: str | None, num_buckets: int, fill: int) -> int:
    return fill if word is None else xxhash.xxh3_64_intdigest(word.encode()) % num_buckets


@examples(20)
@given(
    data=st.data(),
    num_rows=st.sampled_from([1, 50, 700, 3_000]),
    num_distinct=st.sampled_from([1, 5, 300, 2_000]),
    null_share=st.sampled_from([0.0, 0.1, 1.0]),
    kind=st.sampled_from(KINDS),
    chunk_size=st.sampled_from(["32MiB", "2KiB"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_words_become_what_each_of_them_is(data, num_rows, num_distinct, null_share, kind, chunk_size, seed):
    rng = np.random.default_rng(seed)
    words = {name: make_words(rng, num_rows, num_distinct, null_share) for name in "abcd"}
    columns = {name: pa.array(column, pa.string()).cast(kind) for name, column in words.items()}
    options = {name: data.draw(strategy, label=name) for name, strategy in OPTIONS.items()}
    known = sorted({word for word in words["b"] if word is not None})[: 1 + num_distinct // 2]
    fields = {
        "a": Field("int32", hash_buckets=1_000_003, fill=7),
        "b": Field("int16", vocabulary=known, unknown=-1, fill=-2, mask=True),
        "both": Field("int64", columns=["c", "d"], hash_buckets=97, mask=True),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "words.parquet"
        group_rows = data.draw(st.sampled_from([num_rows, max(1, num_rows // 3)]))
        pq.write_table(pa.table({"row": np.arange(num_rows)} | columns), path, row_group_size=group_rows, **options)
        places = {word: i for i, word in enumerate(known)}
        codes = [-2 if word is None else places.get(word, -1) for word in words["b"]]
        pairs = [[bucket(word, 97, 0) for word in pair] for pair in zip(words["c"], words["d"], strict=True)]
        expected = {
            "a": np.array([bucket(word, 1_000_003, 7) for word in words["a"]]),
            "b": np.array(codes),
            "b_mask": np.array([word is not None for word in words["b"]]),
            "both": np.array(pairs),
            "both_mask": np.array(
                [[c is not None, d is not None] for c, d in zip(words["c"], words["d"], strict=True)]
            ),
        }
        with Loader(Dataset(path, fields=fields, chunk_size=chunk_size), batch_size=64, shuffle=True) as loader:
            rows = []
            for batch in loader:
                for name, of_row in expected.items():
                    np.testing.assert_array_equal(batch[name], of_row[batch["row"]])
                rows += batch["row"].tolist()
        assert sorted(rows) == list(range(num_rows))


def test_strings_are_never_made_where_their_dictionary_will_do(tmp_path):
    words = [f"word {i % 50}" * 20 for i in range(20_000)]
    pq.write_table(pa.table({"a": words, "b": words, "c": words}), tmp_path / "words.parquet")
    fields = {"a": Field("int32", hash_buckets=9), "b": Field("int32", vocabulary=sorted(set(words)))}
    seen = []

    def look(table):
        seen.extend(table.schema.types)
        return table

    def decoded_bytes(**options):
        with Loader(Dataset(tmp_path, columns=["a", "b"], fields=fields, **options), batch_size=500) as loader:
            assert {batch["a"].dtype for batch in loader} == {np.dtype(np.int32)}
            return loader.stats().stages["decode"].num_bytes

    assert decoded_bytes() < 20_000 * 10
    # A transform gets the strings that the files have, and so does a filter.
    assert decoded_bytes(transform=look, transform_version="1") > 20_000 * 200
    assert seen == [pa.string(), pa.string()]
    assert 20_000 * 100 < decoded_bytes(filters=[("b", "!=", words[3])]) < 20_000 * 200


def test_a_word_outside_the_vocabulary_is_an_error_only_where_a_row_has_it(tmp_path):
    kinds = [i % 5 for i in range(100)]
    words = [f"word {kind}" for kind in kinds]
    pq.write_table(pa.table({"kind": kinds, "word": words}), tmp_path / "words.parquet", row_group_size=30)
    fields = {"word": Field("int8", vocabulary=[f"word {i}" for i in range(4)])}
    with Loader(Dataset(tmp_path, fields=fields, filters=[("kind", "<", 4)]), batch_size=100) as loader:
        (batch,) = loader
        assert batch["word"].tolist() == [kind for kind in kinds if kind < 4]
    with (
        pytest.raises(FieldError, match=r"'word 4' is not among the 4 values .*\(row 4, counted from 0"),
        Loader(Dataset(tmp_path, fields=fields), batch_size=100) as loader,
    ):
        next(iter(loader))
