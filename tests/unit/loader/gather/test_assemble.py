import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import check_samples, sample_table
from tests.unit.cache.chunk_files import window_of_files, write_chunk

from stoker import Ragged
from stoker.columns import plan_spec, to_arrays
from stoker.loader.buffers import BufferPool
from stoker.loader.gather import Part, assemble, side_by_side
from stoker.sampling.epoch import Order

NESTED = "nested"


def table_of(num_rows, first):
    table = sample_table(num_rows, first=first)
    nested = [[[int(i)] * (i % 3) for _ in range(i % 4)] for i in table["id"].to_pylist()]
    wide = np.arange(first * 16, (first + num_rows) * 16, dtype=np.float32)
    table = table.append_column("wide", pa.FixedSizeListArray.from_arrays(pa.array(wide), 16))
    return table.append_column(NESTED, pa.array(nested, type=pa.list_(pa.list_(pa.int16()))))


def window_of(folder, sizes, *, first, columns=None, is_mapped=True):
    paths, spec = [], None
    for i, size in enumerate(sizes):
        table = table_of(size, first)
        table = table if columns is None else table.select(columns)
        first += size
        spec = plan_spec(table.schema, {})
        paths.append(folder / f"{first}-{i}.safetensors")
        paths[-1].unlink(missing_ok=True)
        write_chunk(paths[-1], to_arrays(table, {}, where=""), spec, num_samples=size)
    return window_of_files(paths, spec, is_mapped=is_mapped)


@given(
    sizes=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), min_size=1, max_size=3),
    seed=st.integers(0, 99),
    is_mapped=st.booleans(),
)
def test_a_batch_is_the_rows_asked_for_from_all_windows_in_their_order(tmp_path_factory, sizes, seed, is_mapped):
    rng = np.random.default_rng(seed)
    first, parts, expected = 0, [], []
    for window_sizes in sizes:
        starts = first + np.concatenate([[0], np.cumsum(window_sizes)])
        window = window_of(tmp_path_factory.mktemp("window"), window_sizes, first=first, is_mapped=is_mapped)
        first = int(starts[-1])
        slot = rng.integers(0, len(window_sizes), 20)
        row = np.array([rng.integers(0, window_sizes[s]) for s in slot], dtype=np.int64)
        parts.append(Part.at(window, slot, row))
        expected += (starts[slot] + row).tolist()
    spec = parts[0].window.layout.spec
    batch = assemble(spec, parts, BufferPool()).views()
    assert list(batch) == [entry.name for entry in spec]
    assert batch["id"].tolist() == expected
    check_samples(batch)
    outer = batch[NESTED]
    assert isinstance(outer.values, Ragged)
    assert np.diff(outer.offsets).tolist() == [i % 4 for i in expected]
    assert np.diff(outer.values.offsets).tolist() == [i % 3 for i in expected for _ in range(i % 4)]
    assert outer.values.values.tolist() == [i for i in expected for _ in range((i % 4) * (i % 3))]
    assert outer.values.values.dtype == np.int16
    for part in parts:
        part.window.close()


@pytest.mark.parametrize(
    "columns", [["id"], ["history"], ["word", "history"], ["flag"], ["vector", NESTED], ["flag", "half"]]
)
@pytest.mark.parametrize("is_mapped", [True, False])
def test_any_set_of_fields_is_assembled(tmp_path, columns, is_mapped):
    window = window_of(tmp_path, [10, 3], first=0, columns=columns, is_mapped=is_mapped)
    slot = np.array([1, 0, 1])
    part = Part.at(window, slot, np.array([2, 9, 0]))
    whole = assemble(window.layout.spec, [part], BufferPool())
    assert whole.num_samples == 3
    assert list(whole.views()) == columns
    empty = assemble(window.layout.spec, [], BufferPool())
    assert empty.num_samples == 0
    for array in empty.views().values():
        assert len(array.offsets if isinstance(array, Ragged) else array) == (1 if isinstance(array, Ragged) else 0)
    window.close()


def plain(field):
    """The field as lists, with the offsets that a batch of its own has."""
    if isinstance(field, Ragged):
        return [field.offsets.tolist(), plain(field.values)]
    return field.tolist()


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6), seed=st.integers(0, 5))
def test_batches_cut_from_one_are_those_assembled_one_by_one(tmp_path_factory, sizes, seed):
    window = window_of(tmp_path_factory.mktemp("cut"), [30, 20], first=0)
    try:
        rows = np.random.default_rng(seed).integers(0, 20, sum(sizes))
        slots = np.random.default_rng(seed + 1).integers(0, 2, sum(sizes))
        borders = np.cumsum([0, *sizes])

        def assembled(begin, end):
            slot = slots[begin:end]
            return assemble(
                window.layout.spec,
                [Part.at(window, slot, rows[begin:end])],
                BufferPool(),
            )

        together = assembled(0, sum(sizes)).cut(sizes)
        for batch, begin, end in zip(together, borders[:-1], borders[1:], strict=True):
            alone = assembled(begin, end).views()
            assert {name: plain(field) for name, field in batch.views().items()} == {
                name: plain(field) for name, field in alone.items()
            }
    finally:
        window.close()


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6), seed=st.integers(0, 5))
def test_lists_of_batches_that_leave_as_one_are_counted_from_each_batchs_first(tmp_path_factory, sizes, seed):
    columns = ["id", "word", "history"]
    window = window_of(tmp_path_factory.mktemp("cut"), [30, 20], first=0, columns=columns)
    slot = np.random.default_rng(seed).integers(0, 2, sum(sizes))
    row = np.random.default_rng(seed + 1).integers(0, 20, sum(sizes))
    whole = assemble(window.layout.spec, [Part.at(window, slot, row)], BufferPool())
    together = side_by_side(whole, sizes, BufferPool())
    ends = np.cumsum([size + 1 for size in sizes])[:-1]
    offsets = [np.split(of_field, ends) for of_field in together.offsets]
    for i, batch in enumerate(whole.cut(sizes)):
        for f, (name, lists) in enumerate(batch.ragged.items()):
            assert offsets[f][i].tolist() == lists.offsets.tolist(), name
            assert together.num_values[f][i] == len(lists.values), name
    assert len(together.num_values) == len(whole.ragged) == len(columns) - 1
    window.close()


def test_lists_of_lists_do_not_leave_as_one(tmp_path):
    window = window_of(tmp_path, [10], first=0, columns=["id", NESTED])
    whole = assemble(window.layout.spec, [Part.at(window, np.zeros(4, np.int64), np.arange(4))], BufferPool())
    assert side_by_side(whole, [3, 1], BufferPool()) is None
    window.close()


@pytest.mark.parametrize("columns", [["wide"], ["wide", "history", "word"], ["history"], ["id"], ["id", NESTED]])
@pytest.mark.parametrize("sizes", [[5, 0, 9], [300, 1, 220]], ids=["a table", "a cipher"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_places_found_in_the_call_that_gathers_are_those_found_before(tmp_path, columns, sizes, shuffle):
    order = Order(sizes, shuffle=shuffle, seed=3, window=None).epoch(1)
    window = window_of(tmp_path, [sizes[chunk] for chunk in order.window_chunks(0)], first=0, columns=columns)
    window.order, num = order.tables(0), sum(sizes)
    for ranges in ([(0, num)], [(3, 4)], [(2, num - 1)], [(4, 4)], [(1, 3), (5, 9)]):
        located = assemble(window.layout.spec, [Part(window, ranges)], BufferPool())
        found = Part(window, ranges)
        before = assemble(window.layout.spec, [Part.at(window, found.slot, found.row)], BufferPool())
        assert located.num_samples == sum(stop - start for start, stop in ranges)
        assert {name: plain(field) for name, field in located.views().items()} == {
            name: plain(field) for name, field in before.views().items()
        }
    window.close()


@pytest.mark.parametrize("columns", [["wide"], ["wide", "history", "word"], ["history"], ["history", "word"], ["id"]])
@pytest.mark.parametrize("is_placed", [True, False])
@pytest.mark.parametrize("is_mapped", [True, False])
def test_rows_of_several_windows_are_those_gathered_one_window_at_a_time(tmp_path, columns, is_placed, is_mapped):
    rng = np.random.default_rng(len(columns) + is_placed)
    order = Order([200, 0, 120], shuffle=True, seed=3, window=None).epoch(1)
    windows, parts = [], []
    for number in range(3):
        sizes = [[200, 0, 120][chunk] for chunk in order.window_chunks(0)]
        folder = tmp_path / str(number)
        folder.mkdir()
        windows.append(window_of(folder, sizes, first=1000 * number, columns=columns, is_mapped=is_mapped))
        windows[-1].order = order.tables(0)
        ranges = ([(0, 320)], [(5, 90), (100, 101)], [(7, 7)], [(300, 320)])
        parts += [Part(windows[-1], one) for one in ranges]
    parts = [parts[i] for i in rng.permutation(len(parts))]
    num = sum(part.num for part in parts)
    places = rng.permutation(num) if is_placed else None
    several = assemble(parts[0].window.layout.spec, parts, BufferPool(), places=places).views()
    pool, alone = BufferPool(), {name: [] for name in columns}
    for part in parts:
        for name, field in assemble(part.window.layout.spec, [part], pool).views().items():
            is_ragged = isinstance(field, Ragged)
            pieces = np.split(field.values, field.offsets[1:-1])[: part.num] if is_ragged else list(field)
            alone[name] += [piece.tolist() for piece in pieces]
    for name, field in several.items():
        found = np.split(field.values, field.offsets[1:-1]) if isinstance(field, Ragged) else list(field)
        expected = alone[name] if places is None else [alone[name][i] for i in np.argsort(places)]
        assert [piece.tolist() for piece in found] == expected
    for window in windows:
        window.close()
