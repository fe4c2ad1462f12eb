"""The memory of batches: a batch is its taker's, whoever looks at it and however, and then comes back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import Dataset, Loader

NUM_ROWS = 2_048


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("memory") / "a.parquet"
    wide = np.arange(NUM_ROWS * 512, dtype=np.float32)
    rows = {
        "id": np.arange(NUM_ROWS),
        "wide": pa.FixedSizeListArray.from_arrays(pa.array(wide), 512),
        "list": pa.array([list(range(i % 900)) for i in range(NUM_ROWS)]),
    }
    pq.write_table(pa.table(rows), path, row_group_size=NUM_ROWS // 4)
    return Dataset(path)


def tensor_of(array):
    return pytest.importorskip("torch").from_numpy(array)[2:].view(-1)


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize(
    "look",
    [
        lambda batch: batch["wide"],
        lambda batch: batch["id"][10:20],
        lambda batch: batch["wide"][5:, 3:7][:, 1],
        lambda batch: batch["wide"].view(np.uint32).T,
        lambda batch: memoryview(batch["wide"])[3:],
        lambda batch: batch["list"].values[3:],
        lambda batch: batch["list"].offsets,
        pytest.param(lambda batch: tensor_of(batch["list"].values), marks=pytest.mark.torch),
    ],
    ids=["field", "rows", "columns", "transposed", "memoryview", "values", "offsets", "tensor"],
)
def test_a_batch_that_someone_sees_through_any_view_is_left_alone(dataset, look, prefetch):
    kept = []
    with Loader(dataset, batch_size=64, shuffle=True, prefetch=prefetch, num_threads=2) as loader:
        for _ in range(3):
            for step, batch in enumerate(loader):
                if step % 5 == 0:
                    view = look(batch)
                    kept.append((view, np.asarray(view).copy()))
                del batch
    for view, expected in kept:
        np.testing.assert_array_equal(np.asarray(view), expected)


def addresses(loader):
    """Return where batches lie that nobody keeps while the next one is made."""
    found = []
    for batch in loader:
        found.append(batch["wide"].ctypes.data)
        del batch
    return found


def test_memory_that_nobody_sees_is_used_again(dataset):
    # Batches of more than a mebibyte are gathered one by one.
    with Loader(dataset, batch_size=512, prefetch=0) as loader:
        assert len({place for _ in range(3) for place in addresses(loader)}) == 1
        batches = list(loader)
        assert len({batch["wide"].ctypes.data for batch in batches}) == 4
        assert [i for batch in batches for i in batch["id"].tolist()] == list(range(NUM_ROWS))
