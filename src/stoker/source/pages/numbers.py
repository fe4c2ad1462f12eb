"""What the loops over pages and their callers share: bytes, and tables of numbers with these columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

# Of a page: what it is (a number of the format), where its content begins, how long that is and was before it was
# compressed, how many entries it has (values, nulls and empty lists), how these are encoded, how many bytes of levels
# stand uncompressed before it, whether the rest is compressed, and its checksum (-1: it has none).
KIND, AT, STORED_BYTES, PLAIN_BYTES, NUM_ENTRIES, ENCODING, DEFINITION, REPETITION, IS_PACKED, CRC = range(10)
NUM_PAGE_NUMBERS = 10
DATA, DICTIONARY, DATA_V2 = 0, 2, 3

# Of all pages of a column chunk: how many, the most bytes of one before it was compressed, entries of those of values,
# values of the dictionary, whether any has a checksum, whether any is compressed, and where the last one ends.
NUM_PAGES, MOST_BYTES, ENTRIES, DICTIONARY_VALUES, HAS_CHECKSUMS, HAS_PACKED, END = range(7)
NUM_SUMS = 7

# Of a column: bytes of a value, definition level of a value and of an empty list (-1: none is known), whether it is one
# of lists, whether a value is a bit in a page and a byte behind it, and whether values are words: their lengths then,
# or their places in a dictionary.
WIDTH, FULL, EMPTY, IS_LIST, IS_BIT, IS_WORDS = range(6)

# How far a column chunk was decoded: rows, values (nulls of a flat column among them), nulls, values of the dictionary,
# or bytes of words that came without one.
ROWS, VALUES, NULLS, WORDS = range(4)
NUM_STATE_NUMBERS = 4

# What decompresses pages, in place of a function's address: a loop of ours.
SNAPPY_LOOP = -1

# What comes of it: all is well, something is not as it should be, or not known here, or there are more pages than there
# was room for.
DONE, BAD, TOO_MANY = range(3)
