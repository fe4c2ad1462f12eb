"""Several ranks side by side: which of them makes the others wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stoker.doctor.traces.collectives import UNTOLD, Collectives, Key
from stoker.doctor.traces.times import RankTimes
from stoker.fields.offsets import Int64

# Below this share of the time, the wait is jitter.
_MIN_WAIT_SHARE = 0.01
# Clocks by which more collectives than this ended on one rank before they began on another are wrong.
_MAX_CONTRADICTED = 0.05
# If fewer are left when these are taken away, the files have too little in common to name anybody.
_MIN_SAME = 0.5
# Durations tell a story of their own when they explain so much of the waits that the clocks show.
_TELLING = 0.2
_ABSENT = np.iinfo(np.int64).min


@dataclass(frozen=True, kw_only=True)
class CollectiveWaits:
    """Who waited for whom in collectives that the ranks have in common.

    A collective can only begin when its last rank is there; the others wait inside their kernels until then.

    Attributes:
        num_matched: Collectives that two ranks or more have in common.
        waited: Nanoseconds that each rank waited for the last one. [R].
        imposed: Nanoseconds that the others waited for each rank, added over them. [R].
        num_last: In how many collectives each rank was the last. [R].
        straggler: Index of the rank that makes the others wait, None where it is nobody, or no one in particular.
        is_aligned: Whether the ranks' clocks disagreed, and collectives were laid over each other by their ends.
    """

    num_matched: int
    waited: tuple[int, ...]
    imposed: tuple[int, ...]
    num_last: tuple[int, ...]
    straggler: int | None
    is_aligned: bool


def compare_traces(ranks: Sequence[RankTimes]) -> CollectiveWaits:
    """Find the rank whose collectives start last.

    Collectives are the same on two ranks that have the same name, process group and place among those launched in the
    same step (or the same sequence number, where the file has it).
    """
    num = len(ranks)
    start, stop = _matched([rank.collectives for rank in ranks])
    zeros = (0,) * num
    if not len(start):
        return CollectiveWaits(
            num_matched=0, waited=zeros, imposed=zeros, num_last=zeros, straggler=None, is_aligned=False
        )
    start, stop, is_aligned = _on_one_clock(start, stop)
    # What ended on one rank before it began on another is not the same collective: some are missing in a file.
    there = start != _ABSENT
    is_same = _last(start, there) < _first(stop, there)
    is_known = bool(is_same.mean() >= _MIN_SAME)
    start, stop = start[is_same], stop[is_same]
    waits = _waits(start, stop)
    last = start.argmax(axis=1)
    totals = waits.sum(axis=1)
    imposed = np.bincount(last, weights=totals, minlength=num).astype(np.int64)
    wall = float(np.median([rank.stop - rank.start for rank in ranks]))
    return CollectiveWaits(
        num_matched=len(start),
        waited=tuple(waits.sum(axis=0).tolist()),
        imposed=tuple(imposed.tolist()),
        num_last=tuple(np.bincount(last[totals > 0], minlength=num).tolist()),
        straggler=_straggler(imposed, wall) if is_known else None,
        is_aligned=is_aligned,
    )


def _straggler(imposed: Int64, wall: float) -> int | None:
    num, total = len(imposed), float(imposed.sum())
    worst = int(imposed.argmax())
    is_much = num > 1 and imposed[worst] / (num - 1) >= _MIN_WAIT_SHARE * wall > 0
    # With two ranks, chance gives each a half: one that stands out has more.
    return worst if is_much and imposed[worst] >= (0.75 if num == 2 else 0.5) * total else None


def _matched(ranks: list[Collectives]) -> tuple[Int64, Int64]:
    """Return begin and end of each collective that two ranks or more have. [K, R] each, _ABSENT where one has not."""
    seen: Counter[Key] = Counter(key for rank in ranks for key in rank)
    # Stages of a pipeline do not send equally often, ranks of an all-to-all do.
    uneven = {key[:3] for key, num in seen.items() if key[1].startswith(UNTOLD) and num < len(ranks)}
    keys = [key for key, num in seen.items() if num > 1 and key[:3] not in uneven]
    start, stop = (
        np.array([[rank.get(key, (_ABSENT, _ABSENT))[side] for rank in ranks] for key in keys], np.int64).reshape(
            len(keys), len(ranks)
        )
        for side in (0, 1)
    )
    return start, stop


def _on_one_clock(start: Int64, stop: Int64) -> tuple[Int64, Int64, bool]:
    """Return the times by one clock, and whether the ranks' own clocks had to be corrected for that."""
    there = start != _ABSENT
    shift = _clock_shift(stop)
    shifted, shifted_stop = np.where(there, start - shift, _ABSENT), np.where(there, stop - shift, _ABSENT)
    contradicted = np.mean(_last(start, there) >= _first(stop, there))
    is_wrong = bool(
        contradicted > _MAX_CONTRADICTED
        and np.mean(_last(shifted, there) >= _first(shifted_stop, there)) < contradicted / 2
    )
    if not is_wrong and _waits(shifted, shifted_stop).sum() >= _TELLING * _waits(start, stop).sum():
        # Ends of one collective lie close together. Where they are apart as the beginnings are, and by the same
        # distance all the time, it is the clocks that are apart, if durations tell another story.
        begin_spread = np.median(_last(start, there) - _first(start, there))
        end_spread = np.median(_last(stop, there) - _first(stop, there))
        is_wrong = bool(end_spread > begin_spread / 2 and end_spread > 0)
    return (shifted, shifted_stop, True) if is_wrong else (start, stop, False)


def _clock_shift(stop: Int64) -> Int64:
    """Return by how much each rank's clock is ahead of the first rank's, judged by the ends of collectives. [R]."""
    there = stop != _ABSENT
    reference = int(there.sum(axis=0).argmax())
    shift = np.zeros(stop.shape[1], np.int64)
    for rank in range(stop.shape[1]):
        both = there[:, rank] & there[:, reference]
        if both.any():
            shift[rank] = int(np.median(stop[both, rank] - stop[both, reference]))
    return shift


def _waits(start: Int64, stop: Int64) -> Int64:
    """Return how long each rank waited inside each collective for the last one to come. [K, R]."""
    there = start > _ABSENT // 2
    last = _last(start, there)[:, None]
    return np.where(there, np.maximum(np.minimum(last, stop) - start, 0), 0)


def _last(times: Int64, there: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Int64:
    latest: Int64 = np.where(there, times, _ABSENT).max(axis=1)
    return latest


def _first(times: Int64, there: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Int64:
    earliest: Int64 = np.where(there, times, np.iinfo(np.int64).max).min(axis=1)
    return earliest
