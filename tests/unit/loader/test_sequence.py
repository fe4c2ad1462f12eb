"""Context parallel: each rank its part of every sequence, together the whole."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stoker
from stoker import SequenceShard

layouts = st.sampled_from(["contiguous", "zigzag"])


def shards(world_size, layout, fields=("tokens",)):
    return [SequenceShard(rank=rank, world_size=world_size, fields=fields, layout=layout) for rank in range(world_size)]


@given(world_size=st.integers(1, 9), size=st.integers(0, 5), layout=layouts)
def test_the_ranks_together_have_every_place_once(world_size, size, layout):
    ranks = shards(world_size, layout)
    length = size * ranks[0].num_pieces
    places = [one.positions(length).tolist() for one in ranks]
    assert sorted(place for rank in places for place in rank) == list(range(length))
    assert {len(rank) for rank in places} == {length // world_size}
    assert all(rank == sorted(rank) for rank in places)
    if layout == "contiguous":
        assert [place for rank in places for place in rank] == list(range(length))


@given(world_size=st.integers(1, 9), size=st.integers(1, 5))
def test_zigzag_gives_every_rank_the_same_work_of_causal_attention(world_size, size):
    work = {int((one.positions(2 * world_size * size) + 1).sum()) for one in shards(world_size, "zigzag")}
    assert len(work) == 1
    if world_size > 1:
        assert (
            len({int((one.positions(2 * world_size * size) + 1).sum()) for one in shards(world_size, "contiguous")}) > 1
        )


def test_zigzag_is_head_and_tail_as_torchs_context_parallel_has_it():
    """Rank r of W: Q[r * k : (r + 1) * k] and Q[-(r + 1) * k : -r * k], k the length over 2 W."""
    assert [one.positions(16).tolist() for one in shards(4, "zigzag")] == [
        [0, 1, 14, 15], [2, 3, 12, 13], [4, 5, 10, 11], [6, 7, 8, 9],
    ]  # fmt: skip


@given(
    world_size=st.integers(1, 5), num=st.integers(0, 4), size=st.integers(0, 3), inner=st.sampled_from([(), (3,)]),
    layout=layouts,
)  # fmt: skip
def test_a_part_is_what_its_positions_say_of_arrays_and_of_views_of_records(world_size, num, size, inner, layout):
    length = size * 2 * world_size
    record = np.zeros(num, dtype=[("id", "i8"), ("tokens", "i4", (length, *inner)), ("rest", "u1", 5)])
    record["tokens"] = np.arange(record["tokens"].size).reshape(record["tokens"].shape)
    for one in shards(world_size, layout):
        part = one.part(record["tokens"])
        np.testing.assert_array_equal(part, record["tokens"][:, one.positions(length)])
        if layout == "contiguous" and part.size:
            assert np.shares_memory(part, record)


def test_tensors_are_cut_as_arrays_are():
    torch = pytest.importorskip("torch")
    tokens = torch.arange(3 * 12).reshape(3, 12)
    for layout in ("contiguous", "zigzag"):
        for one in shards(3, layout):
            assert one.part(tokens).tolist() == tokens.numpy()[:, one.positions(12)].tolist()
    assert shards(3, "contiguous")[1].part(tokens).untyped_storage().data_ptr() == tokens.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"rank": 2}, ValueError),
        ({"rank": -1}, ValueError),
        ({"rank": True}, TypeError),
        ({"world_size": "2"}, TypeError),
        ({"fields": ()}, ValueError),
        ({"fields": ("a", "a")}, ValueError),
        ({"fields": (1,)}, TypeError),
        ({"layout": "spiral"}, ValueError),
    ],
)
def test_wrong_arguments_are_refused(arguments, error):
    with pytest.raises(error, match="SequenceShard"):
        SequenceShard(**({"rank": 0, "world_size": 2, "fields": ("tokens",)} | arguments))


def test_a_length_that_does_not_divide_has_no_positions():
    with pytest.raises(ValueError, match="4 equal pieces"):
        SequenceShard(rank=0, world_size=2, fields="tokens", layout="zigzag").positions(6)


class Mesh:
    """What is used of a torch DeviceMesh, for one of its ranks."""

    def __init__(self, shape, names, rank) -> None:
        self.mesh = np.arange(int(np.prod(shape))).reshape(shape)
        self.mesh_dim_names = names
        self._coordinate = [int(i) for i in np.unravel_index(rank, shape)]

    def get_coordinate(self):
        return self._coordinate


def test_a_mesh_says_whose_samples_and_which_part_of_each_sequence():
    """(dp=2, cp=2, tp=2): as the docstring draws it."""
    places = []
    for gpu in range(8):
        mesh = Mesh((2, 2, 2), ("dp", "cp", "tp"), gpu)
        shard = stoker.Shard.from_mesh(mesh, data_dims="dp")
        part = SequenceShard.from_mesh(mesh, dims="cp", fields="tokens", layout="zigzag")
        assert (part.world_size, part.fields) == (2, ("tokens",))
        places.append((shard.rank, part.rank))
    assert places == [(0, 0), (0, 0), (0, 1), (0, 1), (1, 0), (1, 0), (1, 1), (1, 1)]
    with pytest.raises(ValueError, match="no dimension 'cp'"):
        SequenceShard.from_mesh(Mesh((2,), ("dp",), 0), fields=("tokens",))
    with pytest.raises(ValueError, match="dims names a dimension of the mesh twice"):
        SequenceShard.from_mesh(Mesh((2,), ("cp",), 0), dims=("cp", 0), fields=("tokens",))


def test_jax_says_which_of_its_processes_this_is():
    jax = SimpleNamespace(process_index=lambda: 3, process_count=lambda: 8)
    assert stoker.Shard.from_jax(jax) == stoker.Shard(3, 8)


def test_without_jax_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jax", None)
    with pytest.raises(ImportError, match=r"pip install 'stoker\[jax\]'"):
        stoker.Shard.from_jax()
