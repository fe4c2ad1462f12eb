"""The public `Dataset`: its arguments are checked at once, its files are read later."""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import os
import time
from pathlib import Path

from stoker.arguments import explain_arguments, integer
from stoker.dataset.catalogue import Catalogue, OnCount
from stoker.dataset.description import DEFAULTS, DatasetOptions, Description
from stoker.dataset.listing import Listed, list_sources
from stoker.dataset.runs import RunRule
from stoker.dataset.survey import (
    Survey,
    check_types,
    common_schema,
    keep_survey,
    kept_survey,
    read_layouts,
    survey,
)
from stoker.dataset.tables.table import LakeTable, TableSource
from stoker.dataset.units.count import cut_between_runs, find_runs
from stoker.errors import SourceMissingError, without_secrets
from stoker.hashing import fingerprint
from stoker.host.machine import num_cores
from stoker.metrics.stages import NO_STAGES, Stages
from stoker.parquet.footers import Footers
from stoker.storage.clients import store_of
from stoker.storage.failures import RetryingStorage, Wait
from stoker.storage.storage import NO_VERSION
from stoker.storage.urls import name_bytes, scheme_of
from stoker.words import some_of

_log = logging.getLogger("stoker")

# What other readers call it, and what it is here.
_HINTS = {
    **dict.fromkeys(
        ("path", "paths", "url", "urls", "root", "data_dir", "data_files", "files", "local", "remote"),
        "give the path, URL or list of them first: Dataset('data/')",
    ),
    "filter": "say filters=, an expression or tuples such as [('country', '=', 'DE')]",
    "predicate": "say filters=, an expression or tuples such as [('country', '=', 'DE')]",
    "schema": "columns come as the files have them; fields={'name': 'float32'} makes others of them",
    "dtype": "say fields={'name': 'float32'}",
    "partitioning": "leave it out; key=value folders become columns",
    "filesystem": "say storage_options= for the store of the URL, or storage= for one of your own",
    "format": "leave it out; files are Parquet",
    "streaming": "leave it out; what is read is kept in the loader's cache=",
    "cache_dir": "the cache is the loader's: Loader(dataset, cache='/ssd/cache', ...)",
    "split": "give the folder or files of the split: Dataset('data/train')",
}

# Footers of a remote store are waits, not work: this many times more of them at once than threads were asked for.
_REMOTE_FACTOR = 8
# Those of local files are mostly work, and many threads take the GIL from each other.
_LOCAL_THREADS_A_CORE = 2


@explain_arguments(_HINTS, options=DEFAULTS, types=DatasetOptions)
class Dataset(Description):
    """Rows of Parquet files, as the user wants them: which files, columns and rows, and what becomes of them.

    Making one reads no file. Wrong arguments raise at once; errors that only the files show raise when it is opened.

    Args:
        source: A path or URL of a file, a folder (every *.parquet, *.parq, *.pq or *.pqt below; `key=value` folders
            become columns), a glob with `*`, `**`, `?` and `[]`, or a list of these. A `pathlib.Path`, and text that
            names something that exists, is never a pattern. Files are taken in the order of their URLs, each once. Or a
            table: "delta://" or "iceberg://" before the place of its folder, or "iceberg://catalogue/namespace.table".
        version: Of a delta:// table: the number of a version, or a time at which it was the newest (a datetime, or a
            text in ISO 8601); None reads the newest one.
        snapshot: Of an iceberg:// table: the id of a snapshot, the name of a branch or tag, or a datetime; None reads
            the newest one.
        columns: Columns to read, structs and their members by dotted names; None reads all.
        filters: Which rows: a pyarrow expression, or tuples as in `pyarrow.parquet.read_table`. Row groups whose
            statistics rule them out are not read; every row that is delivered passes.
        fields: Name of a field -> what to make of columns, as `Field` or the name of a dtype. Other columns come as
            they are.
        transform: Called once for each fragment, with an Arrow table; returns named arrays, or a table, with as many
            rows.
        transform_version: Identity of what `transform` does: change it whenever the result changes.
        deduplicate: Key -> names and patterns of fields that are the same on neighbouring samples of one key, as in
            `{"query_id": ["q_*", "hist_*"]}`: these fields and the key, which must be a field, are stored once for each
            run of such samples. No value changes: a run ends where the key or any of the fields changes.
        chunk_size: Decoded bytes of the columns in one chunk, approximately.
        storage: What reads the objects; None chooses by the URL.
        storage_options: Options for the store's client: credentials, endpoint.
        refresh: Look at every file again, even if a remote data set has been opened with this cache before.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: Two arguments contradict each other, or a value makes no sense.

    Examples:
        >>> Dataset("lake/ranking", columns=["dense", "label"], filters=[("country", "in", ["DE", "FR"])])
        Dataset('lake/ranking', columns=['dense', 'label'], filters="country in ('DE', 'FR')")
    """

    def open(
        self,
        folder: Path | str | None = None,
        *,
        num_threads: int = 8,
        wait: Wait = time.sleep,
        runs: RunRule | None = None,
        on_count: OnCount | None = None,
        on_stage: Stages = NO_STAGES,
    ) -> Catalogue:
        """Find out which files, row groups and rows there are.

        Local files are looked up at every start, and read again where they changed. A remote data set that was opened
        with this folder before is taken as it was, without any call to its store, unless `refresh` says otherwise.

        Args:
            folder: Where footers, row counts and the finished catalogue are kept for the next start; None keeps
                nothing.
            num_threads: Footers read at once; eight times as many from a remote store.
            wait: Waits so many seconds before a failed read is tried again; returns True to give up.
            runs: Rows to keep in one fragment where row groups allow it; their columns are read to know. Other
                fragments, and so other chunks and another fingerprint.
            on_count: Told how far reading those columns is.
            on_stage: Told of the stages "list" and "footers".

        Blocks:
            On listing the source and reading every footer (the first time), and on reading the filter's columns where
            there is a filter.

        Raises:
            SourceMissingError: A source names nothing.
            SourceError: A file cannot be read.
            FieldError: A column is not there, or has types that do not go together.
            ValueError: A filter does not fit the columns.
        """
        integer(num_threads, "num_threads")
        return _Opening(self, folder, runs, wait).open(num_threads, on_count, on_stage)


def dataset_of(catalogue: Catalogue) -> Dataset:
    """Return the data set that was opened, at the version that was found."""
    assert isinstance(catalogue.dataset, Dataset)
    return catalogue.dataset


class _Opening:
    """One opening of a data set: from what a folder keeps of it, or by a look at all its files."""

    def __init__(self, dataset: Dataset, folder: Path | str | None, runs: RunRule | None, wait: Wait) -> None:
        self._dataset, self._runs, self._places = dataset, runs, dataset.places()
        # One look at the environment: the store that is asked is the one that what is kept is kept under.
        environment = dict(os.environ)
        url, options = str(dataset.named()[0]), dataset.storage_options or {}
        self._store = {} if scheme_of(url) == "file" else store_of(url, options=options, environment=environment)
        # Connecting to a store, or asking a catalogue, may take requests of its own: a kept catalogue does without.
        self._located = located = functools.cache(dataset.located)
        self._storage = RetryingStorage(lambda: located().find_storage(environment), wait=wait)
        # What is kept is found by the names of files: those with credentials in them, as presigned ones, are not kept.
        names = str(self._places)
        self._folder = None if folder is None or names != without_secrets(names) else Path(folder) / "source"
        self._names: dict[str, object] = {"sources": self._places, "store": self._store}

    def open(self, num_threads: int, on_count: OnCount | None, on_stage: Stages) -> Catalogue:
        """Return the opened data set; see `Dataset.open`."""
        dataset, known = self._dataset, None
        if self._folder is not None and not dataset.refresh:
            known = kept_survey(self._survey_path(dataset.table))
        kept = None if known is None else self._catalogue(known)
        is_fixed = dataset.table is not None and isinstance(dataset.table.pin, int)  # that version never changes
        if kept is not None and (kept.is_remote or is_fixed):
            return kept
        is_local = kept is not None or self._located().is_local
        num_threads = (
            min(num_threads, _LOCAL_THREADS_A_CORE * num_cores()) if is_local else num_threads * _REMOTE_FACTOR
        )
        try:
            with on_stage.span("list"):
                table, files = self._list(num_threads)
        except SourceMissingError:
            if kept is None or any(os.path.exists(name_bytes(info.url)) for info in kept.files):  # noqa: PTH110
                raise
            names = ", ".join(place.name for place in self._places)
            _log.warning("%s is gone; going on with what was kept of it in %s", names, self._folder)
            return kept
        if kept is not None and kept.listed == tuple(files) and kept.survey.table == table:
            return kept
        footers = self._footers(table, refresh=dataset.refresh)
        with on_stage.span("footers"):
            catalogue = self._look_through(files, table, footers, num_threads, on_count)
        self._keep(catalogue, footers)
        return catalogue

    def _list(self, num_threads: int) -> tuple[LakeTable | None, list[Listed]]:
        """Return the files, and the table that they belong to, if it is one."""
        if self._dataset.table is None:
            return None, list_sources(self._places, self._storage, is_local=self._dataset.is_local)
        place = self._located().places()[0].name
        if self._dataset.table.kind == "delta":
            from stoker.dataset.tables.delta import open_delta as open_table
        else:
            from stoker.dataset.tables.iceberg import open_iceberg as open_table
        return open_table(self._dataset.table, place, self._storage, num_threads=num_threads)

    def _look_through(
        self, files: list[Listed], table: LakeTable | None, footers: Footers, num_threads: int, on_count: OnCount | None
    ) -> Catalogue:
        layouts = read_layouts(files, footers, num_threads=num_threads)
        schema, partitions = common_schema(files, layouts, table)
        chosen = self._dataset.select(schema, partitions)
        if table is None:
            check_types(files, layouts, chosen.names)
        known = dataclasses.replace(survey(files, chosen, footers, num_threads=num_threads), table=table)
        catalogue = self._catalogue(known, footers)
        catalogue.check_doubts(num_threads=num_threads)
        if self._runs is not None:  # counts what passes the filter, too
            found = find_runs(catalogue, self._runs, num_threads=num_threads, on_progress=on_count)
            known = cut_between_runs(catalogue, found, chosen, footers, num_threads=num_threads)
            catalogue = self._catalogue(known, footers)
            catalogue.runs = found
        elif not catalogue.passes_all:
            known = dataclasses.replace(known, num_samples=catalogue.count(num_threads=num_threads))
            catalogue = self._catalogue(known, footers)
        footers.forget()
        return catalogue

    def _catalogue(self, known: Survey, footers: Footers | None = None) -> Catalogue:
        dataset = self._dataset
        if (table := known.table) is not None and (source := dataset.table) is not None:
            # Whoever opens it later opens this very version.
            dataset = copy.copy(dataset)
            dataset.table = dataclasses.replace(source, pin=table.version, schema_id=table.schema_id)
            dataset.refresh = False
        chosen = dataset.select(known.schema, known.partitions)
        footers = footers or self._footers(known.table)
        return Catalogue(dataset, known, chosen, footers, self._storage, store=self._store, kept_together=self._runs)

    # ------------------------------------------------------------------ what is kept

    def _footers(self, table: LakeTable | None, *, refresh: bool = False) -> Footers:
        path = None
        if self._folder is not None:
            path = self._folder / f"footers-{fingerprint('footers', self._names)}.bin"
        naming = None if table is None else (table.schema, table.by_id)
        return Footers(self._storage, path=path, table=naming, refresh=refresh)

    def _keep(self, catalogue: Catalogue, footers: Footers) -> None:
        if untold := [info.url for info in catalogue.files if info.version == NO_VERSION]:
            _log.warning(
                "the store of %s tells neither version nor time of its files (%s): that one was replaced by another of "
                "the same size shows only in its footer, when it is opened with refresh=True",
                self._dataset.named()[0],
                some_of(untold, 1),
            )
        if self._folder is None:
            return
        footers.keep(catalogue.files)
        # Under its version, too: whoever is told of that one later finds it, without asking the log.
        for path in {self._survey_path(table) for table in (self._dataset.table, catalogue.dataset.table)}:
            keep_survey(path, catalogue.survey)

    def _survey_path(self, table: TableSource | None) -> Path:
        dataset = self._dataset
        content = {
            **self._names,
            **({} if table is None else {"table": table.to_json()}),
            "columns": dataset.columns,
            "filter": None if dataset.filter is None else dataset.filter.to_json(),
            "chunk_bytes": dataset.chunk_bytes,
            **({} if self._runs is None else {"runs": self._runs.to_json()}),
        }
        assert self._folder is not None
        return self._folder / f"catalogue-{fingerprint('catalogue', content)}.stoker"
