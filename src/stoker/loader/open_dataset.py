"""The chunks of an opened data set: where they are, how many samples each has, and how to have one that is missing."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.cache.builder import Builder
from stoker.cache.format import read_lengths
from stoker.cache.store import Chunk, Store, StoreCounts
from stoker.cache.threads import AdaptivePool, Permits
from stoker.columns import check_nulls
from stoker.dataset.catalogue import Catalogue, CountProgress, OnCount
from stoker.dataset.dataset import Dataset
from stoker.dataset.description import Description
from stoker.dataset.units.count import open_index
from stoker.dataset.units.index import Index
from stoker.dataset.units.kinds import Pack, SamplingUnit
from stoker.errors import FieldError
from stoker.fields.spec import Spec
from stoker.hashing import fingerprint
from stoker.host.machine import num_cores
from stoker.loader.config import LoaderConfig
from stoker.loader.fill import Filler, Filling, OnProgress, WarmProgress, warm
from stoker.loader.mixing import first_chunks
from stoker.loader.opening import WindowOpener
from stoker.loader.windows.window import Window
from stoker.metrics.stages import OnStage, ignore_stage

# How often to look whether another process has counted what this one needs.
_POLL_S = 0.02
# Threads that build from a remote source beyond those that may compute: they wait for the network most of the time,
# and while one decodes, others must keep it busy. Each holds a fragment in memory, so not many.
_REMOTE_THREADS = 6
# However late a store answers, no more threads than these fetch at once, and no more than hold so much in memory.
_MOST_THREADS = 64
_FETCHED_BYTES = 1 << 30
# Threads that build from a local source beyond those that may decode: one publishes a chunk, which waits for the disk
# and the kernel, while the next one is decoded. Two are no faster than one, and of smaller chunks than this, which wait
# little, one takes from those that decode where these have all cores.
_PUBLISH_THREADS = 1
_PUBLISHED_BYTES = 8 << 20
# Building a chunk takes a millisecond and a half of Python, under the interpreter's lock, in which the rest of the work
# is done for so many bytes. A thread more than both keep busy only takes turns with the others, which costs them all.
# See docs/decisions/0020.
_BYTES_BESIDE_PYTHON = 512 << 10


class OpenDataset:
    """Every chunk of a data set, by its number in the fixed order.

    Args:
        catalogue: The opened data set.
        store: The cache; closed with this.
        builder: Builds what is missing; closed with this.
        spec: What a sample is.
        beside: Threads that build some chunks already; joined before the rest is closed.

    Attributes:
        expected_bytes: About how much all chunks take.
        index: What the order counts, where that is not rows; set by `open_dataset`.
    """

    def __init__(
        self,
        *,
        catalogue: Catalogue,
        store: Store,
        builder: Builder,
        spec: Spec,
        beside: Sequence[threading.Thread],
    ) -> None:
        self.catalogue = catalogue
        self.spec = spec
        self.num_samples: npt.NDArray[np.int64] = catalogue.num_samples
        self.fingerprint = catalogue.fingerprint
        self._store = store
        self._builder = builder
        self.expected_bytes = _expected_bytes(catalogue, store, spec)
        self._beside = beside
        self.index: Index | None = None
        self._opener = WindowOpener(
            store=store,
            spec=spec,
            num_samples=self.num_samples,
            key=builder.key,
            fragments=catalogue.fragments,
            is_tight=lambda: self.is_tight,
        )

    @property
    def is_tight(self) -> bool:
        """Whether chunks may have to leave the cache again: then none is built long before it is used."""
        return _is_tight(self._store, self.expected_bytes)

    def stand(self, window: int | None) -> None:
        """Map each chunk once from now on, where they are few or small enough; see `WindowOpener.stand`."""
        self._opener.stand(window)

    @property
    def builders_worth(self) -> int | None:
        """How many threads that build a chunk leaves work for beside its Python; None where it may be any number."""
        # A transform may take any time, with or without the interpreter's lock.
        if not self._is_bound_by_work or self.catalogue.dataset.transform is not None:
            return None
        return 1 + round(self._work_bytes / _BYTES_BESIDE_PYTHON)

    @property
    def _is_bound_by_work(self) -> bool:
        catalogue = self.catalogue
        return not (catalogue.num_builders is not None or catalogue.is_remote or not self.permits)

    @cached_property
    def _work_bytes(self) -> float:
        """About how much is decoded for a chunk, of which a filter and a vocabulary may leave little; at least."""
        catalogue = self.catalogue
        num_read, num_left = int(catalogue.num_rows.sum()), int(catalogue.num_samples.sum())
        decoded_bytes = self.expected_bytes * num_read / num_left if num_left else 0
        return max(catalogue.file_bytes, decoded_bytes) / max(1, len(catalogue))

    def pool(self, num_threads: int) -> AdaptivePool:
        """Return the threads that should build, for `num_threads` cores: more while more fetches at once are worth it.

        Only those of a remote source wait for something that is not used up by waiting for it. And where chunks may
        have to leave the cache again, none is built long before it is used.
        """
        num = _num_builders(self.catalogue, num_threads)
        if self._is_bound_by_work:
            if num_threads >= num_cores() and self._work_bytes < _PUBLISHED_BYTES:
                num = num_threads
            num = min(num, self.builders_worth or num)
        if not self.catalogue.is_remote or self.is_tight:
            return AdaptivePool(num)
        chunk_bytes = max(1, self.expected_bytes // max(1, len(self.catalogue)))
        return AdaptivePool(num, most=min(_MOST_THREADS, _FETCHED_BYTES // chunk_bytes), permits=self.permits)

    @property
    def permits(self) -> tuple[Permits, ...]:
        """Permits to compute."""
        permits = self._builder.permits
        return () if permits is None else (permits,)

    def is_there(self, chunk: int) -> bool:
        """Return whether a chunk is in the cache."""
        return self._builder.has(chunk)

    def to_ask_for(self, chunks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return which chunks may have to be built; one that stays mapped is looked for when its window opens."""
        return self._opener.not_standing(chunks)

    def build(self, chunk: int) -> bool:
        """Build a chunk, and what is read in one go with it; False where another process is at it."""
        return self._builder.build(chunk)

    def warm(
        self,
        *,
        num_threads: int,
        on_progress: OnProgress | None = None,
        stop_event: threading.Event | None = None,
    ) -> WarmProgress:
        """Build every chunk that is missing; see `stoker.loader.fill.warm`."""
        return warm(self._builder, pool=self.pool(num_threads), on_progress=on_progress, stop_event=stop_event)

    def open_window(
        self,
        chunks: Sequence[int] | npt.NDArray[np.int64],
        filler: Filling,
    ) -> Window:
        """Return a window of these chunks, in this order.

        Blocks: until all of them are there.

        Args:
            chunks: Numbers of chunks, shape [K].
            filler: Has been or will be asked for them.
        """
        return self._opener.open(np.asarray(chunks).tolist(), filler)

    def count_uses(self, chunks: npt.NDArray[np.int64]) -> None:
        """Count one use of each of these chunks: whether it was in the cache when its window was opened. Shape [K]."""
        self._store.count_uses(len(chunks), map(self._builder.key, chunks.tolist()))

    def token_counts(self, field: str, num_threads: int, on_progress: OnCount | None) -> npt.NDArray[np.int64]:
        """Return how many values a ragged field has in every sample, as the chunks say. Shape [N].

        What a transform makes is only known when it has run: the first epoch's work is done ahead of it.

        Blocks: until all chunks are built; they are kept.
        """
        counts = [np.empty(0, np.int64)] * len(self.num_samples)
        filled = np.flatnonzero(self.num_samples).tolist()
        entry, num_rows = self.spec[field], 0

        def read(opened: Chunk) -> npt.NDArray[np.int64]:
            return read_lengths(opened.fd, opened.header, entry)

        filler = Filler(
            is_there=self.is_there,
            build=self.build,
            pool=self.pool(num_threads),
            max_ahead=lambda: num_threads if self.is_tight else None,
        )
        try:
            filler.request(filled)
            for num_done, chunk in enumerate(filled, 1):  # one thread reads: the filler's do what takes time
                filler.request([chunk])
                counts[chunk] = self._opener.with_chunk(chunk, filler, read)
                num_rows += len(counts[chunk])
                if on_progress is not None:
                    on_progress(CountProgress(num_fragments=len(filled), num_done=num_done, num_rows=num_rows))
        finally:
            filler.close()
        return np.concatenate([np.empty(0, np.int64), *counts])

    def counts(self) -> StoreCounts:
        """Return what became of the chunks so far."""
        return replace(self._store.counts(), num_substituted=self._builder.num_substituted)

    def is_substituted(self, chunk: int) -> bool:
        """Return whether other rows stand in for those of a chunk, as far as that is known here or in the cache."""
        return self._builder.is_substituted(chunk)

    def close(self) -> None:
        """Give locks back. Harmless when called again.

        Blocks: until chunks that are being built are done.
        """
        _join(self._beside)
        self._builder.close()
        self._opener.close()
        self._store.close()


def open_dataset(
    dataset: Dataset,
    config: LoaderConfig,
    *,
    is_temporary: bool = False,
    is_mixed: bool = False,
    on_stage: OnStage = ignore_stage,
    on_count: OnCount | None = None,
) -> OpenDataset:
    """Open a data set and its cache, find out what a sample is, and build the first chunk.

    Args:
        dataset: What to open.
        config: Arguments of the loader; its `cache` names a folder.
        is_temporary: Whether that folder ends with this loader: then it keeps nothing that is found out.
        is_mixed: Whether the data set is one of a mixture.
        on_stage: Told of the work that building does.
        on_count: Told how far counting what the order counts is.

    Raises:
        StokerError: As `Loader` says.
    """
    cache, unit, num_threads = config.cache, config.unit, config.num_threads
    assert cache.path is not None
    with ExitStack() as stack, ExitStack() as counting:
        store = Store(
            cache.path,
            limit_bytes=cache.limit_bytes,
            is_temporary=is_temporary,
            is_shared=cache.is_shared,
            verify=cache.verify,
        )
        stack.callback(store.close)
        folder = None if is_temporary else store.path
        if unit is not None and not makes_tokens(unit, dataset) and folder is not None:
            counting.enter_context(_counting(dataset, unit, store))
        rule = None if unit is None else unit.rule
        catalogue = dataset.open(folder, num_threads=num_threads, runs=rule, on_stage=on_stage, on_count=on_count)
        with _sound_source(catalogue):
            builder = Builder(
                catalogue,
                store,
                on_stage=on_stage,
                num_computing=num_threads,
                num_processes=num_threads if config.transform_in == "processes" else None,
                substitutes=config.on_error == "substitute",
            )
            stack.callback(builder.close)
            if dataset.transform is None and dataset.filter is None:
                check_known_nulls(catalogue)
            spec = builder.find_spec()
            beside = _build_first_chunk(catalogue, store, builder, spec, None if is_mixed else config)
            stack.callback(_join, beside)
        chunks = OpenDataset(catalogue=catalogue, store=store, builder=builder, spec=spec, beside=beside)
        if unit is not None:
            unit.check(spec)
            token_counts = None
            if isinstance(unit, Pack) and makes_tokens(unit, dataset):
                token_counts = partial(chunks.token_counts, unit.field, num_threads, on_count)
            chunks.index = open_index(
                unit,
                catalogue,
                folder=folder,
                num_threads=num_threads,
                on_progress=on_count,
                token_counts=token_counts,
            )
        stack.pop_all()
        return chunks


def _build_first_chunk(
    catalogue: Catalogue, store: Store, builder: Builder, spec: Spec, config: LoaderConfig | None
) -> list[threading.Thread]:
    """Build the first chunk with samples, unless it is there: what cannot work shows before training begins.

        this thread   |··first chunk··|                 batches are made of chunks that the order draws, so
        stoker-build  |····chunk 17···|                 the cores that would stand idle build some of these
        stoker-build  |~~~~~·····chunk 4····|

    One that is read together with many others is left for later: that could take minutes.

    Blocks: until the first chunk is built.

    Args:
        catalogue: Of the data set.
        store: Where chunks go.
        builder: Builds them.
        spec: What a sample is.
        config: Says which chunks the first batches need; None builds no others.

    Returns:
        The threads that build the others, to be joined before anything of this is closed.

    Raises:
        StokerError: The first chunk cannot be built. What is wrong with another one belongs to the step that needs it.
    """
    filled = np.flatnonzero(catalogue.num_samples)
    if not len(filled):
        return []
    first = int(filled[0])
    if len(catalogue.unit(first)) > 1 or builder.has(first):
        return []

    def build(chunk: int) -> None:
        with contextlib.suppress(Exception):
            builder.build(chunk)

    threads = []
    # So many that the first one still finds a permit to compute.
    if config is not None and not _is_tight(store, _expected_bytes(catalogue, store, spec)):
        wanted = first_chunks(config, catalogue.num_samples, spec)
        others = (chunk for chunk in wanted if chunk != first and len(catalogue.unit(chunk)) == 1)
        threads = [
            threading.Thread(target=build, args=(chunk,), name=f"stoker-build-{i}", daemon=True)
            for i, chunk in enumerate(islice(others, config.num_threads - 1))
        ]
    for thread in threads:
        thread.start()
    try:
        builder.build(first)
    except BaseException:
        _join(threads)
        raise
    return threads


def _join(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join()


def makes_tokens(unit: SamplingUnit, dataset: Description) -> bool:
    """Return whether only a transform's result says what the units are: then chunks are counted, not columns."""
    return isinstance(unit, Pack) and dataset.transform is not None


def _counting(dataset: Dataset, unit: SamplingUnit, store: Store) -> AbstractContextManager[object]:
    """Return the lock under which units are counted, so that the ranks of a host do not all read the same columns.

    Blocks: while another process or thread counts them.
    """
    name = fingerprint("counting", {"sources": list(map(str, dataset.sources)), "units": unit.to_json()})
    while (lock := store.try_lock(name)) is None:
        time.sleep(_POLL_S)
    return lock


@contextmanager
def _sound_source(catalogue: Catalogue) -> Iterator[None]:
    """Let a broken file be reported as broken, even where its columns would be refused anyway.

    Raises:
        SourceError: In place of a `FieldError`, where the first rows cannot even be read.
    """
    try:
        yield
    except FieldError:
        filled = np.flatnonzero(catalogue.num_rows)
        if len(filled) and len(catalogue.unit(int(filled[0]))) == 1:
            for _ in catalogue.read(int(filled[0])):
                pass
        raise


def _num_builders(catalogue: Catalogue, num_threads: int) -> int:
    if catalogue.num_builders is not None:
        return catalogue.num_builders
    return num_threads + (_REMOTE_THREADS if catalogue.is_remote else _PUBLISH_THREADS)


def _is_tight(store: Store, expected_bytes: int) -> bool:
    return store.is_refusing or (store.limit_bytes is not None and 2 * expected_bytes > store.limit_bytes)


def _expected_bytes(catalogue: Catalogue, store: Store, spec: Spec) -> int:
    """Return about how much all chunks take: as much a sample as the first one does, where that is there."""
    counts = catalogue.num_samples
    record_bytes = int(counts.sum()) * spec.record_bytes
    if not spec.ragged:
        return record_bytes
    filled = np.flatnonzero(counts)
    if len(filled) and (size_bytes := store.size_of(catalogue.key(int(filled[0])))) is not None:
        return int(size_bytes / counts[filled[0]] * counts.sum())
    return max(record_bytes, len(counts) * catalogue.dataset.chunk_bytes)


def check_known_nulls(catalogue: Catalogue) -> None:
    """Raise where the footers already say that there are nulls without an answer; the first fragment is named."""
    # Lists are left out: in a footer, an empty list counts as a null.
    flat = [field.name for field in catalogue.schema if not pa.types.is_nested(field.type)]
    counts = {name: catalogue.null_counts[name] for name in flat if name in catalogue.null_counts}
    suspects = {int(np.argmax(nulls > 0)) for nulls in counts.values() if (nulls > 0).any()}
    for i in sorted(suspects):
        check_nulls(
            {name: int(max(nulls[i], 0)) for name, nulls in counts.items()},
            catalogue.dataset.fields,
            where=str(catalogue.fragments[i]),
        )
