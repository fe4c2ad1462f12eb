"""Column chunks are looked at before they are decoded, and never for ever."""

import pytest

from stoker.parquet.decode import _follow


def test_a_dictionary_without_bytes_is_looked_at_where_no_page_is_behind_it():
    def look():
        header = yield 4, 18, True
        words = yield 18, 18, False
        return (len(header), len(words)) == (14, 0)

    following = _follow(look())
    next(following)
    with pytest.raises(StopIteration) as over:
        following.send((4, bytes(14)))
    assert over.value.value
