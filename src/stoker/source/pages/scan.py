"""The pages of a column chunk, or of what is there of one: found by their headers, and held against their checksums."""

from __future__ import annotations

import threading
import zlib
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from stoker.source.pages.numbers import (
    AT,
    CRC,
    DICTIONARY,
    DICTIONARY_VALUES,
    DONE,
    END,
    ENTRIES,
    HAS_CHECKSUMS,
    HAS_PACKED,
    IS_PACKED,
    KIND,
    MOST_BYTES,
    NUM_ENTRIES,
    NUM_PAGE_NUMBERS,
    NUM_PAGES,
    NUM_SUMS,
    PLAIN_BYTES,
    STORED_BYTES,
    TOO_MANY,
    Bytes,
    Numbers,
)

# More pages than a column chunk has that was written in earnest: one of 1 GiB in pages of 8 KiB has 131,072.
_MOST_PAGES = 1 << 18
_FEW_PAGES = 64


@dataclass(frozen=True, eq=False)
class Pages:
    """Some pages, one behind the other.

    Attributes:
        content: Where they lie.
        table: A row a page, in columns of `numbers`; another one's with the next scan in this thread.
        num_entries: Of those of values: values, nulls and empty lists.
        num_words: Values of their dictionary; 0 without one.
        most_bytes: The most that one has before it is compressed.
        is_packed: Whether any is compressed.
        end: Where the last one ends.
    """

    content: Bytes
    table: Numbers
    num_entries: int
    num_words: int
    most_bytes: int
    is_packed: bool
    end: int

    def part(self, start: int, stop: int) -> Pages:
        """Return some of these pages; their table is a copy."""
        table = self.table[start:stop].copy()
        is_word = table[:, KIND] == DICTIONARY
        return Pages(
            content=self.content,
            table=table,
            num_entries=int(table[~is_word, NUM_ENTRIES].sum()),
            num_words=int(table[is_word, NUM_ENTRIES].max(initial=0)),
            most_bytes=int(table[:, PLAIN_BYTES].max(initial=0)),
            is_packed=bool(table[:, IS_PACKED].any()),
            end=int(table[-1, AT] + table[-1, STORED_BYTES]) if len(table) else 0,
        )


_kept = threading.local()


def scan(kernels: ModuleType, content: Bytes) -> Pages | None:
    """Return the pages that lie in `content` as a whole; None where one is not what its checksum says.

    Behind them may lie the beginning of another one, or what is no page: `end` says where.
    """
    table: Numbers | None = getattr(_kept, "pages", None)
    if table is None:
        table = _kept.pages = np.empty((_FEW_PAGES, NUM_PAGE_NUMBERS), np.int64)
    sums = np.empty(NUM_SUMS, np.int64)
    while True:
        try:
            done = kernels.scan(content, table, sums)
        except (IndexError, ValueError):  # a header that is cut short, or none
            done = DONE
        if done != TOO_MANY or len(table) > _MOST_PAGES:
            break
        table = np.empty((len(table) * 16, NUM_PAGE_NUMBERS), np.int64)
    numbers = sums.tolist()
    table = table[: numbers[NUM_PAGES]]
    if numbers[HAS_CHECKSUMS] and not _are_sound(content, table):
        return None
    return Pages(
        content=content,
        table=table,
        num_entries=numbers[ENTRIES],
        num_words=numbers[DICTIONARY_VALUES],
        most_bytes=numbers[MOST_BYTES],
        is_packed=bool(numbers[HAS_PACKED]),
        end=numbers[END],
    )


def _are_sound(content: Bytes, table: Numbers) -> bool:
    """Whether pages are what their checksums say."""
    return all(
        zlib.crc32(content[page[AT] : page[AT] + page[STORED_BYTES]].data) == page[CRC]
        for page in table[table[:, CRC] >= 0].tolist()
    )
