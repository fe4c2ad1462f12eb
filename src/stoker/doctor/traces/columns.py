"""Columns that grow: one array each, so that nothing is ever held twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_FIRST_ROWS = 1 << 16
# Memory that was not written to is none yet, so growing by much costs little; copying happens seldom.
_GROWTH = 2


class GrowingColumns:
    """Columns of equal length and given types, appended to.

    Args:
        types: By name.
    """

    def __init__(self, types: Mapping[str, type[np.generic]]) -> None:
        self._columns: dict[str, npt.NDArray[Any]] = {
            name: np.empty(_FIRST_ROWS, type_) for name, type_ in types.items()
        }
        self._num_rows = 0

    def append(self, rows: Mapping[str, npt.NDArray[Any]]) -> None:
        """Append rows, converted to the columns' types."""
        num = len(next(iter(rows.values())))
        stop = self._num_rows + num
        for name, column in self._columns.items():
            if stop > column.size:
                grown = np.empty(max(_GROWTH * column.size, stop), column.dtype)
                grown[: self._num_rows] = column[: self._num_rows]
                self._columns[name] = grown
            self._columns[name][self._num_rows : stop] = rows[name]
        self._num_rows = stop

    def take(self) -> dict[str, npt.NDArray[Any]]:
        """Return what was appended, without a copy, and forget it."""
        columns = {name: column[: self._num_rows] for name, column in self._columns.items()}
        self._columns = {name: column[:0] for name, column in columns.items()}
        self._num_rows = 0
        return columns
