"""The order of every epoch of what a loader opened, and what it counts: rows, groups, windows, packed rows."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import lru_cache

import numpy as np

from stoker.dataset.units.kinds import Grouped, NGram, SamplingUnit, Weighted
from stoker.fields.offsets import Int64
from stoker.loader.sets import Sets, segments_of
from stoker.loader.units.expand import Units, units_of
from stoker.loader.units.report import UnitsReport, report_on
from stoker.sampling.epoch import EpochOrder, Order
from stoker.sampling.mixture import MixtureEpoch, MixtureOrder, component_seed
from stoker.sampling.position import Position

_log = logging.getLogger("stoker")

# Epochs of a data set whose draws are kept: the one in use and the next.
_NUM_KEPT = 2


class Orders:
    """Orders of one data set or of a mixture.

    Args:
        opened: The data sets.
        unit: What is counted; None for rows.
        shuffle: Whether epochs are permuted.
        seed: Seed of the order.
        window: Chunks that are mixed together; None for all.
        lanes: How many lanes.

    Raises:
        ValueError: As `Order` and `MixtureOrder` say.

    Attributes:
        unit: What is counted; None for rows.
        first: The order of every epoch that is not of its own: because of draws, or of files that were added to it.
    """

    def __init__(
        self,
        opened: Sets,
        *,
        unit: SamplingUnit | None,
        shuffle: bool,
        seed: int,
        window: int | None,
        lanes: int,
    ) -> None:
        self._opened = opened
        self.unit = unit
        self._shuffle, self._seed, self._window, self._lanes = shuffle, seed, window, lanes
        self._names = (None,) if opened.mixture is None else opened.mixture.names
        self.units_in = lru_cache(maxsize=_NUM_KEPT * len(self._names))(self._units_in)
        self._under_way: Position | None = None
        self._make()
        if unit is not None and not self.first.num_samples and opened.num_samples.sum():
            _log.warning("every epoch is empty: %s", self.report())
        elif isinstance(unit, Grouped | NGram):
            self._tell_torn(unit)

    def _tell_torn(self, unit: Grouped | NGram) -> None:
        """Say where rows of one key do not come together, which nothing else would show."""
        report = self.report()
        if report.num_reappearing:
            _log.warning(
                "%s: rows of one key do not all lie side by side; sort the files by %s to have them together",
                report,
                ", ".join(unit.keys),
            )
        elif report.num_cut and isinstance(unit, Grouped):
            _log.warning(
                "%s: the parts of these groups are groups of their own; no group is cut where files and row groups "
                "begin with one",
                report,
            )

    def _make(self) -> None:
        """Make the orders; that of an epoch which files were added to is made when it is asked for."""
        mixture = self._opened.mixture
        self._mixed: MixtureOrder | None = None
        if mixture is not None:
            self._mixed = MixtureOrder(
                [self._num_units(which, 0) for which in range(len(mixture.names))],
                names=mixture.names,
                weights=None if mixture.weights is None else [mixture.weights[name] for name in mixture.names],
                until=mixture.until,
                shuffle=self._shuffle,
                seed=self._seed,
                window=self._window,
                lanes=self._lanes,
            )
            if self._under_way is not None or isinstance(self.unit, Weighted):
                leg = None if self._under_way is None else self._under_way.leg
                self._mixed = self._mixed.going_on(leg, chunks_in=self._chunks_in)
        self._alone: tuple[int, Order] | None = None
        self.first: Order | MixtureOrder = self._mixed or self._order(0, None)

    def going_on(self, position: Position) -> Orders:
        """Return the orders that a position belongs to: these, or with another window, or an epoch that has grown."""
        mine = self._under_way
        if position.mixing is not None:
            is_mine = (
                position.leg is None
                if mine is None
                else position == replace(position, leg=mine.leg, datasets=mine.datasets)
            )
        elif mine is not None and mine.epoch == position.epoch:
            is_mine = mine.datasets == position.datasets
        else:
            is_mine = not position.has_grown
        if is_mine and position.window == self._window:
            return self
        other = copy.copy(self)
        other._window, other._under_way = position.window, position if position.is_special else None
        other._make()
        return other

    def _chunks_in(self, which: int, own_epoch: int) -> tuple[Int64 | None, Int64 | None]:
        """Return draws and segments of a data set of a mixture, in the epoch of its own to which files were added."""
        mine, segments = self._under_way, None
        if mine is not None and mine.leg is not None and mine.leg.streams[which][0] == own_epoch:
            segments = segments_of(self._opened.datasets[which], mine.datasets[which])
        return self._num_units(which, own_epoch) if isinstance(self.unit, Weighted) else None, segments

    @property
    def is_mixed(self) -> bool:
        """Whether several data sets are mixed."""
        return self._mixed is not None

    def order_in(self, epoch: int) -> Order | MixtureOrder:
        """Return the order of an epoch: the same in every one, but for draws and an epoch that files were added to."""
        if self._mixed is not None:
            return self._mixed
        mine = self._under_way
        if mine is not None and mine.epoch == epoch:
            return self._order(epoch, segments_of(self._opened.datasets[0], mine.datasets[0]))
        if not isinstance(self.unit, Weighted):
            return self.first
        if self._alone is None or self._alone[0] != epoch:
            self._alone = epoch, self._order(epoch, None)
        return self._alone[1]

    def _order(self, epoch: int, segments: Int64 | None) -> Order:
        return Order(
            self._num_units(0, epoch),
            shuffle=self._shuffle,
            seed=self._seed,
            window=self._window,
            lanes=self._lanes,
            segments=segments,
        )

    def lanes_of_epoch(self, epoch: int) -> Sequence[EpochOrder] | Sequence[MixtureEpoch]:
        """Return the orders of all lanes in an epoch."""
        return self.order_in(epoch).lanes_of_epoch(epoch)

    def report(self) -> UnitsReport:
        """Return what is counted, how many of them there are, and what chunks' borders cut; of all data sets."""
        reports = [report_on(self.unit, one.index, num_samples=one.num_samples) for one in self._opened.datasets]
        first, *others = reports
        if not others:
            return first
        num_units = sum(one.num_units for one in reports)
        filled = sum(one.filled * one.num_units for one in reports) / max(num_units, 1) if num_units else 1.0
        numbers = [field.name for field in fields(first) if field.name.startswith("num_")]
        return replace(first, filled=filled, **{name: sum(getattr(one, name) for one in reports) for name in numbers})

    def _units_in(self, which: int, epoch: int) -> Units | None:
        """Return what is counted of a data set in one of its own epochs; None for rows."""
        index, name = self._opened.datasets[which].index, self._names[which]
        if self.unit is None or index is None:
            return None
        seed = self._seed if name is None else component_seed(self._seed, name)
        return units_of(self.unit, index, seed=seed, epoch=epoch)

    def _num_units(self, which: int, epoch: int) -> Int64:
        if self.unit is None:
            return self._opened.datasets[which].num_samples
        units = self.units_in(which, epoch if isinstance(self.unit, Weighted) else 0)
        assert units is not None
        return np.asarray(units.num_units, dtype=np.int64)
