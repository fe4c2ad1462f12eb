"""The order of every epoch of what was opened, a data set or a mixture, and what a loader resumes by."""

from __future__ import annotations

import copy
import hashlib
import logging
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from stoker.dataset.catalogue import Catalogue
from stoker.dataset.dataset import Dataset, dataset_of
from stoker.dataset.listing import names_below
from stoker.dataset.mixture import Mixture
from stoker.dataset.units.count import Index
from stoker.dataset.units.kinds import Grouped, NGram, Pack, SamplingUnit, Weighted
from stoker.fields.offsets import Int64
from stoker.fields.spec import Spec
from stoker.hashing import fingerprint
from stoker.host.forks import cached_property
from stoker.loader.resume import Resume
from stoker.sampling import position
from stoker.sampling.epoch import EpochOrder
from stoker.sampling.mixture import MixtureOrder, component_seed
from stoker.sampling.position import ROWS, Contents, Mixing, OpenFiles, Position, describe, layouts_of
from stoker.sampling.steps import RankShare, Steps
from stoker.sampling.units import Units, units_of

# A window must be large enough to mix, small enough to lie in the page cache beside the model's own memory: the next
# one is opened while this one is used. And the first batch of a cold cache waits for the whole first window.
WINDOW_BYTES = 512 << 20
# Chunks twice as large as they should be, of row groups that are not worth cutting, make a window of so many anyway.
# With fewer, larger ones, rows that lie together in the source would come together in too few batches.
_MIN_WINDOW_CHUNKS = 8
# It limits the wait for the first window: building a chunk of a small file takes 3 ms, 10,000 of them half a minute.
MAX_WINDOW_CHUNKS = 512
# What a sample counts at least: one of ragged fields alone has no record.
_MIN_SAMPLE_BYTES = 64

_log = logging.getLogger("stoker")

# Epochs of a data set whose draws are kept: the one in use and the next.
_NUM_KEPT = 2
# A filter goes into saved positions, which stay small.
_MAX_SHOWN = 200


class CountedSet:
    """An opened data set, as an order counts it: by units, which the index has, or, without one, by rows."""

    def __init__(
        self, catalogue: Catalogue, *, spec: Spec | None, unit: SamplingUnit | None = None, index: Index | None = None
    ) -> None:
        self.catalogue, self.unit, self.index = catalogue, unit, index
        self.spec = spec  # as far as it is known without reading rows
        self.num_samples = catalogue.num_samples  # rows of each chunk, shape [K]

    def is_substituted(self, chunk: int) -> bool:  # noqa: ARG002  a loader's data sets override it
        """Return whether other rows stand in for those of a chunk, as far as that is known."""
        return False

    @cached_property
    def num_units(self) -> Int64:
        """What is counted of each chunk; of draws, its rows: how many there are, other files decide too."""
        if self.unit is None or self.index is None or isinstance(self.unit, Weighted):
            return self.num_samples
        return units_of(self.unit, self.index, seed=0, epoch=0).num_units

    @cached_property
    def files(self) -> OpenFiles:
        """The files as the order knows them: by their names, and what each of their chunks has."""
        counts, filled = self.num_samples, self.num_samples > 0
        if self.num_units is not counts:
            counts = np.stack([counts, self.num_units], axis=1)
        held, begins = np.unique(self.catalogue.file_of_chunk[filled], return_index=True)
        listed = [self.catalogue.listed[i] for i in held.tolist()]
        samples = np.split(counts[filled], begins[1:]) if held.size else []
        # Of as many rows, others may be deleted.
        samples = [
            np.append(some, np.frombuffer(file.deleted, "<i8")) if file.deleted else some
            for some, file in zip(samples, listed, strict=True)
        ]
        root, names = names_below(listed)
        of_file = np.add.reduceat(self.num_units[filled], begins) if held.size else np.zeros(0, np.int64)
        return OpenFiles(root, names, layouts_of(samples), of_file)

    @cached_property
    def contents(self) -> Contents:
        """What the order of the data set is made of."""
        draws = chosen = None
        if isinstance(self.unit, Weighted) and self.index is not None:
            cumulated = self.index.arrays["cumulated"][self.index.row_starts]
            draws = hashlib.blake2b(cumulated.astype("<i8").tobytes(), digest_size=8).hexdigest()
        if (rule := self.catalogue.dataset.filter) is not None:
            told = str(rule) if len(str(rule)) <= _MAX_SHOWN else f"{str(rule)[: _MAX_SHOWN - 3]}..."
            chosen = f"{told} [{fingerprint('filter', rule.to_json())[:8]}]"
        return describe(self.files, filter=chosen, draws=draws)

    def segments(self, contents: Contents) -> Int64 | None:
        """Return with which segment each chunk came to the epoch under way, as its position says; None for one."""
        if contents.segments is None:
            return None
        filled = self.num_samples > 0
        _, file = np.unique(self.catalogue.file_of_chunk[filled], return_inverse=True)
        segments = np.zeros(len(self.num_samples), np.int64)
        segments[filled] = contents.file_segments[file]
        return segments

    @property
    def report(self) -> UnitsReport:
        """What is counted, how many of them there are, and what chunks' borders cut."""
        unit, index, num_rows = self.unit, self.index, int(self.num_samples.sum())
        if unit is None or index is None:
            return UnitsReport(told="rows", num_units=num_rows, num_rows=num_rows)
        num_units = num_rows if isinstance(unit, Weighted) else int(index.arrays["unit_starts"][-1])
        filled = 1.0
        if isinstance(unit, Pack) and num_units:
            filled = index.numbers["num_tokens"] / (num_units * unit.length)
        numbers = {name: num for name, num in index.numbers.items() if name != "num_tokens"}
        return UnitsReport(told=unit.told(), num_units=num_units, num_rows=num_rows, filled=filled, **numbers)


class CountedSets:
    """One opened data set, or all of a mixture: those of a loader, or those that are only planned with."""

    def __init__(self, datasets: Sequence[CountedSet], mixture: Mixture | None = None) -> None:
        self.datasets, self.mixture, self.unit = tuple(datasets), mixture, datasets[0].unit
        self.num_samples: Int64 = np.concatenate([one.num_samples for one in datasets])  # of each chunk of all of them

    @property
    def named(self) -> dict[str, CountedSet]:
        """The data sets of a mixture by their names; one that stands alone under an empty one."""
        return dict(zip(("",) if self.mixture is None else self.mixture.names, self.datasets, strict=True))

    @property
    def mixing(self) -> Mixing | None:
        """How data sets are mixed."""
        mixture = self.mixture
        if mixture is None:
            return None
        weights = None
        if mixture.weights is not None:
            shares = [Fraction(str(mixture.weights[name])) for name in mixture.names]
            weights = tuple(str(share / sum(shares)) for share in shares)  # their scale means nothing
        return Mixing(names=mixture.names, weights=weights, until=None if weights is None else mixture.until)

    @property
    def fingerprint(self) -> str:
        """What tells the order of these data sets, mixed in this way, from all others."""
        return position.fingerprint_of([one.contents for one in self.datasets], self.mixing)

    @property
    def report(self) -> UnitsReport:
        """What is counted, how many of them there are, and what chunks' borders cut; of all data sets."""
        first, *more = reports = [one.report for one in self.datasets]
        if not more:
            return first
        num_units = sum(one.num_units for one in reports)
        filled = sum(one.filled * one.num_units for one in reports) / num_units if num_units else 1.0
        numbers = [field.name for field in fields(UnitsReport) if field.name.startswith("num_")]
        return replace(first, filled=filled, **{name: sum(getattr(one, name) for one in reports) for name in numbers})

    def window(self, window: int | Literal["all"] | None, spec: Spec | None) -> int | None:
        """Return how many chunks of each data set are mixed together where a loader is told this; None for all."""
        record_bytes = 0 if spec is None else spec.plain_bytes
        return window_chunks(window, self.num_samples, record_bytes, num_sets=len(self.datasets))

    def as_opened(self) -> Dataset | Mixture:
        """Return what was opened, each table of it at the version that was found: other processes open that one."""
        datasets = [dataset_of(one.catalogue) for one in self.datasets]
        if self.mixture is None:
            return datasets[0]
        other = copy.copy(self.mixture)
        other.datasets = dict(zip(other.names, datasets, strict=True))
        return other


class Orders:
    """The order of one data set or of a mixture, in which `window` chunks are mixed together; None for all.

    Raises:
        ValueError: As `MixtureOrder` says.
    """

    def __init__(self, opened: CountedSets, *, shuffle: bool, seed: int, window: int | None, lanes: int) -> None:
        self.opened, self.unit = opened, opened.unit
        self._settings: dict[str, Any] = {"shuffle": shuffle, "seed": seed, "window": window, "lanes": lanes}
        self.names: tuple[str, ...] = () if opened.mixture is None else opened.mixture.names  # of its data sets
        self.units_in = lru_cache(maxsize=_NUM_KEPT * len(opened.datasets))(self._units_in)
        self._under_way: Position | None = None
        self._make()
        if isinstance(self.unit, Grouped | NGram) or (self.unit is not None and not self.order.num_samples):
            self._warn(opened.report)

    def _warn(self, report: UnitsReport) -> None:
        """Say where there are no units, or rows of one key do not come together: nothing else would show it."""
        if not self.order.num_samples and report.num_rows:
            _log.warning("every epoch is empty: %s", report)
        elif isinstance(self.unit, Grouped | NGram) and report.num_reappearing:
            _log.warning(
                "%s: rows of one key do not all lie side by side; sort the files by %s to have them together",
                report,
                ", ".join(self.unit.keys),
            )
        elif isinstance(self.unit, Grouped) and report.num_cut:
            _log.warning(
                "%s: the parts of these groups are groups of their own; no group is cut where files and row groups "
                "begin with one",
                report,
            )

    def _make(self) -> None:
        """Make the order; what of it differs from epoch to epoch is made when it is asked for."""
        mixture, mine = self.opened.mixture, self._under_way
        shares = None if mixture is None else mixture.weights
        self.order = MixtureOrder(
            [self._num_units(which, 0) for which in range(len(self.opened.datasets))],
            names=None if mixture is None else mixture.names,
            weights=None if shares is None else [shares[name] for name in self.names],
            until="first" if mixture is None else mixture.until,
            **self._settings,
        )
        if mine is not None or isinstance(self.unit, Weighted):
            self.order = self.order.going_on(None if mine is None else mine.leg, chunks_in=self._chunks_in)

    def resume(self, *, takes_window: bool) -> Resume:
        """Return what saved states are checked against; see `Resume`."""
        beginning = Position(
            datasets=tuple(one.contents for one in self.opened.datasets),
            mixture=self.opened.mixing,
            units=ROWS if self.unit is None else self.unit.identity,
            **self._settings | {"window": self.order.window},
        )
        files = tuple(one.files for one in self.opened.datasets)
        return Resume(beginning=beginning, files=files, takes_window=takes_window)

    def going_on(self, position: Position) -> Orders:
        """Return the orders that a position belongs to: these, or with another window, or an epoch that has grown."""
        mine = self._under_way
        under_way = position if position.has_grown or position.leg is not None else None
        is_mine = under_way is mine
        if under_way is not None and mine is not None:  # without a leg, only the epoch that has grown is another one
            is_mine = (mine.datasets, mine.leg or mine.epoch) == (position.datasets, position.leg or position.epoch)
        if is_mine and position.window == self._settings["window"]:
            return self
        other = copy.copy(self)
        other._settings = self._settings | {"window": position.window}
        other._under_way = under_way
        other._make()
        return other

    def _units_in(self, which: int, epoch: int) -> Units | None:
        """Return what is counted of a data set in one of its own epochs; None for rows."""
        index = self.opened.datasets[which].index
        if self.unit is None or index is None:
            return None
        seed = self._settings["seed"]
        return units_of(
            self.unit, index, seed=component_seed(seed, self.names[which]) if self.names else seed, epoch=epoch
        )

    def _num_units(self, which: int, epoch: int) -> Int64:
        units = self.units_in(which, epoch if isinstance(self.unit, Weighted) else 0)
        return self.opened.datasets[which].num_samples if units is None else np.asarray(units.num_units, np.int64)

    def _chunks_in(self, which: int, own_epoch: int) -> tuple[Int64 | None, Int64 | None]:
        """Return draws of a data set, and segments where it is in the epoch of its own to which files were added."""
        mine, segments = self._under_way, None
        if mine is not None:
            grown = mine.leg.streams[which][0] if mine.leg is not None else None if self.names else mine.epoch
            if grown == own_epoch:
                segments = self.opened.datasets[which].segments(mine.datasets[which])
        return self._num_units(which, own_epoch) if isinstance(self.unit, Weighted) else None, segments


def needed_chunks(
    orders: Orders, steps: Steps, which: range, shards: Iterable[RankShare], *, epoch: int
) -> list[Int64]:
    """Return the chunks of the windows that some ranks open for some steps, of each data set, in order of use."""
    lanes = [lane.few_long_epochs() for lane in orders.order.lanes_of_epoch(epoch)]
    windows: dict[tuple[int, int, int, int], EpochOrder] = {}  # lane, data set, its own epoch and window
    for shard in shards:
        for piece in (piece for step in which for piece in steps.slices(step, shard)):
            for part, own, start, stop in lanes[piece.lane].component_ranges(piece.start, piece.stop):
                order = lanes[piece.lane].component_epoch(part, own)
                first, last = (bisect_right(order.window_starts, place) - 1 for place in (start, stop - 1))
                windows |= {(piece.lane, part, own, window): order for window in range(first, last + 1)}
    found: list[dict[int, None]] = [{} for _ in orders.opened.datasets]
    for (_, part, _, window), order in windows.items():
        found[part].update(dict.fromkeys(order.window_chunks(window).tolist()))
    return [np.array(list(chunks), dtype=np.int64) for chunks in found]


def window_chunks(
    window: int | Literal["all"] | None, num_samples: Int64, record_bytes: int, *, num_sets: int = 1
) -> int | None:
    """Return the window as a number of chunks, None for all; from the data alone and nothing of the machine.

    Unless the user said so many chunks or "all", it has about 512 MiB of samples; of a mixture, an equal part of them
    for each of `num_sets` data sets. The `num_samples` are those of each chunk of all data sets, shape [K].
    """
    if window == "all":
        return None
    if window is not None:
        return int(window)
    num_chunks = int(np.count_nonzero(num_samples))
    total_bytes = int(num_samples.sum()) * max(record_bytes, _MIN_SAMPLE_BYTES)
    mean_bytes = max(1, total_bytes // max(1, num_chunks))
    whole = min(max(_MIN_WINDOW_CHUNKS, WINDOW_BYTES // mean_bytes), MAX_WINDOW_CHUNKS)
    return int(max(_MIN_WINDOW_CHUNKS, whole // num_sets))


@dataclass(frozen=True, kw_only=True)
class UnitsReport:
    """What the order of a loader counts, and what that leaves out."""

    told: str  # what a unit is, in words
    num_units: int  # of an epoch
    num_rows: int  # of the data set, after the filter
    num_unused_rows: int = 0  # in no unit: of weight 0, without tokens, in runs shorter than a window
    num_cut: int = 0  # borders between chunks that cut a group, or a run that windows stand in
    num_lost: int = 0  # windows that would cross such a border
    # Runs, of a group or of windows without `max_gap`, whose key an earlier run of the same chunk had, too: they are
    # groups of their own, and no window goes from one to the other.
    num_reappearing: int = 0
    num_torn: int = 0  # documents that stand in several packed rows
    filled: float = 1.0  # part of the packed rows' places that hold a token

    def __str__(self) -> str:
        """Return all of it in one line."""
        notes = [
            (self.num_cut, "run cut by a chunk's border", "runs cut by chunks' borders"),
            (self.num_lost, "window lost there", "windows lost there"),
            (self.num_reappearing, "run whose key was there before", "runs whose key was there before"),
            (self.num_torn, "document in several rows", "documents in several rows"),
            (self.num_unused_rows, "row in none of them", "rows in none of them"),
        ]
        parts = [f"{num:,} {one if num == 1 else many}" for num, one, many in notes if num]
        if self.filled < 1.0:
            parts.append(f"{self.filled:.2%} of their places filled")
        told = f"{self.num_units:,} {self.told}, made of {self.num_rows:,} rows"
        return "; ".join([told, *parts])
