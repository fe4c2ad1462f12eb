"""Tables whose log says which files, and which of their rows, count: Delta's and Iceberg's.

Dataset("delta://s3://lake/events", version=12)      the table in that folder, as it was after its 12th commit
Dataset("iceberg://prod/web.events", snapshot=...)   the one that a catalogue knows under this name

log ── deltalake, pyiceberg ──► Table: files, partition values, deleted rows, names ──► a listing like any other
"""

from __future__ import annotations

from stoker.dataset.listing import Listed
from stoker.dataset.tables.table import LakeTable, TableSource
from stoker.storage.storage import Storage


def open_table(
    source: TableSource, place: str, storage: Storage, *, num_threads: int
) -> tuple[LakeTable, list[Listed]]:
    """Return a table at the version that is asked for, and its files, by URL.

    Args:
        source: What the user named.
        place: Where it is, as the storage knows it.
        storage: Where its log and files are.
        num_threads: Of requests at once.

    Raises:
        ValueError: The library that reads the log is not installed.
        SourceMissingError: There is no table, no such version, or one of its files is gone.
        SourceError: The log cannot be read, or has what Stoker does not apply.
    """
    if source.kind == "delta":
        from stoker.dataset.tables.delta import open_delta

        return open_delta(source, place, storage, num_threads=num_threads)
    from stoker.dataset.tables.iceberg import open_iceberg

    return open_iceberg(source, place, storage, num_threads=num_threads)
