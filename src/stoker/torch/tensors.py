"""Arrays seen as tensors: same memory, other library."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch

from stoker.spec import Array, Ragged, Spec

Tensors: TypeAlias = dict[str, "torch.Tensor | Ragged"]


def to_nested(ragged: Ragged) -> torch.Tensor:
    """Return a ragged field as torch's nested tensor with the jagged layout: `[B, *, ...]`, sharing the values.

    Raises:
        ValueError: The field has lists of lists, which that layout cannot hold.
    """
    if isinstance(ragged.values, Ragged):
        raise ValueError("torch's jagged layout holds one ragged dimension; convert `.values` for the inner lists")
    return torch.nested.nested_tensor_from_jagged(ragged.values, ragged.offsets)


def as_tensor(array: Any) -> torch.Tensor:
    """Return a tensor that shares the array's memory, or has a copy where torch cannot look at it.

    That is so for arrays that run backwards and for those that must not be written: what a user's `augment` may
    return. A tensor comes back as it is.

    Raises:
        TypeError: Its dtype is none of torch's.
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


def as_tensors(array: Array | Ragged) -> Any:
    """Return an array, or every array of a ragged field, as a tensor that shares its memory."""
    if isinstance(array, Ragged):
        return Ragged(as_tensors(array.values), as_tensors(array.offsets))
    return as_tensor(array)


def fields_of(records: torch.Tensor, spec: Spec) -> dict[str, torch.Tensor]:
    """Return the fixed-width fields of records as views of one memory, wherever that lies.

    Args:
        records: uint8, shape [B, record_bytes].
        spec: Spec of the samples.
    """
    fields: dict[str, torch.Tensor] = {}
    typed: dict[torch.dtype, torch.Tensor] = {}
    for entry in spec.fixed:
        dtype = torch_dtype(entry.dtype)
        shape = (len(records), *entry.shape)
        if entry.value_bytes == 0 or len(records) == 0:  # torch cannot see an empty tensor as another dtype
            fields[entry.name] = torch.empty(shape, dtype=dtype, device=records.device)
            continue
        # Records and fields lie at multiples of the item's size (see Spec), so all are whole items of one view.
        if dtype not in typed:
            typed[dtype] = records.view(dtype)
        items = typed[dtype]
        begin = spec.record_offsets[entry.name] // entry.dtype.itemsize
        fields[entry.name] = items.as_strided(
            shape, (items.shape[1], *_inner_strides(entry.shape)), items.storage_offset() + begin
        )
    return fields


@cache
def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return torch's name for a dtype of NumPy."""
    return torch.from_numpy(np.empty(0, dtype=dtype)).dtype


@cache
def _inner_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides[: len(shape)])
