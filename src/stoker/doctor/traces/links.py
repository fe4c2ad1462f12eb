"""Which call launched what, told by arrows where events have no correlation of their own."""

from __future__ import annotations

import numpy as np

from stoker.doctor.traces.events import Columns
from stoker.doctor.traces.names import EventKind

_FROM, _TO, _COMPLETE = ord("s"), ord("f"), ord("X")


def flows_to_correlations(columns: Columns) -> Columns:
    """Give each event the id of the arrow that begins or ends in it.

    An arrow's end belongs to the event of its track that begins last before it and has not ended.

    Args:
        columns: As the collector has them; arrows are rows of phase "s" and "f", their id under "correlation".
    """
    phase = columns["phase"]
    if not np.any((phase == _FROM) | (phase == _TO)):
        return columns
    kind = columns["kind"]
    start = columns["start"].astype(np.int64)
    stop = start + columns["length"].astype(np.int64)
    track = columns["track"].astype(np.int64)
    correlation = columns["correlation"].astype(np.int64).copy()
    is_device = (kind == EventKind.KERNEL) | (kind == EventKind.MEMCPY) | (kind == EventKind.MEMSET)
    for letter, ends in ((_FROM, kind == EventKind.RUNTIME), (_TO, is_device)):
        arrows = np.flatnonzero(phase == letter)
        targets = np.flatnonzero(ends & (phase == _COMPLETE))
        for number in np.unique(track[arrows]).tolist():
            mine = arrows[track[arrows] == number]
            here = targets[track[targets] == number]
            if not here.size:
                continue
            here = here[np.argsort(start[here], kind="stable")]
            place = np.searchsorted(start[here], start[mine], side="right") - 1
            hit = here[np.maximum(place, 0)]
            inside = (place >= 0) & (start[mine] <= stop[hit])
            correlation[hit[inside]] = correlation[mine[inside]]
    return {**columns, "correlation": correlation}
