"""The first chunk, built when a loader is made: values or a transform that cannot work show before training begins."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable

import numpy as np

from stoker.cache.builder import Builder
from stoker.cache.store import Store
from stoker.dataset.catalogue import Catalogue


def try_first_chunk(
    catalogue: Catalogue, store: Store, builder: Builder, *, beside: Callable[[], Iterable[int]], num_beside: int
) -> list[threading.Thread]:
    """Build the first chunk with samples, unless it is there, and begin others that are wanted soon.

        this thread   |··first chunk··|                 batches are made of chunks that the order draws, so
        stoker-build  |····chunk 17···|                 the cores that would stand idle build some of these
        stoker-build  |~~~~~·····chunk 4····|

    One that is read together with many others is left for later: that could take minutes.

    Blocks: until the first chunk is built.

    Args:
        catalogue: Of the data set.
        store: Where chunks go.
        builder: Builds them.
        beside: Returns chunks, those that are used first in front. Not asked where the first chunk is there.
        num_beside: How many of them at most.

    Returns:
        The threads that build the others, to be joined before anything of this is closed.

    Raises:
        StokerError: The first chunk cannot be built. What is wrong with another one belongs to the step that needs it.
    """
    filled = np.flatnonzero(catalogue.num_samples)
    if not len(filled):
        return []
    first = int(filled[0])
    if len(catalogue.unit(first)) > 1 or store.has(catalogue.key(first)):
        return []

    def build(chunk: int) -> None:
        with contextlib.suppress(Exception):
            builder.build(chunk)

    alone = (chunk for chunk in beside() if chunk != first and len(catalogue.unit(chunk)) == 1)
    threads = [
        threading.Thread(target=build, args=(chunk,), name=f"stoker-build-{i}", daemon=True)
        for i, chunk in enumerate(itertools.islice(alone, num_beside))
    ]
    for thread in threads:
        thread.start()
    try:
        builder.build(first)
    except BaseException:
        join(threads)
        raise
    return threads


def join(threads: Iterable[threading.Thread]) -> None:
    """Return when all of them have ended."""
    for thread in threads:
        thread.join()
