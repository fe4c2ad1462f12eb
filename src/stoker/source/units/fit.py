"""Best fit: pieces of documents put into rows of one length, so that few places stay empty."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stoker import loops

Int64 = npt.NDArray[np.int64]

# Where its machine code is not kept, fewer pieces than this are done by plain Python before the compiler would have
# begun: it takes a second once a machine, and loading it half of one.
_COMPILE_FROM = 20_000
_LOOPS = "stoker.source.units.fit_kernels"


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
    num_pieces = -(-lengths // length)
    document = np.repeat(np.arange(len(lengths), dtype=np.int64), num_pieces)
    first = (np.arange(len(document)) - np.repeat(np.cumsum(num_pieces) - num_pieces, num_pieces)) * length
    sizes = np.minimum(lengths[document] - first, length)
    by_size = np.argsort(-sizes, kind="stable")
    placed = np.empty(len(sizes), dtype=np.int64)
    kernels = loops.find(_LOOPS) if len(sizes) >= _COMPILE_FROM or loops.is_at_hand(_LOOPS) else None
    place = place_pieces if kernels is None else kernels.place_pieces
    place(sizes[by_size], length, *_tables(len(sizes), length), placed)
    row = np.empty(len(sizes), dtype=np.int64)
    row[by_size] = placed
    # Rows numbered by the first piece that is in them.
    _, at, numbers = np.unique(row, return_index=True, return_inverse=True)
    rank = np.empty(len(at), dtype=np.int64)
    rank[np.argsort(at)] = np.arange(len(at))
    row = rank[numbers]
    by_row = np.argsort(row, kind="stable")
    starts = np.searchsorted(row[by_row], np.arange(len(at) + 1)).astype(np.int64)
    return document[by_row], first[by_row].astype(np.int64), starts


def _tables(num_pieces: int, length: int) -> tuple[Int64, Int64, Int64]:
    """Return the top row of each amount of room, the row below each row, and the tree: nothing there yet."""
    width = 1 << length.bit_length()
    return (np.full(length + 1, -1, np.int64), np.full(num_pieces, -1, np.int64), np.zeros(2 * width, np.int64))


def place_pieces(sizes: Int64, length: int, top: Int64, below: Int64, tree: Int64, rows: Int64) -> None:
    """Write the row of each piece. See `best_fit`; `fit_kernels` has it compiled.

        tree    node n covers the rooms of nodes 2n and 2n + 1: 1 where any row has such room
        top     room -> the row with that room that was filled last; below: the one before it

    Args:
        sizes: Tokens of each piece, descending, from 1 to `length`. Shape [P].
        length: Tokens of a row.
        top: See above; as `_tables` makes it. Shape [length + 1].
        below: See above. Shape [P].
        tree: See above. Shape [2 * a power of two above `length`].
        rows: Filled. Shape [P].
    """
    width = len(tree) // 2
    num_rows = 0
    for i in range(len(sizes)):
        size = sizes[i]
        # The least room that is enough: up until something to the right has room, then down to its left.
        node = width + size
        if tree[node] == 0:
            while node > 1 and (node & 1 or tree[node + 1] == 0):
                node >>= 1
            if node > 1:
                node += 1
                while node < width:
                    node = 2 * node if tree[2 * node] else 2 * node + 1
        if node > 1:
            room = node - width
            row = top[room]
            top[room] = below[row]
            if top[room] < 0:
                tree[node] = 0
                while node > 1:
                    node >>= 1
                    tree[node] = tree[2 * node] | tree[2 * node + 1]
        else:
            room, row = length, num_rows
            num_rows += 1
        rows[i] = row
        room -= size
        if room > 0:
            below[row] = top[room]
            top[room] = row
            node = width + room
            while node >= 1 and tree[node] == 0:
                tree[node] = 1
                node >>= 1
