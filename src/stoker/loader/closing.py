"""How a loader ends: whoever finds out that nobody refers to it any more, and in whatever thread."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence

from stoker.host.forks import Home
from stoker.loader.gather.buffers import BufferPool
from stoker.loader.open_datasets import OpenDatasets
from stoker.loader.run import Run
from stoker.metrics import status


def close_from_any_thread(close: Callable[[], None]) -> None:
    """Close a loader that was told to, or that nobody refers to any more, from whatever thread found that out.

    Garbage in cycles is found in any thread that runs Python, so perhaps in one of those that `close` waits for.
    """
    if threading.current_thread().name.startswith("stoker-"):
        threading.Thread(target=close, name="stoker-close", daemon=True).start()
        return
    try:
        close()
    except BaseException:  # Ctrl-C: the rest is done without the caller, and the process waits for it at its end
        threading.Thread(target=close, name="stoker-close").start()
        raise


def closing(
    runs: weakref.WeakSet[Run],
    beginning: threading.Lock,
    opened: OpenDatasets,
    shown: status.ShownLoader,
    pools: Sequence[BufferPool],
) -> Callable[[], None]:
    """Return what ends everything a loader has begun, without referring to the loader.

    Args:
        runs: What it has begun.
        beginning: Held while it begins: a run that another thread is starting is in `runs` afterwards.
        opened: What the runs load from.
        shown: Where the loader is shown.
        pools: The memory for its batches, once it has some.
    """
    home = Home()

    def close() -> None:
        if not home.is_here:
            return
        shown.close()
        with beginning:
            begun = list(runs)
        for run in begun:
            run.close()
        opened.close()
        for pool in pools:  # runs, which refer to it, are garbage in cycles: nobody knows when they are found
            pool.release()

    return close
