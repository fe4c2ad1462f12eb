"""What it costs. Pure."""

from __future__ import annotations

from stoker.doctor.results import Fix, Money, MoneyPart, PathResult

_HOUR_S = 3600.0


def money_of(today: PathResult, *, gpu_hour: float, num_gpus: int, fixes: tuple[Fix, ...]) -> Money:
    """Return what an epoch on today's path costs, in parts that add up to it.

    Args:
        today: The path.
        gpu_hour: Price of an hour of one GPU.
        num_gpus: GPUs that wait together.
        fixes: Best first.
    """
    price = gpu_hour * num_gpus / _HOUR_S
    epoch = today.epoch_s * price
    total_s = sum(part.seconds for part in today.step_parts)
    parts = tuple(
        MoneyPart(key=part.key, name=part.name, cost=epoch * part.seconds / total_s) for part in today.step_parts
    )
    stalls = sum(part.cost for part in parts if part.key != "step")
    best = epoch / fixes[0].times if fixes else epoch
    return Money(gpu_hour=gpu_hour, num_gpus=num_gpus, epoch=epoch, stalls=stalls, parts=parts, best_fix=best)
