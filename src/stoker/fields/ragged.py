"""Fields that are more than one array: lists of any length, and values that samples share.

Both are sequences of the rows of a batch. They are classes and not tuples, because code that goes through a tuple item
by item (a collate function, a framework that moves a batch to a device) would take two arrays for two rows. Such code
looks for `pin_memory` and `to`, or for a pytree, and finds them here.
"""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np

from stoker.fields.offsets import offsets_of, ranges
from stoker.host.forks import open_in_forks


class _TwoArrays:
    """What both have in common: two members, which hold arrays of one library."""

    __slots__: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    @property
    def _members(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def map(self, function: Callable[[Any], Any]) -> Self:
        """Return the same with a function applied to every array, those of inner lists included."""
        members = self._members.values()
        return type(self)(*(one.map(function) if isinstance(one, _TwoArrays) else function(one) for one in members))

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Return the same with every tensor moved or cast as `torch.Tensor.to` does; arrays of NumPy stay."""
        return self.map(lambda array: array.to(*args, **kwargs) if hasattr(array, "to") else array)

    def pin_memory(self, *args: Any, **kwargs: Any) -> Self:
        """Return the same with every tensor in page-locked memory; arrays of NumPy stay."""
        return self.map(lambda array: array.pin_memory(*args, **kwargs) if hasattr(array, "pin_memory") else array)

    @property
    def arrays(self) -> list[Any]:
        """All arrays, those of inner lists first."""
        members = self._members.values()
        return [array for one in members for array in (one.arrays if isinstance(one, _TwoArrays) else [one])]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays together."""
        return sum(array.nbytes for array in self.arrays)

    def tolist(self) -> list[Any]:
        """Return the rows as Python lists of numbers."""
        return [row.tolist() for row in self]


@dataclass(slots=True, eq=False)
class Ragged(_TwoArrays):
    """Lists of any length: a sequence of B rows, stored as all their values and the offsets between them.

    Row i is `values[offsets[i]:offsets[i + 1]]`, a view. A slice, an array of integers or one of bools is again a
    `Ragged`. For lists of lists, `values` is itself a `Ragged`, and so is each row.

        >>> history = Ragged(np.array([7, 1, 4]), np.array([0, 2, 2, 3]))
        >>> len(history), history[0].tolist(), history[1:].tolist()
        (3, [7, 1], [[], [4]])

    On a GPU each access to a row makes the CPU wait, so models use `values` and `offsets`.

    Attributes:
        values: Shape [total, ...], or a `Ragged` of the inner lists.
        offsets: int64, shape [B + 1], `offsets[0] == 0`.
    """

    values: Any
    offsets: Any

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[Any]:
        borders = self.offsets.tolist()
        return (self.values[begin:end] for begin, end in pairwise(borders))

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                stop = max(start, stop)
                first = int(self.offsets[start])
                return Ragged(self.values[first : int(self.offsets[stop])], self.offsets[start : stop + 1] - first)
            return self._taken(np.arange(start, stop, step))
        row = _as_index(rows)
        if row is None:
            return self._taken(_as_rows(rows, len(self)))
        row = _checked(row, len(self))
        return self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]

    def _taken(self, rows: Any) -> Ragged:
        borders = _on_host(self.offsets)
        begins = borders[:-1][rows]
        offsets = offsets_of(borders[1:][rows] - begins)
        return Ragged(self.values[ranges(begins, offsets)], _like(self.offsets, offsets))


@dataclass(slots=True, eq=False)
class Deduplicated(_TwoArrays):
    """Values that many samples of a batch share: a sequence of B rows, each value kept once.

    Row i is `values[index[i]]`. A slice, an array of integers or one of bools is again a `Deduplicated`, with all
    values. All fields of one key come with the same `index`.

    Attributes:
        values: Shape [U, ...], or a `Ragged` of U lists.
        index: int32, shape [B]: the row of `values` that each sample has.
    """

    values: Any
    index: Any

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[Any]:
        return (self.values[place] for place in self.index.tolist())

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                return Deduplicated(self.values, self.index[start:stop])
            return Deduplicated(self.values, self.index[np.arange(start, stop, step)])  # torch knows no steps backwards
        row = _as_index(rows)
        if row is None:
            return Deduplicated(self.values, self.index[_as_rows(rows, len(self))])
        return self.values[int(self.index[_checked(row, len(self))])]


def _as_index(rows: Any) -> int | None:
    """Return one row's number as an int; None where it is no single number."""
    if getattr(rows, "ndim", 0) or isinstance(rows, bool | np.bool_):
        return None
    try:
        return operator.index(rows)
    except TypeError:
        return None


def _checked(row: int, num_rows: int) -> int:
    if not -num_rows <= row < num_rows:
        raise IndexError(f"row {row} of {num_rows}")
    return row % num_rows


def _as_rows(rows: Any, num_rows: int) -> Any:
    """Return the numbers of several rows, each at least 0: a TypeError for what is none, an IndexError out of range."""
    found = None if isinstance(rows, tuple | bool | np.bool_ | str) else _on_host(rows)
    if found is not None and found.size == 0 and found.dtype.kind == "f":
        found = found.astype(np.int64)
    if found is None or found.ndim != 1 or found.dtype.kind not in "biu":
        raise TypeError(
            f"rows are asked for by an integer, a slice, or one dimension of integers or bools, not {rows!r}; values "
            "of a row behind it: field[row][k]"
        )
    if found.dtype.kind == "b":
        if len(found) != num_rows:
            raise IndexError(f"{len(found)} bools for {num_rows} rows")
        return np.flatnonzero(found)
    found = found.astype(np.int64)
    strange = found[(found < -num_rows) | (found >= num_rows)]
    if len(strange):
        raise IndexError(f"row {strange[0]} of {num_rows}")
    return np.where(found < 0, found + num_rows, found)


def _on_host(array: Any) -> Any:
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)


def _like(example: Any, array: Any) -> Any:
    """Return a NumPy array as one of the example's library, where that lies."""
    if isinstance(example, np.ndarray):
        return array
    if hasattr(example, "new_tensor"):  # torch
        return example.new_tensor(array)
    return example[:1] * 0 + array  # jax


_known: set[str] = set()
_knowing = open_in_forks(threading.Lock())


def register_pytrees() -> None:
    """Make both known as pytrees to torch and jax, where this process has imported them."""
    for library, register in (("torch", _tell_torch), ("jax", _tell_jax)):
        if library in sys.modules and library not in _known:
            with _knowing:
                if library not in _known:
                    for kind in (Ragged, Deduplicated):
                        register(kind)
                    _known.add(library)


def _tell_torch(kind: type[_TwoArrays]) -> None:
    from torch.utils import _pytree

    _pytree.register_pytree_node(
        kind,
        lambda rows: ([*rows._members.values()], None),
        lambda members, _: kind(*members),
        serialized_type_name=f"stoker.{kind.__name__}",
        flatten_with_keys_fn=lambda rows: (
            [(_pytree.GetAttrKey(name), one) for name, one in rows._members.items()],
            None,
        ),
    )


def _tell_jax(kind: type[_TwoArrays]) -> None:
    tree_util = sys.modules["jax"].tree_util
    tree_util.register_pytree_with_keys(
        kind,
        lambda rows: (tuple((tree_util.GetAttrKey(name), one) for name, one in rows._members.items()), None),
        lambda _, members: kind(*members),
        lambda rows: (tuple(rows._members.values()), None),
    )
