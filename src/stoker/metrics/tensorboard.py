"""Loaders' figures as scalars: for TensorBoard, and for whatever else has an `add_scalar`."""

from __future__ import annotations

from typing import Protocol

from stoker.metrics.metrics import HasStats
from stoker.metrics.stats import LoaderStats


class Writer(Protocol):
    """What `torch.utils.tensorboard.SummaryWriter`, tensorboardX and others are."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object:
        """Write one value."""


class Scalars:
    """Writes how a loader did since the last time, whenever it is asked to.

        scalars = Scalars(SummaryWriter(), loader)
        for step, batch in enumerate(loader):
            ...
            if step % 100 == 0:
                scalars.write(step)

    Args:
        writer: Has `add_scalar(tag, value, step)`.
        loader: Whose figures.
        prefix: In front of each tag.
    """

    def __init__(self, writer: Writer, loader: HasStats, *, prefix: str = "stoker") -> None:
        self._writer = writer
        self._loader = loader
        self._prefix = prefix
        self._before = loader.stats()

    def write(self, step: int) -> None:
        """Write the figures of the time since the last call, or since this was made.

        Args:
            step: What TensorBoard shows them at.
        """
        stats = self._loader.stats()
        for tag, value in scalars(stats.since(self._before)).items():
            self._writer.add_scalar(f"{self._prefix}/{tag}", value, step)
        self._before = stats


def scalars(stats: LoaderStats) -> dict[str, float]:
    """Return the figures worth a curve, by tag: rates and shares of the time that `stats` is about."""
    values = {
        "busy share": stats.busy_share,
        "stall share": stats.stall_share,
        "samples per second": stats.samples_per_s,
        "steps per second": stats.steps_per_s,
        "cache hit share": stats.hit_share,
        "batches ready": stats.num_ready,
        "bytes fetched": stats.fetched_bytes,
    }
    elapsed_s = stats.elapsed_s
    if elapsed_s > 0:
        # In threads: 1.0 is one thread at it all the time.
        values |= {f"threads in stage/{name}": total.busy_s / elapsed_s for name, total in stats.stages.items()}
    return values
