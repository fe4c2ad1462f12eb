import importlib
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker import loops
from stoker.cache.strips import make_strips
from stoker.gather import take
from stoker.offsets import offsets_of
from stoker.spec import Entry, Ragged, Spec
from stoker.windows.reading import Part
from stoker.windows.region import PAGE_BYTES, Region


@given(st.data())
@pytest.mark.parametrize("compiled", [True, False])
def test_taken_records_are_the_indexed_ones(compiled, data):
    width = data.draw(st.sampled_from([1, 2, 8, 16, 64, 192, 640, 4160]))
    rows = np.random.default_rng(0).integers(0, 256, (data.draw(st.integers(1, 300)), width), dtype=np.uint8)
    index = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=50)), dtype=np.int64)
    out = np.full((len(index), width), 77, dtype=np.uint8)
    take.take_records(rows, index, out, compiled=compiled)
    np.testing.assert_array_equal(out, rows[index])


@given(
    lengths=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=20), min_size=1, max_size=5),
    seed=st.integers(0, 2**32),
    units_per_value=st.integers(1, 3),
    unit=st.sampled_from(["u1", "u2", "u4", "u8"]),
    slack_bytes=st.integers(0, 64),
    compiled=st.booleans(),
)
def test_gathered_lists_are_the_lists_asked_for(lengths, seed, units_per_value, unit, slack_bytes, compiled):
    rng = np.random.default_rng(seed)
    words, first_word, units, first_byte, chunks = [], [], [], [], []
    for chunk in lengths:
        offsets = np.concatenate([[0], np.cumsum(chunk)])
        values = rng.integers(0, 200, (offsets[-1], units_per_value)).astype(unit)
        chunks.append([values[a:b] for a, b in itertools.pairwise(offsets)])
        first_word.append(sum(map(len, words)))
        words.append(offsets)
        first_byte.append(sum(part.nbytes for part in units))
        units.append(values.reshape(-1))
    slot = rng.integers(0, len(chunks), 30)
    row = np.array([rng.integers(0, len(chunks[s])) for s in slot], dtype=np.int64)
    expected = [chunks[s][r] for s, r in zip(slot, row, strict=True)]

    starts, offsets = take.extents(np.concatenate(words), np.array(first_word), slot, row, compiled=compiled)
    value_bytes = units_per_value * np.dtype(unit).itemsize
    num_bytes = int(offsets[-1]) * value_bytes
    memory = np.concatenate(units).view(np.uint8)
    memory = np.concatenate([memory, np.zeros(-len(memory) % 8, dtype=np.uint8)])  # windows are whole pages
    guarded = np.full(num_bytes + slack_bytes + 100, 201, dtype=np.uint8)
    out = guarded[: num_bytes + slack_bytes]
    sources = np.array(first_byte)[slot] + starts * value_bytes
    take.copy_lists(memory, sources, value_bytes, offsets, out, compiled=compiled)
    np.testing.assert_array_equal(np.diff(offsets), [len(e) for e in expected])
    np.testing.assert_array_equal(out[:num_bytes].view(unit).reshape(-1, units_per_value), np.concatenate(expected))
    assert (guarded[num_bytes + slack_bytes :] == 201).all()


@given(
    lengths=st.lists(
        st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=20), min_size=1, max_size=4
    ),
    num_rows=st.sampled_from([0, 1, 40]),
    seed=st.integers(0, 2**32),
    compiled=st.booleans(),
)
def test_values_of_lists_of_lists_lie_where_those_of_their_rows_do(lengths, num_rows, seed, compiled):
    rng = np.random.default_rng(seed)
    words, first_word = [], []
    for chunk in lengths:
        first_word.append(sum(map(len, words)))
        words.append(np.concatenate([[0], np.cumsum([n for row in chunk for n in row])]).astype(np.int64))
    slot = rng.integers(0, len(lengths), num_rows)
    row = [int(rng.integers(0, len(lengths[s]))) for s in slot]
    asked = [lengths[s][r] for s, r in zip(slot, row, strict=True)]
    starts = np.array([sum(map(len, lengths[s][:r])) for s, r in zip(slot, row, strict=True)], dtype=np.int64)
    outer = np.concatenate([[0], np.cumsum([len(lists) for lists in asked])]).astype(np.int64)

    begins, ends, offsets = take.inner_extents(
        np.concatenate(words), np.array(first_word), slot, starts, outer, compiled=compiled
    )
    before = [sum(n for lists in lengths[s][:r] for n in lists) for s, r in zip(slot, row, strict=True)]
    assert begins.tolist() == before
    assert np.diff(ends).tolist() == [sum(lists) for lists in asked]
    assert np.diff(offsets).tolist() == [n for lists in asked for n in lists]
    assert ends[0] == offsets[0] == 0


@pytest.mark.parametrize("shift", [0, 8], ids=["aligned", "between lines"])
@pytest.mark.parametrize("is_placed", [False, True])
def test_batches_that_go_past_the_caches_are_the_indexed_ones(is_placed, shift):
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 256, (5_000, 320), dtype=np.uint8)
    index = rng.integers(0, len(rows), 4_000)  # 1.28 MB
    memory = np.full(len(index) * 384 + 128, 77, dtype=np.uint8)
    begin = -memory.ctypes.data % 64 + shift
    out = memory[begin : begin + len(index) * 384].reshape(-1, 384)
    places = rng.permutation(len(index)) if is_placed else None
    take.take_records(rows, index, out, at=64, places=places)
    expected = np.full_like(out, 77)
    expected[slice(None) if places is None else places, 64:] = rows[index]
    np.testing.assert_array_equal(out, expected)
    assert (memory[:begin] == 77).all()
    assert (memory[begin + out.size :] == 77).all()


@given(
    seed=st.integers(0, 2**32),
    value_bytes=st.sampled_from([1, 2, 3, 4, 8, 24]),
    mix=st.sampled_from([(0, 300), (0, 1_200), (500, 1_200), (510, 514), (0, 30_000), (4_000, 4_200)]),
    shift=st.sampled_from([0, 8]),
)
@settings(max_examples=40)
def test_lists_that_go_past_the_caches_are_the_lists_asked_for(seed, value_bytes, mix, shift):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(*mix, 500, endpoint=True) // value_bytes
    lengths[rng.integers(0, 500, 20)] = rng.integers(0, 9_000 // value_bytes, 20)
    lengths[rng.integers(0, 500, 20)] = 0
    ends = np.cumsum(lengths)
    memory = rng.integers(0, 256, (int(ends[-1]) * value_bytes + 7) // 8 * 8, dtype=np.uint8)
    mean = float(lengths.mean()) * value_bytes
    index = rng.integers(0, 500, int(1.2 * (1 << 20) / mean) + 1)
    starts = (ends - lengths)[index]
    offsets = np.concatenate([[0], np.cumsum(lengths[index])])
    num_bytes = int(offsets[-1]) * value_bytes
    guarded = np.full(num_bytes + 256, 77, dtype=np.uint8)
    begin = -guarded.ctypes.data % 64 + shift
    out = guarded[begin : begin + num_bytes]
    take.copy_lists(memory, starts * value_bytes, value_bytes, offsets, out)
    values = memory[: int(ends[-1]) * value_bytes].reshape(-1, value_bytes)
    expected = np.concatenate([values[a : a + n] for a, n in zip(starts, lengths[index], strict=True)]).reshape(-1)
    np.testing.assert_array_equal(out, expected)
    assert (guarded[:begin] == 77).all()
    assert (guarded[begin + num_bytes :] == 77).all()


@st.composite
def tables(draw):
    """Return the spec of a table with lists of one level, and lists for some rows of it."""
    longest = draw(st.sampled_from([0, 3, 70, 700]))
    kinds = draw(
        st.lists(st.sampled_from([("u1", ()), ("u2", (3,)), ("f4", (2, 3)), ("i8", ())]), min_size=1, max_size=4)
    )
    spec = Spec(
        tuple(
            Entry(name=f"f{i}", dtype=np.dtype(dtype), shape=shape, num_levels=1)
            for i, (dtype, shape) in enumerate(kinds)
        )
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_rows = draw(st.integers(1, 40))
    arrays = {}
    for entry in spec:
        offsets = offsets_of(rng.integers(0, longest, num_rows, endpoint=True))
        content = rng.integers(0, 256, int(offsets[-1]) * entry.value_bytes, dtype=np.uint8)
        arrays[entry.name] = Ragged(content.view(entry.dtype).reshape(-1, *entry.shape), offsets)
    return spec, arrays, rng


def laid_out(spec, arrays):
    """Return a region in which the lists of two chunks lie, the second the first one's, and where."""
    strips = make_strips(spec, arrays)
    if strips is None:
        (entry,) = spec
        place, values = arrays[entry.name].offsets, arrays[entry.name].values
    else:
        place, values = strips.places, np.empty(strips.size_bytes, np.uint8)
        strips.lay(values, 0, len(place))
    parts, begins = [], []
    for array in (place, values) * 2:
        content = np.frombuffer(array.tobytes(), dtype=np.uint8)
        begins.append(sum(map(len, parts)))
        parts += [content, np.zeros(-len(content) % 64 + 64, dtype=np.uint8)]
    memory = np.concatenate(parts)
    return take.Fields(
        words=memory.view(np.int64),
        halves=memory.view(np.uint32),
        memory=memory,
        first_place=np.array(begins[::2]) // place.itemsize,
        first_byte=np.array(begins[1::2]),
        value_bytes=np.array([entry.value_bytes for entry in spec.strip or spec], dtype=np.int64),
    )


@given(
    table=tables(), num=st.integers(0, 30), width=st.sampled_from([0, 64, 192]), room=st.sampled_from([0, 100, 10**6])
)
def test_rows_taken_in_one_call_are_the_rows_asked_for(table, num, width, room):
    spec, arrays, rng = table
    fields = laid_out(spec, arrays)
    num_rows = len(arrays["f0"].offsets) - 1
    records = rng.integers(0, 256, (num_rows, width), dtype=np.uint8)
    slot, row = rng.integers(0, 2, num), rng.integers(0, num_rows, num)
    asked = []

    def memory_for(num_bytes):
        asked.append(num_bytes)
        return np.full(num_bytes, 201, dtype=np.uint8)

    out = np.empty((num, width), dtype=np.uint8)
    taken = take.take_rows(records, fields, take.Places(slot, row), out, memory_for, expected_bytes=room)
    np.testing.assert_array_equal(out, records[row])
    for entry, offsets, begin in zip(spec.strip or spec, taken.offsets, taken.begins.tolist(), strict=True):
        values, borders = arrays[entry.name].values, arrays[entry.name].offsets
        expected = [values[borders[r] : borders[r + 1]] for r in row.tolist()]
        np.testing.assert_array_equal(np.diff(offsets), [len(one) for one in expected])
        found = taken.values[begin : begin + int(offsets[-1]) * entry.value_bytes]
        assert found.tobytes() == b"".join(one.tobytes() for one in expected)
    assert asked[0] == room
    assert len(asked) == (1 if len(taken.values) == room else 2)


@pytest.mark.skipif(loops.find("stoker.gather.kernels") is None, reason="there are no compiled loops")
@given(table=tables(), num=st.integers(0, 100), width=st.sampled_from([64, 640]))
def test_records_and_strips_come_out_alike_at_once_and_one_after_the_other(table, num, width):
    """Which of the two is done depends on the processor."""
    spec, arrays, rng = table
    if not spec.strip:
        return
    pytest.importorskip("numba")
    kernels, fields = importlib.import_module("stoker.gather.kernels"), laid_out(spec, arrays)
    num_rows = len(arrays["f0"].offsets) - 1
    records = rng.integers(0, 256, (num_rows, width), dtype=np.uint8)
    slot, row = rng.integers(0, 2, num), rng.integers(0, num_rows, num)
    results = []
    for at_once in (True, False):
        out = np.empty((num, width), dtype=np.uint8)
        sources = np.empty((len(spec.strip), num), dtype=np.int64)
        offsets = np.empty((len(spec.strip), num + 1), dtype=np.int64)
        where = (fields.halves, fields.first_place, fields.first_byte, fields.value_bytes, slot, row, sources, offsets)
        if at_once:
            kernels._take_lines_and_strip_extents(records.reshape(-1), width, out.reshape(-1), *where)
        else:
            kernels.take_lines(records.reshape(-1), row, width, out.reshape(-1), width, 0)
            kernels.strip_extents(*where)
        np.testing.assert_array_equal(out, records[row])
        results.append((sources, offsets))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(["u1", "u2", "i8", "S3"]), min_size=1, max_size=5),
    usual=st.sampled_from([0, 2, 30, 60, 900]),
    longest=st.sampled_from([5_000, 12_000, 12_000, 40_000]),  # of eight bytes each, a block or more
    num=st.sampled_from([0, 1, 31, 33, 1_000, 20_000]),
    seed=st.integers(0, 2**32),
    shift=st.sampled_from([0, 0, 1]),
)
def test_lists_of_any_length_come_out_whole_with_a_long_one_here_and_there(kinds, usual, longest, num, seed, shift):
    """From 1 MiB on they are written past the caches by way of stages, which a long list does not fit in."""
    rng = np.random.default_rng(seed)
    num_rows = 500
    spec = Spec(
        tuple(Entry(name=f"f{i}", dtype=np.dtype(kind), shape=(), num_levels=1) for i, kind in enumerate(kinds))
    )
    arrays = {}
    for entry in spec:
        lengths = rng.integers(0, usual, num_rows, endpoint=True)
        long = rng.random(num_rows) < 0.004
        lengths[long] = rng.integers(longest // 2, longest, long.sum())
        offsets = offsets_of(lengths)
        content = rng.integers(1, 256, int(offsets[-1]) * entry.value_bytes, dtype=np.uint8)
        arrays[entry.name] = Ragged(content.view(entry.dtype), offsets)
    fields = laid_out(spec, arrays)
    row = rng.integers(0, num_rows, num // 20 if usual == 900 else num)
    slot = rng.integers(0, 2, len(row))
    guarded = []

    def memory_for(num_bytes):
        memory = np.full(num_bytes + 256, 201, dtype=np.uint8)
        begin = -memory.ctypes.data % 64 + shift
        guarded.append((memory, begin, begin + num_bytes))
        return memory[begin : begin + num_bytes]

    out = np.empty((len(row), 0), dtype=np.uint8)
    if spec.strip:
        where = (fields.halves, fields.first_place, fields.first_byte, fields.value_bytes, slot, row)
        sources, offsets = take.strip_extents(*where)
    else:
        starts, offsets = take.extents(fields.words, fields.first_place, slot, row)
        sources, offsets = (fields.first_byte[slot] + starts * fields.value_bytes)[None], offsets[None]
    found = [
        take.take_rows(out, fields, take.Places(slot, row), out, memory_for, expected_bytes=0),
        take.copy_fields(fields.memory, sources, fields.value_bytes, offsets, memory_for),
        take.copy_fields(fields.memory, sources, fields.value_bytes, offsets, memory_for, compiled=False),
    ]
    for i, entry in enumerate(spec.strip or spec):
        values, borders = arrays[entry.name].values, arrays[entry.name].offsets
        expected = np.concatenate([values[:0], *(values[borders[r] : borders[r + 1]] for r in row.tolist())])
        for found_offsets, begins, content, _ in found:
            np.testing.assert_array_equal(found_offsets[i], offsets_of(np.diff(borders)[row]))
            np.testing.assert_array_equal(content[begins[i] : begins[i] + expected.nbytes].view(entry.dtype), expected)
    for memory, begin, end in guarded:
        assert (memory[:begin] == 201).all()
        assert (memory[end:] == 201).all()


@given(table=tables(), num=st.integers(0, 30))
def test_strips_are_found_alike_with_and_without_compiled_loops(table, num):
    spec, arrays, rng = table
    if not spec.strip:
        return
    fields = laid_out(spec, arrays)
    slot, row = rng.integers(0, 2, num), rng.integers(0, len(arrays["f0"].offsets) - 1, num)
    asked = (fields.halves, fields.first_place, fields.first_byte, fields.value_bytes, slot, row)
    for a, b in zip(take.strip_extents(*asked), take.strip_extents(*asked, compiled=False), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("compiled", [True, False])
@given(units=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1 << 40), st.integers(0, 5))))
def test_the_rows_of_units_are_those_that_lie_side_by_side_from_their_first_on(units, compiled):
    slot, first, counts = np.array(units, dtype=np.int64).reshape(-1, 3).T.copy()
    found = take.expand(slot, first, offsets_of(counts), compiled=compiled)
    expected = [(s, f + i) for s, f, num in units for i in range(num)]
    assert list(zip(*(one.tolist() for one in found), strict=True)) == expected


@pytest.mark.parametrize("is_mapped", [True, False])
def test_files_placed_side_by_side_read_as_one_array_even_when_removed(tmp_path, is_mapped):
    region = Region(6 * PAGE_BYTES, is_mapped=is_mapped)
    rng = np.random.default_rng(1)
    content = [rng.integers(0, 256, n * PAGE_BYTES + extra, dtype=np.uint8) for n, extra in [(2, 0), (2, 100)]]
    for i, data in enumerate(content):
        path = tmp_path / str(i)
        data.tofile(path)
        with path.open("rb") as file:
            region.place([Part(file.fileno(), PAGE_BYTES, len(data) - PAGE_BYTES, at=2 * i * PAGE_BYTES)])
        path.unlink()
    np.testing.assert_array_equal(region.bytes[:PAGE_BYTES], content[0][PAGE_BYTES:])
    np.testing.assert_array_equal(region.bytes[2 * PAGE_BYTES :][: PAGE_BYTES + 100], content[1][PAGE_BYTES:])
    region.close()
    region.close()
    assert region.bytes.nbytes == 0


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="there is no way to ask whether memory can be read")
@pytest.mark.parametrize("num_pages", [1, 2, 512, 513])
@pytest.mark.parametrize("is_mapped", [True, False])
def test_behind_a_region_there_is_a_line_that_can_be_read(is_mapped, num_pages):
    """Loops that copy lists by whole lines read there, behind a list that ends with the region."""
    regions = [Region(num_pages * PAGE_BYTES, is_mapped=is_mapped) for _ in range(3)]
    with Path("/proc/self/mem").open("rb", buffering=0) as memory:
        for region in regions:
            memory.seek(region.bytes.ctypes.data + region.size_bytes)
            assert len(memory.read(64)) == 64
    for region in regions:
        region.close()


def test_a_misplaced_file_is_refused_before_it_overwrites_others(tmp_path):
    path = tmp_path / "chunk"
    path.write_bytes(bytes(4 * PAGE_BYTES))
    region = Region(2 * PAGE_BYTES)
    with path.open("rb") as file:
        for bad in [
            {"offset": 1, "num_bytes": 10, "at": 0},
            {"offset": 0, "num_bytes": 10, "at": 100},
            {"offset": 0, "num_bytes": 3 * PAGE_BYTES, "at": 0},
        ]:
            with pytest.raises(ValueError, match="cannot place"):
                region.place([Part(file.fileno(), **bad)])
    region.close()


@pytest.mark.parametrize("is_mapped", [True, False])
def test_settling_a_region_changes_nothing_and_can_be_ended(tmp_path, is_mapped):
    path = tmp_path / "chunk"
    content = np.arange(3 * PAGE_BYTES // 8)
    content.tofile(path)
    region = Region(3 * PAGE_BYTES, is_mapped=is_mapped)
    with path.open("rb") as file:
        region.place([Part(file.fileno(), 0, content.nbytes, at=0)])
    region.settle(goes_on=lambda: False)
    region.settle()
    assert region.is_in_memory()
    np.testing.assert_array_equal(region.bytes.view(np.int64), content)
    region.close()


@given(st.data())
@pytest.mark.parametrize("compiled", [True, False])
def test_records_go_to_their_place_in_wider_ones(compiled, data):
    width = data.draw(st.sampled_from([1, 8, 64, 640]))
    at = data.draw(st.sampled_from([0, 8, 64]))
    rows = np.random.default_rng(0).integers(0, 256, (data.draw(st.integers(1, 50)), width), dtype=np.uint8)
    index = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=50)), dtype=np.int64)
    out = np.full((len(index), at + width + 8), 77, dtype=np.uint8)
    take.take_records(rows, index, out, at=at, compiled=compiled)
    np.testing.assert_array_equal(out[:, at : at + width], rows[index])
    assert (np.delete(out, np.s_[at : at + width], axis=1) == 77).all()


@given(
    runs=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50),
    width=st.sampled_from([4, 8, 64, 320]),
    compiled=st.booleans(),
    seed=st.integers(0, 9),
)
def test_the_run_of_each_record_is_read(runs, width, compiled, seed):
    rng = np.random.default_rng(seed)
    records = rng.integers(0, 256, (len(runs), width), dtype=np.uint8)
    offset = int(rng.integers(0, width // 4)) * 4
    records[:, offset : offset + 4] = np.array(runs, dtype="<u4")[:, None].view(np.uint8)
    slot, row = rng.integers(0, 3, 60), rng.integers(0, len(runs), 60)
    first = np.array([0, 2**40, 5])
    found = take.run_rows(records, offset, first, slot, row, compiled=compiled)
    assert found.tolist() == [int(first[s]) + runs[r] for s, r in zip(slot, row, strict=True)]


def batches_of(num, seed):
    """Sizes of batches that hold so many samples together, some of them none."""
    rng = np.random.default_rng(seed)
    borders = np.sort(rng.integers(0, num + 1, rng.integers(0, 5)))
    return np.diff(np.concatenate([[0], borders, [num]]))


def check_distinct(expected, sizes, row, number, counts):
    """Whether each batch has its rows once, in the order in which they come first, and the place of each."""
    assert number.dtype == np.int32
    begin = at = 0
    for size, num in zip(sizes.tolist(), counts.tolist(), strict=True):
        of_batch, found = expected[begin : begin + size], row[at : at + num]
        assert found.tolist() == list(dict.fromkeys(of_batch))
        assert found[number[begin : begin + size]].tolist() == of_batch
        begin, at = begin + size, at + num
    assert (begin, at) == (len(expected), len(row))


@given(
    runs=st.lists(st.integers(0, 9), min_size=1, max_size=50),
    width=st.sampled_from([4, 64, 320]),
    num=st.sampled_from([0, 1, 60, 5_000]),
    compiled=st.booleans(),
    seed=st.integers(0, 9),
)
def test_records_are_taken_with_what_they_share_each_once(runs, width, num, compiled, seed):
    rng = np.random.default_rng(seed)
    records = rng.integers(0, 256, (len(runs), width), dtype=np.uint8)
    offset = int(rng.integers(0, width // 4)) * 4
    records[:, offset : offset + 4] = np.array(runs, dtype="<u4")[:, None].view(np.uint8)
    slot, row, sizes = rng.integers(0, 3, num), rng.integers(0, len(runs), num), batches_of(num, seed)
    first = np.array([0, 10, 20])
    out = np.empty((num, width), dtype=np.uint8)
    found = take.take_runs(records, slot, row, out, offset=offset, first=first, sizes=sizes, compiled=compiled)
    expected = [int(first[s]) + runs[r] for s, r in zip(slot, row, strict=True)]
    np.testing.assert_array_equal(out, records[row])
    check_distinct(expected, sizes, found.row, found.number, found.counts)
    assert found.slot.tolist() == [one // 10 for one in found.row.tolist()]


@given(
    st.lists(st.one_of(st.integers(0, 20), st.integers(0, 2**62)), max_size=80),
    st.integers(0, 99),
    st.booleans(),
)
def test_distinct_rows_of_batches_come_in_their_order_with_the_place_of_each(rows, seed, compiled):
    sizes = batches_of(len(rows), seed)
    check_distinct(rows, sizes, *take.distinct(np.array(rows, dtype=np.int64), sizes, compiled=compiled))
