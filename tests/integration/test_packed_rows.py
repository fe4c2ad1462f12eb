"""What a model with packed attention is told: positions that restart, and where each sequence begins."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker

LENGTH = 16


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    rng = np.random.default_rng(0)
    for k in range(2):  # documents of no tokens, and of several rows
        tokens = [list(range(1, n + 1)) for n in rng.choice([0, 1, 3, 9, 15, 16, 17, 60], 40)]
        pq.write_table(pa.table({"tokens": tokens}), folder / f"{k}.parquet")
    return stoker.Dataset(folder)


def mixed(dataset) -> stoker.Mixture:
    return stoker.Mixture({"a": dataset, "b": dataset}, weights={"a": 0.7, "b": 0.3})


@pytest.mark.parametrize("of", [lambda dataset: dataset, mixed], ids=["one", "mixture"])
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("end", [None, 99])
@pytest.mark.parametrize("split", [True, False])
def test_each_run_of_a_segment_is_a_sequence_whose_positions_count_from_zero(dataset, split, end, prefetch, of):
    pack = stoker.Pack("tokens", length=LENGTH, split=split, end=end, cu_seqlens=True)
    with stoker.Loader(
        of(dataset), batch_size=5, shuffle=True, sequence=pack, prefetch=prefetch, remainder="pad"
    ) as loader:
        for batch in loader:
            ids, positions = batch["segment_ids"], batch["positions"]
            assert positions.max() < LENGTH
            borders = batch["cu_seqlens"]
            assert borders.dtype == np.int32
            assert borders[0] == 0
            assert borders[-1] == ids.size == 5 * LENGTH
            lengths = np.diff(borders)
            assert type(batch["max_seqlen"]) is int
            assert batch["max_seqlen"] == lengths.max()
            flat = ids.ravel()
            for begin, stop in pairwise(borders.tolist()):
                assert begin // LENGTH == (stop - 1) // LENGTH  # no sequence goes from one row to the next
                assert len(set(flat[begin:stop].tolist())) == 1
                is_padding = flat[begin] == 0
                expected = np.zeros(stop - begin) if is_padding else np.arange(stop - begin)
                np.testing.assert_array_equal(positions.ravel()[begin:stop], expected)
            # As many sequences as segments, and one for the padding of each row that has some.
            assert len(lengths) == sum(len(set(row)) for row in ids.tolist())


def test_batches_have_no_more_than_before_unless_it_is_asked_for(dataset):
    with stoker.Loader(dataset, batch_size=5, sequence=stoker.Pack("tokens", length=LENGTH)) as loader:
        assert list(next(iter(loader))) == ["tokens", "segment_ids", "positions"]


def test_augment_sees_them_and_a_sequence_shard_leaves_them_whole(dataset):
    seen = []

    def augment(batch, rng):
        seen.append(batch["cu_seqlens"].copy())
        return batch

    pack = stoker.Pack("tokens", length=LENGTH, cu_seqlens=True)
    cut = stoker.SequenceShard(rank=1, world_size=2, fields=("tokens", "positions", "segment_ids"), layout="zigzag")
    with stoker.Loader(dataset, batch_size=5, sequence=pack) as loader:
        whole = next(iter(loader))
    with stoker.Loader(dataset, batch_size=5, sequence=pack, augment=augment, sequence_shard=cut, prefetch=0) as loader:
        part = next(iter(loader))
    assert part["tokens"].shape == part["positions"].shape == (5, LENGTH // 2)
    np.testing.assert_array_equal(part["positions"], whole["positions"][:, cut.positions(LENGTH)])
    np.testing.assert_array_equal(part["cu_seqlens"], whole["cu_seqlens"])
    np.testing.assert_array_equal(seen[0], whole["cu_seqlens"])


@pytest.mark.parametrize("name", ["cu_seqlens", "max_seqlen"])
def test_a_field_of_that_name_is_refused(tmp_path, name):
    pq.write_table(pa.table({name: [[1, 2]]}), tmp_path / "a.parquet")
    pack = stoker.Pack(name, length=LENGTH, cu_seqlens=True)
    with pytest.raises(ValueError, match=f"'{name}' of their own"):
        stoker.Loader(stoker.Dataset(tmp_path), batch_size=1, sequence=pack)


@pytest.mark.torch
@pytest.mark.parametrize("num_workers", [None, 0, 1])
def test_tensors_have_an_int_that_no_device_is_asked_for(dataset, num_workers, tmp_path):
    torch = pytest.importorskip("torch")
    from stoker.torch import TorchDataset, TorchLoader

    pack = stoker.Pack("tokens", length=LENGTH, cu_seqlens=True)
    with stoker.Loader(dataset, batch_size=5, sequence=pack) as loader:
        expected = next(iter(loader))
    if num_workers is None:
        with TorchLoader(dataset, batch_size=5, sequence=pack) as loader:
            batch = next(iter(loader))
    else:
        with TorchDataset(dataset, batch_size=5, sequence=pack, num_threads=1, cache=tmp_path) as batches:
            batch, *_ = torch.utils.data.DataLoader(batches, batch_size=None, num_workers=num_workers)
    assert type(batch["max_seqlen"]) is int
    assert batch["max_seqlen"] == expected["max_seqlen"]
    assert batch["cu_seqlens"].dtype == torch.int32
    assert batch["cu_seqlens"].tolist() == expected["cu_seqlens"].tolist()
