"""Loaders' figures as scalars: for TensorBoard, and for whatever else has an `add_scalar`."""

from __future__ import annotations

from typing import Any

from stoker.metrics.metrics import HasStats


class Scalars:
    """Writes how a loader did since the last time, whenever it is asked to.

        scalars = Scalars(SummaryWriter(), loader)
        for step, batch in enumerate(loader):
            ...
            if step % 100 == 0:
                scalars.write(step)

    Args:
        writer: Has `add_scalar(tag, value, step)`, as TensorBoard's, tensorboardX's and others have.
        loader: Whose figures.
        prefix: In front of each tag.
    """

    def __init__(self, writer: Any, loader: HasStats, *, prefix: str = "stoker") -> None:
        self._writer = writer
        self._loader = loader
        self._prefix = prefix
        self._before = loader.stats()

    def write(self, step: int) -> None:
        """Write rates and shares of the time since the last call, or since this was made.

        Args:
            step: What TensorBoard shows them at.
        """
        now = self._loader.stats()
        stats, self._before = now.since(self._before), now
        values = {
            "busy share": stats.busy_share,
            "stall share": stats.stall_share,
            "samples per second": stats.samples_per_s,
            "steps per second": stats.steps_per_s,
            "cache hit share": stats.hit_share,
            "batches ready": stats.num_ready,
            "bytes fetched": stats.fetched_bytes,
        }
        if stats.elapsed_s > 0:
            # In threads: 1.0 is one thread at it all the time.
            threads = {name: total.busy_s / stats.elapsed_s for name, total in stats.stages.items()}
            values |= {f"threads in stage/{name}": num for name, num in threads.items()}
        for tag, value in values.items():
            self._writer.add_scalar(f"{self._prefix}/{tag}", value, step)
