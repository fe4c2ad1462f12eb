"""Copying to the device alone: from pinned and from pageable memory."""

from __future__ import annotations

import importlib.util
import statistics
from dataclasses import dataclass

_NUM_ROUNDS = 7


@dataclass(frozen=True, kw_only=True)
class CopyCost:
    """Bytes a second to the device.

    Attributes:
        pinned_bytes_s: From memory that the device reads by itself.
        pageable_bytes_s: From ordinary memory, which the driver copies into pinned memory first.
        spread: Of the pinned rounds, as a share.
    """

    pinned_bytes_s: float
    pageable_bytes_s: float
    spread: float


def has_cuda() -> bool:
    """Return whether torch is installed and sees a GPU."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def probe_copy(num_bytes: int) -> CopyCost:
    """Return the pace of copies of one batch to the current CUDA device, by its own clock.

    Args:
        num_bytes: Of a batch.
    """
    import torch

    host = torch.empty(max(1, num_bytes), dtype=torch.uint8)
    pinned = host.pin_memory()
    device = torch.empty_like(host, device="cuda")

    def rate(source: torch.Tensor) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        device.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        return num_bytes / (float(begin.elapsed_time(end)) / 1e3)

    pinned_rates = [rate(pinned) for _ in range(_NUM_ROUNDS)][1:]
    pageable_rates = [rate(host) for _ in range(_NUM_ROUNDS)][1:]
    middle = statistics.median(pinned_rates)
    return CopyCost(
        pinned_bytes_s=middle,
        pageable_bytes_s=statistics.median(pageable_rates),
        spread=(max(pinned_rates) - min(pinned_rates)) / (2 * middle),
    )
