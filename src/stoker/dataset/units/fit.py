"""Best fit: pieces of documents put into rows of one length, so that few places stay empty."""

from __future__ import annotations

import numpy as np

from stoker._native import best_fit as fit_into
from stoker.fields.offsets import Int64


def best_fit(lengths: Int64, *, length: int) -> tuple[Int64, Int64, Int64]:
    """Cut documents longer than a row at its length, and put the pieces into rows, longest first, best fit.

    Every piece goes into the row that it leaves the least room in; of several, the one filled last. Rows come in the
    order of their first document, and pieces within a row in that of theirs.

    Args:
        lengths: Tokens of each document; those without tokens are in no row. Shape [N].
        length: Tokens of a row.

    Returns:
        Document of each piece, row by row. Shape [P].
        Its first token in the document. Shape [P].
        First piece of each row, and the end. Shape [R + 1].

    Source:
        Ding et al., "Fewer truncations improve language modeling", ICML 2024: best-fit packing, with a tree over the
        room that is left.
    """
    num_pieces = int((-(-lengths // length)).sum())
    document, first = np.empty(num_pieces, np.int64), np.empty(num_pieces, np.int64)
    starts = np.empty(num_pieces + 1, np.int64)
    num_rows = fit_into(lengths, length, document, first, starts)
    return document, first, starts[: num_rows + 1].copy()
