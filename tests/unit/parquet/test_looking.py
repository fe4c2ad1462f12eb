"""Column chunks are looked at before they are decoded, and never for ever."""

from stoker.parquet.decode import _Looking, _Wanted


def test_a_dictionary_without_bytes_is_looked_at_where_no_page_is_behind_it():
    def look():
        header = yield _Wanted(4, 18, is_header=True)
        words = yield _Wanted(18, 18)
        return (len(header), len(words)) == (14, 0)

    looking = _Looking(look())
    looking.see(4, bytes(14))
    assert looking.wanted is None
    assert looking.is_large
