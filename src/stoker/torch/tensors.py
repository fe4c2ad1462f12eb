"""Arrays seen as tensors: same memory, other library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import torch

from stoker.fields.spec import Deduplicated, Ragged, Spec

Tensors: TypeAlias = dict[str, "torch.Tensor | Ragged | Deduplicated"]


def to_nested(ragged: Ragged) -> torch.Tensor:
    """Return a ragged field as torch's nested tensor with the jagged layout: `[B, *, ...]`, sharing the values.

    Raises:
        TypeError: It is no `Ragged` of tensors.
        ValueError: The field has lists of lists, which that layout cannot hold.
    """
    if not isinstance(ragged, Ragged) or not isinstance(ragged.offsets, torch.Tensor):
        raise TypeError(f"to_nested needs a stoker.Ragged of tensors, as TorchLoader gives them, not {ragged!r}")
    if isinstance(ragged.values, Ragged):
        raise ValueError("torch's jagged layout holds one ragged dimension; convert `.values` for the inner lists")
    return torch.nested.nested_tensor_from_jagged(ragged.values, ragged.offsets)


def as_tensor(array: Any) -> torch.Tensor:
    """Return a tensor that shares the array's memory, or has a copy where torch cannot look at it.

    That is so for arrays that run backwards and for those that must not be written: what a user's `augment` may
    return. A tensor comes back as it is. A `TypeError` says that its dtype is none of torch's.
    """
    if isinstance(array, torch.Tensor):
        return array
    array = np.asarray(array)
    if not array.flags.writeable:  # torch would take it, and warn
        return torch.from_numpy(array.copy())
    try:
        return torch.from_numpy(array)
    except ValueError:  # backwards, or not whole items apart
        return torch.from_numpy(array.copy())


def own_tensors(arrays: Mapping[str, Any]) -> Tensors:
    """Return fields that were gathered here as tensors that share their memory: torch can look at those as they are.

    Where they are arrays alone, 69 of them take 30 microseconds; asked one by one what they are, 40.
    """
    if set(map(type, arrays.values())) == {np.ndarray}:
        return dict(zip(arrays, map(torch.from_numpy, arrays.values()), strict=True))
    return dict(zip(arrays, map(_own_tensor, arrays.values()), strict=True))


def _own_tensor(field: Any) -> Any:
    kind = type(field)
    if kind is np.ndarray:
        return torch.from_numpy(field)
    if kind is Ragged and type(field.values) is np.ndarray:
        return Ragged(torch.from_numpy(field.values), torch.from_numpy(field.offsets))
    return field if kind is int else field.map(as_tensor)  # an int is `max_seqlen`


def fields_of(records: torch.Tensor, spec: Spec) -> dict[str, torch.Tensor]:
    """Return the fixed-width fields of records, in batch order, as tensors that share one memory, wherever that lies.

    The records are uint8, shape [B, record_bytes].
    """
    # As they come they are views of each other: one that is written to would be another version of all, and torch
    # refuses to write into one beside gradients.
    return {name: view.data for name, view in views_of(records, spec).items()}


def views_of(records: torch.Tensor, spec: Spec) -> dict[str, torch.Tensor]:
    """Return the same as views of the records, for those who make others of them."""
    num_samples = records.shape[0]
    fields: dict[str, torch.Tensor] = {}
    typed: dict[torch.dtype, torch.Tensor] = {}
    for names, dtype, shape, begin in _runs(spec):
        num_items = math.prod(shape)
        if num_items == 0 or num_samples == 0:  # torch cannot see an empty tensor as another dtype
            empty = (num_samples, *shape)
            fields |= {name: torch.empty(empty, dtype=dtype, device=records.device) for name in names}
            continue
        # Records and fields lie at multiples of the item's size (see Spec), so all are whole items of one view.
        if dtype not in typed:
            typed[dtype] = records.view(dtype)
        items = typed[dtype]
        # One view of all fields of a run, then one call that cuts it: 69 fields take 66 microseconds so, with a view
        # each 151.
        strides = (num_items, items.shape[1], *(math.prod(shape[i + 1 :]) for i in range(len(shape))))
        views = items.as_strided((len(names), num_samples, *shape), strides, items.storage_offset() + begin)
        fields.update(zip(names, views.unbind(0), strict=True))
    return {entry.name: fields[entry.name] for entry in spec.fixed}


def words_of(records: torch.Tensor) -> torch.Tensor:
    """Return records as 8-byte words, where they are whole ones: these are moved eight times as fast as bytes."""
    is_whole = records.shape[1] % 8 == 0 and records.shape[1] > 0
    return records.view(torch.int64) if is_whole else records


def cut(tensor: torch.Tensor, sizes: Sequence[int]) -> Sequence[torch.Tensor]:
    """Return pieces of a tensor, of so many rows, in its memory, each a tensor of its own to write to.

    Those of `Tensor.split` are views of it and of each other; see `fields_of`. Eight take 9 microseconds so, 4 like
    this.
    """
    pieces: Sequence[torch.Tensor] = torch.unsafe_split_with_sizes(tensor, list(sizes))
    return pieces


@lru_cache(maxsize=64)
def _runs(spec: Spec) -> list[tuple[list[str], torch.dtype, tuple[int, ...], int]]:
    """Return the fixed-width fields that lie side by side in a record, of one dtype and shape each.

    Of each such run: the names, the dtype and the shape of its fields, and where the first of them lies, in items.
    """
    in_record = sorted(spec.fixed, key=lambda entry: spec.record_offsets[entry.name])
    runs = []
    for (dtype, shape), entries in groupby(in_record, key=lambda entry: (entry.dtype, entry.shape)):
        names = [entry.name for entry in entries]
        runs.append((names, torch_dtype(dtype), shape, spec.record_offsets[names[0]] // dtype.itemsize))
    return runs


@cache
def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return torch's name for a dtype of NumPy."""
    return torch.from_numpy(np.empty(0, dtype=dtype)).dtype
