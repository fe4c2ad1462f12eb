"""A device that is none, for what can be seen of one without a GPU, and a GPU whose copies come late.

What a GPU itself does is in tests/integration/test_gpu.py.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

import stoker
from stoker.torch.cuda import CudaStream, ResidentRows
from stoker.torch.delivery import DeviceDelivery


class Stream:
    """A side stream that copies at once; or late: when the test says so, all that was begun (`run`).

    What a late copy reads is what lies in host memory at that moment, and nobody is kept from using that again: a
    buffer that was used again too early shows. What is no memory of the stream's own is read at once, as a GPU does.

    Attributes:
        num_bytes: Of all copies that were begun.
        num_copies: Those that were begun.
        num_blocks: Blocks of copies, each of a batch, or of several that cross as one.
        waits: Of each time that the loop waited: which block for, by which stream of the loop's, and what the
            allocator was told of.
        now: The loop's stream.
    """

    device = torch.device("cpu")

    def __init__(self, *, is_late: bool = False) -> None:
        self._is_late, self._begun = is_late, threading.Condition(threading.RLock())
        self._buffers: list[range] = []  # addresses
        self._used: list[int] = []  # borders of what was copied from them
        self._pending: list[tuple[Any, torch.Tensor]] = []
        self._num_inside = self._num_done = 0
        self.num_bytes = self.num_copies = self.num_blocks = self.now = 0
        self.waits: list[tuple[int, int, list[torch.Tensor]]] = []

    @property
    def memory(self) -> set[int]:
        """Addresses of the storages that the allocator was told of."""
        return {tensor.untyped_storage().data_ptr() for *_, tensors in self.waits for tensor in tensors}

    @property
    def span_bytes(self) -> int:
        """How far apart the copies of the stream's own memory lie."""
        return max(self._used) - min(self._used)

    def allocate(self, num_bytes: int) -> np.ndarray:
        buffer = np.empty(num_bytes, dtype=np.uint8)
        self._buffers.append(range(buffer.ctypes.data, buffer.ctypes.data + num_bytes))
        return buffer

    @contextmanager
    def copies(self) -> Iterator[None]:
        with self._begun:
            self._num_inside += 1
        yield
        with self._begun:
            self._num_inside -= 1
            self.num_blocks += 1
            self._begun.notify_all()

    def copy(self, array: np.ndarray) -> torch.Tensor:
        assert self._num_inside
        assert array.flags.c_contiguous
        address = array.ctypes.data
        with self._begun:
            self.num_copies += 1
            self.num_bytes += array.nbytes
            is_ours = any(address in buffer for buffer in self._buffers)
            if is_ours:
                self._used += [address, address + array.nbytes]
            if not self._is_late:
                self._num_done = self.num_copies
                return torch.from_numpy(array).clone()
            target = torch.full_like(torch.from_numpy(array), 1)
            memory = ctypes.c_uint8 * array.nbytes  # an address does not keep what lies there
            source = memory.from_address(address) if is_ours else memory.from_buffer_copy(array.tobytes())
            self._pending.append((source, target))
        return target

    def run(self) -> None:
        """Do all copies that were begun."""
        with self._begun:
            for source, target in self._pending:
                there = target.numpy()
                there[...] = np.frombuffer(source, there.dtype).reshape(there.shape) if there.size else 0
            self._pending.clear()
            self._num_done = self.num_copies

    def mark(self) -> _Mark:
        assert self._num_inside
        return _Mark(self, self.num_copies)

    def has_done(self, num_copies: int) -> bool:
        return self._num_done >= num_copies

    def current(self) -> int:
        return self.now

    def wait(self, mark: _Mark, tensors: list[torch.Tensor]) -> None:
        self.waits.append((mark.num_copies, self.now, list(tensors)))

    def wait_for_blocks(self, num: int) -> None:
        """Wait until so many were begun."""
        with self._begun:
            assert self._begun.wait_for(lambda: self.num_blocks >= num, timeout=60)


class _Mark(NamedTuple):
    stream: Stream
    num_copies: int

    def query(self) -> bool:
        return self.stream.has_done(self.num_copies)


class DeviceLoader(stoker.Loader):
    """A `TorchLoader` to a device of the test's own, which keeps so many bytes of chunks there, if any."""

    def __init__(self, dataset: Any, *, stream: Any = None, resident: int | None = None, **options: Any) -> None:
        self.stream = Stream() if stream is None else stream
        self.rows = None if resident is None else ResidentRows(self.stream, limit_bytes=resident)
        super().__init__(dataset, **options)

    def _make_delivery(self) -> DeviceDelivery:
        return DeviceDelivery(self.stream, resident=self.rows)


# ---------------------------------------------------------------------- a GPU


def hold_up() -> None:
    """Hold the current stream of a GPU up for a millisecond or two: longer than any copy of a test takes."""
    torch.cuda._sleep(3_000_000)


class HeldUp(CudaStream):
    """The side stream of a GPU, whose copies come late: what is read or used again too early shows."""

    @contextmanager
    def copies(self) -> Iterator[None]:
        with super().copies():
            hold_up()
            yield
