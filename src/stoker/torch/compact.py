"""What is kept narrow, widened where it lies: on the device, after fewer bytes have crossed."""

from __future__ import annotations

import torch

from stoker.fields.compact import Compact

_DTYPES = {
    "bool": torch.bool,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "float32": torch.float32,
    "float64": torch.float64,
}
_BITS = 8


def widen_tensor(kept: torch.Tensor, compact: Compact) -> torch.Tensor:
    """Return values as they are delivered: those of `stoker.fields.compact.widen`, bit for bit.

    Args:
        kept: Shape [..., and that of what is kept].
        compact: How.
    """
    dtype = _DTYPES[compact.dtype.name]
    if compact.form == "cast":
        return kept.to(dtype)
    if compact.form == "bfloat16":
        return kept.view(torch.bfloat16).to(dtype)
    if compact.form == "bits":
        shifts = torch.arange(_BITS, dtype=torch.uint8, device=kept.device)
        bits = (kept.unsqueeze(-1) >> shifts) & 1
        return bits.flatten(-2)[..., : compact.shape[-1]].to(torch.bool)
    # Step and range as the narrow float that they are there, too.
    step, low = (float(compact.dtype.type(value)) for value in (compact.step, compact.low))
    return kept.to(dtype).mul_(step).add_(low)
