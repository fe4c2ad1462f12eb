import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import examples

from stoker.host.huge import memory
from stoker.loader.buffers import BufferPool


def used_bytes(pool):
    """Bytes that somebody looks at."""
    returned = [*map(id, pool._returned)]
    return sum(end - begin for run, (_, (_, begin, end)) in pool._runs.items() if run not in returned)


def small_pool(num_bytes=4096, **options):
    """A pool whose blocks are this large, but for the first one of a quarter."""
    return BufferPool(is_pinned=True, block_bytes=num_bytes // 2, **options)


def test_a_buffer_nobody_sees_is_used_again():
    pool = BufferPool(is_pinned=True)
    address = pool.take(1000).ctypes.data
    assert pool.take(1000).ctypes.data == address
    assert len(pool._blocks) == 1


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
    pool = BufferPool(is_pinned=True)
    view = cut(pool.take(1000))
    other = pool.take(1000)
    assert used_bytes(pool) == 2 * 1024
    assert not np.shares_memory(np.asarray(view), other)
    del other
    assert used_bytes(pool) == 1024
    del view
    gc.collect()
    assert used_bytes(pool) == 0


@pytest.mark.torch
def test_a_buffer_seen_by_a_torch_tensor_is_left_alone():
    torch = pytest.importorskip("torch")
    pool = BufferPool(is_pinned=True)
    tensor = torch.from_numpy(pool.take(1000)[:800].view(np.float32))[2:].view(-1, 2)
    tensor.fill_(7)
    pool.take(1000)[:] = 0
    assert used_bytes(pool) == 1024
    assert (tensor == 7).all()
    del tensor
    assert used_bytes(pool) == 0


# Sizes to take, and which of those held to let go of.
_steps = st.lists(
    st.one_of(
        st.integers(0, 5000).map(lambda size: ("take", size)),
        st.integers(0, 30).map(lambda i: ("drop", i)),
    ),
    max_size=60,
)


@given(steps=_steps)
@examples(65)
def test_no_two_buffers_share_a_byte_and_nothing_is_lost_by_cutting(steps):
    pool = small_pool(takes_per_sweep=10)
    held: dict[int, np.ndarray] = {}
    for i, (what, number) in enumerate(steps):
        if what == "take":
            held[i] = pool.take(number)
            assert held[i].nbytes >= number
            assert held[i].ctypes.data % 64 == 0
            held[i][:] = i
        elif held:
            del held[sorted(held)[number % len(held)]]
    assert all((buffer == i).all() for i, buffer in held.items())
    assert used_bytes(pool) == sum(buffer.nbytes for buffer in held.values())


def test_what_comes_back_is_one_gap_again():
    pool = small_pool(8192)
    held = [pool.take(256) for _ in range(8)]
    for i in (3, 5, 4, 0, 7, 1, 6, 2):
        held[i] = None
    assert used_bytes(pool) == 0
    whole = pool.take(2048)
    assert len(pool._blocks) == 1
    del whole


def test_batches_of_varying_size_take_no_more_than_those_in_sight_and_the_next():
    rng = np.random.default_rng(3)
    pool, held = small_pool(4 << 20), []
    for size in rng.integers(30_000, 90_000, 3000).tolist():
        held = [*held[-7:], pool.take(size)]
    assert len(pool._blocks) == 1  # eight of at most 90,000 bytes, in a mebibyte


def test_large_buffers_have_blocks_of_their_own_which_small_ones_leave_alone():
    pool = small_pool()
    address = pool.take(5000).ctypes.data
    small = pool.take(100)
    assert pool.take(5100).ctypes.data == address
    assert len(pool._blocks) == 2
    assert pool.take(2500).ctypes.data != address  # not the half of it
    del small


def test_blocks_that_nobody_needs_for_a_while_are_let_go():
    pool = small_pool(takes_per_sweep=10)
    kept = [pool.take(2048) for _ in range(20)]
    assert len(pool._blocks) == 10
    last = kept[-1]
    kept.clear()
    for _ in range(30):
        pool.take(64)
    assert len(pool._blocks) == 2
    last[:] = 7
    del pool
    assert (last == 7).all()


def test_a_pool_lets_go_of_all_that_nobody_looks_at_and_goes_on():
    pool = small_pool()
    seen, unseen = pool.take(1000), pool.take(3000)
    seen[:] = 7
    del unseen
    memory = weakref.ref(pool._blocks[0])
    pool.release()
    assert memory() is None
    assert (len(pool._blocks), used_bytes(pool)) == (0, 0)
    other = pool.take(1000)
    other[:] = 9
    assert (seen == 7).all()
    del seen  # comes back to a block that is gone
    again = pool.take(1000)
    again[:] = 11
    assert (other == 9).all()
    assert used_bytes(pool) == 2 * 1024
    del other, again
    assert used_bytes(pool) == 0


def test_a_pool_that_is_gone_takes_nothing_along():
    pool = BufferPool(is_pinned=True)
    buffer = pool.take(1000)
    buffer[:] = 7
    del pool
    gc.collect()
    assert (buffer == 7).all()


@pytest.mark.parametrize("num_bytes", [1, 1000, 1 << 20, 5 << 20])
def test_plain_memory_begins_on_a_cache_line(num_bytes):
    buffer = memory(num_bytes)
    assert buffer.nbytes == num_bytes
    assert buffer.ctypes.data % 64 == 0


def test_small_buffers_of_plain_memory_are_their_own():
    pool = BufferPool()
    small = [pool.take(size) for size in (0, 1, 100, 30_000)]
    assert [one.nbytes for one in small] == [0, 1, 100, 30_000]
    assert all(one.ctypes.data % 64 == 0 for one in small[1:])
    assert not pool._blocks
    pool.take(40_000)
    assert len(pool._blocks) == 1


@pytest.mark.parametrize(
    ("sizes_mib", "blocks_mib"),
    [
        ([4, 50, 60, 80], [32, 128, 85]),  # the first batch waits for the first block
        ([40], [128]),
    ],
    ids=["then whole ones", "unless it is too small"],
)
def test_the_first_block_of_pinned_memory_is_a_small_one(sizes_mib, blocks_mib):
    asked = []

    def allocate(num_bytes):
        asked.append(num_bytes >> 20)
        return memory(num_bytes)

    pool = BufferPool(allocate, is_pinned=True)
    held = [pool.take(size << 20) for size in sizes_mib]
    assert asked == blocks_mib
    assert [buffer.nbytes >> 20 for buffer in held] == sizes_mib
