"""A few chunks of a data set, again and again: what a cold epoch of any length is measured on.

Every time under another key, so that each is built anew and found in no cache:

data set   0 1 2 3 4 5 6 7 8 9 …              thousands of chunks
chosen     0     3     6     9                 spread evenly
sampled    0 3 6 9 0 3 6 9 0 3 6 9 …
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.dataset.catalogue import Catalogue
from stoker.dataset.dataset import Dataset


def spread_units(catalogue: Catalogue, num_units: int) -> list[range]:
    """Return up to `num_units` units with samples, spread evenly over the data set, in its order."""
    filled = np.flatnonzero(catalogue.num_samples)
    if not len(filled):
        return []
    chosen = filled[np.linspace(0, len(filled) - 1, min(num_units, len(filled))).astype(int)]
    units = (catalogue.unit(int(i)) for i in chosen)
    return list({unit[0]: unit for unit in units}.values())


def row_facts(catalogue: Catalogue, table: pa.Table, unit: range) -> dict[str, Any]:
    """Return what one unit's rows say, as fields of `DataFacts`: the widest column, bytes a sample.

    Args:
        catalogue: The data set.
        table: Rows of one of its units.
        unit: That unit.
    """
    fragment, sizes = catalogue.fragments[unit[0]], {name: table.column(name).nbytes for name in table.column_names}
    number = next((i for i, info in enumerate(catalogue.files) if info.url == fragment.url), None)
    at_source = dict[str, int]()
    if number is not None:  # compressed, in the unit's row groups, as the footer says
        footer = catalogue.footer(number)
        chunks = footer.numbers.chunks[fragment.row_groups.start : fragment.row_groups.stop]
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


def num_samples_of_units(catalogue: Catalogue, units: Sequence[range]) -> npt.NDArray[np.int64]:
    """Return the samples of each unit. [U]."""
    return np.array([catalogue.num_samples[unit.start : unit.stop].sum() for unit in units], np.int64)


class SampledDataset(Dataset):
    """A data set that opens as some of a catalogue; the options are those of `Catalogue.sampled`."""

    def __init__(self, catalogue: Catalogue, units: Sequence[range], **options: Any) -> None:
        self.__dict__.update(catalogue.dataset.__dict__)
        self._sampled = catalogue.sampled(units, **options)

    def open(self, folder: Path | str | None = None, **_: Any) -> Catalogue:  # noqa: ARG002  nothing is kept of it
        """Return the sample."""
        return self._sampled
