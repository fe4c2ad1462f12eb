"""What samples share, expanded where it lies: on the device, after each value has crossed once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stoker.fields.spec import Array, Ragged
from stoker.torch.tensors import words_of

# What torch cannot gather from is gathered from as integers of the same size.
_AS_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def expand_rows(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return `rows[index]`, of any dtype.

    Args:
        rows: Shape [U, ...].
        index: int32 or int64, shape [B].
    """
    signed = _AS_SIGNED.get(rows.dtype)
    if signed is not None:
        return rows.view(signed).index_select(0, index).view(rows.dtype)
    if rows.dtype == torch.uint8 and rows.ndim == 2:
        return words_of(rows).index_select(0, index).view(torch.uint8)
    return rows.index_select(0, index)


def expand_records(records: torch.Tensor, index: torch.Tensor, *, out: torch.Tensor) -> None:
    """Write `records[index]` to memory that is there.

    Args:
        records: uint8, shape [U, record_bytes].
        index: int32 or int64, shape [B].
        out: uint8, shape [B, record_bytes].
    """
    torch.index_select(words_of(records), 0, index, out=words_of(out))


def expanded_totals(ragged: Ragged, index: Array) -> list[int]:
    """Return how many lists or values each level has once it is expanded; counted on the host, which has it all.

    Args:
        ragged: U lists, of arrays.
        index: Which of them each sample has. Shape [B].
    """
    starts: npt.NDArray[np.int64] = ragged.offsets
    totals = []
    values: Any = ragged
    while isinstance(values, Ragged):
        totals.append(int((starts[1:] - starts[:-1])[index].sum()))
        values = values.values
        if isinstance(values, Ragged):
            starts = values.offsets[starts]
    return totals


def expand_ragged(ragged: Ragged, index: torch.Tensor, totals: list[int]) -> Ragged:
    """Return lists `index` of a ragged field; the host does not wait for the device.

    Args:
        ragged: U lists, of tensors.
        index: int32 or int64, shape [B].
        totals: Of `expanded_totals`.
    """
    starts = ragged.offsets.index_select(0, index)
    lengths = ragged.offsets.diff().index_select(0, index)
    offsets = torch.zeros(len(index) + 1, dtype=torch.int64, device=index.device)
    torch.cumsum(lengths, 0, out=offsets[1:])
    total = totals[0]
    places = torch.repeat_interleave(starts - offsets[:-1], lengths, output_size=total)
    places += torch.arange(total, device=index.device)
    if isinstance(ragged.values, Ragged):
        return Ragged(expand_ragged(ragged.values, places, totals[1:]), offsets)
    return Ragged(expand_rows(ragged.values, places), offsets)
