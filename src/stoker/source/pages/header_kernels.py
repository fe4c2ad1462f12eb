"""The compiled loop that reads the headers of pages.

Source:
    Apache Parquet format 2.11: parquet.thrift.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from numba import types

from stoker.compiling import compile_loop, reads, writes
from stoker.source.pages.numbers import (
    AT,
    BAD,
    CRC,
    DEFINITION,
    DICTIONARY,
    DICTIONARY_VALUES,
    DONE,
    ENCODING,
    END,
    ENTRIES,
    HAS_CHECKSUMS,
    HAS_PACKED,
    IS_PACKED,
    KIND,
    MOST_BYTES,
    NUM_ENTRIES,
    NUM_PAGES,
    PLAIN_BYTES,
    REPETITION,
    STORED_BYTES,
    TOO_MANY,
)
from stoker.source.thrift_kernels import field, skip, zigzag

_STOP, _TRUE, _FALSE, _I32, _STRUCT = 0, 1, 2, 5, 12
_RLE = 3
_MOST_NUMBER = 2**31 - 1

_BYTES = reads(types.uint8)
_OUT_INT64, _OUT_INT64_2D = writes(types.int64), writes(types.int64, 2)


@compile_loop(types.int64(_BYTES, types.int64, _OUT_INT64, types.int64), boundscheck=True)
def _inner_header(b, at, page, which):
    """Read a DataPageHeader (5), DictionaryPageHeader (7) or DataPageHeaderV2 (8) into `page`."""
    number = 0
    value = 0
    while True:
        number, kind, at = field(b, at, number)
        if kind == _STOP:
            return at
        if kind != _I32:
            if which == 8 and number == 7 and kind == _FALSE:
                page[IS_PACKED] = 0
            at = skip(b, at, kind)
        elif number == 1:
            page[NUM_ENTRIES], at = zigzag(b, at)
        elif number == 2 and which != 8:
            page[ENCODING], at = zigzag(b, at)
        elif which == 5 and (number == 3 or number == 4):
            value, at = zigzag(b, at)
            if value != _RLE:
                page[KIND] = -2  # levels as nobody has written them for ten years
        elif which == 8 and number == 4:
            page[ENCODING], at = zigzag(b, at)
        elif which == 8 and number == 5:
            page[DEFINITION], at = zigzag(b, at)
        elif which == 8 and number == 6:
            page[REPETITION], at = zigzag(b, at)
        else:
            at = skip(b, at, kind)


@compile_loop(types.int64(_BYTES, types.int64, _OUT_INT64), boundscheck=True)
def _page_header(b, at, page):
    """Read a PageHeader struct into `page`, and return where it ends."""
    page[:] = -1
    page[DEFINITION] = 0
    page[REPETITION] = 0
    page[IS_PACKED] = 1
    number = 0
    while True:
        number, kind, at = field(b, at, number)
        if kind == _STOP:
            return at
        if number == 1 and kind == _I32:
            page[KIND], at = zigzag(b, at)
        elif number == 2 and kind == _I32:
            page[PLAIN_BYTES], at = zigzag(b, at)
        elif number == 3 and kind == _I32:
            page[STORED_BYTES], at = zigzag(b, at)
        elif number == 4 and kind == _I32:
            page[CRC], at = zigzag(b, at)
            page[CRC] &= 0xFFFFFFFF
        elif (number == 5 or number == 7 or number == 8) and kind == _STRUCT:
            at = _inner_header(b, at, page, number)
        else:
            at = skip(b, at, kind)


@compile_loop(types.int64(_BYTES, _OUT_INT64_2D, _OUT_INT64))
def scan(b, pages, sums):
    """Read the headers of pages that lie one behind the other, as far as they are there as a whole.

    Args:
        b: The pages.
        pages: Filled, a row a page.
        sums: Filled, page by page: what is to be known of all of them.

    Returns:
        DONE, TOO_MANY where there are more than `pages` has rows, BAD where one is cut short, or not what it should be.

    Raises:
        IndexError, ValueError: A header is cut short, or no header. The pages before it are there.
    """
    sums[:] = 0
    while sums[END] < len(b):
        num = sums[NUM_PAGES]
        if num == len(pages):
            return TOO_MANY
        page = pages[num]
        at = _page_header(b, sums[END], page)
        levels = page[DEFINITION] + page[REPETITION]
        # All of them are 32-bit numbers of the format: what is computed from them stays far from the ends of 64 bits.
        for number in (STORED_BYTES, PLAIN_BYTES, NUM_ENTRIES, DEFINITION, REPETITION):
            if page[number] < 0 or page[number] > _MOST_NUMBER:
                return BAD
        if page[STORED_BYTES] > len(b) - at or levels > page[STORED_BYTES] or levels > page[PLAIN_BYTES]:
            return BAD
        if page[KIND] == DICTIONARY and page[NUM_ENTRIES] > page[PLAIN_BYTES]:
            return BAD  # a value takes a byte at least
        page[AT] = at
        if page[KIND] == DICTIONARY:
            sums[DICTIONARY_VALUES] = max(sums[DICTIONARY_VALUES], page[NUM_ENTRIES])
        else:
            sums[ENTRIES] += page[NUM_ENTRIES]
        sums[MOST_BYTES] = max(sums[MOST_BYTES], page[PLAIN_BYTES])
        sums[HAS_CHECKSUMS] |= page[CRC] >= 0
        sums[HAS_PACKED] |= page[IS_PACKED]
        sums[NUM_PAGES] = num + 1
        sums[END] = at + page[STORED_BYTES]
    return DONE
