"""Columns of words, or of integers, as codes and buckets: of a dictionary each word once, not each row.

words     ┆ DE ┆ FR ┆ IT │ null      a dictionary, and one more for rows without a word
codes     ┆  0 ┆  1 ┆  9 │ fill      in the dtype that is delivered
rows      ┆ 1  2  3  0  0 …          looked up: one pass, whatever is asked of the words
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from stoker.columns.borders import decoded, without_encoding
from stoker.columns.column import ColumnPlan
from stoker.columns.kinds import WORDS, Form, dtype_of
from stoker.columns.numeric import ValuePlace, buffer_of, numbers_of, validity
from stoker.columns.words import (
    MISSING,
    Buckets,
    Codes,
    bytes_as_binary,
    number_integers,
    number_words,
)
from stoker.errors import FieldError
from stoker.fields.spec import Array


class Coded(NamedTuple):
    """Some rows of a column as codes.

    Attributes:
        values: Codes or buckets in the dtype planned, the fill or zero at nulls. Shape [n].
        valid: Which rows had a value, bool [n]; None where all had.
    """

    values: Array
    valid: Array | None


def is_coded(column: ColumnPlan) -> bool:
    """Whether a column is one of words, without lists around them, each of which becomes a number."""
    is_numbered = isinstance(column.way, Codes | Buckets)
    return is_numbered and column.leaf.form is Form.BYTES and not column.levels


def codes(array: pa.Array, column: ColumnPlan, place: ValuePlace) -> Coded:
    """Return the code or bucket of each value.

    Raises:
        FieldError: A value is outside the vocabulary, and nothing stands for such.
    """
    if column.leaf.form in WORDS and pa.types.is_dictionary(array.type) and len(array.dictionary) <= len(array):
        found = _codes_by_dictionary(array, column, place)
        if found is not None:
            return found
    array = decoded(array)
    numbers, valid = _numbers(array, column, place)
    odd = _first_without_code(numbers, valid, column)
    if odd is not None:
        raise _unknown_word(array, column, odd, place)
    values = _as_delivered(numbers, column)
    return Coded(values if valid is None else np.where(valid, values, _at_null(column)), valid)


def _codes_by_dictionary(array: pa.DictionaryArray, column: ColumnPlan, place: ValuePlace) -> Coded | None:
    """Return the codes of rows that are places in a dictionary; None where one of its words, used or not, has none."""
    words = decoded(without_encoding(array.dictionary))
    numbers, there = _numbers(words, column, place)
    if _first_without_code(numbers, there, column) is not None:
        return None
    values, valid = _as_delivered(numbers, column), validity(array.indices)
    places = buffer_of(array.indices, dtype_of(array.indices.type))
    if there is not None:
        values = np.where(there, values, _at_null(column))
    if valid is not None:
        places, values = np.where(valid, places, len(words)), np.append(values, _at_null(column))
    if there is not None:
        valid = np.append(there, False).take(places)
    return Coded(values.take(places), valid)


def _numbers(array: pa.Array, column: ColumnPlan, place: ValuePlace) -> tuple[Array, Array | None]:
    """Return the code or bucket of each value, int64 [n], MISSING where it has none, and which values are there."""
    way = column.way
    if not isinstance(way, Codes | Buckets):
        raise TypeError(f"{way!r} gives no codes")
    if column.leaf.form in WORDS:
        return number_words(bytes_as_binary(array), way), validity(array)
    valid = validity(array)
    return number_integers(numbers_of(array, column.leaf, valid, place), way), valid


def _first_without_code(numbers: Array, there: Array | None, column: ColumnPlan) -> int | None:
    """Return where the first value is that is outside of its vocabulary, where nothing stands for such."""
    way = column.way
    if not isinstance(way, Codes) or way.unknown is not None:
        return None
    is_missing = numbers == MISSING if there is None else (numbers == MISSING) & there
    return int(np.argmax(is_missing)) if is_missing.any() else None


def _as_delivered(numbers: Array, column: ColumnPlan) -> Array:
    """Return codes in the dtype planned, which can hold all of them."""
    way = column.way
    if isinstance(way, Codes) and way.unknown is not None:
        numbers = np.where(numbers == MISSING, way.unknown, numbers)
    return numbers.astype(column.dtype, copy=False)


def _at_null(column: ColumnPlan) -> Any:
    """Return what stands where there is no value, in the dtype planned."""
    return column.dtype.type(0 if column.fill is None or isinstance(column.fill, bytes) else column.fill)


def _unknown_word(array: pa.Array, column: ColumnPlan, index: int, place: ValuePlace) -> FieldError:
    way = column.way
    assert isinstance(way, Codes)
    word = array[index].as_py()
    if isinstance(word, bytes):
        word = word.decode("utf-8", errors="backslashreplace")
    return place.error(
        f"{word!r} is not among the {len(way.words)} values of its vocabulary",
        index=index,
        advice="Add it, or give unknown= a code for such values.",
    )
