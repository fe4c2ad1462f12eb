"""The few numbers of a Parquet footer that planning needs, read without pyarrow's column accessors.

Those accessors end the process on some corrupt footers (a C++ exception that nobody catches), and are slower than the
compiled form of these loops. pyarrow has parsed the footer before, so it is well-formed Thrift; what its numbers say is
checked by `footer_numbers.py`. Everything here works on `bytes` in plain Python and, compiled, on NumPy arrays.

Source:
    Thrift compact protocol specification; parquet.thrift of parquet-format 2.11.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

# bytes, or an array of uint8; a row is int64.
Bytes: TypeAlias = Any
Row: TypeAlias = Any

# Columns of the array of column chunks.
TYPE = 0
DATA_OFFSET = 1
DICTIONARY_OFFSET = 2
COMPRESSED = 3
UNCOMPRESSED = 4
NULL_COUNT = 5
IS_ENCRYPTED = 6
NUM_REPETITION_LEVELS = 7
NUM_DEFINITION_LEVELS = 8
HAS_METADATA = 9
MIN_BYTES = 10
MAX_BYTES = 11
CODEC = 12
NUM_VALUES = 13
ENCODINGS = 14  # a bit for each
WORD_BYTES = 15  # of all strings or binary, decoded
NUM_CHUNK_NUMBERS = 16

# Columns of the array of row groups.
TOTAL_BYTES = 0
NUM_ROWS = 1
NUM_GROUP_NUMBERS = 2

_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = 0, 1, 2, 3, 7, 8, 9, 10, 11, 12, 13
_I32, _I64 = 5, 6
_VARINT_FIRST, _VARINT_LAST = 4, 6  # i16, i32, i64
_MAX_DEPTH = 32


def varint(b: Bytes, at: int) -> tuple[int, int]:
    """Return an unsigned number and where it ends."""
    result = 0
    shift = 0
    while True:
        byte = int(b[at])
        at += 1
        if shift == 63 and byte > 1:  # more than 64 bits
            raise ValueError("corrupt footer")
        result |= (byte & 127) << shift
        if byte < 128:
            return result, at
        shift += 7


def zigzag(b: Bytes, at: int) -> tuple[int, int]:
    """Return a signed number and where it ends."""
    n, at = varint(b, at)
    return ((n >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(n & 1), at


def binary_bytes(b: Bytes, at: int) -> tuple[int, int]:
    """Return the length of a binary value and where it ends."""
    size, at = varint(b, at)
    # Compiled, a length beyond 63 bits is negative, and leads back to where reading came from.
    if not 0 <= size <= len(b) - at:
        raise ValueError("corrupt footer")
    return size, at + size


def field(b: Bytes, at: int, last: int) -> tuple[int, int, int]:
    """Return number, kind and content of the next field of a struct; kind 0 where the struct ends."""
    byte = int(b[at])
    at += 1
    kind = byte & 15
    if kind == _STOP:
        return last, kind, at
    if byte >> 4:
        return last + (byte >> 4), kind, at
    number, at = zigzag(b, at)
    return number, kind, at


def items(b: Bytes, at: int) -> tuple[int, int, int]:
    """Return how many elements a list has, their kind, and where they begin."""
    byte = int(b[at])
    at += 1
    num = byte >> 4
    if num == 15:
        num, at = varint(b, at)
    return num, byte & 15, at


def skip(b: Bytes, at: int, kind: int) -> int:
    """Return where a value ends. A stack instead of recursion: compiled recursive functions cannot be kept on disk."""
    if _VARINT_FIRST <= kind <= _VARINT_LAST:
        return varint(b, at)[1]
    if kind == _BINARY:
        return binary_bytes(b, at)[1]
    if kind in (_TRUE, _FALSE):
        return at
    kinds = np.zeros((_MAX_DEPTH, 2), np.int64)  # of the elements in turn: those of a map are key, value, key, ...
    left = np.zeros(_MAX_DEPTH, np.int64)  # elements to come; -1 in a struct, which says itself where it ends
    depth = 0
    while True:
        if _VARINT_FIRST <= kind <= _VARINT_LAST:
            at = varint(b, at)[1]
        elif kind == _BINARY:
            at = binary_bytes(b, at)[1]
        elif kind in (_LIST, _SET):
            depth += 1
            num, element, at = items(b, at)
            # Each takes a byte at least. Without any, their kind may be anything, such as fastparquet's 0.
            if not 0 <= num <= len(b) - at or (num > 0 and element == _STOP):
                raise ValueError("corrupt footer")
            left[depth] = num
            kinds[depth, :] = element
        elif kind == _MAP:
            depth += 1
            num, at = varint(b, at)
            if not 0 <= num <= len(b) - at:
                raise ValueError("corrupt footer")
            left[depth] = 2 * num
            if num > 0:  # an empty one ends here
                byte = int(b[at])
                at += 1
                kinds[depth, 0], kinds[depth, 1] = byte & 15, byte >> 4  # left is odd for values
                if byte & 15 == _STOP or byte >> 4 == _STOP:
                    raise ValueError("corrupt footer")
        elif kind == _STRUCT:
            depth += 1
            left[depth] = -1
        elif kind == _BYTE:
            at += 1
        elif kind == _DOUBLE:
            at += 8
        elif kind == _UUID:
            at += 16
        elif kind not in (_TRUE, _FALSE):
            raise ValueError("corrupt footer")
        if at > len(b) or depth > _MAX_DEPTH - 2:
            raise ValueError("corrupt footer")
        kind = _STOP
        while depth > 0 and kind == _STOP:
            if left[depth] < 0:
                _, kind, at = field(b, at, 0)
            elif left[depth] > 0:
                left[depth] -= 1
                # true and false take a byte in a list, and none as a field
                element = kinds[depth, left[depth] & 1]
                kind = _BYTE if element in (_TRUE, _FALSE) else element
                continue
            if kind == _STOP:
                depth -= 1
        if kind == _STOP:
            return at


def statistics(b: Bytes, at: int, row: Row) -> int:
    """Read a Statistics struct into `row`."""
    number = 0
    while True:
        number, kind, at = field(b, at, number)
        if kind == _STOP:
            return at
        if number == 3 and kind == _I64:
            row[NULL_COUNT], at = zigzag(b, at)
        elif number == 5 and kind == _BINARY:
            row[MAX_BYTES], at = binary_bytes(b, at)
        elif number == 6 and kind == _BINARY:
            row[MIN_BYTES], at = binary_bytes(b, at)
        else:
            at = skip(b, at, kind)


def sizes(b: Bytes, at: int, row: Row) -> int:
    """Read a SizeStatistics struct into `row`."""
    number = 0
    while True:
        number, kind, at = field(b, at, number)
        if kind == _STOP:
            return at
        if number == 1 and _VARINT_FIRST <= kind <= _VARINT_LAST:
            row[WORD_BYTES], at = zigzag(b, at)
            continue
        if number == 2 and kind == _LIST:
            row[NUM_REPETITION_LEVELS], _, _ = items(b, at)
        elif number == 3 and kind == _LIST:
            row[NUM_DEFINITION_LEVELS], _, _ = items(b, at)
        at = skip(b, at, kind)


def encodings(b: Bytes, at: int) -> tuple[int, int]:
    """Return a bit for each encoding of a list of them, and where it ends."""
    num, kind, at = items(b, at)
    if num > 0 and kind != 5:
        raise ValueError("corrupt footer")
    found = 0
    for _ in range(num):
        number, at = zigzag(b, at)
        if 0 <= number < 62:
            found |= 1 << number
    return found, at


def column_metadata(b: Bytes, at: int, row: Row) -> int:
    """Read a ColumnMetaData struct into `row`."""
    number = 0
    while True:
        number, kind, at = field(b, at, number)
        if kind == _STOP:
            return at
        if number == 1 and kind == _I32:
            row[TYPE], at = zigzag(b, at)
        elif number == 2 and kind == _LIST:
            row[ENCODINGS], at = encodings(b, at)
        elif number == 4 and kind == _I32:
            row[CODEC], at = zigzag(b, at)
        elif number == 5 and kind == _I64:
            row[NUM_VALUES], at = zigzag(b, at)
        elif number == 6 and kind == _I64:
            row[UNCOMPRESSED], at = zigzag(b, at)
        elif number == 7 and kind == _I64:
            row[COMPRESSED], at = zigzag(b, at)
        elif number == 9 and kind == _I64:
            row[DATA_OFFSET], at = zigzag(b, at)
        elif number == 11 and kind == _I64:
            row[DICTIONARY_OFFSET], at = zigzag(b, at)
        elif number == 12 and kind == _STRUCT:
            at = statistics(b, at, row)
        elif number == 16 and kind == _STRUCT:
            at = sizes(b, at, row)
        else:
            at = skip(b, at, kind)


def column_chunk(b: Bytes, at: int, row: Row) -> int:
    """Read a ColumnChunk struct into `row`."""
    row[:] = -1
    row[IS_ENCRYPTED] = 0
    row[HAS_METADATA] = 0
    number = 0
    while True:
        number, kind, at = field(b, at, number)
        if kind == _STOP:
            return at
        if number == 3 and kind == _STRUCT:
            row[HAS_METADATA] = 1
            at = column_metadata(b, at, row)
        else:
            if number == 8 or number == 9:
                row[IS_ENCRYPTED] = 1
            at = skip(b, at, kind)


def row_group(b: Bytes, at: int, group: Row, chunks: Any) -> int:
    """Read a RowGroup struct into `group`, and its column chunks into the rows of `chunks`."""
    number = 0
    while True:
        number, kind, at = field(b, at, number)
        if kind == _STOP:
            return at
        if number == 1 and kind == _LIST:
            num, element, at = items(b, at)
            if num != len(chunks) or (num > 0 and element != _STRUCT):
                raise ValueError("corrupt footer")
            for i in range(num):
                at = column_chunk(b, at, chunks[i])
        elif number == 2 and kind == _I64:
            group[TOTAL_BYTES], at = zigzag(b, at)
        elif number == 3 and kind == _I64:
            group[NUM_ROWS], at = zigzag(b, at)
        else:
            at = skip(b, at, kind)


def footer(b: Bytes, groups: Any, chunks: Any) -> None:
    """Read the FileMetaData at the beginning of `b`.

    Args:
        b: The footer.
        groups: int64, shape [row groups, NUM_GROUP_NUMBERS]; filled.
        chunks: int64, shape [row groups, columns, NUM_CHUNK_NUMBERS]; filled, -1 for what is not there.

    Raises:
        ValueError: It does not hold so many row groups, or columns in each.
        IndexError: It ends early.
    """
    at = 0
    number = 0
    while True:
        number, kind, at = field(b, at, number)
        if kind == _STOP:
            return
        if number == 4 and kind == _LIST:
            num, element, at = items(b, at)
            if num != len(groups) or (num > 0 and element != _STRUCT):
                raise ValueError("corrupt footer")
            for i in range(num):
                at = row_group(b, at, groups[i], chunks[i])
        else:
            at = skip(b, at, kind)
