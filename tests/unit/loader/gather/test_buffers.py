"""The pool that batches take their memory from: its blocks, and what is cut from them."""

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


class Blocks:
    """Memory for a pool: notes how much was asked for, and what of it is still there."""

    def __init__(self):
        self.asked, self._made = [], []

    def __call__(self, num_bytes):
        block = memory(num_bytes)
        self.asked.append(num_bytes)
        self._made.append(weakref.ref(block))
        return block

    @property
    def num_alive(self):
        return sum(block() is not None for block in self._made)


@pytest.fixture
def blocks():
    return Blocks()


def small_pool(blocks, num_bytes=4096, **options):
    """A pool whose blocks are this large, but for the first one of a quarter."""
    return BufferPool(blocks, is_pinned=True, block_bytes=num_bytes // 2, **options)


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
    pool = small_pool(memory, takes_per_sweep=10)
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


def test_what_comes_back_is_one_gap_again(blocks):
    pool = small_pool(blocks, 8192)
    held = [pool.take(256) for _ in range(8)]
    for i in (3, 5, 4, 0, 7, 1, 6, 2):
        held[i] = None
    assert pool.take(2048).nbytes == 2048
    assert blocks.num_alive == 1


def test_batches_of_varying_size_take_no_more_than_those_in_sight_and_the_next(blocks):
    rng = np.random.default_rng(3)
    pool, held = small_pool(blocks, 4 << 20), []
    for size in rng.integers(30_000, 90_000, 3000).tolist():
        held = [*held[-7:], pool.take(size)]
    assert blocks.num_alive == 1  # eight of at most 90,000 bytes, in a mebibyte


def test_large_buffers_have_blocks_of_their_own_which_small_ones_leave_alone(blocks):
    pool = small_pool(blocks)
    address = pool.take(5000).ctypes.data
    small = pool.take(100)
    assert pool.take(5100).ctypes.data == address
    assert blocks.num_alive == 2
    assert pool.take(2500).ctypes.data != address  # not the half of it
    del small


def test_blocks_that_nobody_needs_for_a_while_are_let_go(blocks):
    pool = small_pool(blocks, takes_per_sweep=10)
    kept = [pool.take(2048) for _ in range(20)]
    assert blocks.num_alive == 10
    last = kept[-1]
    kept.clear()
    for _ in range(30):
        pool.take(64)
    assert blocks.num_alive == 2
    last[:] = 7
    del pool
    assert (last == 7).all()


def test_a_pool_lets_go_of_all_that_nobody_looks_at_and_goes_on(blocks):
    pool = small_pool(blocks)
    seen, unseen = pool.take(1000), pool.take(3000)
    seen[:] = 7
    del unseen
    pool.release()
    assert blocks.num_alive == 1
    other = pool.take(1000)
    other[:] = 9
    assert (seen == 7).all()
    del seen  # comes back to a block that is gone
    again = pool.take(1000)
    again[:] = 11
    assert (other == 9).all()
    assert used_bytes(pool) == 2 * 1024


def test_small_buffers_of_plain_memory_are_their_own(blocks):
    pool = BufferPool(blocks)
    small = [pool.take(size) for size in (0, 1, 100, 30_000)]
    assert [one.nbytes for one in small] == [0, 1, 100, 30_000]
    assert all(one.ctypes.data % 64 == 0 for one in small[1:])
    assert not blocks.asked
    pool.take(40_000)
    assert len(blocks.asked) == 1


@pytest.mark.parametrize(
    ("sizes_mib", "blocks_mib"),
    [
        ([4, 50, 60, 80], [32, 128, 85]),  # the first batch waits for the first block
        ([40], [128]),
    ],
    ids=["then whole ones", "unless it is too small"],
)
def test_the_first_block_of_pinned_memory_is_a_small_one(blocks, sizes_mib, blocks_mib):
    pool = BufferPool(blocks, is_pinned=True)
    held = [pool.take(size << 20) for size in sizes_mib]
    assert [num_bytes >> 20 for num_bytes in blocks.asked] == blocks_mib
    assert [buffer.nbytes >> 20 for buffer in held] == sizes_mib
