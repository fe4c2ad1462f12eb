"""The side stream of a CUDA device."""

from __future__ import annotations

import contextlib
import os
import weakref
from contextlib import AbstractContextManager
from typing import Any, cast

import torch

from stoker.fields.spec import Array
from stoker.host.huge import memory as memory_in_huge_pages
from stoker.torch.tensors import as_tensor

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for all contexts of the process


class CudaStream:
    """Copies to a GPU on a stream of its own, while the GPU does something else. Safe to use from several threads.

    Args:
        device: A CUDA device with its index: threads that assemble batches have a current device of their own, which
            would be GPU 0 whatever the training loop has chosen.
        cuda: What memory is registered with, and streams are made by.
    """

    def __init__(self, device: torch.device, *, cuda: Any = torch.cuda) -> None:
        assert device.index is not None
        self._device, self._cuda = device, cuda
        self._stream = cuda.Stream(device)

    @property
    def device(self) -> torch.device:
        """The device."""
        return self._device

    def allocate(self, num_bytes: int) -> Array:
        """Return pinned memory, from which the GPU copies by itself.

        Our own memory, which CUDA is told of: torch's is rounded up to a power of two, and takes 31 ms for 64 MiB.
        """
        with self._cuda.device(self._device):  # otherwise the thread makes a context on GPU 0, half a gigabyte each
            buffer = memory_in_huge_pages(num_bytes, is_inherited=False)
            address = buffer.ctypes.data
            cudart = self._cuda.cudart()
            if int(cudart.cudaHostRegister(address, num_bytes, _PORTABLE)) == 0:
                # With the array, before what that lies in; at the end of the process the system sees to it.
                weakref.finalize(buffer, _unregister, address, self._stream, cudart, os.getpid()).atexit = False
                return buffer
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=self._device)  # whoever launches next would be told of that error
            pinned: Array = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy()
        return pinned

    def copies(self) -> AbstractContextManager[object]:
        """Return a block inside which work goes to this stream."""
        return cast("AbstractContextManager[object]", torch.cuda.stream(self._stream))

    def copy(self, array: Array) -> torch.Tensor:
        """Begin to copy; from memory that is not pinned, CUDA takes a copy of its own before it returns."""
        return as_tensor(array).to(self._device, non_blocking=True)

    def mark(self) -> torch.cuda.Event:
        """Return an event behind what this stream was given so far."""
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def current(self) -> int:
        """Return the handle of the stream that the caller's work goes to."""
        handle: int = torch.cuda.current_stream(self._device).cuda_stream
        return handle

    def wait(self, mark: torch.cuda.Event, tensors: list[torch.Tensor]) -> None:
        """Let the loop's stream wait, and tell the allocator that it uses the tensors."""
        stream = torch.cuda.current_stream(self._device)
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
