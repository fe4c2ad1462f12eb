"""What a loader is, as far as it says so: so that nothing is advised which is done already."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# A row of the tally has a bit for each worker.
_MAX_WORKERS = 62


@dataclass(frozen=True, kw_only=True)
class LoaderTraits:
    """What is known of a loader.

    Attributes:
        num_workers: Processes that make batches in turn, as none of Stoker's do; 0 makes them in the loop, None where
            nobody knows.
        is_persistent: Whether they live on from epoch to epoch.
        is_in_order: Whether batches come in the order in which they were asked for.
        is_ours: Whether it is one of Stoker's.
    """

    num_workers: int | None = None
    is_persistent: bool = False
    is_in_order: bool = True
    is_ours: bool = False


def traits_of(loader: object) -> LoaderTraits:
    """Return what a loader says of itself, by the names of torch's `DataLoader`."""

    def said(name: str, default: object) -> Any:
        try:
            value = getattr(loader, name, default)
        except Exception:  # a stranger's property may fail in any way; it was not the user who asked for it
            return default
        return value if isinstance(value, bool | int) else default

    return LoaderTraits(
        num_workers=said("num_workers", None),
        is_persistent=bool(said("persistent_workers", False)),
        is_in_order=bool(said("in_order", True)),
        is_ours=any(base.__module__.partition(".")[0] == "stoker" for base in type(loader).__mro__),
    )


def late_workers(iterator: Iterator[Any]) -> Callable[[], int] | None:
    """Return what says which workers have batches yet to make, a bit each; None where that cannot be seen.

    One slow worker, or one dear batch, leaves all the others' batches ready behind it; workers that are all too slow
    leave some unmade. The times alone do not tell these apart.

    Source:
        torch.utils.data.dataloader, `_MultiProcessingDataLoaderIter._task_info`: task -> (worker,) while it is made,
        (worker, batch) once it has come out of turn. It is not public: without it, findings rest on times alone.
    """
    # Through the object's own dict: no attribute of a stranger is asked for that may do something.
    inside = getattr(iterator, "__dict__", {})
    num = inside.get("_num_workers")
    if not isinstance(inside.get("_task_info"), Mapping) or not isinstance(num, int) or not 2 <= num <= _MAX_WORKERS:
        return None

    def late() -> int:
        tasks = inside.get("_task_info", {}).values()  # workers that live on get a new one with each epoch
        return sum(1 << worker for worker in {task[0] for task in tasks if len(task) == 1})

    return late
