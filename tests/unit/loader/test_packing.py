"""Packed rows: every token at its place, whatever way it is copied."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracles.gather import window_of

from stoker._native import Rows, TableLayout, fill_places, pack_values
from stoker.dataset.units.count import pack_lengths
from stoker.dataset.units.kinds import Pack
from stoker.loader.buffers import plain_buffer
from stoker.sampling.units import Packed

chunk_lengths = st.lists(st.lists(st.integers(0, 30), max_size=12), min_size=1, max_size=4)


@given(chunks=chunk_lengths, length=st.integers(1, 12), split=st.booleans(), num_ends=st.integers(0, 1))
def test_every_token_stands_at_one_place_and_ids_and_positions_say_which(chunks, length, split, num_ends):
    unit = Pack("t", length=length, split=split, end=9 if num_ends else None)
    counts = np.array([n for chunk in chunks for n in chunk], dtype=np.int64)
    index = pack_lengths(unit, counts, np.array([len(chunk) for chunk in chunks], dtype=np.int64))
    packed = Packed(index, length, split)
    seen = []
    for c, num in enumerate(packed.num_units.tolist()):
        segments = packed.segments(np.full(num, c), np.arange(num))
        all_ids, all_positions = np.full((2, num, length), -1, dtype=np.int32)
        fill_places(segments.num, segments.offsets, all_ids, all_positions)
        for unit, (ids, positions) in enumerate(zip(all_ids.tolist(), all_positions.tolist(), strict=True)):
            assert ids == sorted(ids, key=lambda i: (i == 0, i)), "padding comes last"
            first = int(segments.offsets[unit])
            assert [at for i, at in zip(ids, positions, strict=True) if i] == [
                at for i in sorted({*ids} - {0}) for at in range(ids.count(i))
            ]
            at_first = [0, *segments.first[first:].tolist()]
            rows = [0, *segments.row[first:].tolist()]
            tokens = [(rows[i], at_first[i] + at) for i, at in zip(ids, positions, strict=True) if i]
            assert tokens, "no packed row is empty"
            seen += [(c, row, at) for row, at in tokens]
    expected = [
        (c, row, at) for c, chunk in enumerate(chunks) for row, n in enumerate(chunk) for at in range(n + num_ends)
    ]
    assert sorted(seen) == expected
    if split:  # as they stand, and only the last row of a chunk has room
        assert seen == expected
        assert packed.num_units.tolist() == [-(-sum(n + num_ends for n in chunk) // length) for chunk in chunks]


def lists_of(values, offsets, rows):
    """Return where some rows of a chunk with one ragged field lie. Shape of the values [V, value_bytes]."""
    layout = TableLayout(0)
    layout.add_field(values.dtype.itemsize * values.shape[1], is_nested=False)
    window = window_of([[offsets, values]], layout)
    found = Rows([(window, 0, np.zeros_like(rows), rows)])
    return found.find(0, np.empty((1, len(rows) + 1), dtype=np.int64))


@given(
    rows=st.lists(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=4), max_size=5),
    value_bytes=st.sampled_from([0, 1, 2, 3, 4, 8, 12, 70]),
    room=st.integers(0, 9),
)
def test_values_come_first_then_each_segments_end_then_padding(rows, value_bytes, room):
    rng = np.random.default_rng(0)
    num_values = np.array([num for row in rows for num, _ in row], dtype=np.int64)
    num = np.array([num + is_ended for row in rows for num, is_ended in row], dtype=np.int64)
    values = rng.integers(0, 256, (300, value_bytes), dtype=np.uint8)
    documents, first = rng.integers(0, 10, len(num)), rng.integers(0, 25, len(num))
    end, pad = np.full((2, value_bytes), [[7], [9]], np.uint8)
    length = 6 * 4 + room
    out = np.zeros(len(rows) * length * value_bytes, np.uint8)
    offsets = np.cumsum([0, *map(len, rows)])
    lists = lists_of(values, np.arange(11) * 30, documents)
    pack_values(num, offsets, length, lists, 0, first, num_values, end, pad, out)
    segments = iter(zip((30 * documents + first).tolist(), num_values.tolist(), num.tolist(), strict=True))
    for row, found in zip(rows, out.reshape(len(rows), length * value_bytes), strict=True):
        expected = b""
        for begin, n, tokens in [next(segments) for _ in row]:
            expected += values[begin : begin + n].tobytes() + end.tobytes() * (tokens - n)
        assert found.tobytes() == expected.ljust(length * value_bytes, b"\x09")


@pytest.mark.parametrize(("length", "longest"), [(64, 3), (1000, 3), (1000, 90), (64, 5000), (2047, 5000)])
def test_large_batches_which_go_past_the_caches_have_every_token_at_its_place(length, longest):
    rng = np.random.default_rng(length + longest)
    counts = rng.integers(0, longest, max(400, 800_000 // longest))
    index = pack_lengths(Pack("t", length=length), counts, np.array([len(counts)], dtype=np.int64))
    packed = Packed(index, length, True)
    num = min(int(packed.num_units[0]), (9 << 17) // (4 * length))
    assert num * length * 4 > 1 << 20
    segments = packed.segments(np.zeros(num, dtype=np.int64), rng.permutation(num))
    ids, positions, copied = (plain_buffer(num * length * 4).view(np.int32).reshape(num, length) for _ in range(3))
    fill_places(segments.num, segments.offsets, ids, positions)
    tokens = np.arange(counts.sum(), dtype=np.int32)
    begins = np.concatenate([[0], np.cumsum(counts)])
    lists = lists_of(tokens.reshape(-1, 1), begins, segments.row)
    pad = np.full(4, 255, np.uint8)
    values = (lists, 0, segments.first, segments.num)
    pack_values(segments.num, segments.offsets, length, *values, pad, pad, copied.reshape(-1).view(np.uint8))
    expected = np.zeros((3, num * length), np.int32)
    expected[2] = -1
    rows = np.repeat(np.arange(num), np.diff(segments.offsets))
    starts = np.concatenate([[0], np.cumsum(segments.num)])
    inside = np.arange(starts[-1]) - np.repeat(starts[:-1], segments.num)  # each segment
    # What comes before the rest of a row's padding: the row's tokens, one segment behind the other.
    places = np.arange(starts[-1]) + np.repeat(rows * length - starts[segments.offsets[rows]], segments.num)
    numbers = np.arange(len(rows)) - segments.offsets[rows] + 1
    expected[0, places] = np.repeat(numbers, segments.num)
    expected[1, places] = inside
    expected[2, places] = np.repeat(begins[segments.row] + segments.first, segments.num) + inside
    for found, wanted in zip((ids, positions, copied), expected.reshape(3, num, length), strict=True):
        assert np.array_equal(found, wanted)
