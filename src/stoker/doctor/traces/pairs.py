"""Events in two parts, a beginning and an end, made whole."""

from __future__ import annotations

import numpy as np

from stoker.doctor.traces.events import Columns

_COMPLETE, _BEGIN, _END = ord("X"), ord("B"), ord("E")


def close_pairs(columns: Columns) -> tuple[Columns, int]:
    """Make one whole event of each beginning and its end.

    An end closes the last open beginning of its track. A beginning without an end lasts until the last time in the
    file, as viewers show it; an end without a beginning is dropped.

    Args:
        columns: Columns of equal length, "phase", "track", "start" and "length" among them.

    Returns:
        The columns, ends dropped, and how many events had no partner.
    """
    phase = columns["phase"]
    parts = np.flatnonzero((phase == _BEGIN) | (phase == _END))
    if not parts.size:
        return columns, 0
    start = columns["start"].astype(np.int64)
    length = columns["length"].astype(np.int64)
    last = int((start + length).max())
    # In the order of time; at the same time in the order of the file, which is the order in which it happened.
    order = parts[np.lexsort((parts, start[parts], columns["track"][parts]))]
    stacks: dict[int, list[int]] = {}
    num_open = 0
    for index, track, is_begin in zip(
        order.tolist(), columns["track"][order].tolist(), (phase[order] == _BEGIN).tolist(), strict=True
    ):
        stack = stacks.setdefault(track, [])
        if is_begin:
            stack.append(index)
        elif stack:
            begun = stack.pop()
            length[begun] = start[index] - start[begun]
        else:
            num_open += 1
    for stack in stacks.values():
        num_open += len(stack)
        for begun in stack:
            length[begun] = last - start[begun]
    new_phase = phase.copy()
    new_phase[phase == _BEGIN] = _COMPLETE
    keep = new_phase != _END
    return {name: column[keep] for name, column in {**columns, "phase": new_phase, "length": length}.items()}, num_open
