"""Where the samples of a step come from, and when a row is used: of one data set, or of a mixture."""

from __future__ import annotations

import numpy as np

from stoker.fields.offsets import Int64, offsets_of, ranges
from stoker.loader.explain import Explanation, SourceRows, Use, chunk_of_row, explain, locate_rows
from stoker.loader.orders import Orders
from stoker.loader.sets import Sets
from stoker.sampling.epoch import Order
from stoker.sampling.mixture import MixtureOrder
from stoker.sampling.steps import RankShare, Samples, Steps, samples_of


def explain_all(opened: Sets, orders: Orders, steps: Steps, step: int, *, epoch: int, shard: RankShare) -> Explanation:
    """Return where every sample of a step on a rank comes from; nothing but footers is read. See `explain`.

    Raises:
        ValueError: There is no such step or epoch.
        SourceError: A footer cannot be read.
    """
    order = orders.order_in(epoch)
    if isinstance(order, Order):
        catalogue = opened.datasets[0].catalogue
        return explain(catalogue, order, steps, step, epoch=epoch, shard=shard, units=orders.units_in(0, epoch))
    samples = samples_of(order.lanes_of_epoch(epoch), steps, step, shard)
    row, unit = _rows(samples, orders)
    whose, chunk = samples.component[unit], samples.chunk[unit]
    firsts = np.cumsum([0, *(len(one.catalogue.files) for one in opened.datasets)])
    places = SourceRows(*(np.full(whose.size, -1, dtype=np.int64) for _ in range(3)))
    for which in np.unique(whose).tolist():
        members = np.flatnonzero(whose == which)
        inside = locate_rows(opened.datasets[which].catalogue, chunk[members], row[members])
        for place, one in zip(places, inside, strict=True):
            place[members] = one
        places.file[members] += firsts[which]
    return Explanation(
        epoch=epoch,
        step=step,
        shard=shard,
        urls=[info.url for one in opened.datasets for info in one.catalogue.files],
        places=places,
        chunk=chunk,
        chunk_row=row,
        is_padding=samples.is_padding[unit],
        unit=unit,
        names=order.names,
        whose=whose,
    )


def _rows(samples: Samples, orders: Orders) -> tuple[Int64, Int64]:
    """Return the rows of the samples of a mixture, in their order, and which sample each is of. Shape [T] each."""
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


def find_all(
    opened: Sets,
    orders: Orders,
    steps: Steps,
    url: str,
    row_group: int,
    row: int,
    *,
    epoch: int,
    world_size: int,
) -> list[Use]:
    """Return every use of a row in an epoch, in the order of steps: the inverse of `explain_all`.

    Several where a mixture comes to a data set again, or where the order counts draws, windows or packed rows; one
    without a step where the epoch does not use the row. Padding is no use.

    Args:
        opened: The data sets.
        orders: Their orders.
        steps: The epoch's steps, from its beginning.
        url: A file, as `Catalogue.files` names it or by an end of that which no other file has.
        row_group: Number of the row group in the file.
        row: Row in the row group.
        epoch: Which epoch.
        world_size: How many ranks there are.

    Raises:
        ValueError: There is no such file, row group or row, or several data sets of a mixture have it; or a filter
            leaves open which sample it is.
        SourceError: A footer cannot be read.
    """
    order = orders.order_in(epoch)
    if isinstance(order, Order):
        name, which = None, 0
        chunk, chunk_row = chunk_of_row(opened.datasets[0].catalogue, url, row_group, row)
    else:
        which, chunk, chunk_row = _sample(opened, order, url, row_group, row)
        name = order.names[which]
    uses = []
    for lane, position in _positions(orders, order, which, chunk, chunk_row, epoch=epoch):
        used = steps.use_of(position, lane=lane, world_size=world_size)
        if used is not None:
            uses.append(Use(epoch, *used, chunk, chunk_row, name))
    return sorted(uses) or [Use(epoch, None, None, chunk, chunk_row, name)]


def _positions(
    orders: Orders, order: Order | MixtureOrder, which: int, chunk: int, row: int, *, epoch: int
) -> list[tuple[int, int]]:
    """Return lane and position of every sample of an epoch that has a row of a data set's chunk."""
    if isinstance(order, Order):
        units = _units_of(orders, 0, epoch, chunk, row)
        chunks = np.full_like(units, chunk)
        found = []
        for lane, members in _by_lane(order.lane_of(chunks, units)):
            positions = order.epoch(epoch, lane=lane).positions_of(chunks[members], units[members])
            found += [(lane, position) for position in positions.tolist()]
        return found
    found = []
    for lane, mixed in enumerate(order.lanes_of_epoch(epoch)):
        for own_epoch in mixed.own_epochs(which):
            units = _units_of(orders, which, own_epoch, chunk, row)
            chunks = np.full_like(units, chunk)
            members = order.component_in(which, own_epoch).lane_of(chunks, units) == lane
            places = mixed.component_epoch(which, own_epoch).positions_of(chunks[members], units[members])
            mixed_at = [mixed.position_of(which, own_epoch, place) for place in places.tolist()]
            found += [(lane, position) for position in mixed_at if position is not None]
    return found


def _by_lane(lanes: Int64) -> list[tuple[int, Int64]]:
    return [(lane, np.flatnonzero(lanes == lane)) for lane in np.unique(lanes).tolist()]


def _units_of(orders: Orders, which: int, epoch: int, chunk: int, row: int) -> Int64:
    """Return what the order counts that a row stands in: itself, where it counts rows. Shape [n]."""
    units = orders.units_in(which, epoch)
    return np.array([row], dtype=np.int64) if units is None else units.units_of(chunk, row)


def _sample(opened: Sets, order: MixtureOrder, url: str, row_group: int, row: int) -> tuple[int, int, int]:
    """Return data set, chunk and row of the chunk of a row of a file."""
    found, errors = [], []
    for which, one in enumerate(opened.datasets):
        try:
            found.append((which, *chunk_of_row(one.catalogue, url, row_group, row)))
        except ValueError as error:
            errors.append(f"{order.names[which]}: {error}")
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(order.names[which] for which, *_ in found)
        raise ValueError(f"{url!r} is a file of {len(found)} data sets of the mixture ({names}); give more of its path")
    raise ValueError("no data set of the mixture has this row:\n  " + "\n  ".join(errors))
