"""Records of chunks that stay on a device, and batches that are gathered from them there."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from stoker.fields.spec import Array
from stoker.loader.buffers import BufferPool
from stoker.torch.cuda import CudaStream
from stoker.torch.tensors import words_of


class ResidentRows:
    """Records on a device, in the order in which their chunks came. Safe to use from several threads.

        device memory   ┆ chunk 7 ┆ chunk 2 ┆ chunk 5 ┆  room  ┆

    All work goes to one stream, so that what is gathered there comes behind the copies that brought it.

    Args:
        stream: Copies to the device.
        limit_bytes: Device memory for them.

    Attributes:
        first_row: Where each chunk's records begin; -1 where it does not lie there. Shape [N].
    """

    def __init__(self, stream: CudaStream, *, limit_bytes: int) -> None:
        self._stream = stream
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self.first_row: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._num_rows = 0
        self._width = 0
        self._end = 0
        self._records: torch.Tensor | None = None
        self._staging = BufferPool(stream.allocate, is_pinned=True)
        self._in_flight: list[tuple[torch.cuda.Event, Array]] = []

    def open(self, num_samples: npt.NDArray[np.int64], record_bytes: int) -> None:
        """Say what there is: the samples of each chunk, and the bytes of a record.

        Raises:
            ValueError: Not one record fits.
        """
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
        """Take a chunk, if there is room for it, and return whether it lies there now.

        Args:
            chunk: Its number.
            records: uint8, shape [rows of the chunk, record_bytes]; may be gone once this returns.
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

    def gather(self, rows: npt.NDArray[np.int64], others: Array, copy: Callable[[Array], torch.Tensor]) -> torch.Tensor:
        """Return all records of a batch on the device, uint8, shape [B, record_bytes].

        Call it inside a block of the stream's.

        Args:
            rows: Row of each sample there, -1 for the others. Shape [B].
            others: Records of these. Shape [H, record_bytes].
            copy: Begins to copy an array to the device.
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
