"""What lies ready behind the batch that a loop waited for, where the loader lets it be seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def ready_probe(iterator: Iterator[Any]) -> Callable[[], float] | None:
    """Return what says which share of the other workers' batches is ready, in [0, 1]; None where that cannot be seen.

    One slow worker, or one dear batch, leaves all others ready behind it; workers that are all too slow leave few. The
    times alone do not tell the two apart.

    Source:
        torch.utils.data.dataloader, `_MultiProcessingDataLoaderIter._task_info`: task -> (worker,) while it is made,
        (worker, batch) once it has come out of turn; `_data_queue` holds what nobody has looked at yet. Neither is
        public: without them, findings rest on times alone.
    """
    # Through the object's own dict: no attribute of a stranger is asked for that may do something.
    inside = getattr(iterator, "__dict__", {})
    num_workers = inside.get("_num_workers")
    if not isinstance(inside.get("_task_info"), Mapping) or not isinstance(num_workers, int) or num_workers < 2:
        return None

    def share() -> float:
        tasks = inside.get("_task_info", {})  # workers that live on get a new one with each epoch
        of_others = len(tasks) * (num_workers - 1) / num_workers
        num_ready = sum(1 for task in tasks.values() if len(task) > 1) + _num_queued(inside.get("_data_queue"))
        return min(1.0, num_ready / of_others) if of_others else 0.0

    return share


def _num_queued(queue: object) -> int:
    try:
        return int(queue.qsize())  # type: ignore[attr-defined]  # a stranger's, and macOS has no such number
    except (AttributeError, NotImplementedError):
        return 0
