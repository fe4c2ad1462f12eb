"""A column chunk to Arrow: as a whole, or some rows at a time while it is read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from stoker._native import Pages
from stoker.parquet.pages.binary import BinaryDecoder
from stoker.parquet.pages.codecs import Bytes, scan
from stoker.parquet.pages.decoder import Decoder
from stoker.parquet.pages.leaf import Leaf
from stoker.storage.fetch import ByteRange, Ranges
from stoker.storage.storage import BytesLike

# What a streamed column is read by; more where no page is as small.
_PIECE_BYTES = 256 << 10
# Of a streamed column a page of more values is pyarrow's, which decodes some of it at a time: one of a hundred bytes
# may hold a hundred million values that are all the same.
_MOST_VALUES = 4 << 20


def read_leaf(
    data: BytesLike,
    leaf: Leaf,
    *,
    num_rows: int,
    num_values: int,
    codec: int,
    most_bytes: int,
    as_dictionary: bool = False,
) -> pa.Array | None:
    """Return a column of one row group.

    Args:
        data: The column chunk: all of its pages.
        leaf: What the column is.
        num_rows: Rows of the row group.
        num_values: Entries of all pages: values, nulls and empty lists.
        codec: What pages are compressed with, as a number of the format.
        most_bytes: More than all pages have before they are compressed.
        as_dictionary: Whether strings come as Arrow's dictionary.

    Returns:
        The column; None where pyarrow is to decode it, or to say what is wrong with it.

    Raises:
        ValueError: Its pages have other values than the footer promises, which pyarrow does not look at.
    """
    content = np.frombuffer(data, np.uint8)
    pages = scan(content)
    if pages is None or pages.end != len(content) or not len(content):
        return None
    num_entries = pages.totals().num_entries
    if num_entries != num_values:
        raise ValueError(_other_values(leaf, num_entries, num_values))
    decoder = _decoder_of(leaf, codec, most_bytes, as_dictionary=as_dictionary)
    decoder.make_room(num_rows, num_entries)
    if not decoder.decode(pages) or decoder.num_rows != num_rows:
        return None
    return decoder.take(num_rows)


def _other_values(leaf: Leaf, num_entries: int, num_values: int) -> str:
    return f"column {leaf.name}: its pages have {num_entries:,} values, its footer promises {num_values:,}"


def _decoder_of(leaf: Leaf, codec: int, most_bytes: int, *, as_dictionary: bool) -> Decoder | BinaryDecoder:
    if leaf.column.is_binary:
        return BinaryDecoder(leaf, codec=codec, most_bytes=most_bytes, as_dictionary=as_dictionary)
    return Decoder(leaf, codec=codec, most_bytes=most_bytes)


class LeafStream:
    """A column of one row group, some rows at a time.

        file     ┆ page ┆ page ┆ page ┆ page ┆ …       read a piece at a time
        decoded         ┆ ▒▒▒▒ ┆ ▒▒▒▒ ┆                a page at a time, until there are enough rows

    Args:
        leaf: What the column is.
        ranges: The file.
        span: Where the column chunk lies.
        num_rows: Rows of the row group.
        num_values: Entries of all pages: values, nulls and empty lists.
        codec: What pages are compressed with, as a number of the format.
        most_bytes: More than all pages have before they are compressed.
        as_dictionary: Whether strings come as Arrow's dictionary.
        piece_bytes: What is read at a time, at least.

    Attributes:
        leaf: What the column is.
    """

    def __init__(
        self,
        leaf: Leaf,
        ranges: Ranges,
        span: ByteRange,
        *,
        num_rows: int,
        num_values: int,
        codec: int,
        most_bytes: int,
        as_dictionary: bool = False,
        piece_bytes: int = _PIECE_BYTES,
    ) -> None:
        self.leaf = leaf
        self._ranges = ranges
        self._at = span.start
        self._stop = span.stop
        self._rest: Bytes = np.zeros(0, np.uint8)  # read, behind the last page that is there as a whole
        self._pages: Pages | None = None  # read, and not all of them decoded
        self._num_decoded = 0  # of these
        self._decoder = _decoder_of(leaf, codec, most_bytes, as_dictionary=as_dictionary)
        self._num_left = num_rows
        self._num_values = num_values
        self._num_entries = 0  # of pages that were decoded
        self._piece_bytes = piece_bytes

    def take(self, num_rows: int) -> pa.Array | None:
        """Return the next rows; None where pyarrow is to decode the column, from its beginning.

        Raises:
            ValueError: Its pages have other values than the footer promises.

        Blocks: while the file is read.
        """
        is_last = num_rows == self._num_left
        # A list is whole when the next one has begun, or none is left.
        enough = num_rows + 1 if self.leaf.column.is_list and not is_last else num_rows
        while self._decoder.num_rows < enough or (is_last and not self._is_over):
            if not (self._decode_more(enough) if self._pages is not None else self._read_more()):
                return None
        if self._decoder.num_rows > self._num_left:
            return None
        if is_last and self._num_entries != self._num_values:
            raise ValueError(_other_values(self.leaf, self._num_entries, self._num_values))
        if is_last and self._decoder.num_rows != num_rows:
            return None
        self._num_left -= num_rows
        return self._decoder.take(num_rows)

    @property
    def _is_over(self) -> bool:
        return self._at == self._stop and self._pages is None and not len(self._rest)

    def _decode_more(self, enough: int) -> bool:
        """Decode as many pages as are needed for so many rows, and at least one; False where one is not known."""
        assert self._pages is not None
        decoder, pages, first = self._decoder, self._pages, self._num_decoded
        stop = pages.stop_for(first, max(1, enough - decoder.num_rows))
        num_entries = pages.totals(first, stop).num_entries
        if any(pages[i].num_entries > _MOST_VALUES for i in range(first, stop)):
            return False
        most_rows = self._num_left - decoder.num_rows
        self._num_entries += num_entries
        if self._num_entries > self._num_values:
            raise ValueError(_other_values(self.leaf, self._num_entries, self._num_values))
        if not self.leaf.column.is_list and num_entries > most_rows:
            return False
        decoder.make_room(min(num_entries, most_rows), num_entries)
        if not decoder.decode(pages, first, stop):
            return False
        self._num_decoded = stop
        if stop == len(pages):
            self._pages = None
        return True

    def _read_more(self) -> bool:
        """Read until there is a page as a whole, twice as much each time; False where there is none."""
        num_bytes = min(max(self._piece_bytes, len(self._rest)), self._stop - self._at)
        if not num_bytes:
            return False
        piece = np.frombuffer(self._ranges.get(self._at, self._at + num_bytes), np.uint8)
        if len(piece) != num_bytes:
            return False
        self._at += num_bytes
        content = np.concatenate([self._rest, piece]) if len(self._rest) else piece
        pages = scan(content)
        if pages is None:
            return False
        self._rest = content[pages.end :]
        self._pages, self._num_decoded = (pages if pages.end else None), 0
        return True
