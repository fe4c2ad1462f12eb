"""The data sets of a loader, opened, one or those of a mixture, and who builds the chunks that are missing."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from stoker.cache.builder import Builder
from stoker.cache.format import read_lengths
from stoker.cache.store import Store
from stoker.cache.threads import AdaptivePool
from stoker.columns import check_nulls
from stoker.dataset.catalogue import Catalogue, OnCount
from stoker.dataset.dataset import Dataset
from stoker.dataset.description import Description
from stoker.dataset.mixture import Mixture
from stoker.dataset.units.count import open_index
from stoker.dataset.units.kinds import Pack, SamplingUnit
from stoker.errors import FieldError
from stoker.fields.offsets import Int64
from stoker.fields.spec import Spec
from stoker.hashing import fingerprint
from stoker.host.machine import num_cores
from stoker.loader.config import LoaderConfig
from stoker.loader.fill import Filler, chunks_of_part
from stoker.loader.orders import CountedSet, CountedSets
from stoker.loader.temporary import OwnedFolder
from stoker.loader.window import ChunkKey, WindowOpener
from stoker.metrics.stages import NO_STAGES, Stages
from stoker.storage.failures import Wait

# Of the memory that is free, what a cache in it may take: the model's process needs some, too.
_MEMORY_SHARE = 0.5
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
# Building a chunk takes a millisecond and a half of Python, under the interpreter's lock. In that time one thread does
# the rest of the work, outside the lock, for so many bytes. More threads than these keep busy only take turns, which
# costs them all. See docs/decisions/0020.
_BYTES_BESIDE_PYTHON = 512 << 10


class OpenDataset(CountedSet):
    """Every chunk of a data set, by its number in the fixed order; closes builder and cache with itself."""

    spec: Spec

    def __init__(self, builder: Builder, spec: Spec, unit: SamplingUnit | None) -> None:
        super().__init__(builder.catalogue, spec=spec, unit=unit)
        self.builder = builder
        self.windows = WindowOpener(builder, spec)
        self._estimate()
        self._beside: list[threading.Thread] = []  # that build some chunks already

    def is_substituted(self, chunk: int) -> bool:
        """Return whether other rows stand in for those of a chunk, as far as that is known here or in the cache."""
        return self.builder.is_substituted(chunk)

    def num_builders(self, num_threads: int, *, cores: int) -> tuple[int, int]:
        """Return how many threads should build, for `num_threads` of so many cores, and the most that are worth it.

        More of them help only with a remote source, whose network they wait for. And where chunks may have to leave the
        cache again, none is built long before its use.
        """
        catalogue, chunk_bytes = self.catalogue, self.windows.expected_bytes / max(1, len(self.catalogue))
        num = catalogue.num_builders or num_threads + (_REMOTE_THREADS if catalogue.is_remote else _PUBLISH_THREADS)
        if not (catalogue.num_builders or catalogue.is_remote):  # bound by work
            # What is decoded for a chunk, of which a filter and a vocabulary may leave little.
            num_read, num_left = int(catalogue.num_rows.sum()), int(catalogue.num_samples.sum())
            decoded_bytes = chunk_bytes * num_read / num_left if num_left else 0.0
            work_bytes = max(catalogue.file_bytes / max(1, len(catalogue)), decoded_bytes)
            if num_threads >= cores and work_bytes < _PUBLISHED_BYTES:
                num = num_threads
            if catalogue.dataset.transform is None:  # which may take any time, with the interpreter's lock or without
                num = min(num, 1 + round(work_bytes / _BYTES_BESIDE_PYTHON))
        if not catalogue.is_remote or self.windows.is_tight:
            return num, num
        return num, min(_MOST_THREADS, int(_FETCHED_BYTES / max(1.0, chunk_bytes)))

    @property
    def first_missing(self) -> int | None:
        """The first chunk with samples, if it is missing and read without others: it is built before training."""
        filled = np.flatnonzero(self.num_samples)
        first = int(filled[0]) if len(filled) else 0
        is_missing = len(filled) and len(self.catalogue.unit(first)) == 1 and not self.builder.has(first)
        return first if is_missing else None

    def build_first(self, first: int, beside: Sequence[int]) -> None:
        """Build the first chunk, so that what cannot work shows before training begins, and begin some others."""

        def try_to_build(chunk: int) -> None:
            with contextlib.suppress(Exception):  # which belongs to the step that needs it
                self.builder.build(chunk)

        for i, chunk in enumerate(beside):
            thread = threading.Thread(target=try_to_build, args=(chunk,), name=f"stoker-build-{i}", daemon=True)
            self._beside.append(thread)
            thread.start()
        with _sound_source(self.catalogue):
            self.builder.build(first)
        self._estimate()

    def _estimate(self) -> None:
        """Estimate what all chunks take: as much a sample as the first one does, where that is there."""
        counts, filled = self.num_samples, np.flatnonzero(self.num_samples)
        num_bytes = int(counts.sum()) * self.spec.record_bytes
        if self.spec.ragged:
            size_bytes = self.builder.size_of(int(filled[0])) if len(filled) else None
            if size_bytes is not None:
                num_bytes = int(size_bytes / counts[filled[0]] * counts.sum())
            else:
                num_bytes = max(num_bytes, len(counts) * self.catalogue.dataset.chunk_bytes)
        self.windows.expected_bytes = num_bytes

    def token_counts(self, field: str, num_threads: int, on_progress: OnCount | None) -> Int64:
        """Return how many values a ragged field has in every sample, as the chunks say. Shape [N].

        What a transform makes is only known when it has run: the first epoch's work is done ahead of it, and kept.
        """
        filled: list[int] = np.flatnonzero(self.num_samples).tolist()
        counts, num_rows = [np.empty(0, np.int64)], 0
        filler = filler_of([self], num_threads)
        try:
            filler.request([(self.builder, chunk) for chunk in filled])
            for num_done, chunk in enumerate(filled, 1):  # one thread reads: the filler's do what takes time
                filler.request([(self.builder, chunk)])
                with self.windows.chunk(chunk, filler) as opened:
                    counts.append(read_lengths(opened.fd, opened.header, self.spec[field]))
                num_rows += len(counts[-1])
                if on_progress is not None:
                    on_progress(num_done, len(filled), num_rows)
        finally:
            filler.close()
        return np.concatenate(counts)

    def counts(self) -> Counter[str]:
        """Return what became of the chunks so far."""
        return self.builder.store.counts() + Counter(num_substituted=self.builder.num_substituted)

    def close(self) -> None:
        """Give locks back, once chunks that are being built are done."""
        for thread in self._beside:
            thread.join()
        self.builder.close()
        self.windows.close()
        self.builder.store.close()


class OpenDatasets(CountedSets):
    """One or several data sets with one spec. Closing this closes them, and removes a cache made for this alone.

    Once `is_ending` is set, no read that fails is tried again.
    """

    datasets: tuple[OpenDataset, ...]

    def __init__(
        self,
        datasets: Sequence[OpenDataset],
        mixture: Mixture | None,
        temporary: OwnedFolder | None,
        is_ending: threading.Event,
    ) -> None:
        super().__init__(datasets, mixture)
        self.spec, self._temporary, self.is_ending = datasets[0].spec, temporary, is_ending

    @property
    def sample_bytes(self) -> float:
        """About how much a sample takes, lists included as far as that is known."""
        return sum(one.windows.expected_bytes for one in self.datasets) / max(1, int(self.num_samples.sum()))

    @property
    def is_tight(self) -> bool:
        """Whether chunks may have to leave the cache again: then none is built long before it is used."""
        return any(one.windows.is_tight for one in self.datasets)

    def count_uses(self, which: int, chunks: Int64) -> None:
        """Count one use of each chunk of a data set: whether it was there when its window was opened."""
        builder = self.datasets[which].builder
        builder.store.count_uses(len(chunks), map(builder.key, chunks.tolist()))

    def counts(self) -> Counter[str]:
        """Return what became of the chunks so far."""
        return sum((one.counts() for one in self.datasets), Counter())

    def close(self) -> None:
        """Give locks and temporary folders back. Harmless when called again."""
        self.is_ending.set()
        with ExitStack() as stack:
            if self._temporary is not None:
                stack.callback(self._temporary.close)
            for one in self.datasets:
                stack.callback(one.close)


def pool_of(datasets: Sequence[OpenDataset], num_threads: int) -> AdaptivePool:
    """Return the threads that should build these, for `num_threads` cores: more while more fetches are worth it."""
    nums, mosts = zip(*(one.num_builders(num_threads, cores=num_cores()) for one in datasets), strict=True)
    is_tight = any(one.windows.is_tight for one in datasets)  # one holds up all
    permits = [one.builder.permits for one in datasets]
    return AdaptivePool(max(nums), most=max(mosts), permits=[] if is_tight else permits)


def filler_of(datasets: Sequence[OpenDataset], num_threads: int, stages: Stages | None = None) -> Filler[ChunkKey]:
    """Return what builds chunks of these that are missing, for `num_threads` cores, and tells `stages` of it."""
    return Filler(
        is_there=lambda one: one[0].has(one[1]),
        build=lambda one: one[0].build(one[1]),
        pool=pool_of(datasets, num_threads),
        size_of=lambda one: int(one[0].catalogue.num_samples[one[1]]),
        max_ahead=lambda: num_threads if any(one.windows.is_tight for one in datasets) else None,
        stages=stages,
    )


def open_datasets(
    dataset: Dataset | Mixture,
    config: LoaderConfig,
    *,
    part: tuple[int, int] | None = None,
    on_stage: Stages = NO_STAGES,
    on_count: OnCount | None = None,
) -> OpenDatasets:
    """Open a data set, or all of a mixture, in one cache; find out what a sample is. Raises as `Loader` does.

    Without a `cache`, one in memory is made, which lives as long as this. Of several parts, no chunk is built from now
    on but those of `part`.
    """
    mixture = None if isinstance(dataset, Dataset) else dataset
    named = {"": dataset} if isinstance(dataset, Dataset) else dataset.datasets
    with ExitStack() as stack:
        temporary = None
        if (cache := config.cache).folder is None:
            in_memory = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
            temporary = OwnedFolder(in_memory, prefix=f"stoker-{os.getpid()}-", family="stoker-")
            stack.callback(temporary.close)
            temporary.make()
            limit = cache.limit_bytes or int(shutil.disk_usage(in_memory).free * _MEMORY_SHARE)
            config = replace(config, cache=replace(cache, folder=temporary.path / "cache", limit=limit))
        opened, is_ending = dict[str, OpenDataset](), threading.Event()
        for name, one in named.items():
            with naming(name):
                opened[name] = _open_dataset(
                    one,
                    config,
                    is_temporary=temporary is not None,
                    part=part,
                    wait=is_ending.wait,
                    on_stage=on_stage,
                    on_count=on_count,
                )
            stack.callback(opened[name].close)
        if mixture is not None:
            mixture.check_specs({name: one.spec for name, one in opened.items()})
        stack.pop_all()
        return OpenDatasets([*opened.values()], mixture, temporary, is_ending)


def _open_dataset(
    dataset: Dataset,
    config: LoaderConfig,
    *,
    is_temporary: bool,
    part: tuple[int, int] | None,
    wait: Wait,
    on_stage: Stages,
    on_count: OnCount | None,
) -> OpenDataset:
    """Open one data set; see `open_datasets`."""
    cache, unit, num_threads = config.cache, config.unit, config.num_threads
    with ExitStack() as stack, ExitStack() as counting:
        store = cache.open(is_temporary=is_temporary)
        stack.callback(store.close)
        folder = None if is_temporary else store.path  # in one that ends with this loader, nothing is kept
        if unit is not None and not makes_tokens(unit, dataset) and folder is not None:
            counting.enter_context(_counting(dataset, unit, store))
        rule = None if unit is None else unit.rule
        catalogue = dataset.open(
            folder, num_threads=num_threads, wait=wait, runs=rule, on_stage=on_stage, on_count=on_count
        )
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
            mine = [] if part is None else [i for i in chunks_of_part(catalogue, *part) if catalogue.num_samples[i]]
            spec = builder.find_spec(mine[0] if mine else None)
            opened = OpenDataset(builder, spec, unit)
            stack.callback(opened.close)
        if unit is not None and part is None:
            unit.check(spec)
            token_counts = None
            if isinstance(unit, Pack) and makes_tokens(unit, dataset):
                token_counts = partial(opened.token_counts, unit.field, num_threads, on_count)
            opened.index = open_index(
                unit,
                catalogue,
                folder=folder,
                num_threads=num_threads,
                on_progress=on_count,
                token_counts=token_counts,
            )
        stack.pop_all()
        return opened


def makes_tokens(unit: SamplingUnit, dataset: Description) -> bool:
    """Return whether only a transform's result says what the units are: then chunks are counted, not columns."""
    return isinstance(unit, Pack) and dataset.transform is not None


def check_known_nulls(catalogue: Catalogue) -> None:
    """Raise where the footers already say that there are nulls without an answer; the first file is named."""
    if not (catalogue.survey.nulls > 0).any():  # as nearly always
        return
    # Lists are left out: in a footer, an empty list counts as a null.
    counts = {
        field.name: catalogue.null_counts[field.name]
        for field in catalogue.schema
        if field.name in catalogue.null_counts and not pa.types.is_nested(field.type)
    }
    suspects = {int(np.argmax(nulls > 0)) for nulls in counts.values() if (nulls > 0).any()}
    for file in sorted(suspects):
        nulls = {name: int(max(found[file], 0)) for name, found in counts.items()}
        check_nulls(nulls, catalogue.dataset.fields, where=catalogue.files[file].url)


def _counting(dataset: Dataset, unit: SamplingUnit, store: Store) -> AbstractContextManager[object]:
    """Return the lock under which units are counted, so that the ranks of a host do not all read the same columns."""
    name = fingerprint("counting", {"sources": list(map(str, dataset.sources)), "units": unit.to_json()})
    while (lock := store.try_lock(name)) is None:
        time.sleep(_POLL_S)
    return lock


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Note the data set of a mixture on an error; one without a name stands alone."""
    try:
        yield
    except BaseException as error:
        if name:
            error.add_note(f"in data set {name!r} of the mixture")
        raise


@contextmanager
def _sound_source(catalogue: Catalogue) -> Iterator[None]:
    """Let a broken file be reported as broken, even where its columns would be refused anyway."""
    try:
        yield
    except FieldError:
        for first in np.flatnonzero(catalogue.num_rows)[:1].tolist():
            next(catalogue.read(first))
        raise
