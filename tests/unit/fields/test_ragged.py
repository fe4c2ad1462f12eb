"""A ragged or shared field is a sequence of its rows, and whoever moves a batch carries it whole."""

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stoker
from stoker import Deduplicated, Ragged

torch = pytest.importorskip("torch")

from torch.utils import _pytree
from torch.utils.data import DataLoader, default_convert
from torch.utils.data._utils.pin_memory import pin_memory

from stoker.torch import to_nested

pytestmark = pytest.mark.torch

ROWS = [[7, 1], [], [4], [5, 5, 9]]
NESTED = [[[1], [2, 3]], [], [[], [4]]]


def ragged_of(rows) -> Ragged:
    """A field as a loader gives it."""
    table = pa.table({"rows": pa.array(rows)})
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    if pa.types.is_list(table["rows"].type.value_type):
        return Ragged(ragged_of([inner for row in rows for inner in row]), offsets)
    return Ragged(np.array([value for row in rows for value in row], np.int64), offsets)


def kinds_of(field):
    """The field as NumPy has it, and as torch does where that is installed."""
    return [field, field.map(torch.from_numpy)]


@pytest.mark.parametrize("rows", [ROWS, NESTED, [[]]])
def test_it_has_as_many_rows_as_samples_and_each_is_one(rows):
    for field in kinds_of(ragged_of(rows) if rows != [[]] else Ragged(np.zeros(0, np.int64), np.zeros(2, np.int64))):
        assert len(field) == len(rows)
        assert [field[i].tolist() for i in range(len(field))] == rows
        assert [field[i - len(rows)].tolist() for i in range(len(rows))] == rows
        assert [row.tolist() for row in field] == rows == field.tolist()
        assert field[np.int32(0)].tolist() == rows[0]
        for strange in (len(rows), -len(rows) - 1):
            with pytest.raises(IndexError, match=f"of {len(rows)}"):
                field[strange]


bounds = st.one_of(st.none(), st.integers(-6, 6))


@given(start=bounds, stop=bounds, step=st.sampled_from([None, 1, 2, 3, -1, -2]), chosen=st.data())
def test_slices_and_arrays_of_rows_are_those_of_a_list(start, stop, step, chosen):
    for rows in (ROWS, NESTED):
        index = chosen.draw(st.lists(st.integers(-len(rows), len(rows) - 1), max_size=6))
        mask = chosen.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
        place = chosen.draw(st.lists(st.integers(0, len(rows) - 1), max_size=5))
        for field in kinds_of(ragged_of(rows)):
            cut = field[start:stop:step]
            assert isinstance(cut, Ragged)
            assert cut.tolist() == rows[start:stop:step]
            assert int(cut.offsets[0]) == 0
            assert type(cut.offsets) is type(field.offsets)
            assert field[index].tolist() == [rows[i] for i in index]
            assert field[np.array(mask)].tolist() == [row for row, is_in in zip(rows, mask, strict=True) if is_in]
            every = field.offsets  # an array of its library
            shared = Deduplicated(
                field, np.array(place, np.int32) if isinstance(every, np.ndarray) else every.new_tensor(place).int()
            )
            assert len(shared) == len(place)
            assert shared.tolist() == [rows[i] for i in place]
            assert shared[start:stop:step].tolist() == [rows[i] for i in place][start:stop:step]
            assert [shared[i].tolist() for i in range(len(place))] == [rows[i] for i in place]


@pytest.mark.parametrize("index", ["a", (0, 1), 1.5, [0.5], None, np.zeros((1, 1), int), True])
def test_what_is_no_row_is_refused(index):
    with pytest.raises(TypeError, match=r"field\[row\]\[k\]"):
        ragged_of(ROWS)[index]


def test_rows_are_views_and_values_and_offsets_stay():
    field = ragged_of(ROWS)
    field[3][0] = 8
    assert field.values.tolist() == [7, 1, 4, 8, 5, 9]
    assert field.offsets.tolist() == [0, 2, 2, 3, 6]
    assert field.nbytes == 6 * 8 + 5 * 8
    assert pickle.loads(pickle.dumps(field)).tolist() == field.tolist()


# ---------------------------------------------------------------------- what frameworks do with a batch


def fields():
    lists = ragged_of(ROWS).map(torch.from_numpy)
    return {
        "lists": lists,
        "nested": ragged_of(NESTED).map(torch.from_numpy),
        "shared": Deduplicated(lists, torch.tensor([3, 0], dtype=torch.int32)),
        "pair": ragged_of(ROWS[:2]).map(torch.from_numpy),  # as many rows as members
    }


def check(batch) -> None:
    assert {name: field.tolist() for name, field in batch.items()} == {
        "lists": ROWS,
        "nested": NESTED,
        "shared": [ROWS[3], ROWS[0]],
        "pair": ROWS[:2],
    }
    assert [type(field) for field in batch.values()] == [Ragged, Ragged, Deduplicated, Ragged]


def test_pytrees_see_the_arrays():
    leaves, spec = _pytree.tree_flatten(fields())
    assert len(leaves) == 2 + 3 + 3 + 2
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    check(_pytree.tree_unflatten(leaves, spec))
    check(_pytree.tree_map(torch.clone, fields()))
    paths = [_pytree.keystr(path) for path, _ in _pytree.tree_flatten_with_path(fields())[0]]
    assert "['nested'].values.offsets" in paths


def test_torch_has_nested_tensors_of_its_own():
    nested = to_nested(fields()["lists"])
    assert [row.tolist() for row in nested.unbind()] == ROWS


def test_torch_converts_pins_and_moves_it():
    check(default_convert(fields()))
    moved = {name: field.to("cpu", non_blocking=True) for name, field in fields().items()}
    check(moved)
    assert fields()["nested"].to(torch.float32).values.values.dtype == torch.float32
    assert {one.device.type for one in fields()["shared"].to("meta").arrays} == {"meta"}
    if torch.cuda.is_available():
        pinned = pin_memory(fields())
        check(pinned)
        assert all(array.is_pinned() for field in pinned.values() for array in field.arrays)
    else:  # it asks the object first, and only then whether it is a sequence: ours has the last word
        arrays = {name: field.map(lambda tensor: tensor.numpy()) for name, field in fields().items()}
        check(pin_memory(arrays))


class Batches(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield fields()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_data_loader_hands_it_over_whole(num_workers):
    (batch,) = DataLoader(Batches(), batch_size=None, num_workers=num_workers)
    check(batch)


def test_a_compiled_function_takes_it():
    @torch.compile(backend="eager", fullgraph=True)
    def total(batch):
        return batch["lists"].values.sum() + batch["nested"].values.offsets[-1] + batch["shared"].index[0]

    assert total(fields()) == 31 + 4 + 3


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_window_over_rows_is_a_row_of_lists(tmp_path, prefetch):
    lists = [[i] * (i % 3) for i in range(12)]
    pq.write_table(pa.table({"id": np.arange(12), "tokens": lists}), tmp_path / "a.parquet")
    windows = stoker.NGram({0: ["id", "tokens"], 1: ["tokens"]})
    dataset = stoker.Dataset(tmp_path)
    for source in (dataset, stoker.Mixture({"a": dataset, "b": dataset})):
        with stoker.Loader(source, batch_size=4, shuffle=True, sequence=windows, prefetch=prefetch) as loader:
            for batch in loader:
                ids = batch["id"][:, 0].tolist()
                assert batch["tokens"].tolist() == [lists[i : i + 2] for i in ids]


def by_lightning(batch, device):
    pytest.importorskip("lightning_fabric")
    from lightning_fabric.utilities.apply_func import move_data_to_device

    return move_data_to_device(batch, torch.device(device))


def by_accelerate(batch, device):
    pytest.importorskip("accelerate")
    from accelerate.utils import send_to_device

    return send_to_device(batch, device, non_blocking=True)


def by_a_tree(batch, device):
    return _pytree.tree_map(lambda tensor: tensor.to(device), batch)


@pytest.mark.parametrize("move", [by_a_tree, by_lightning, by_accelerate])
def test_whoever_moves_a_batch_to_a_device_moves_every_array_of_it(move):
    check(move(fields(), "cpu"))
    there = move(fields(), "meta")
    assert {name: type(field) for name, field in there.items()} == {name: type(f) for name, f in fields().items()}
    assert {array.device.type for field in there.values() for array in field.arrays} == {"meta"}
