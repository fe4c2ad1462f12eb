import gc

import numpy as np
import pytest

from stoker.gather.buffers import BufferPool


def test_a_buffer_nobody_sees_is_used_again():
    pool = BufferPool()
    address = pool.take(1000).ctypes.data
    assert pool.take(1000).ctypes.data == address
    assert pool.num_buffers == 1


@pytest.mark.parametrize(
    "cut",
    [
        lambda b: b,
        lambda b: b[10:20],
        lambda b: b[:800].view(np.float64)[3:],
        lambda b: np.ndarray((5, 2), np.float32, buffer=b, offset=8, strides=(64, 4)),
        lambda b: np.ndarray((5, 2), np.float32, buffer=b, offset=8, strides=(64, 4))[1:][:, 1],
        lambda b: b[:800].view([("a", "f4"), ("b", "f4")])["b"],
        lambda b: memoryview(b)[3:],
    ],
)
def test_a_buffer_someone_sees_through_any_view_is_left_alone(cut):
    pool = BufferPool()
    view = cut(pool.take(1000))
    other = pool.take(1000)
    assert pool.num_buffers == 2
    assert not np.shares_memory(np.asarray(view), other)
    del view, other
    gc.collect()
    pool.take(1000)
    assert pool.num_buffers == 2


@pytest.mark.torch
def test_a_buffer_seen_by_a_torch_tensor_is_left_alone():
    torch = pytest.importorskip("torch")
    pool = BufferPool()
    tensor = torch.from_numpy(pool.take(1000)[:800].view(np.float32))[2:].view(-1, 2)
    tensor.fill_(7)
    pool.take(1000)[:] = 0
    assert pool.num_buffers == 2
    assert (tensor == 7).all()
    del tensor
    pool.take(1000)
    assert pool.num_buffers == 2


def test_unused_buffers_of_a_size_nobody_asks_for_are_let_go():
    pool = BufferPool(max_unused=2)
    held = [pool.take(1 << i) for i in range(10, 20)]
    held.clear()
    for _ in range(20):
        pool.take(1 << 24)
    assert pool.num_buffers <= 4
