"""From a fragment to a published chunk, once, whoever wants it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import TypeAlias, cast

import numpy as np
import pyarrow as pa

from stoker.cache.format import check_names
from stoker.cache.store import Store
from stoker.cache.threads import Helpers, Permits, overlapped
from stoker.cache.workers import TransformProcesses
from stoker.cache.write import prepare_chunk
from stoker.columns import Columns, Converter, Packable, as_table, plan_spec
from stoker.dataset.catalogue import Catalogue
from stoker.dataset.description import Description
from stoker.dataset.fragments import Fragment
from stoker.errors import (
    CacheError,
    ChunkCorruptError,
    FieldError,
    FieldMismatchError,
    SourceChangedError,
    SourceCorruptError,
    StokerError,
    TransformError,
    without_secrets,
)
from stoker.fields.spec import Array, Arrays, Entry, Ragged, Spec
from stoker.hashing import fingerprint
from stoker.host.forks import cached_property
from stoker.metrics.stages import NO_STAGES, Stages
from stoker.storage.failures import is_of_surroundings

# How long to leave a chunk alone that another process builds. Short against building one, long against a file lookup.
_POLL_S = 0.01
# So many chunks that cannot be made, one behind the other, are an error of what makes them, not of their rows.
_MOST_DONORS = 32

_log = logging.getLogger("stoker")

_Fields: TypeAlias = tuple[Packable, Spec]
"""What a fragment became, and the spec that it fits."""
_Made: TypeAlias = _Fields | StokerError
"""The same, or why it became nothing, where others may stand in for it."""


class Builder:
    """Builds the chunks of a data set that are missing from a store, in the calling thread.

        read ─► transform ─► convert ─► publish        for each missing fragment of what is read in one go

    Safe to use from several threads. A chunk is built under its lock, so that of all threads and processes one does.
    `num_computing` threads may decode, transform and convert at a time. With more threads than that, one chunk is
    fetched, and another one published, while the next one is decoded:

        thread 1  |··decode··|publish|~~fetch~~|  wait  |··decode··|
        thread 2  |~~fetch~~|··decode··|publish|~~fetch~~|

    Were all of them let at it, they would fetch together and compute together, the cores idle in between. Of a huge row
    group, which one thread reads, others decode some columns and publish what is decoded, as long as they have nothing
    better to do. The transform runs in `num_processes`, or in the calling thread; a `ValueError` says that it cannot be
    sent to one. The store is told that the data set is in use.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        store: Store,
        *,
        on_stage: Stages = NO_STAGES,
        num_computing: int = 1,
        num_processes: int | None = None,
        substitutes: bool = False,
    ) -> None:
        self.catalogue, self.store, self._on_stage = catalogue, store, on_stage
        self._dataset = catalogue.dataset
        self._converter = Converter(self._dataset.fields)
        self._spec: Spec | None = None
        self._processes: TransformProcesses | None = None
        if (transform := self._dataset.transform) is None:
            self._spec = plan_sample(catalogue.schema, self._dataset)
        elif num_processes is not None:
            self._processes = TransformProcesses(transform, num_processes)
        self._finding = threading.Lock()
        self.permits = Permits(num_computing)
        self._helpers = Helpers(self.permits)
        self._may_substitute, self._mutex = substitutes, threading.Lock()
        self._substituted: set[int] = set()  # chunks for whose rows others stand in
        self._unfit: set[int] = set()  # that cannot be made, and so lend no rows
        self._said: set[int] = set()
        store.register(
            catalogue.fingerprint,
            name=self._dataset,
            urls=list(map(str, self._dataset.sources)),
            keys=lambda: list(map(catalogue.key, range(len(catalogue)))),
        )

    def key(self, i: int) -> str:
        """Return the key under which chunk i is found: its own, or that of the one that stands in for it."""
        return substitute_key(self.catalogue, i) if i in self._substituted else self.catalogue.key(i)

    def size_of(self, i: int) -> int | None:
        """Return the size of chunk i in bytes, or of the one that stands in for it; None where neither is there."""
        size_bytes = self.store.size_of(self.key(i))
        if size_bytes is None and self._find_substitute(i):
            size_bytes = self.store.size_of(self.key(i))
        return size_bytes

    def has(self, i: int) -> bool:
        """Return whether chunk i, or one that stands in for it, is there."""
        return self.store.has(self.key(i)) or self._find_substitute(i)

    def is_substituted(self, i: int) -> bool:
        """Return whether other rows stand in for those of chunk i, as far as that is known here or in the store."""
        return self._may_substitute and self.has(i) and i in self._substituted

    @property
    def num_substituted(self) -> int:
        """Chunks whose rows were replaced by others, of those that were built or met here."""
        return len(self._substituted)

    @cached_property
    def _coded(self) -> frozenset[str]:
        """Columns that may come as dictionaries; none for a transform, which gets all columns as they are."""
        is_plain = self._dataset.transform is None
        return self._converter.coded(self.catalogue.schema) if is_plain else frozenset()

    # ------------------------------------------------------------------ what a sample is

    def find_spec(self, first: int | None = None) -> Spec:
        """Return what a sample is: from the columns' types, or, with a transform, from one chunk.

        All processes must look at the same one: the first with samples, unless told.

        Blocks: with a transform, until that chunk is built, unless the cache knows. Errors are those of `build`.
        """
        with self._finding:
            if self._spec is None:
                self._spec = self.store.spec_of(map(self.catalogue.key, range(len(self.catalogue))))
            if self._spec is None:
                filled = np.flatnonzero(self.catalogue.num_samples)
                if first is not None or len(filled):
                    self._spec = self._spec_of_chunk(int(filled[0]) if first is None else first)
                else:
                    result = self._transformed(self.catalogue.schema.empty_table(), "an empty table")
                    self._spec = plan_sample(result.schema, self._dataset)
            return self._spec

    def _spec_of_chunk(self, i: int) -> Spec:
        wait = threading.Event().wait
        while True:
            try:
                with self.store.open(self.key(i)) as chunk:
                    return chunk.header.spec
            except (KeyError, ChunkCorruptError):
                if not self.build(i, is_first=True):
                    wait(_POLL_S)

    # ------------------------------------------------------------------ chunks

    def build(
        self,
        i: int,
        *,
        must_be_kept: bool = False,
        on_published: Callable[[int], object] = lambda _: None,
        is_first: bool = False,
    ) -> bool:
        """Build chunk i, and what is read in one go with it; return False where somebody else is at it.

        Nothing is decoded that is there: this looks again once it has the lock, or cannot have it. What the cache
        folder cannot take is kept in memory, unless it must be kept. `on_published` is told of each chunk when it is
        there; by helpers, too. The first one decides what a sample is.

        Raises:
            StokerError: The rows cannot be read, transformed or converted, or the chunk cannot be published.
        """
        spec = None if is_first else self.find_spec()
        keys = {j: self.catalogue.key(j) for j in self.catalogue.unit(i)}
        if (lock := self.store.try_lock(next(iter(keys.values())))) is None:
            return self.has(i)

        refused: list[int] = []  # parts that cannot be kept, and only came along

        def publish(j: int, made: _Made) -> None:
            try:
                self._publish_or_replace(j, made, spec, must_be_kept=must_be_kept or j != i)
            except CacheError:
                if j == i:
                    raise
                refused.append(j)
            else:
                on_published(j)

        with lock:
            missing = {j for j in keys if not self.has(j)}
            if i not in missing:
                return True
            num = int(self.catalogue.num_samples[i])
            if self.store.fetch(keys[i], spec, num_samples=num, must_be_kept=must_be_kept):
                on_published(i)
                return True
            with (
                overlapped(self._helpers if len(missing) > 1 else None) as do,
                closing(self._made(i, missing, spec)) as parts,
            ):
                for j, made in parts:
                    do(partial(publish, j, made))
                    del made
                    if refused and j >= i:
                        break  # nothing that is still to come could stay
        return True

    def close(self) -> None:
        """End the threads that help and the processes of the transform; threads that build are the caller's."""
        if self._processes is not None:
            self._processes.close()
        self._helpers.close()

    def _made(self, i: int, missing: Collection[int], spec: Spec | None) -> Generator[tuple[int, _Made]]:
        """Yield the fields of each missing fragment of a unit, or why it gives none where others may stand in for it.

        Holds a permit to compute while it makes them, not while bytes come over a network or the caller publishes.
        """
        catalogue, permits, left = self.catalogue, self.permits, set(missing)
        if spec is not None:
            for j in sorted(j for j in missing if catalogue.num_samples[j] == 0):
                left.discard(j)
                yield j, (empty_arrays(spec), spec)
        made: _Made
        with closing(self._read(i, left)) as tables:
            while left:
                with permits:
                    if not catalogue.is_remote:  # reading from a disk is a part of decoding
                        permits.take()
                    try:
                        j, table = next(tables)
                    except StokerError as error:
                        self._check_replaceable(error)
                        made = error
                        break
                    left.discard(j)
                    permits.take()
                    if spec is None and j != i:
                        continue  # perhaps without samples: chunk i says what a sample is
                    try:
                        made = self._convert(j, table, spec)
                        spec = made[1]
                    except StokerError as error:
                        self._check_replaceable(error)
                        made = error
                    del table
                yield j, made
                del made
        for j in sorted(left):  # what a row group has behind a bad page cannot be read either
            yield j, made

    def _read(self, i: int, wanted: Collection[int]) -> Generator[tuple[int, pa.Table]]:
        """Yield the rows of each wanted fragment of a unit."""
        catalogue, left = self.catalogue, set(wanted)
        rows = catalogue.read(
            i,
            on_stage=self._on_stage,
            on_fetched=self.permits.take,
            coded=self._coded,
            share_out=self._helpers.share_out,
        )
        # Closing the generator frees what it has read ahead.
        reading = closing(cast("Generator[tuple[int, pa.Table]]", rows))
        with reading as tables, noted("reading", catalogue.fragments[i]):
            for j, table in tables:
                if j not in left:
                    continue
                fragment = catalogue.fragments[j]
                if table.num_rows != catalogue.num_samples[j]:
                    raise SourceChangedError(
                        f"{fragment} has {table.num_rows:,} rows where {catalogue.num_samples[j]:,} were counted; "
                        f"open the data set again with refresh=True",
                        url=fragment.url,
                    )
                yield j, table
                left.discard(j)
                if not left:
                    return

    def _convert(self, j: int, table: pa.Table, spec: Spec | None) -> _Fields:
        """Return the fields of fragment j, and the spec that they fit."""
        fragment = self.catalogue.fragments[j]
        columns = self._transformed(table, str(fragment))
        with noted("converting", fragment), self._on_stage.span("convert", self.catalogue.size_of(table)):
            arrays = self._converter.convert(columns, where=str(fragment))
            if spec is None:
                spec = plan_sample(columns.schema, self._dataset)
        return arrays, spec

    def _transformed(self, table: pa.Table, where: str) -> pa.Table:
        if self._dataset.transform is None:
            return table
        with noted("transforming", where), self._on_stage.span("transform", self.catalogue.size_of(table)):
            columns = (self._processes or self._call)(table, where)
        with noted("transforming", where):
            result = as_table(columns, where=where)
            if result.num_rows != table.num_rows:
                raise TransformError(
                    f"the transform made {result.num_rows:,} rows of the {table.num_rows:,} of {where}; it must keep "
                    "their number: drop rows with filters=",
                    fragment=where,
                )
        return result

    def _call(self, table: pa.Table, where: str) -> Columns:
        """Return what the transform makes of a table, in this thread."""
        assert self._dataset.transform is not None
        try:
            return self._dataset.transform(table)
        except Exception as error:
            raise TransformError(
                f"the transform failed on {where}: {type(error).__name__}: {error}",
                fragment=where,
                is_of_rows=not is_of_surroundings(error),
            ) from error

    def _publish(
        self, j: int, key: str, made: tuple[Packable, Spec], *, must_be_kept: bool, donor: int | None = None
    ) -> None:
        fragment = self.catalogue.fragments[j]
        about = {
            "url": without_secrets(fragment.url),
            "row_groups": [fragment.row_groups[0], fragment.row_groups[-1]],
            "rows": fragment.rows,
            **({} if donor is None else {"rows_of": str(self.catalogue.fragments[donor])}),
        }
        with noted("publishing", fragment), self._on_stage.span("publish") as span:
            try:
                span.num_bytes = self.store.publish(
                    key,
                    *made,
                    num_samples=int(self.catalogue.num_samples[j]),
                    about=about,
                    must_be_kept=must_be_kept,
                )
            except FieldMismatchError as error:
                raise FieldMismatchError(
                    f"{fragment}: {error}. The first chunk with samples decides what every sample is; make the "
                    f"transform return the same names, dtypes and shapes for every table",
                    fragment=str(fragment),
                ) from None

    # ------------------------------------------------------------------ rows that stand in
    #
    #     chunk    0   1   2   3   4      3: a page is corrupt, or the transform fails on it
    #     rows of  0   1   2   4   4      as many as chunk 3 would have: those of chunk 4 from the beginning, again and
    #                                     again where it has fewer
    #
    # How many samples a chunk has is known beforehand, so no step, rank or resume notices. Which chunk lends its rows
    # follows from the data set alone: the next in the fixed order, around its end, that can be made itself. The chunk
    # is kept under a key of its own, so that neither a later repair nor a loader that would raise ever meets it.

    def _publish_or_replace(self, j: int, made: _Made, spec: Spec | None, *, must_be_kept: bool) -> None:
        try:
            if isinstance(made, StokerError):
                raise made
            self._publish(j, self.catalogue.key(j), made, must_be_kept=must_be_kept)
        except StokerError as error:
            self._check_replaceable(error)
            self._replace(j, error, spec, must_be_kept=must_be_kept)
        else:
            self._substituted.discard(j)

    def _check_replaceable(self, error: Exception) -> None:
        """Raise the error unless other rows may stand in: not for a network, credentials, a full disk, lost files."""
        is_of_rows = isinstance(error, SourceCorruptError | FieldError)
        if isinstance(error, TransformError):
            is_of_rows = error.is_of_rows
        if not (is_of_rows and self._may_substitute):
            raise error

    def _replace(self, j: int, error: StokerError, spec: Spec | None, *, must_be_kept: bool) -> None:
        """Publish a chunk of the rows of one of the next that can be made, in place of one that cannot; else raise why.

        Where not many of these can be made either, the fault is not in the rows of one chunk.
        """
        filled = np.flatnonzero(self.catalogue.num_samples)
        following = np.roll(filled, -int(np.searchsorted(filled, j, side="right"))).tolist()[:_MOST_DONORS]
        for donor in following:
            if donor == j or donor in self._unfit:
                continue
            is_sound = False
            try:
                table, spec_there = self._sound_rows(donor, spec)
                is_sound = True
                with self.permits:
                    self.permits.take()
                    rows = np.arange(self.catalogue.num_samples[j]) % table.num_rows
                    made = self._convert(j, table.take(pa.array(rows)), spec_there)
                key = substitute_key(self.catalogue, j)
                self._publish(j, key, made, must_be_kept=must_be_kept, donor=donor)
            except StokerError as other:
                self._check_replaceable(other)
                if not is_sound:
                    self._unfit.add(donor)
                continue
            self._note_substitute(j, f"those of {self.catalogue.fragments[donor]} stand in for them: {error}")
            return
        error.add_note("on_error='substitute': none of the chunks behind it can be made either")
        raise error

    def _sound_rows(self, i: int, spec: Spec | None) -> tuple[pa.Table, Spec]:
        """Return the rows of a chunk that can be made of all of them, and the spec that these fit; else raise."""
        with closing(self._read(i, {i})) as tables, self.permits:
            _, table = next(tables)
            self.permits.take()
            arrays, spec = self._convert(i, table, spec)
            prepare_chunk(arrays, spec, num_samples=int(self.catalogue.num_samples[i]))
            return table, spec

    def _find_substitute(self, i: int) -> bool:
        """Return whether what stands in for a chunk is there; it counts as replaced from then on."""
        is_there = self._may_substitute and self.store.has(substitute_key(self.catalogue, i))
        if is_there:
            self._note_substitute(i, "others stand in for them: they could not be made when the cache was filled")
        return is_there

    def _note_substitute(self, i: int, why: str) -> None:
        """Note that a chunk is replaced, and say once why and by what."""
        catalogue = self.catalogue
        with self._mutex:
            self._substituted.add(i)
            is_first, is_new = not self._said, i not in self._said
            self._said.add(i)
        if is_first:  # as long as somebody uses them they stay, as other chunks do
            self.store.register(
                fingerprint("substitutes", catalogue.fingerprint),
                name=f"substitutes for chunks of {catalogue.dataset!r}",
                urls=list(map(str, catalogue.dataset.sources)),
                keys=lambda: [substitute_key(catalogue, chunk) for chunk in range(len(catalogue))],
            )
        if is_new:
            num, where = int(catalogue.num_samples[i]), catalogue.fragments[i]
            _log.warning("the %s rows of %s are left out, %s", f"{num:,}", where, why)


def substitute_key(catalogue: Catalogue, chunk: int) -> str:
    """Return the key of what stands in for a chunk: all of the data set decides whose rows these are."""
    return fingerprint("substitute", {"dataset": catalogue.fingerprint, "chunk": catalogue.key(chunk)})


@contextmanager
def noted(stage: str, where: Fragment | str) -> Iterator[None]:
    """Add the stage and the fragment to an error of ours that passes."""
    try:
        yield
    except StokerError as error:
        error.add_note(f"while {stage} {where}")
        raise


def plan_sample(schema: pa.Schema, dataset: Description) -> Spec:
    """Return what a sample of such columns is, in a data set.

    Raises:
        FieldError: One cannot become a tensor, or two fields have names that no chunk can keep beside each other.
    """
    spec = plan_spec(schema, dataset.fields, dataset.deduplicate)
    check_names(spec)
    return spec


def empty_arrays(spec: Spec) -> Arrays:
    """Return the arrays of a chunk without samples."""
    return {entry.name: _empty(entry, entry.num_levels) for entry in spec}


def _empty(entry: Entry, num_levels: int) -> Array | Ragged:
    if num_levels:
        return Ragged(_empty(entry, num_levels - 1), np.zeros(1, dtype=np.int64))
    return np.empty((0, *entry.shape), dtype=entry.dtype)
