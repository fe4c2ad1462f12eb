"""What belongs together in a file: a beginning and its end, a call and what it launched."""

from __future__ import annotations

import numpy as np

from stoker.doctor.traces.events import Columns
from stoker.doctor.traces.names import EventKind

COMPLETE, BEGIN, END, META, FLOW_FROM, FLOW_TO = (ord(letter) for letter in "XBEMsf")


def close_pairs(columns: Columns) -> tuple[Columns, int]:
    """Make one whole event of each beginning and its end.

    An end closes the last open beginning of its track. A beginning without an end lasts until the last time in the
    file, as viewers show it; an end without a beginning is dropped.

    Args:
        columns: Columns of equal length, "phase", "track", "start" and "length" among them.

    Returns:
        The columns, ends dropped, and how many events had no partner.
    """
    phase, start, length = columns["phase"], columns["start"], columns["length"]
    parts = np.flatnonzero((phase == BEGIN) | (phase == END))
    if not parts.size:
        return columns, 0
    last = int((start + np.maximum(length, 0)).max())
    # In the order of time; at the same time in the order of the file, which is the order in which it happened.
    order = parts[np.lexsort((parts, start[parts], columns["track"][parts]))]
    stacks: dict[int, list[int]] = {}
    num_lone = 0
    for index, track, is_begin in zip(
        order.tolist(), columns["track"][order].tolist(), (phase[order] == BEGIN).tolist(), strict=True
    ):
        stack = stacks.setdefault(track, [])
        if is_begin:
            stack.append(index)
        elif stack:
            begun = stack.pop()
            length[begun] = start[index] - start[begun]
        else:
            num_lone += 1
    for begun in (index for stack in stacks.values() for index in stack):
        num_lone += 1
        length[begun] = last - start[begun]
    phase[phase == BEGIN] = COMPLETE
    return {name: column[phase != END] for name, column in columns.items()}, num_lone


def follow_arrows(columns: Columns) -> None:
    """Give each event the id of the arrow that begins or ends in it: where events have no correlation of their own.

    An arrow's end belongs to the event of its track that begins last before it and has not ended.

    Args:
        columns: As the collector has them; arrows are rows of phase "s" and "f", their id under "correlation".
    """
    phase, kind, start, track = columns["phase"], columns["kind"], columns["start"], columns["track"]
    is_device = (kind == EventKind.KERNEL) | (kind == EventKind.MEMCPY) | (kind == EventKind.MEMSET)
    for letter, ends in ((FLOW_FROM, kind == EventKind.RUNTIME), (FLOW_TO, is_device)):
        arrows = np.flatnonzero(phase == letter)
        targets = np.flatnonzero(ends & (phase == COMPLETE))
        for number in np.unique(track[arrows]).tolist():
            mine = arrows[track[arrows] == number]
            here = targets[track[targets] == number]
            if not here.size:
                continue
            here = here[np.argsort(start[here], kind="stable")]
            place = np.searchsorted(start[here], start[mine], side="right") - 1
            hit = here[np.maximum(place, 0)]
            inside = (place >= 0) & (start[mine] <= start[hit] + columns["length"][hit])
            columns["correlation"][hit[inside]] = columns["correlation"][mine[inside]]
