"""Packing in compiled loops and in plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.feed.units.expand import Packed
from stoker.feed.units.packing import copy_ranges, fill_places
from stoker.gather.buffers import plain_buffer
from stoker.source.units.asked import Pack
from stoker.source.units.count import pack_lengths

pytest.importorskip("numba")

chunk_lengths = st.lists(st.lists(st.integers(0, 30), max_size=12), min_size=1, max_size=4)


@given(chunks=chunk_lengths, length=st.integers(1, 12), split=st.booleans(), num_ends=st.integers(0, 1))
def test_every_token_stands_at_one_place_and_ids_and_positions_say_which(chunks, length, split, num_ends):
    asked = Pack("t", length=length, split=split, end=9 if num_ends else None)
    counts = np.array([n for chunk in chunks for n in chunk], dtype=np.int64)
    index = pack_lengths(asked, counts, np.array([len(chunk) for chunk in chunks], dtype=np.int64))
    packed = Packed(index, length, split)
    seen = []
    for c, num in enumerate(packed.num_units.tolist()):
        segments = packed.segments(np.full(num, c), np.arange(num))
        filled = {}
        for compiled in (True, False):
            ids, positions = np.full((2, num, length), -1, dtype=np.int32)
            fill_places(segments, length, ids, positions, compiled=compiled)
            filled[compiled] = ids.tolist(), positions.tolist()
        assert filled[True] == filled[False]
        for unit, (ids, positions) in enumerate(zip(*filled[True], strict=True)):
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


@given(data=st.data(), value_bytes=st.sampled_from([1, 2, 3, 4, 8, 12]))
def test_compiled_and_plain_copies_agree(data, value_bytes):
    memory = np.random.default_rng(0).integers(0, 256, 960, dtype=np.uint8)
    num = np.array(data.draw(st.lists(st.integers(0, 5), max_size=8)), dtype=np.int64)
    starts = np.array(data.draw(st.lists(st.integers(0, 20), min_size=len(num), max_size=len(num))), dtype=np.int64)
    slot = np.arange(len(num)) % 2
    target = np.cumsum(num + 1) - num - 1
    outs = [np.zeros((60, value_bytes), dtype=np.uint8) for _ in range(2)]
    for out, compiled in zip(outs, (True, False), strict=True):
        sources = 480 * slot + starts * value_bytes
        copy_ranges(memory, sources, value_bytes, num, target, out, compiled=compiled)
    np.testing.assert_array_equal(*outs)
    for s in range(len(num)):
        begin = 480 * slot[s] + starts[s] * value_bytes
        expected = memory[begin : begin + num[s] * value_bytes].reshape(-1, value_bytes)
        np.testing.assert_array_equal(outs[0][target[s] : target[s] + num[s]], expected)


@pytest.mark.parametrize("length", [64, 1000, 2047])
@pytest.mark.parametrize("longest", [3, 90, 5000])
def test_large_batches_which_go_past_the_caches_have_every_token_at_its_place(length, longest):
    rng = np.random.default_rng(length + longest)
    counts = rng.integers(0, longest, max(400, 800_000 // longest))
    index = pack_lengths(Pack("t", length=length), counts, np.array([len(counts)], dtype=np.int64))
    packed = Packed(index, length, True)
    num = min(int(packed.num_units[0]), (3 << 20) // (4 * length))
    assert num * length * 4 > 1 << 20
    segments = packed.segments(np.zeros(num, dtype=np.int64), rng.permutation(num))
    filled = []
    for compiled in (True, False):
        ids, positions = (plain_buffer(num * length * 4).view(np.int32).reshape(num, length) for _ in range(2))
        fill_places(segments, length, ids, positions, compiled=compiled)
        filled.append((ids, positions))
    for fast, plain in zip(*filled, strict=True):
        np.testing.assert_array_equal(fast, plain)
    tokens = rng.integers(0, 256, 4 * int(counts.sum()) + 8, dtype=np.uint8)
    starts = np.concatenate([[0], np.cumsum(counts)])[segments.row]
    target = np.repeat(np.arange(num), np.diff(segments.offsets)) * length + segments.at
    copied = []
    for compiled in (True, False):
        out = plain_buffer(num * length * 4).view(np.int32)
        out[:] = -1
        copy_ranges(tokens, (starts + segments.first) * 4, 4, segments.num, target, out, compiled=compiled)
        copied.append(out)
    np.testing.assert_array_equal(*copied)
