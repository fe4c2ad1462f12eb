"""What was counted, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.dataset.units.index import Index
from stoker.dataset.units.kinds import Grouped, NGram, Pack, SamplingUnit, Weighted
from stoker.fields.offsets import Int64


@dataclass(frozen=True, kw_only=True)
class UnitsReport:
    """What the order of a loader counts, and what that leaves out.

    Attributes:
        told: What a unit is, in words.
        num_units: Units of an epoch.
        num_rows: Rows of the data set, after the filter.
        num_unused_rows: Rows that are in no unit: of weight 0, without tokens, in runs shorter than a window.
        num_cut: Borders between chunks that cut a group, or a run that windows stand in.
        num_lost: Windows that would cross such a border.
        num_reappearing: Runs, of a group or of windows without `max_gap`, whose key an earlier run of the same chunk
            had, too: they are groups of their own, and no window goes from one to the other.
        num_torn: Documents that stand in several packed rows.
        filled: Part of the packed rows' places that hold a token; 1.0 where nothing is packed.
    """

    told: str
    num_units: int
    num_rows: int
    num_unused_rows: int = 0
    num_cut: int = 0
    num_lost: int = 0
    num_reappearing: int = 0
    num_torn: int = 0
    filled: float = 1.0

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


def report_on(unit: SamplingUnit | None, index: Index | None, *, num_samples: Int64) -> UnitsReport:
    """Return what was counted.

    Args:
        unit: What a unit is; None for rows.
        index: What counting found; None for rows.
        num_samples: Rows of each chunk. Shape [K].
    """
    num_rows = int(num_samples.sum())
    if unit is None or index is None:
        return UnitsReport(told="rows", num_units=num_rows, num_rows=num_rows)
    num_units = num_rows if isinstance(unit, Weighted) else int(index.arrays["unit_starts"][-1])
    filled = 1.0
    if isinstance(unit, Pack) and num_units:
        filled = index.numbers["num_tokens"] / (num_units * unit.length)
    assert isinstance(unit, Grouped | Weighted | NGram | Pack)
    numbers = {name: num for name, num in index.numbers.items() if name != "num_tokens"}
    return UnitsReport(told=unit.told(), num_units=num_units, num_rows=num_rows, filled=filled, **numbers)
