"""Values that perhaps do not fit the type that all files share: held against statistics, else read, at opening.

    x   int64 in a.parquet, double in b.parquet        unified: double, which holds integers up to 2^53

    a.parquet   row group 0: x from 1 to 99            fits: the statistics say it
                row group 1: x from 1 to 2^60          does not, perhaps: x is read
                row group 2: no statistics             nobody knows: x is read

An error comes here, before the first batch, rather than hours later at the chunk that holds the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker.dataset.filters import steps, surviving_row_groups
from stoker.dataset.rows import RowReader
from stoker.dataset.survey import Cut
from stoker.metrics.stages import ignore_stage
from stoker.parquet.footers import Footers
from stoker.parquet.schema import Layout, flat_fields
from stoker.parquet.unify import limits, surely_fits
from stoker.storage.each import for_each


def check_doubts(reader: RowReader, cut: Cut, footers: Footers, *, num_threads: int) -> None:
    """Read what perhaps does not fit the common types: nothing where all files agree, or statistics tell.

    Args:
        reader: Reads the fragments.
        cut: Which columns are read.
        footers: Of the files.
        num_threads: Threads that read.

    Raises:
        FieldError: A value does not fit.
        SourceError: A file cannot be read.
    """
    known = reader.survey
    by_layout: dict[int, tuple[Layout, Mapping[str, tuple[pa.DataType, pa.DataType]]]] = {}
    units: list[tuple[int, pa.Schema]] = []
    shared = dict(flat_fields(known.schema))
    for f, file in enumerate(known.files):
        footer = footers.get(file.info)
        layout = footer.layout
        if id(layout) not in by_layout:  # which keeps it, so that no other one gets its number
            by_layout[id(layout)] = layout, _doubtful(layout, shared, cut.names)
        _, doubtful = by_layout[id(layout)]
        if not doubtful:
            continue
        in_doubt = _groups_in_doubt(layout, doubtful, footers.bytes_of(file.info), len(footer.numbers.groups))
        groups = np.array(sorted(in_doubt), np.int64)
        here = np.flatnonzero(known.file == f)
        num_before = np.searchsorted(groups, [known.start[here], known.stop[here]])
        found = here[num_before[1] > num_before[0]].tolist()
        schema = pa.schema([(name, kind) for name, (_, kind) in doubtful.items()])
        units += [(i, schema) for i in sorted({reader.unit(i)[0] for i in found})]

    def work(u: int) -> None:
        i, schema = units[u]
        for _ in reader.read_stored(i, reader.want(schema, beside=pa.schema([])), ignore_stage):
            pass

    for_each(len(units), work, num_threads=num_threads)


def _doubtful(
    layout: Layout, shared: Mapping[str, pa.DataType], names: Sequence[str]
) -> Mapping[str, tuple[pa.DataType, pa.DataType]]:
    """Return columns by their dotted names, their types in a file and in all, where not every value surely fits."""
    here = dict(flat_fields(layout.named_schema()))
    both = {name: (here[name], shared[name]) for name in names if name in here and name in shared}
    return {name: (source, target) for name, (source, target) in both.items() if not surely_fits(source, target)}


def _groups_in_doubt(
    layout: Layout, doubtful: Mapping[str, tuple[pa.DataType, pa.DataType]], footer: pa.Buffer, num_groups: int
) -> set[int]:
    """Return the row groups of a file whose statistics do not say that all values fit."""
    beyond: list[pc.Expression] = []
    for name, (source, target) in doubtful.items():
        bounds = limits(source, target)
        if bounds is None:
            beyond = []
            break
        column = pc.field(*steps(layout.named_schema(), name))
        beyond.append((column < bounds[0]) | (column > bounds[1]))
    if beyond and layout.members is None:  # in a table, statistics go by other names
        try:
            expression = reduce(lambda one, other: one | other, beyond)
            return surviving_row_groups(footer, expression=expression, schema=layout.schema, partition=None)
        except (pa.ArrowException, OSError, ValueError, TypeError):
            pass  # statistics that pyarrow cannot use prove nothing
    return set(range(num_groups))
