"""The bytes of a trace file, plain or gzip, as far as they go: a stretch of them in memory that moves on."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from io import BufferedReader
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stoker._native import skip_json_value
from stoker.errors import StokerError

# Large enough that a call costs nothing beside its bytes, small enough that memory stays bounded.
_BLOCK_BYTES = 4 << 20
_GZIP = b"\x1f\x8b"
_FOREIGN = {
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: unpack it with `unzstd` first",
    b"BZh": "compressed with bzip2: unpack it with `bunzip2` first",
    b"\xfd7zXZ": "compressed with xz: unpack it with `unxz` first",
    b"\xff\xfe": "UTF-16 text: write it again as UTF-8",
    b"\xfe\xff": "UTF-16 text: write it again as UTF-8",
    b"SQLite format 3": "an SQLite data base (Nsight Systems?), not a Chrome trace",
}

OnBytes = Callable[[int, int], None]
"""Told how many bytes of how many are read."""


class ByteWindow:
    """Bytes `[at, stop)` of `data`, and more on demand; gzip is known by its first bytes, not by the file's name.

    Args:
        path: The file.
        on_bytes: Told how many of the file's bytes were read, of how many.
        block_bytes: Bytes taken in at once.

    Attributes:
        is_damaged: Whether compressed data ended before its own end, or could not be read on.

    Raises:
        StokerError: The file is packed in a way that is not read here, or is no text.
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path, *, on_bytes: OnBytes | None = None, block_bytes: int = _BLOCK_BYTES) -> None:
        self.path = path
        self.size_bytes = path.stat().st_size
        self.is_damaged = False
        self.data: npt.NDArray[np.uint8] = np.empty(2 * block_bytes, np.uint8)
        self.at = 0
        self.stop = 0
        self._on_bytes = on_bytes
        self._block_bytes = block_bytes
        self._file = path.open("rb")
        try:
            self._blocks = self._read(self._file)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left: here, and in the file as far as it was read."""
        return self.at >= self.stop

    def _read(self, file: BufferedReader) -> Iterator[bytes]:
        head = file.peek(16)
        for magic, what in _FOREIGN.items():
            if head.startswith(magic):
                raise StokerError(f"{self.path} is {what}")
        if not head.startswith(_GZIP):
            return iter(lambda: file.read(self._block_bytes), b"")
        return self._inflate(file)

    def _inflate(self, file: BufferedReader) -> Iterator[bytes]:
        with closing(gzip.GzipFile(fileobj=file)) as unpacked:
            has_begun = False
            while True:
                try:
                    block = unpacked.read1(self._block_bytes)
                except (EOFError, OSError, zlib.error) as error:
                    # Bytes behind a whole member are padding in some archives, damage in others: neither is data.
                    self.is_damaged = not (isinstance(error, gzip.BadGzipFile) and "Not a gzipped" in str(error))
                    if not has_begun:
                        raise StokerError(f"{self.path} is damaged gzip ({error}): nothing of it can be read") from None
                    return
                if not block:
                    return
                has_begun = True
                yield block

    def more(self) -> bool:
        """Take one more block in; False where there is none."""
        block = next(self._blocks, None)
        if block is None:
            return False
        if self._on_bytes is not None:
            self._on_bytes(self._file.tell(), self.size_bytes)
        left = self.stop - self.at
        if self.at and left + len(block) > self.data.size - self.stop:
            self.data[:left] = self.data[self.at : self.stop].copy()
            self.at, self.stop = 0, left
        if self.stop + len(block) > self.data.size:
            grown = np.empty(max(2 * self.data.size, self.stop + len(block)), np.uint8)
            grown[: self.stop] = self.data[: self.stop]
            self.data = grown
        self.data[self.stop : self.stop + len(block)] = np.frombuffer(block, np.uint8)
        self.stop += len(block)
        return True

    def peek(self, num_bytes: int) -> bytes:
        """Return the next bytes, fewer at the end, and stay."""
        while self.stop - self.at < num_bytes and self.more():
            pass
        return self.data[self.at : min(self.at + num_bytes, self.stop)].tobytes()

    def next_char(self, *, also: bytes = b"") -> bytes:
        """Go to the next character that is not white space (or one of `also`) and return it, b"" at the end."""
        space = b" \t\r\n" + also
        while True:
            while self.at < self.stop:
                char = self.data[self.at]
                if char not in space:
                    return bytes([char])
                self.at += 1
            if not self.more():
                return b""

    def take_value(self, *, limit: int) -> bytes | None:
        """Return the JSON value here and go behind it; None where it does not end.

        A value of more than `limit` bytes is skipped and comes back empty.
        """
        while True:
            stop = skip_json_value(self.data, self.at, self.stop)
            if stop >= 0:
                text = self.data[self.at : stop].tobytes() if stop - self.at <= limit else b""
                self.at = stop
                return text
            if stop == -2 or not self.more():
                return None
