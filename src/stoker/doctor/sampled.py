"""A few chunks of a data set, again and again: what a cold epoch of any length is measured on.

Every time under another key, so that each is built anew and found in no cache:

data set   0 1 2 3 4 5 6 7 8 9 …              thousands of chunks
chosen     0     3     6     9                 spread evenly
sampled    0 3 6 9 0 3 6 9 0 3 6 9 …
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.dataset.catalogue import Catalogue
from stoker.dataset.dataset import Dataset
from stoker.dataset.fragments import Fragment
from stoker.hashing import fingerprint
from stoker.metrics.stages import OnStage, ignore_stage
from stoker.parquet.decode import ShareOut, one_by_one


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


class SampledCatalogue(Catalogue):
    """Some units of a catalogue, several times over.

    Args:
        inner: The whole.
        units: The units.
        num_times: How often each is there.
        is_new: Whether it is another chunk each time, which no cache has.
        num_builders: Threads that a loader builds with to begin with; None leaves that to it.
    """

    def __init__(
        self,
        inner: Catalogue,
        units: Sequence[range],
        *,
        num_times: int = 1,
        is_new: bool = True,
        num_builders: int | None = None,
    ) -> None:
        # A view: everything that is not said otherwise here is the whole's.
        self.__dict__.update(inner.__dict__)
        self.__dict__.pop("fingerprint", None)
        self._inner = inner
        self._keys = {}
        self.num_builders = num_builders
        self._is_new = is_new
        self._units: list[range] = []
        self._of: list[tuple[int, int, int]] = []  # (number in the whole, repetition, place in `_units`)
        for repetition in range(num_times):
            for unit in units:
                start = len(self._of)
                self._of += [(i, repetition, len(self._units)) for i in unit]
                self._units.append(range(start, len(self._of)))
        numbers = np.array([i for i, _, _ in self._of], dtype=np.int64)
        self.fragments: Sequence[Fragment] = [inner.fragments[int(i)] for i in numbers]
        self.num_rows = inner.num_rows[numbers]
        self.num_samples = inner.num_samples[numbers]
        self.null_counts = {name: nulls[numbers] for name, nulls in inner.null_counts.items()}

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits that stand for this sample."""
        return fingerprint("doctor", [self._inner.fingerprint, self._is_new, [list(place) for place in self._of]])

    @property
    def file_of_chunk(self) -> npt.NDArray[np.int64]:
        """Number of each fragment's file."""
        return self._inner.file_of_chunk[[number for number, _, _ in self._of]]

    def deleted(self, i: int) -> npt.NDArray[np.int64]:
        """Return the rows of fragment i that its table has no more."""
        return self._inner.deleted(self._of[i][0])

    @property
    def file_bytes(self) -> int:
        """About what of the files' bytes is the sample's."""
        return self._inner.file_bytes * len(self) // max(1, len(self._inner))

    def _key(self, i: int) -> str:
        """Return the chunk's key; that of a repetition is found in no cache, if it is to be new."""
        number, repetition, _ = self._of[i]
        key = self._inner.key(number)
        return fingerprint("doctor-chunk", [key, repetition]) if repetition and self._is_new else key

    def unit(self, i: int) -> range:
        """Return the fragments that are read in one go with i."""
        return self._units[self._of[i][2]]

    def read(
        self,
        i: int,
        *,
        on_stage: OnStage = ignore_stage,
        on_fetched: Callable[[], object] | None = None,
        coded: Collection[str] = (),
        share_out: ShareOut = one_by_one,
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yield (j, rows of fragment j) for every j of `unit(i)`."""
        start = self.unit(i)[0]
        first = self._of[start][0]
        for j, table in self._inner.read(
            self._of[i][0], on_stage=on_stage, on_fetched=on_fetched, coded=coded, share_out=share_out
        ):
            yield start + j - first, table

    def check_unchanged(self, i: int) -> None:
        """Look up the file of fragment i."""
        self._inner.check_unchanged(self._of[i][0])


class SampledDataset(Dataset):
    """A data set that opens as a `SampledCatalogue`; the arguments are its."""

    def __init__(self, catalogue: Catalogue, units: Sequence[range], **options: Any) -> None:
        self.__dict__.update(catalogue.dataset.__dict__)
        self._sampled = SampledCatalogue(catalogue, units, **options)

    def open(self, folder: Path | str | None = None, **_: Any) -> SampledCatalogue:  # noqa: ARG002  nothing is kept of it
        """Return the sample."""
        return self._sampled
