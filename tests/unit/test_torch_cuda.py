"""Pinned memory, with a CUDA of the test's own: what a GPU does is in tests/integration/test_gpu.py."""

from __future__ import annotations

import contextlib
import gc
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stoker.torch.cuda import CudaStream

pytestmark = pytest.mark.torch


class Cuda:
    """Registers memory, unless it cannot, and notes what happens in which order."""

    def __init__(self, status=0):
        self.status = status
        self.registered = {}
        self.events = []

    def cudaHostRegister(self, address, num_bytes, flags):  # noqa: N802
        if self.status == 0:
            self.registered[address] = num_bytes
        return self.status

    def cudaHostUnregister(self, address):  # noqa: N802
        del self.registered[address]
        self.events.append("unregistered")

    def synchronize(self):
        self.events.append("synchronized")

    def Stream(self, device):  # noqa: N802
        return self

    def device(self, device):
        return contextlib.nullcontext()

    def cudart(self):
        return self


@pytest.fixture
def cuda():
    return Cuda()


def test_memory_is_registered_as_long_as_anybody_looks_at_it(cuda):
    stream = CudaStream(torch.device("cuda", 0), cuda=cuda)
    buffer = stream.allocate(5_000)
    assert buffer.shape == (5_000,)
    assert cuda.registered == {buffer.ctypes.data: 5_000}
    view = torch.from_numpy(buffer[100:200])
    del buffer
    gc.collect()
    assert cuda.registered
    view.zero_()
    del view
    gc.collect()
    assert not cuda.registered
    assert cuda.events == ["synchronized", "unregistered"]  # nothing copies from it any more


def test_a_child_does_not_unregister_what_is_its_parents(cuda):
    buffer = CudaStream(torch.device("cuda", 0), cuda=cuda).allocate(64)
    child = os.fork()
    if child == 0:
        del buffer
        gc.collect()
        os._exit(0 if cuda.registered else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert cuda.registered == {buffer.ctypes.data: 64}


def test_memory_that_cannot_be_registered_is_pinned_by_torch(cuda, monkeypatch):
    cuda.status = 801
    asked = []

    def empty(num_bytes, *, dtype, pin_memory):
        asked.append(pin_memory)
        return torch.zeros(num_bytes, dtype=dtype)

    def zeros(*_, device):
        raise RuntimeError("CUDA error: operation not supported")

    real_zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *a, **o: zeros(*a, **o) if "device" in o else real_zeros(*a, **o))
    monkeypatch.setattr(torch, "empty", empty)
    buffer = CudaStream(torch.device("cuda", 0), cuda=cuda).allocate(100)
    np.testing.assert_array_equal(buffer, np.zeros(100, np.uint8))
    assert asked == [True]
