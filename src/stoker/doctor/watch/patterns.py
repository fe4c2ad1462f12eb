"""Patterns in stalls and steps, by name.

even         ▂▂▂▂▂▂▂▂▂▂▂▂   the loop waits for every batch: the loader is too slow
periodic     ▁▁▁█▁▁▁█▁▁▁█   for every k-th batch; with k workers: one of them, or all
head of line ▁▁▁▁▁▁▁█▁▁▁▁   a batch was late, those behind it were ready already
growing      ▁▁▂▂▃▃▄▅▆▆▇█   the loader gets slower
jump         ▁▁▁▁▁▁▅▅▅▅▅▅   from some step on the stall is longer or shorter, for good or for a while

Pure: arrays in, patterns out.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from stoker.doctor.watch.meter import Floats
from stoker.fields.offsets import Int64

# Three turns are the fewest that show a period rather than a coincidence; 64 is beyond any usual number of workers.
_MIN_TURNS, _MAX_PERIOD = 3, 64
# Share of the (logarithmic) variance that the place in the turn must explain. White noise gives about 0.
_EXPLAINED = 0.4
# Of the batches that a period calls slow, so many must be: a period of 50 hits every other event of one of 100.
_HITS = 0.7
# A batch came at once where its stall is below a tenth of the long one before it; two make a queue.
_AT_ONCE, _MIN_BEHIND, _MAX_BEHIND = 0.1, 2, 64
# Parts in which a change is looked for; the correlation with time from which it is a trend; how much of the variance
# two levels must explain to be a jump, how much more if it returns, and how many finer parts must be on their level.
_NUM_PARTS, _MIN_PARTS, _TREND, _LEVELS, _RETURNS, _MOST = 16, 8, 0.75, 0.85, 0.1, 0.75


Turns: TypeAlias = tuple[int, tuple[int, ...]]
"""Times that repeat: every how many steps, and at which places of those they are long, from the epoch's first on."""


def find_turns(index: Int64, values: Floats, *, floor: float) -> Turns | None:
    """Return the shortest period that explains how `values` vary, None where none does.

    Args:
        index: Step in its epoch of each value. Shape [N].
        values: Times. Shape [N].
        floor: Times below this are all the same: nothing.
    """
    if len(values) < 2 * _MIN_TURNS or floor <= 0:
        return None
    # Logarithms, so that one hiccup of a second does not drown a hundred waits of 10 ms.
    logs = np.log(np.maximum(values, floor) / floor)
    is_event = logs > logs.max() / 2
    period = _rare_period(index, is_event) or _frequent_period(index, logs)
    if period is None:
        return None
    place = index % period
    counts = np.maximum(np.bincount(place, minlength=period), 1)
    means = np.bincount(place, weights=values, minlength=period) / counts
    is_slow = means > (means.max() + means.min()) / 2
    if 2 * int(is_slow.sum()) > period or is_event[is_slow[place]].mean() < _HITS:
        return None
    return period, tuple(np.flatnonzero(is_slow).tolist())


def _frequent_period(index: Int64, logs: Floats) -> int | None:
    """Return the shortest period, up to 64, whose places explain how values vary."""
    total = float(((logs - logs.mean()) ** 2).sum())
    if total <= 1e-9 * len(logs):
        return None
    fits = {}
    for period in range(2, min(_MAX_PERIOD, len(logs) // _MIN_TURNS) + 1):
        place = index % period
        counts = np.bincount(place, minlength=period)
        if counts.min() < 2:
            continue
        # Each value against the mean of the others at its place: what a place's own value tells of itself is no
        # period, and with three turns it would be a third of the mean.
        others = (np.bincount(place, weights=logs, minlength=period)[place] - logs) / (counts[place] - 1)
        fits[period] = 1 - float(((logs - others) ** 2).sum()) / total
    best = max(fits.values(), default=0.0)
    if best < _EXPLAINED:
        return None
    return min(period for period, fit in fits.items() if fit >= 0.95 * best)  # its multiples fit as well


def _rare_period(index: Int64, is_event: npt.NDArray[np.bool_]) -> int | None:
    """Return the number of steps between events that are rarer than every 64th, where it is always the same."""
    gaps = np.diff(index[is_event])
    gaps = gaps[gaps > 0]  # not from one epoch to the next
    if len(gaps) < _MIN_TURNS - 1:
        return None
    period = int(np.median(gaps))
    return period if period > _MAX_PERIOD and (gaps == period).all() else None


def find_blocked(index: Int64, stalls: Floats, *, floor: float) -> tuple[list[int], list[int]]:
    """Return in which stalls one batch held ready ones back, and how many came at once behind each.

    Args:
        index: Step in its epoch of each stall: batches of two epochs do not stand behind each other. Shape [N].
        stalls: Shape [N].
        floor: Stalls below this hold nobody back.
    """
    long, behind = list[int](), list[int]()
    for at in np.flatnonzero(stalls > floor).tolist():
        follows = stalls[at + 1 : at + 1 + _MAX_BEHIND]
        is_same_epoch = index[at + 1 : at + 1 + _MAX_BEHIND] > index[at]
        is_late = (follows > _AT_ONCE * stalls[at]) | ~is_same_epoch
        num = int(is_late.argmax()) if is_late.any() else len(follows)
        if num >= _MIN_BEHIND:
            long.append(at)
            behind.append(num)
    return long, behind


Pair: TypeAlias = tuple[float, float]


def find_change(parts: Int64) -> tuple[Literal["growing", "fading", "jump"], Pair, Pair, float] | None:
    """Return how the stall share changes with time, None where it stays, or goes up and down.

    A jump leads to another level, and back again where it ends before the run does.

    Args:
        parts: Steps, stall and step in equal parts of the run. Shape [P, 3].

    Returns:
        How; the share before and after; where in the run it begins and ends, from 0 to 1; and what it costs, as the
        share of all the time that the higher stall takes beyond the lower.
    """
    if len(parts) < 2 * _MIN_PARTS:
        return None
    num = min(len(parts) // 2, _NUM_PARTS)
    edges = np.linspace(0, len(parts), num + 1).astype(np.int64)[:-1]
    # Stall against the mean step of the whole run: a step that gets slower makes no loader faster.
    mean_step = parts[:, 2].sum() / parts[:, 0].sum()
    stall_of_parts = (each[:, 1] / each[:, 0] for each in (np.add.reduceat(parts, edges, axis=0), parts))
    shares, fine = (stall / (stall + mean_step + 1e-9) for stall in stall_of_parts)
    does_return, (begin, end, explained) = False, _best_levels(shares, does_return=False)
    back = _best_levels(shares, does_return=True)
    if back[-1] > explained + _RETURNS:
        does_return, (begin, end, explained) = True, back
    line = float(np.corrcoef(np.arange(num), shares)[0, 1]) if np.ptp(shares) > 0 else 0.0
    kind: Literal["growing", "fading", "jump"]
    if explained >= max(_LEVELS, line**2):
        before, after = float(np.delete(shares, slice(begin, end)).mean()), float(shares[begin:end].mean())
        kind = "jump"
        begin, end, _ = _best_levels(fine, does_return=does_return)
        is_after = (fine > (before + after) / 2) == (after > before)
        place = np.arange(len(fine))
        if (is_after == ((place >= begin) & (place < end))).mean() < _MOST:
            return None  # a hiccup or two, which make the mean of a part and not most of its steps
    elif abs(line) >= _TREND:
        quarter, begin, end = num // 4, 0, len(fine)
        before, after = float(shares[:quarter].mean()), float(shares[-quarter:].mean())
        kind = "growing" if line > 0 else "fading"
    else:
        return None
    low, high = sorted((before, after))
    if high - low < 0.05 or high < 1.5 * low:
        return None
    return kind, (before, after), (begin / len(fine), end / len(fine)), float((shares - low).clip(0).mean())


def _best_levels(values: Floats, *, does_return: bool) -> tuple[int, int, float]:
    """Return the stretch, of two values or more, whose level differs most from that of the others.

    Args:
        values: In the order of time. Shape [N].
        does_return: Others come before and behind it; else only before.

    Returns:
        Where it begins, where it ends, and how much of the variance of values the two levels explain.
    """
    centred, num = values - values.mean(), len(values)
    total = float((centred**2).sum())
    if total <= 1e-12:
        return 0, num, 0.0
    begin, end = np.triu_indices(num + 1, 2)
    is_one = (begin > 0) & (end - begin <= num - 2) & ((end < num) == does_return)
    begin, end = begin[is_one], end[is_one]
    sums = np.concatenate([[0], np.cumsum(centred)])
    explained = (sums[end] - sums[begin]) ** 2 * num / ((end - begin) * (num - end + begin)) / total
    best = int(explained.argmax())
    return int(begin[best]), int(end[best]), float(explained[best])
