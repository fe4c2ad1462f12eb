"""A prototype: the device gathers for itself. No host thread touches a row.

    host memory   chunk files, mapped and pinned: the device may read them where they lie
    device        position ─► permuted by the window's key ─► slot and row ─► record, read across the bus ─► batch

The order is integer arithmetic, so the device computes it like `native/permutation.cpp` does. What comes is compared
with what a TorchLoader delivers, byte for byte.

Source: Min et al., "EMOGI: Efficient Memory-access for Out-of-memory Graph-traversal in GPUs", VLDB 2020 (threads of a
device that read pinned host memory, in whole lines of 128 bytes).
"""

from __future__ import annotations

import itertools
import mmap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cupy  # type: ignore[import-not-found]
import numpy as np
import numpy.typing as npt
import torch

from benchmarks.gpu.copying import COPY_BYTES, LARGE_BATCH_SIZE, copied, dataset, options
from benchmarks.gpu.device import Marks
from benchmarks.measure import Answer, compare
from benchmarks.warm_gather import BATCH_SIZE
from stoker.cache.format import RECORDS, read_header
from stoker.demo.data import DemoData
from stoker.sampling.epoch import EpochOrder
from stoker.torch import TorchLoader
from stoker.torch.tensors import fields_of

_NUM_AHEAD, _THREADS, _MOST_BLOCKS = 3, 256, 1056
_READ_ONLY, _MAPPED = 8, 2  # flags of cudaHostRegister
_KERNELS = r"""
typedef unsigned long long u64;
typedef long long i64;
__device__ __forceinline__ u64 hash(u64 half, u64 key) {
  const u64 mixed = (half ^ key) * 0xBF58476D1CE4E5B9ull;
  return (mixed ^ (mixed >> 32)) * 0x94D049BB133111EBull;
}
// Where a position of a window lies: the address of its record.
__device__ u64 locate(i64 position, i64 start, u64 size, const u64* keys, int left_bits, int right_bits,
                      const i64* starts, int num_slots, const i64* shifts, const u64* bases, int width) {
  u64 value = position - start;
  const u64 mask = (1ull << right_bits) - 1;
  do {
    u64 left = value >> right_bits, right = value & mask;
    #pragma unroll
    for (int n = 0; n < 8; n += 2) {
      left ^= hash(right, keys[n]) >> (64 - left_bits);
      right ^= hash(left, keys[n + 1]) >> (64 - right_bits);
    }
    value = (left << right_bits) | right;
  } while (value >= size);
  const i64 place = (i64)value + start;
  int low = 0, high = num_slots - 1;
  while (low < high) {
    const int middle = (low + high + 1) >> 1;
    if (starts[middle] <= place) low = middle; else high = middle - 1;
  }
  return bases[low] + (u64)(place + shifts[low]) * width;
}
// A warp finds 32 records, one a thread, and then copies them together, 16 bytes a thread.
extern "C" __global__ void gather(i64 first, int num, i64 start, u64 size, const u64* keys, int left_bits,
                                  int right_bits, const i64* starts, int num_slots, const i64* shifts,
                                  const u64* bases, int width, uint4* out) {
  const int lane = threadIdx.x & 31;
  const int warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, num_warps = (gridDim.x * blockDim.x) >> 5;
  const int units = width >> 4;
  for (int base = warp * 32; base < num; base += num_warps * 32) {
    const int here = min(32, num - base);
    const u64 mine = locate(first + base + min(lane, here - 1), start, size, keys, left_bits, right_bits, starts,
                            num_slots, shifts, bases, width);
    uint4* to = out + (u64)base * units;
    const int total = here * units;
    #pragma unroll 8
    for (int u0 = 0; u0 < total; u0 += 32) {
      const int u = u0 + lane;
      const int row = min(u / units, here - 1);
      const u64 from = __shfl_sync(0xffffffffu, mine, row);
      if (u < total) __stcs(to + u, __ldcs(((const uint4*)from) + (u - row * units)));
    }
  }
}
"""


class DeviceGather:
    """Epochs of records that the device gathers from pinned host memory.

    Args:
        loader: Has made the cache; its order and its chunks are used.
        batch_size: B.
    """

    def __init__(self, loader: TorchLoader, *, batch_size: int) -> None:
        self._orders, self._batch_size = loader._orders, batch_size
        self.width = loader.spec.record_bytes
        self._kernel = cupy.RawModule(code=_KERNELS).get_function("gather")
        (opened,) = loader._opened.datasets
        self._pinned: list[npt.NDArray[np.uint8]] = []
        self.num_bytes = 0
        begin, bases = time.perf_counter(), []
        for chunk in range(loader._opened.num_samples.size):
            path = opened.builder.store.path_of(opened.catalogue.key(chunk))
            with path.open("rb") as file:
                header = read_header(file.fileno(), path=path)
            bases.append(self._pin(path) + header.arrays[RECORDS].offset_bytes)
            self.num_bytes += header.size_bytes
        self.pinned_at = self.num_bytes / (time.perf_counter() - begin) / 1e9
        self._bases = np.array(bases, dtype=np.uint64)
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def _pin(self, path: Path) -> int:
        """Return where a file lies, which the device may read from now on."""
        with path.open("rb") as file:
            view = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ)
        array = np.frombuffer(view, dtype=np.uint8)
        cupy.cuda.runtime.hostRegister(array.ctypes.data, len(view), _READ_ONLY | _MAPPED)
        self._pinned.append(array)
        return int(array.ctypes.data)

    def epoch(self, epoch: int) -> Iterator[torch.Tensor]:
        """Yield the records of each full batch, uint8, shape [B, record_bytes], made ahead of the current stream.

        Batches are made several by one launch, since a launch costs this loop about as long as a small batch the bus.
        """
        (lane,) = self._orders.order.lanes_of_epoch(epoch)
        order = lane.component_epoch(0, epoch)
        with torch.cuda.stream(self._stream):
            tables = [self._tables(order, window) for window in range(order.num_windows)]
        size = self._batch_size
        shape = (max(1, LARGE_BATCH_SIZE // size) * size, self.width)
        rooms = [torch.empty(shape, dtype=torch.uint8, device="cuda") for _ in range(_NUM_AHEAD)]
        made: dict[int, Any] = {}
        used: dict[int, Any] = {}
        num_rows = order.num_samples // size * size
        num = -(-num_rows // len(rooms[0]))
        for step in range(num + _NUM_AHEAD - 1):
            if step < num:
                with torch.cuda.stream(self._stream):
                    if step >= _NUM_AHEAD:
                        self._stream.wait_event(used.pop(step - _NUM_AHEAD))
                    self._fill(tables, step * len(rooms[0]), rooms[step % _NUM_AHEAD])
                    made[step] = self._stream.record_event()
            ready = step - _NUM_AHEAD + 1
            if ready >= 0:
                current = torch.cuda.current_stream()
                current.wait_event(made.pop(ready))
                room = rooms[ready % _NUM_AHEAD][: num_rows - ready * len(rooms[0])]
                yield from room.split(size)  # type: ignore[no-untyped-call]
                used[ready] = current.record_event()

    def _tables(self, order: EpochOrder, window: int) -> tuple[Any, ...]:
        start, stop = int(order.window_starts[window]), int(order.window_starts[window + 1])
        slots, chunks = order._slots(window), order.window_chunks(window)
        bits = (stop - start - 1).bit_length()
        keys = np.array([_draw(order._key(f"window:{window}", order.epoch), n) for n in range(8)], dtype=np.uint64)
        arrays = (keys, order._slot_starts[slots], order._row_shifts[slots], self._bases[chunks])
        there = [torch.from_numpy(array.view(np.int64).copy()).to("cuda") for array in arrays]
        return start, stop, bits // 2, bits - bits // 2, len(chunks), there

    def _fill(self, tables: list[tuple[Any, ...]], first: int, room: torch.Tensor) -> None:
        for start, stop, left_bits, right_bits, num_slots, (keys, starts, shifts, bases) in tables:
            low, high = max(first, start), min(first + len(room), stop)
            if low >= high:
                continue
            arguments = (
                np.int64(low),
                np.int32(high - low),
                np.int64(start),
                np.uint64(stop - start),
                np.uint64(keys.data_ptr()),
                np.int32(left_bits),
                np.int32(right_bits),
                np.uint64(starts.data_ptr()),
                np.int32(num_slots),
                np.uint64(shifts.data_ptr()),
                np.uint64(bases.data_ptr()),
                np.int32(self.width),
                np.uint64(room[low - first :].data_ptr()),
            )
            with cupy.cuda.ExternalStream(self._stream.cuda_stream):
                blocks = min(-(-(high - low) // _THREADS), _MOST_BLOCKS)
                self._kernel((blocks,), (_THREADS,), arguments)

    def rate(self, epoch: int) -> float:
        """Return GB/s of a whole epoch, from the first batch asked for to the last one used."""
        marks, num = Marks(torch.device("cuda")), 0
        start = marks.mark()
        for records in self.epoch(epoch):
            num += records.nbytes
        return num / marks.seconds(start, marks.mark()) / 1e9

    def close(self) -> None:
        """Unpin everything."""
        torch.cuda.synchronize()
        for array in self._pinned:
            cupy.cuda.runtime.hostUnregister(array.ctypes.data)
        self._pinned.clear()


def run_device_gather(data: DemoData, folder: Path, *, device: torch.device, num_rounds: int) -> Answer:
    """Whole epochs that the device gathers for itself, against pinned copies of large blocks."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    with TorchLoader(dataset(data), device=device, **options(folder)) as loader:
        for _ in loader:  # builds the cache
            pass
        gather, epochs = DeviceGather(loader, batch_size=BATCH_SIZE), itertools.count(1)
        try:
            check(loader, gather)
            return compare(
                "whole epochs that the device gathers for itself / pinned copies of large blocks",
                ours=lambda: gather.rate(next(epochs)),
                ceiling=lambda: copied(target, source, device),
                unit="GB/s",
                num_rounds=num_rounds,
                promise=0.8,
                remarks=lambda: (
                    f"{BATCH_SIZE:,} rows of {gather.width} bytes a batch, as many made by one launch as have "
                    f"{LARGE_BATCH_SIZE:,} rows; every field of an epoch was compared with the loader's",
                    f"{gather.num_bytes / 1e9:.2f} GB of files, mapped, were pinned at {gather.pinned_at:.1f} GB/s",
                ),
            )
        finally:
            gather.close()


def check(loader: TorchLoader, gather: DeviceGather) -> None:
    """Compare every full batch of an epoch with the loader's, each field, byte for byte.

    Raises:
        AssertionError: They differ.
    """
    loader.set_epoch(0)
    for step, (expected, records) in enumerate(zip(loader, gather.epoch(0), strict=False)):
        for name, field in fields_of(records, loader.spec).items():
            if not torch.equal(field, expected[name]):
                raise AssertionError(f"step {step}: {name} differs")


def _draw(key: int, n: int) -> int:
    """Return the n-th number of a splitmix64 stream, as `native/permutation.h` does."""
    most = (1 << 64) - 1
    value = (key + (n + 1) * 0x9E3779B97F4A7C15) & most
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & most
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & most
    return value ^ (value >> 31)
