"""One pass over a few columns of every fragment, in threads, with progress."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from stoker.fields.offsets import Int64
from stoker.storage.each import for_each

if TYPE_CHECKING:
    from stoker.dataset.catalogue import Catalogue


@dataclass(frozen=True, kw_only=True)
class CountProgress:
    """How far a counting pass is.

    Attributes:
        num_fragments: Fragments of the data set.
        num_done: Those that were read.
        num_rows: Rows in them that pass the filter.
    """

    num_fragments: int
    num_done: int
    num_rows: int


OnCount: TypeAlias = Callable[[CountProgress], object]


def read_every(
    catalogue: Catalogue,
    columns: pa.Schema,
    take: Callable[[int, pa.Table, Int64 | None], object],
    *,
    num_threads: int,
    on_progress: OnCount | None,
) -> None:
    """Call `take` with every fragment's number, its rows that pass, and which of its rows these are (None: all).

    Fragments come in no order, from several threads at once.

    Args:
        catalogue: The opened data set.
        columns: Columns to read, as `Catalogue.types_of` returned them.
        take: What to do with them.
        num_threads: Threads that read.
        on_progress: Told after each fragment, by one thread at a time.

    Raises:
        SourceError: They cannot be read.
    """
    units = sorted({catalogue.unit(i)[0] for i in range(len(catalogue))})
    mutex = threading.Lock()
    num_done = num_rows = 0

    def work(u: int) -> None:
        nonlocal num_done, num_rows
        for j, table, kept in catalogue.read_columns(units[u], columns):
            take(j, table, kept)
            with mutex:
                num_done, num_rows = num_done + 1, num_rows + table.num_rows
                if on_progress is not None:
                    progress = CountProgress(num_fragments=len(catalogue), num_done=num_done, num_rows=num_rows)
                    on_progress(progress)

    for_each(len(units), work, num_threads=num_threads)
