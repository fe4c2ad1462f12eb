"""Rows gathered by native code: the records and lists that were asked for, whatever their sizes, and nothing beside."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracles.gather import Chunk, laid_out, lists_of, spec_of, taken, window_of
from tests.strategies import examples

from stoker import Spec
from stoker._native import Rows, TableLayout
from stoker.fields.offsets import offsets_of

WIDTHS = [1, 2, 3, 4, 8, 16, 24, 32, 48, 64, 100, 192, 640, 4160]
KINDS = [("u1", ()), ("u2", (3,)), ("f4", (2, 3)), ("i8", ()), ("S3", ())]


def guarded(num_bytes, shift=0):
    """Memory that begins so many bytes behind a cache line, and a check that nothing beside it was written to."""
    memory = np.full(num_bytes + 256, 201, dtype=np.uint8)
    begin = -memory.ctypes.data % 64 + shift

    def check():
        assert (memory[:begin] == 201).all()
        assert (memory[begin + num_bytes :] == 201).all()

    return memory[begin : begin + num_bytes], check


def places_in(chunks, num, rng):
    slot = rng.integers(0, len(chunks), num)
    return slot, rng.integers(0, [len(chunks[s].records) for s in slot.tolist()] or 1, num)


def parts_of(table, slot, row, num_parts):
    borders = np.linspace(0, len(slot), num_parts + 1).astype(int)
    return [(table, 0, slot[a:b].copy(), row[a:b].copy()) for a, b in itertools.pairwise(borders)]


@given(
    width=st.sampled_from(WIDTHS),
    num=st.sampled_from([0, 1, 40, 700, 20_000]),
    num_parts=st.integers(1, 3),
    is_placed=st.booleans(),
    before=st.sampled_from([0, 8, 64]),
    behind=st.sampled_from([0, 8, 64]),
    shift=st.sampled_from([0, 8]),
    seed=st.integers(0, 2**32),
)
@examples(40)
def test_records_of_any_width_go_to_their_places(width, num, num_parts, is_placed, before, behind, shift, seed):
    rng = np.random.default_rng(seed)
    num = min(num, 3 << 20) if width < 1000 else min(num, 700)  # some are written past the caches
    chunks = [Chunk(rng.integers(0, 256, (n, width), dtype=np.uint8), {}) for n in rng.integers(1, 300, 3)]
    table, _ = laid_out(Spec(()), chunks)
    slot, row = places_in(chunks, num, rng)
    places = rng.permutation(num) if is_placed else None
    memory, check = guarded(num * (before + width + behind), shift)
    out = memory.reshape(num, before + width + behind)
    out[:] = 77
    Rows(parts_of(table, slot, row, num_parts), places).take(out, before)
    expected = np.full_like(out, 77)
    for s, chunk in enumerate(chunks):
        mine = slot == s
        expected[np.flatnonzero(mine) if places is None else places[mine], before : before + width] = chunk.records[
            row[mine]
        ]
    np.testing.assert_array_equal(out, expected)
    check()


@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=5),
    usual=st.sampled_from([0, 3, 30, 70, 900]),
    longest=st.sampled_from([0, 5_000, 40_000]),  # of eight bytes each, several blocks
    width=st.sampled_from([0, 0, 4, 64, 640]),
    num=st.sampled_from([0, 1, 31, 33, 400, 4_000]),
    num_parts=st.integers(1, 3),
    is_placed=st.booleans(),
    shift=st.sampled_from([0, 0, 1]),
    seed=st.integers(0, 2**32),
)
@examples(15)
def test_lists_of_any_length_come_out_whole(kinds, usual, longest, width, num, num_parts, is_placed, shift, seed):
    """From 1 MiB on they are written past the caches by way of stages, which a long list does not fit in."""
    rng = np.random.default_rng(seed)
    spec, chunks = spec_of(kinds), []
    for num_rows in rng.integers(1, 200, 2):
        lengths = rng.integers(0, usual, (len(kinds), num_rows), endpoint=True)
        if longest:
            is_long = rng.random(lengths.shape) < 0.004
            lengths[is_long] = rng.integers(longest // 2, longest, is_long.sum())
        lists = {entry.name: lists_of(entry, one, rng) for entry, one in zip(spec, lengths, strict=True)}
        chunks.append(Chunk(rng.integers(0, 256, (num_rows, width), dtype=np.uint8), lists))
    table, groups = laid_out(spec, chunks)
    slot, row = places_in(chunks, num // 20 if usual == 900 else num, rng)
    num = len(slot)
    places = rng.permutation(num) if is_placed else None
    order = np.arange(num) if places is None else np.argsort(places)
    expected = taken(chunks, slot[order], row[order])
    (group,) = groups

    def check(out, offsets, found, values):
        for f, entry in enumerate(group):
            lists = b"".join(of_row[entry.name] for _, of_row in expected)
            assert values[found.begins[f] :][: len(lists)].tobytes() == lists
            lengths = [len(of_row[entry.name]) // entry.value_bytes for _, of_row in expected]
            np.testing.assert_array_equal(offsets[f], offsets_of(np.array(lengths, dtype=np.int64)))
        assert out.tobytes() == b"".join(record for record, _ in expected)

    rows = Rows(parts_of(table, slot, row, num_parts), places)
    out, offsets = np.zeros((num, width), dtype=np.uint8), np.empty((len(group), num + 1), dtype=np.int64)
    found = rows.take_with_lists(out, 0, 0, offsets, np.empty(0, dtype=np.uint8))
    values, check_beside = guarded(found.num_bytes, shift)
    found.copy(values)
    check(out, offsets, found, values)
    check_beside()
    out[:], offsets[:] = 0, 0
    values, check_beside = guarded(found.num_bytes, shift)
    found = rows.take_with_lists(out, 0, 0, offsets, values)
    check(out, offsets, found, values)
    check_beside()
    chosen = [f for f in range(len(group)) if f % 2 == 0]
    found = rows.find(0, offsets)
    found.choose(chosen)
    values = np.empty(found.num_bytes, dtype=np.uint8)
    found.copy(values)
    for f in chosen:
        lists = b"".join(of_row[group[f].name] for _, of_row in expected)
        assert values[found.begins[f] :][: len(lists)].tobytes() == lists


@given(
    lengths=st.lists(
        st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=20), min_size=1, max_size=4
    ),
    num=st.sampled_from([0, 1, 40]),
    is_placed=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_lists_of_lists_come_out_whole(lengths, num, is_placed, seed):
    rng = np.random.default_rng(seed)
    chunks, values = [], []
    for chunk in lengths:
        inner = offsets_of(np.array([n for row in chunk for n in row], dtype=np.int64))
        outer = offsets_of(np.array([len(row) for row in chunk], dtype=np.int64))
        values.append(rng.integers(0, 2**60, int(inner[-1]) + 8))
        chunks.append([outer, inner, values[-1]])
    layout = TableLayout(0)
    layout.add_field(8, is_nested=True)
    table = window_of(chunks, layout)
    slot = rng.integers(0, len(lengths), num)
    row = np.array([rng.integers(0, len(lengths[s])) for s in slot.tolist()], dtype=np.int64)
    places = rng.permutation(num) if is_placed else None
    order = np.arange(num) if places is None else np.argsort(places)
    offsets = np.empty((1, num + 1), dtype=np.int64)
    found = Rows([(table, 0, slot, row)], places).find(0, offsets)
    asked = [lengths[s][r] for s, r in zip(slot[order], row[order], strict=True)]
    assert np.diff(offsets[0]).tolist() == [len(lists) for lists in asked]
    inner = np.empty(int(offsets[0, -1]) + 1, dtype=np.int64)
    found.descend(inner)
    assert np.diff(inner).tolist() == [n for lists in asked for n in lists]
    out = np.empty(found.num_bytes, dtype=np.uint8)
    found.copy(out)
    expected = []
    for s, r in zip(slot[order].tolist(), row[order].tolist(), strict=True):
        begin = sum(sum(lists) for lists in lengths[s][:r])
        expected += values[s][begin : begin + sum(lengths[s][r])].tolist()
    assert out[: 8 * len(expected)].view(np.int64).tolist() == expected


@pytest.mark.parametrize("width", [4, 8, 64, 320])
@pytest.mark.parametrize("num", [0, 1, 60, 5_000])
def test_what_records_share_is_read_with_or_without_them(width, num):
    rng = np.random.default_rng(num)
    chunks = [Chunk(rng.integers(0, 256, (n, width), dtype=np.uint8), {}) for n in (30, 7)]
    table, _ = laid_out(Spec(()), chunks)
    slot, row = places_in(chunks, num, rng)
    offset = int(rng.integers(0, width // 4)) * 4
    expected = [int(chunks[s].records[r, offset : offset + 4].view("<u4")[0]) for s, r in zip(slot, row, strict=True)]
    rows, runs, out = Rows([(table, 0, slot, row)]), np.empty(num, np.int64), np.empty((num, width), np.uint8)
    rows.runs(offset, runs)
    assert runs.tolist() == expected
    runs[:] = -1
    rows.take_with_runs(out, offset, runs)
    assert runs.tolist() == expected
    assert out.tobytes() == b"".join(record for record, _ in taken(chunks, slot, row))


def test_wrong_arrays_are_refused():
    table = window_of([[np.zeros((8, 8), dtype=np.uint8)]], TableLayout(8))
    one = np.zeros(1, dtype=np.int64)
    with pytest.raises(ValueError, match="a slot for each row"):
        Rows([(table, 0, one, np.zeros(2, dtype=np.int64))])
    with pytest.raises(ValueError, match="a place for each row"):
        Rows([(table, 0, one, one)], np.zeros(2, dtype=np.int64))
    with pytest.raises(ValueError, match="wider than their room"):
        Rows([(table, 0, one, one)]).take(np.zeros((1, 8), dtype=np.uint8), 1)
    with pytest.raises(ValueError, match="no room for all records"):
        Rows([(table, 0, one, one)]).take(np.zeros((0, 8), dtype=np.uint8), 0)
    with pytest.raises(TypeError, match="contiguous arrays of int64"):
        Rows([(table, 0, one.astype(np.int32), one)])


@pytest.mark.parametrize("slot", [1, 2**50])
def test_a_chunk_that_a_window_does_not_have_has_no_records(slot):
    window = window_of([[np.arange(8, dtype=np.int64)]], TableLayout(8))
    assert len(window.records(0)) == 64
    with pytest.raises(IndexError):
        window.records(slot)


def test_whoever_gathers_from_a_window_has_it_after_it_was_closed():
    window = window_of([[np.arange(8, dtype=np.int64)]], TableLayout(8))
    rows = Rows([(window, 0, np.zeros(1, dtype=np.int64), np.full(1, 5))])
    window.close()
    window.close()
    out = np.empty((1, 8), dtype=np.uint8)
    rows.take(out, 0)
    assert out.view(np.int64).item() == 5
    with pytest.raises(ValueError, match="was closed"):
        Rows([(window, 0, np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))])
