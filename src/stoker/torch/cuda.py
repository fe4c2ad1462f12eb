"""The side stream of a CUDA device, and records that stay there."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import numpy as np
import torch

from stoker.fields.offsets import Int64
from stoker.fields.spec import Array
from stoker.host.huge import memory as memory_in_huge_pages
from stoker.loader.buffers import BufferPool
from stoker.torch.tensors import as_tensor, words_of

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for all contexts of the process


class CudaStream:
    """Copies to a GPU on a stream of its own, while the GPU does something else. Safe to use from several threads.

    The device has its index: threads that assemble batches have a current device of their own, which would be GPU 0
    whatever the training loop has chosen. Memory is registered with `cuda`, and the stream made by it.
    """

    def __init__(self, device: torch.device, *, cuda: Any = torch.cuda) -> None:
        assert device.index is not None
        self.device, self._cuda, self._stream = device, cuda, cuda.Stream(device)

    def allocate(self, num_bytes: int) -> Array:
        """Return pinned memory, from which the GPU copies by itself.

        Our own memory, which CUDA is told of: torch's is rounded up to a power of two, and takes 31 ms for 64 MiB.
        """
        with self._cuda.device(self.device):  # otherwise the thread makes a context on GPU 0, half a gigabyte each
            buffer = memory_in_huge_pages(num_bytes, is_inherited=False)
            address = buffer.ctypes.data
            cudart = self._cuda.cudart()
            if int(cudart.cudaHostRegister(address, num_bytes, _PORTABLE)) == 0:
                # With the array, before what that lies in; at the end of the process the system sees to it.
                weakref.finalize(buffer, _unregister, address, self._stream, cudart, os.getpid()).atexit = False
                return buffer
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=self.device)  # whoever launches next would be told of that error
            pinned: Array = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy()
        return pinned

    def copies(self) -> AbstractContextManager[object]:
        """Return a block inside which work goes to this stream."""
        return cast("AbstractContextManager[object]", torch.cuda.stream(self._stream))

    def copy(self, array: Array) -> torch.Tensor:
        """Begin to copy; from memory that is not pinned, CUDA takes a copy of its own before it returns."""
        return as_tensor(array).to(self.device, non_blocking=True)

    def mark(self) -> torch.cuda.Event:
        """Return an event behind what this stream was given so far."""
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def current(self) -> int:
        """Return the handle of the stream that the caller's work goes to."""
        handle: int = torch.cuda.current_stream(self.device).cuda_stream
        return handle

    def wait(self, mark: torch.cuda.Event, tensors: list[torch.Tensor]) -> None:
        """Let the loop's stream wait, and tell the allocator that it uses the tensors."""
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(mark)
        for tensor in tensors:
            tensor.record_stream(stream)


def _unregister(address: int, stream: torch.cuda.Stream, cudart: Any, pid: int) -> None:
    """Have CUDA forget pinned memory, once nothing copies from it any more."""
    if os.getpid() != pid:  # a child has the memory, and no CUDA
        return
    with contextlib.suppress(RuntimeError):  # of a device that has failed, about which others are told
        stream.synchronize()
        cudart.cudaHostUnregister(address)


class ResidentRows:
    """Records on a device, in the order in which their chunks came. Safe to use from several threads.

        device memory   ┆ chunk 7 ┆ chunk 2 ┆ chunk 5 ┆  room  ┆

    All work goes to one stream, so that what is gathered there comes behind the copies that brought it. `first_row` is
    where each chunk's records begin, -1 where it does not lie there. Shape [N].
    """

    def __init__(self, stream: CudaStream, *, limit_bytes: int) -> None:
        self._stream = stream
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self.first_row: Int64 = np.empty(0, dtype=np.int64)
        self._num_rows = 0
        self._width = 0
        self._end = 0
        self._records: torch.Tensor | None = None
        self._staging = BufferPool(stream.allocate, is_pinned=True)
        self._in_flight: list[tuple[torch.cuda.Event, Array]] = []

    def open(self, num_samples: Int64, record_bytes: int) -> None:
        """Say what there is: the samples of each chunk, and the bytes of a record, of which one must fit."""
        self._width = record_bytes
        self._num_rows = min(self._limit_bytes // record_bytes, int(num_samples.sum()))
        if not self._num_rows and num_samples.any():
            raise ValueError(
                f"resident= gives {self._limit_bytes:,} bytes, and one record has {record_bytes:,}: give more, or none"
            )
        self.first_row = np.full(len(num_samples), -1, dtype=np.int64)

    @property
    def num_bytes(self) -> int:
        """Bytes that lie there."""
        return self._end * self._width

    def offer(self, chunk: int, records: Array) -> bool:
        """Take a chunk's records, if there is room for them, and return whether they lie there now.

        They are uint8, shape [rows of the chunk, record_bytes], and may be gone once this returns.
        """
        with self._lock:  # also so that all copies come behind the making of the memory
            if self.first_row[chunk] >= 0:
                return True
            begin, end = self._end, self._end + len(records)
            if end > self._num_rows:
                return False
            # Pinned memory that is ours: the window may be closed before the copy has happened.
            staged = self._staging.take(records.nbytes)[: records.nbytes]
            np.copyto(staged.reshape(records.shape), records)
            with self._stream.copies():
                if self._records is None:
                    shape = (self._num_rows, self._width)
                    self._records = torch.empty(shape, dtype=torch.uint8, device=self._stream.device)
                self._records[begin:end].copy_(self._stream.copy(staged).view(-1, self._width))
                mark = self._stream.mark()
            self._in_flight = [one for one in self._in_flight if not one[0].query()] + [(mark, staged)]
            self._end = end
            self.first_row[chunk] = begin
            return True

    def gather(self, rows: Int64, others: Array, copy: Callable[[Array], torch.Tensor]) -> torch.Tensor:
        """Return all records of a batch on the device, uint8, shape [B, record_bytes].

        Call it inside a block of the stream's. Rows are those of each sample there, -1 for those whose records are
        `others`, shape [H, record_bytes]. `copy` begins to copy an array to the device.
        """
        if len(others) == len(rows):
            return copy(others)
        assert self._records is not None
        if not len(others):
            return words_of(self._records).index_select(0, copy(rows)).view(torch.uint8)
        is_there = rows >= 0
        found = words_of(self._records).index_select(0, copy(rows[is_there]))
        records = torch.empty((len(rows), self._width), dtype=torch.uint8, device=self._records.device)
        words = words_of(records)
        words.index_copy_(0, copy(np.flatnonzero(is_there)), found)
        words.index_copy_(0, copy(np.flatnonzero(~is_there)), words_of(copy(others)))
        return records
