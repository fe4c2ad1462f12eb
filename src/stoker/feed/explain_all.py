"""Where the samples of a step come from, and when a row is used: of one data set, or of a mixture."""

from __future__ import annotations

import numpy as np

from stoker.feed.explain import Explanation, Places, Use, chunk_of_row, explain, find, locate_rows
from stoker.feed.opened import Opened
from stoker.feed.orders import Orders
from stoker.feed.units.expand import Units, finder
from stoker.order.epoch import Order
from stoker.order.mixture import MixtureEpoch, MixtureOrder
from stoker.order.plain import Int64
from stoker.order.shard import Shard
from stoker.order.steps import Steps


def explain_all(opened: Opened, orders: Orders, steps: Steps, step: int, *, epoch: int, shard: Shard) -> Explanation:
    """Return where every sample of a step on a rank comes from; nothing but footers is read. See `explain`.

    Raises:
        ValueError: There is no such step or epoch.
        SourceError: A footer cannot be read.
    """
    order = orders.order_in(epoch)
    if isinstance(order, Order):
        catalogue = opened.chunks[0].catalogue
        return explain(catalogue, order, steps, step, epoch=epoch, shard=shard, units=orders.units_in(0, epoch))
    lanes = order.lanes_of_epoch(epoch)
    whose, chunk, row, unit, is_padding = [], [], [], [], []
    num_units = 0
    for lane, start, stop, padding in steps.slices(step, shard):
        found = _rows(lanes[lane], orders, start, stop)
        whose.append(found[0])
        chunk.append(found[1])
        row.append(found[2])
        unit.append(found[3] + num_units)
        is_padding.append(np.full(len(found[3]), padding))
        num_units += stop - start
    nothing = np.empty(0, dtype=np.int64)
    all_whose, all_chunks, all_rows = (np.concatenate([nothing, *parts]) for parts in (whose, chunk, row))
    firsts = np.cumsum([0, *(len(one.catalogue.files) for one in opened.chunks)])
    places = Places(*(np.full(all_whose.size, -1, dtype=np.int64) for _ in range(3)))
    for which in np.unique(all_whose).tolist():
        members = np.flatnonzero(all_whose == which)
        inside = locate_rows(opened.chunks[which].catalogue, all_chunks[members], all_rows[members])
        for place, one in zip(places, inside, strict=True):
            place[members] = one
        places.file[members] += firsts[which]
    return Explanation(
        epoch=epoch,
        step=step,
        shard=shard,
        urls=[info.url for one in opened.chunks for info in one.catalogue.files],
        places=places,
        chunk=all_chunks,
        chunk_row=all_rows,
        is_padding=np.concatenate([nothing.astype(bool), *is_padding]),
        unit=np.concatenate([nothing, *unit]),
        names=order.names,
        whose=all_whose,
    )


def _rows(lane: MixtureEpoch, orders: Orders, start: int, stop: int) -> tuple[Int64, Int64, Int64, Int64]:
    """Return data set, chunk, row and unit of every row that stands at some positions of a lane."""
    whose = lane.components(start, stop)
    places = [np.flatnonzero(whose == which) for which in range(int(whose.max(initial=-1)) + 1)]
    taken = [0] * len(places)
    found: list[tuple[Int64, Int64, Int64, Int64]] = []
    for which, epoch, first, last in lane.stretches(start, stop):
        unit = places[which][taken[which] : taken[which] + last - first]
        taken[which] += last - first
        chunk, row = lane.component_epoch(which, epoch).locate(np.arange(first, last))
        units: Units | None = orders.units_in(which, epoch)
        if units is not None:
            row, offsets = units.rows(chunk, row)
            counts = np.diff(offsets)
            unit, chunk = np.repeat(unit, counts), np.repeat(chunk, counts)
        found.append((np.full(len(row), which), chunk, row, unit))
    joined = [np.concatenate([np.empty(0, dtype=np.int64), *parts]) for parts in zip(*found, strict=True)]
    if not joined:
        return (np.empty(0, dtype=np.int64),) * 4
    by_unit = np.argsort(joined[3], kind="stable")
    return joined[0][by_unit], joined[1][by_unit], joined[2][by_unit], joined[3][by_unit]


def find_all(
    opened: Opened,
    orders: Orders,
    steps: Steps,
    url: str,
    row_group: int,
    row: int,
    *,
    epoch: int,
    world_size: int,
) -> list[Use]:
    """Return every use of a row in an epoch, in the order of steps; one without a step where there is none.

    Raises:
        ValueError: There is no such file, row group or row, or several data sets of a mixture have it; a filter
            leaves open which sample it is; or the order counts something that may have a row more than once, or not
            at all.
        SourceError: A footer cannot be read.
    """
    order = orders.order_in(epoch)
    unit_of = finder(orders.asked, orders.units_in(0, epoch if isinstance(order, Order) else 0))
    if isinstance(order, Order):
        catalogue = opened.chunks[0].catalogue
        return [find(catalogue, order, steps, url, row_group, row, epoch=epoch, world_size=world_size, unit_of=unit_of)]
    which, chunk, chunk_row = _sample(opened, order, url, row_group, row)
    unit_of = finder(orders.asked, orders.units_in(which, 0))
    unit = chunk_row if unit_of is None else unit_of(chunk, chunk_row)
    component = order.components[which]
    lane = int(component.lane_of([chunk], [unit])[0])
    uses = []
    for position in order.epoch(epoch, lane=lane).positions_of(which, chunk, unit).tolist():
        step = (position - steps.lane_start) // steps.part_size
        if not 0 <= step < steps.num_steps:
            continue
        part, inside = steps.part(step, lane), position - steps.lane_start - step * steps.part_size
        cuts = [steps.cut(rank, part=part, lane=lane, world_size=world_size) for rank in range(world_size + 1)]
        rank = int(np.searchsorted(cuts, inside, side="right")) - 1
        uses.append(Use(epoch, step, rank, chunk, chunk_row, order.names[which]))
    return uses or [Use(epoch, None, None, chunk, chunk_row, order.names[which])]


def _sample(opened: Opened, order: MixtureOrder, url: str, row_group: int, row: int) -> tuple[int, int, int]:
    """Return data set, chunk and row of the chunk of a row of a file."""
    found, errors = [], []
    for which, one in enumerate(opened.chunks):
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
