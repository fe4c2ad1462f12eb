"""Best-fit packing, against a slow search."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stoker.dataset.units.count import best_fit


def slow_rows(lengths: list[int], length: int) -> list[list[tuple[int, int]]]:
    """Return the pieces of each row: best fit decreasing by looking at every row."""
    pieces = [(min(n - at, length), d, at) for d, n in enumerate(lengths) for at in range(0, n, length)]
    rows: list[tuple[int, int, list[tuple[int, int]]]] = []  # room, when it was last filled, pieces
    for time, (size, document, at) in enumerate(sorted(pieces, key=lambda piece: -piece[0])):
        fitting = [row for row in rows if row[0] >= size]
        if fitting:
            best = min(fitting, key=lambda row: (row[0], -row[1]))
            rows.remove(best)
        else:
            best = (length, 0, [])
        rows.append((best[0] - size, time, [*best[2], (document, at)]))
    return sorted(sorted(row[2]) for row in rows)


@given(lengths=st.lists(st.integers(0, 40), max_size=60), length=st.integers(1, 17))
def test_pieces_go_where_they_leave_the_least_room(lengths, length):
    document, first, starts = best_fit(np.array(lengths, dtype=np.int64), length=length)
    rows = [
        list(zip(document[a:b].tolist(), first[a:b].tolist(), strict=True))
        for a, b in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    ]
    assert rows == slow_rows(lengths, length)


def test_hardly_any_room_is_left_where_documents_are_short():
    lengths = np.random.default_rng(1).integers(1, 500, 5000)
    _, _, starts = best_fit(lengths, length=1024)
    assert lengths.sum() / ((len(starts) - 1) * 1024) > 0.995
