"""A sample of a data set: some of its chunks, built once, whose batches, tensors and rows the paths are run on.

data set   0 1 2 3 4 5 6 7 8 9 …              thousands of chunks
chosen     0     3     6     9                 spread evenly
sampled    0 3 6 9 0 3 6 9 0 3 6 9 …           an epoch of any length
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.dataset.catalogue import Catalogue
from stoker.dataset.dataset import Dataset, dataset_of
from stoker.doctor.arrow import write_tables
from stoker.doctor.results import BUILD_STAGES, DataFacts
from stoker.doctor.settings import Budget, DoctorSettings
from stoker.doctor.step import FunctionStep, num_samples_of
from stoker.doctor.tap import Tap
from stoker.host.machine import free_memory_bytes
from stoker.loader.loader import Loader
from stoker.plan.savings import find_sharing
from stoker.words import some_of

# Shares of the budget: for the chunks, and for looking at what their rows share.
_SAMPLE, _SHARING = 0.12, 0.015
_NUM_UNITS, _NUM_COLD_UNITS = 16, 200
# Memory for the bytes of units and their tables, of what is free.
_KEEP_SHARE, _MAX_KEEP_BYTES = 0.1, 1 << 30
_NUM_FROZEN = 8


class Sample:
    """Builds some chunks, tries the step on a batch of them, and writes their rows as Arrow files.

    Attributes:
        catalogue: The data set; as given, and so are `settings`, `budget`, `scratch`.
        tap: What a remote source is read through; None where it is local.
        data: What is known of the data set.
        cold: Units for runs from the source.
        units: The units that were built.
        warm: Folder of a cache that holds them.
        arrow: Arrow files of some of their rows.
        batches: Some of their batches, to train on from memory.
        chunk_s: Seconds that the first chunk took.
        local_s: The part of them that was spent on its rows, not on fetching it.
        mean_chunk: Mean number of samples in a chunk.
        sharing: Which features repeat.
    """

    def __init__(
        self, catalogue: Catalogue, settings: DoctorSettings, budget: Budget, *, scratch: Path, tap: Tap | None
    ) -> None:
        self.catalogue, self.settings, self.budget, self.scratch, self.tap = catalogue, settings, budget, scratch, tap
        self.warm = scratch / "warm"
        self._fill()
        budget.say("the sample's rows as Arrow files")
        tables = list(self._tables())
        self.arrow = write_tables([table for table in tables if len(table)], scratch / "arrow")
        self.cold = spread_units(catalogue, _NUM_COLD_UNITS)
        sizes = num_samples_of_units(catalogue, self.cold).astype(float)
        self.mean_chunk = float(sizes.sum() / sum(map(len, self.cold)))
        shared = None
        if not catalogue.dataset.deduplicate and self.local_s <= budget.slice_s(_SHARING):
            # Where that fails (a transform may raise anything), deduplication is not advised.
            with suppress(Exception), self.replaying():
                shared = find_sharing(SampledDataset(catalogue, self.units[:1]).open())
        self.sharing = shared.keys if shared else ()
        num_bytes = sum(path.stat().st_size for path in self.warm.rglob("*") if path.is_file())
        self.data = DataFacts(
            text=some_of(dataset_of(catalogue).sources, 1),
            num_samples=int(catalogue.num_samples.sum()),
            num_files=len(catalogue.files),
            num_chunks=len(catalogue),
            is_remote=tap is not None,
            num_probed=sum(map(len, self.units)),
            tensor_bytes=num_bytes / max(1, int(num_samples_of_units(catalogue, self.units).sum())),
            repeated_share=1 - shared.kept_bytes / max(1.0, shared.row_bytes) if shared else 0.0,
            evenness=float(sizes.sum() ** 2 / (len(sizes) * (sizes**2).sum())),
            **_row_facts(catalogue, tables[0], self.units[0]),
        )

    def replaying(self) -> AbstractContextManager[None]:
        """Give what was read of the source from memory inside the block."""
        return nullcontext() if self.tap is None else self.tap.doing("replaying")

    def _fill(self) -> None:
        """Build chunks: one first, for the step, then twice as many at a time, as long as there is time for as many."""
        units = spread_units(self.catalogue, _NUM_UNITS)
        until_s = time.perf_counter() + self.budget.slice_s(_SAMPLE)
        most_bytes = min(_MAX_KEEP_BYTES, _KEEP_SHARE * free_memory_bytes())
        done = 0
        with nullcontext() if self.tap is None else self.tap.doing("keeping"):
            while done < len(units):
                self.budget.say("a sample of chunks" if done else "one chunk")
                start_s, is_first, done = time.perf_counter(), not done, min(len(units), max(1, 2 * done))
                sampled = SampledDataset(self.catalogue, units[:done], is_new=False)
                with make_loader(sampled, self.settings, cache=self.warm, window=done) as loader:
                    batches = [batch for _, batch in zip(range(_NUM_FROZEN), loader, strict=False)]
                    stages = loader.stats().stages
                took_s = time.perf_counter() - start_s
                if is_first:
                    self.chunk_s = took_s / len(units[0])
                    worked_s = sum(stages[key].busy_s for key in BUILD_STAGES[1:] if key in stages)
                    self.local_s = worked_s / len(units[0])
                    self._try_step(batches[0])
                kept = 0 if self.tap is None else sum(num_bytes for _, _, num_bytes in self.tap.reads)
                if time.perf_counter() + 2 * took_s > until_s or 3 * kept > most_bytes:
                    break
        largest = max(num_samples_of(batch) for batch in batches)
        self.batches, self.units = [batch for batch in batches if num_samples_of(batch) == largest], units[:done]

    def _try_step(self, batch: Any) -> None:
        step = self.settings.step
        if isinstance(step, FunctionStep):
            self.budget.say("trying the step")
            for _ in range(2):
                step.begin(batch)
            step.finish()

    def _tables(self) -> Iterator[pa.Table]:
        """Yield the units' rows, decoded from memory, up to so many bytes."""
        most_bytes, num_bytes = _KEEP_SHARE * free_memory_bytes(), 0
        with self.replaying():
            for unit in self.units:
                for _, table in self.catalogue.read(unit[0]):
                    num_bytes += table.nbytes
                    yield table
                    if num_bytes > most_bytes:
                        return


class SampledDataset(Dataset):
    """A data set that opens as some units of a catalogue; the options are those of `Catalogue.sampled`.

    They are there again and again, every time under another key unless told otherwise, so that each is built anew and
    found in no cache: what a cold epoch of any length is measured on.
    """

    def __init__(self, catalogue: Catalogue, units: Sequence[range], **options: Any) -> None:
        self.__dict__.update(catalogue.dataset.__dict__)
        self._sampled = catalogue.sampled(units, **options)

    def open(self, folder: Path | str | None = None, **_: Any) -> Catalogue:  # noqa: ARG002  nothing is kept of it
        """Return the sample."""
        return self._sampled


def make_loader(dataset: Any, settings: DoctorSettings, **options: Any) -> Loader:
    """Return a loader as training has it, some options changed."""
    own = {name: getattr(settings, name) for name in ("batch_size", "num_threads", "transform_in")}
    return settings.make_loader(dataset, shuffle=True, **{**own, **options})


def spread_units(catalogue: Catalogue, num_units: int) -> list[range]:
    """Return up to `num_units` units with samples, spread evenly over the data set, in its order."""
    filled = np.flatnonzero(catalogue.num_samples)
    if not len(filled):
        return []
    chosen = filled[np.linspace(0, len(filled) - 1, min(num_units, len(filled))).astype(int)]
    units = (catalogue.unit(int(i)) for i in chosen)
    return list({unit[0]: unit for unit in units}.values())


def num_samples_of_units(catalogue: Catalogue, units: Sequence[range]) -> npt.NDArray[np.int64]:
    """Return the samples of each unit. [U]."""
    return np.array([catalogue.num_samples[unit.start : unit.stop].sum() for unit in units], np.int64)


def _row_facts(catalogue: Catalogue, table: pa.Table, unit: range) -> dict[str, Any]:
    """Return what one unit's rows say, as fields of `DataFacts`: the widest column, bytes a sample."""
    fragment, sizes = catalogue.fragments[unit[0]], {name: table.column(name).nbytes for name in table.column_names}
    number = next((i for i, info in enumerate(catalogue.files) if info.url == fragment.url), None)
    at_source = dict[str, int]()
    if number is not None:  # compressed, in the unit's row groups, as the footer says
        footer = catalogue.footer(number)
        chunks = footer.chunks[fragment.row_groups.start : fragment.row_groups.stop]
        leaves = {name: footer.layout.leaves_of(name) for name in table.column_names}
        at_source = {name: int(chunks[:, own]["compressed_bytes"].sum()) for name, own in leaves.items() if own}
    at_source = at_source or sizes
    widest = max(at_source, key=lambda name: at_source[name], default="")
    return {
        "widest_column": widest,
        "widest_share": at_source.get(widest, 0) / (sum(at_source.values()) or 1),
        "source_bytes": sum(at_source.values()) / max(1, int(catalogue.num_rows[unit.start : unit.stop].sum())),
        "arrow_bytes": (sum(sizes.values()) or 1) / max(1, len(table)),
    }
