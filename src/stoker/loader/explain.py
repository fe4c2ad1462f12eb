"""From samples to rows of files and back, without reading any of them: what `explain` and `find` answer.

step ─► positions ─► (chunk, row of the chunk) ─► file, row group, row of the row group
        sampling/steps.py                            the catalogue and its footers
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from stoker.dataset.catalogue import Catalogue
from stoker.errors import printable
from stoker.fields.offsets import Int64, offsets_of, ranges
from stoker.loader.orders import Orders
from stoker.sampling.steps import RankShare, Samples, Steps, samples_of
from stoker.words import count_text

_MAX_LINES = 10  # of a printed explanation


class SourceRow(NamedTuple):
    """Where one sample comes from: file, row group and row; the latter two None where a filter leaves them open."""

    url: str
    row_group: int | None
    row: int | None  # in its row group
    chunk: int  # in the fixed order
    chunk_row: int  # among the rows of the chunk, those that pass the filter
    is_padding: bool  # whether the sample only fills the batch
    dataset: str | None = None  # its name in a mixture


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation(Sequence[SourceRow]):
    """The samples of a step on a rank, in the order in which they are delivered; a sequence of `SourceRow`.

    With a filter, only rows that pass are samples, and which these are is not known without reading: `row_group` and
    `row` are None then, unless every row of the fragment passes. `chunk_row` = n says that the sample is the row n,
    counted from 0, of those that pass in its fragment. All arrays have shape [B].
    """

    epoch: int
    step: int
    shard: RankShare
    urls: Sequence[str]  # of all files of the data set
    file: Int64  # of each sample, by its number among these
    row_group: Int64  # -1 where it is not known without reading
    row: Int64  # in the row group, -1 where it is not known
    chunk: Int64  # in the fixed order
    chunk_row: Int64  # in the chunk
    is_padding: npt.NDArray[np.bool_]  # whether the sample only fills the batch
    # Which group, window or packed row of the batch each belongs to, where the order counts these; then a sample may be
    # named several times. Otherwise its own place.
    unit: Int64
    is_substituted: npt.NDArray[np.bool_]  # whether another row stands in for it, as far as the loader knows
    names: Sequence[str] = ()  # of the data sets of a mixture
    whose: Int64 | None = None  # number of each sample's data set among these; None where there is one data set

    def __len__(self) -> int:
        return self.chunk.size

    @overload
    def __getitem__(self, i: int) -> SourceRow: ...
    @overload
    def __getitem__(self, i: slice) -> list[SourceRow]: ...
    def __getitem__(self, i: int | slice) -> SourceRow | list[SourceRow]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        row_group, row = int(self.row_group[i]), int(self.row[i])
        return SourceRow(
            url=self.urls[int(self.file[i])],
            row_group=None if row_group < 0 else row_group,
            row=None if row < 0 else row,
            chunk=int(self.chunk[i]),
            chunk_row=int(self.chunk_row[i]),
            is_padding=bool(self.is_padding[i]),
            dataset=None if self.whose is None else self.names[int(self.whose[i])],
        )

    def __str__(self) -> str:
        """Return it for people: a line for each run of rows that lie side by side, the first of many."""
        padding = int(self.is_padding.sum())
        files = count_text(np.unique(self.file).size, "file")
        lines = [
            f"epoch {self.epoch}, step {self.step}, rank {self.shard.rank} of {self.shard.world_size}: "
            f"{count_text(len(self), 'sample')} of {files}" + (f", {padding:,} of them padding" if padding else "")
        ]
        for begin, end in self._runs()[:_MAX_LINES]:
            first, last = self[begin], self[end - 1]
            samples = f"sample {begin}" if end == begin + 1 else f"samples {begin}-{end - 1}"
            if first.row is None or last.row is None:  # a filter leaves open which
                where = f"{_range(first.chunk_row, last.chunk_row)} of those of chunk {first.chunk} that pass"
            else:
                where = f"row group {first.row_group}, {_range(first.row, last.row)}"
            data_set = "" if first.dataset is None else f"{first.dataset}: "
            note = "  (padding)" if first.is_padding else "  (others stand in)" if self.is_substituted[begin] else ""
            lines.append(f"  {samples:<16} {data_set}{first.url}, {where}{note}")
        if (num_left := len(self._runs()) - _MAX_LINES) > 0:
            lines.append(f"  ... and {count_text(num_left, 'more run')} of rows; each sample is explanation[i]")
        return printable("\n".join(lines))

    def _runs(self) -> list[tuple[int, int]]:
        """Return where rows lie side by side: [begin, end) of the samples."""
        if not len(self):
            return []
        next_to = np.diff(self.chunk_row) == 1
        for one in (self.file, self.row_group, self.chunk, self.is_padding):
            next_to &= one[1:] == one[:-1]
        return list(pairwise([0, *(np.flatnonzero(~next_to) + 1).tolist(), len(self)]))

    def __repr__(self) -> str:
        return (
            f"<Explanation of epoch {self.epoch}, step {self.step}, rank {self.shard.rank} of "
            f"{self.shard.world_size}: {len(self):,} samples of {np.unique(self.file).size:,} files>"
        )


def _range(first: int, last: int) -> str:
    return f"row {first:,}" if first == last else f"rows {first:,} to {last:,}"


class Use(NamedTuple):
    """When a row is used, and by which rank; by none where the epoch leaves it out, as `remainder="drop"` does."""

    epoch: int
    step: int | None
    rank: int | None
    chunk: int  # of the row, in the fixed order
    chunk_row: int  # in the chunk
    dataset: str | None = None  # its name in a mixture


def explain(orders: Orders, steps: Steps, step: int, *, epoch: int, shard: RankShare) -> Explanation:
    """Return where every sample of a step on a rank comes from; nothing but footers is read.

    `steps` are those of the epoch, from its beginning. Raises as `Loader.explain` does.
    """
    samples = samples_of(orders.order.lanes_of_epoch(epoch), steps, step, shard)
    row, unit = _rows(samples, orders)
    whose, chunk = samples.component[unit], samples.chunk[unit]
    datasets = orders.opened.datasets
    first_files = [0, *accumulate(len(one.catalogue.files) for one in datasets)]
    file, row_group, place = (np.full(whose.size, -1, dtype=np.int64) for _ in range(3))
    is_substituted = np.zeros(whose.size, dtype=np.bool_)
    by_chunk = np.lexsort((chunk, whose))
    borders = np.flatnonzero(np.diff(whose[by_chunk]) | np.diff(chunk[by_chunk])) + 1
    for members in np.split(by_chunk, borders) if by_chunk.size else ():
        which, number = int(whose[members[0]]), int(chunk[members[0]])
        catalogue = datasets[which].catalogue
        file[members] = first_files[which] + int(catalogue.file_of_chunk[number])
        is_substituted[members] = datasets[which].is_substituted(number)
        kept = catalogue.kept(number)
        if _is_known(catalogue, number, kept):
            rows = row[members] if kept is None else kept[row[members]]
            row_group[members], place[members] = catalogue.source_rows(number, rows)
    return Explanation(
        epoch=epoch,
        step=step,
        shard=shard,
        urls=[info.url for one in datasets for info in one.catalogue.files],
        file=file,
        row_group=row_group,
        row=place,
        chunk=chunk,
        chunk_row=row,
        is_padding=samples.is_padding[unit],
        unit=unit,
        is_substituted=is_substituted,
        names=orders.names,
        whose=whose if orders.names else None,
    )


def _rows(samples: Samples, orders: Orders) -> tuple[Int64, Int64]:
    """Return the rows that samples are made of, in their order, and which sample each is of. Shape [T] each."""
    num = samples.row.size
    if orders.unit is None:
        return samples.row, np.arange(num, dtype=np.int64)
    counts, found = np.zeros(num, dtype=np.int64), []
    for which, epoch in sorted(set(zip(samples.component.tolist(), samples.epoch.tolist(), strict=True))):
        members = np.flatnonzero((samples.component == which) & (samples.epoch == epoch))
        units = orders.units_in(which, epoch)
        assert units is not None
        row, offsets = units.rows(samples.chunk[members], samples.row[members])
        counts[members] = np.diff(offsets)
        found.append((members, row, offsets))
    starts = offsets_of(counts)
    rows = np.empty(starts[-1], dtype=np.int64)
    for members, row, offsets in found:
        rows[ranges(starts[members], offsets)] = row
    return rows, np.repeat(np.arange(num, dtype=np.int64), counts)


def find_all(orders: Orders, steps: Steps, row: tuple[str, int, int], *, epoch: int, world_size: int) -> list[Use]:
    """Return every use of a row in an epoch, in the order of steps, as `Loader.find_all` does; padding is no use.

    `steps` are those of the epoch, from its beginning. The row is given by its file, as `Catalogue.files` names it or
    by an end of that which no other file has; the row group; and the row in that.
    """
    which, chunk, chunk_row = _sample(orders, row)
    name = orders.names[which] if orders.names else None
    uses = list[Use]()
    for lane, of_lane in enumerate(orders.order.lanes_of_epoch(epoch)):
        for own_epoch in of_lane.own_epochs(which):
            units = orders.units_in(which, own_epoch)
            unit = np.array([chunk_row], dtype=np.int64) if units is None else units.units_of(chunk, chunk_row)
            own = of_lane.component_epoch(which, own_epoch)
            for place in own.positions_of(np.full_like(unit, chunk), unit).tolist():
                at = of_lane.position_of(which, own_epoch, place)
                used = None if at is None else steps.use_of(at, lane=lane, world_size=world_size)
                if used is not None:
                    uses.append(Use(epoch, *used, chunk, chunk_row, name))
    return sorted(uses) or [Use(epoch, None, None, chunk, chunk_row, name)]


def _sample(orders: Orders, row: tuple[str, int, int]) -> tuple[int, int, int]:
    """Return data set, chunk and row of the chunk of a row of a file."""
    found, errors = [], []
    for which, one in enumerate(orders.opened.datasets):
        try:
            found.append((which, *_chunk_of_row(one.catalogue, *row)))
        except ValueError as error:
            if not orders.names:
                raise
            errors.append(f"{orders.names[which]}: {error}")
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(orders.names[which] for which, *_ in found)
        raise ValueError(
            f"{row[0]!r} is a file of {len(found)} data sets of the mixture ({names}); give more of its path"
        )
    raise ValueError("no data set of the mixture has this row:\n  " + "\n  ".join(errors))


def _is_known(catalogue: Catalogue, number: int, kept: Int64 | None) -> bool:
    """Return whether all rows pass that are `kept` of a chunk, and so no filter leaves open which rows samples are."""
    return int(catalogue.num_samples[number]) == (int(catalogue.num_rows[number]) if kept is None else kept.size)


def _file_of(catalogue: Catalogue, url: str) -> int:
    """Return the number of the file with this URL, or of the one file whose URL ends in it at a folder's border."""
    tail = "/" + url.removeprefix("./").lstrip("/")
    urls = [info.url for info in catalogue.files]
    found = [i for i, one in enumerate(urls) if one == url] or [i for i, one in enumerate(urls) if one.endswith(tail)]
    if len(found) == 1:
        return found[0]
    example = urls[found[0] if found else 0] if urls else "none at all"
    if found:
        raise ValueError(f"{len(found)} files of the data set end in {url!r}, such as {example}; give more of the path")
    raise ValueError(f"the data set has no file {url!r}; it has {len(urls):,}, such as {example}")


def _chunk_of_row(catalogue: Catalogue, url: str, row_group: int, row: int) -> tuple[int, int]:
    """Return chunk and row of the chunk of a row of a file; raises as `find_all` does."""
    file = _file_of(catalogue, url)
    url, sizes = catalogue.files[file].url, catalogue.footer(file).groups["num_rows"]
    if not 0 <= row_group < len(sizes):
        raise ValueError(f"{url} has {len(sizes):,} row groups, and none with the number {row_group}")
    num_rows = int(sizes[row_group])
    if not 0 <= row < num_rows:
        raise ValueError(f"row group {row_group} of {url} has {num_rows:,} rows, and none with the number {row}")
    for number in range(*np.searchsorted(catalogue.file_of_chunk, [file, file + 1]).tolist()):
        groups, first, sizes = catalogue.group_rows(number)
        is_here = (groups == row_group) & (first <= row) & (row < first + sizes)
        if not is_here.any():
            continue
        kept = catalogue.kept(number)
        if not _is_known(catalogue, number, kept):
            raise ValueError(
                f"a filter picks {int(catalogue.num_samples[number]):,} of the {int(catalogue.num_rows[number]):,} "
                f"rows of {catalogue.fragments[number]}; which ones is not known without reading them"
            )
        at = int(np.argmax(is_here))
        inside = int(sizes[:at].sum()) + row - int(first[at])
        if kept is None:
            return number, inside
        sample = int(np.searchsorted(kept, inside))
        if sample == kept.size or kept[sample] != inside:
            raise ValueError(f"row {row} of row group {row_group} of {url} is deleted: the table has it no more")
        return number, sample
    raise ValueError(f"the filter rules out all rows of row group {row_group} of {url}")
