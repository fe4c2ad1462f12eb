"""The bytes of a trace file, plain or gzip, as far as they go."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator
from pathlib import Path

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


class TraceBytes:
    """The content of a file, block by block, once; gzip is known by its first bytes, not by the file's name.

    Args:
        path: The file.

    Attributes:
        size_bytes: Of the file.
        read_bytes: Of the file, read so far.
        is_cut: Whether compressed data ended before its own end, or was damaged: what came before it was given.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = path.stat().st_size
        self.read_bytes = 0
        self.is_cut = False
        self._blocks = self._read()

    def __iter__(self) -> Iterator[bytes]:
        """Give blocks of at most a few MiB.

        Raises:
            StokerError: The file is packed in a way that is not read here, or is no text.
            OSError: It cannot be opened or read.
        """
        return self._blocks

    def close(self) -> None:
        """Close the file, which is open from the first block on until the last one was read."""
        self._blocks.close()

    def _read(self) -> Generator[bytes, None, None]:
        with self.path.open("rb") as file:
            head = file.read(16)
            file.seek(0)
            for magic, what in _FOREIGN.items():
                if head.startswith(magic):
                    raise StokerError(f"{self.path} is {what}")
            blocks = iter(lambda: file.read(_BLOCK_BYTES), b"")
            if not head.startswith(_GZIP):
                for block in blocks:
                    self.read_bytes += len(block)
                    yield block
                return
            yield from self._inflate(blocks)

    def _inflate(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        member = zlib.decompressobj(wbits=31)
        has_begun = False
        for block in blocks:
            self.read_bytes += len(block)
            rest = block
            while rest:
                try:
                    out = member.decompress(rest, _BLOCK_BYTES)
                except zlib.error:
                    # Bytes after the last member are padding in some archives, damage in others: neither is data.
                    self.is_cut = has_begun or not member.eof
                    return
                has_begun = True
                if out:
                    yield out
                rest = member.unconsumed_tail
                if member.eof:  # gzip files may be put one behind the other
                    rest = member.unused_data
                    if rest:
                        member = zlib.decompressobj(wbits=31)
                        has_begun = False
                        if not rest.startswith(_GZIP[: len(rest)]):
                            return
        out = member.flush()
        if out:
            yield out
        self.is_cut = not member.eof
