"""Counting the units of an opened data set, from its columns, or from its chunks where a transform makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stoker.feed.fill import Filler
from stoker.order.plain import Int64
from stoker.source.dataset import Dataset
from stoker.source.units.asked import Asked, Pack
from stoker.source.units.count import open_index
from stoker.source.units.index import Index
from stoker.source.units.reading import CountProgress, OnCount
from stoker.spec import Entry

if TYPE_CHECKING:
    from stoker.feed.chunks import Chunks


def open_units(asked: Asked, chunks: Chunks, num_threads: int, on_progress: OnCount | None = None) -> Index:
    """Return the units of a data set: as they were kept, or counted now and kept.

    Args:
        asked: What is counted.
        chunks: The chunks of the data set, its fragments cut as `asked.rule` says.
        num_threads: Threads that read.
        on_progress: Told how far the pass is.

    Raises:
        FieldError: A column is not there or cannot serve.
        SourceError: It cannot be read, or holds values that make no sense.
        TransformError: The transform, whose tokens are to be counted, failed.
    """

    def token_counts() -> Int64:
        assert isinstance(asked, Pack)
        return _token_counts(chunks, chunks.spec[asked.field], num_threads, on_progress)

    return open_index(
        asked,
        chunks.catalogue,
        folder=chunks.kept_in,
        num_threads=num_threads,
        on_progress=on_progress,
        token_counts=token_counts if makes_tokens(asked, chunks.catalogue.dataset) else None,
    )


def makes_tokens(asked: Asked, dataset: Dataset) -> bool:
    """Return whether only a transform's result says what the units are: then chunks are counted, not columns."""
    return isinstance(asked, Pack) and dataset.transform is not None


def _token_counts(chunks: Chunks, entry: Entry, num_threads: int, on_progress: OnCount | None) -> Int64:
    """Return how many values a field has in every row, as its chunks say: they are built for it, and kept. Shape [N].

    What the transform makes is only known when it has run: the first epoch's work is done ahead of it.
    """
    counts: list[Int64] = [np.empty(0, np.int64)] * len(chunks.num_samples)
    filled = np.flatnonzero(chunks.num_samples).tolist()
    num_done = num_rows = 0
    filler = Filler(
        is_there=chunks.is_there,
        build=chunks.build,
        crew=chunks.crew(num_threads),
        max_ahead=num_threads if chunks.is_tight else None,
    )
    try:
        filler.request(filled)
        for chunk in filled:  # one thread reads: what takes its time is building, which the filler's threads do
            counts[chunk] = chunks.list_lengths(chunk, entry, filler)
            num_done, num_rows = num_done + 1, num_rows + len(counts[chunk])
            if on_progress is not None:
                on_progress(CountProgress(num_fragments=len(filled), num_done=num_done, num_rows=num_rows))
    finally:
        filler.close()
    return np.concatenate([np.empty(0, np.int64), *counts])
