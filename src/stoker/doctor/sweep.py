"""Where larger batches stop paying. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.doctor.results import BatchPoint, BatchSweep

# A larger batch pays as long as it brings the rate this much nearer to the best one.
_NEARLY_ALL = 0.95


def sweep_of(points: Sequence[BatchPoint]) -> BatchSweep | None:
    """Return the sweep with its knees: the smallest batches that give nearly the best rate; None without points."""
    if not points:
        return None
    ordered = tuple(sorted(points, key=lambda point: point.batch_size))
    steps = [(point.batch_size, point.step_s) for point in ordered if point.step_s is not None]
    return BatchSweep(
        points=ordered,
        loader_knee=_knee([(point.batch_size, point.loader_s) for point in ordered]),
        step_knee=_knee(steps) if steps else None,
    )


def fixed_and_each(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return what a batch takes whatever its size, and what each sample adds: the line nearest to the points.

    Args:
        points: Batch size and seconds a batch.
    """
    if len(points) == 1:
        size, seconds = points[0]
        return 0.0, seconds / size
    # Weighted by 1 / seconds: a small batch must fit as well as a large one, in proportion.
    weights = [1 / seconds**2 for _, seconds in points]
    total = sum(weights)
    mean_size = sum(w * size for w, (size, _) in zip(weights, points, strict=True)) / total
    mean_s = sum(w * s for w, (_, s) in zip(weights, points, strict=True)) / total
    covariance = sum(w * (size - mean_size) * (s - mean_s) for w, (size, s) in zip(weights, points, strict=True))
    variance = sum(w * (size - mean_size) ** 2 for w, (size, _) in zip(weights, points, strict=True))
    each = max(0.0, covariance / variance) if variance else 0.0
    fixed = max(0.0, mean_s - each * mean_size)
    if fixed == 0.0:
        each = mean_s / mean_size
    return fixed, each


def _knee(points: Sequence[tuple[int, float]]) -> int:
    best = max(rate for _, rate in points)
    return next(size for size, rate in points if rate >= _NEARLY_ALL * best)
