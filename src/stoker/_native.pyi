"""Stoker's native core: plain data in, plain data out."""

from collections.abc import Sequence

import numpy
import numpy.typing
from typing_extensions import CapsuleType


class Column:
    """What the decoder of pages is to know of a column."""

    def __init__(self, *, width: int, full: int, empty: int, is_list: bool, is_bit: bool, is_binary: bool, value_bytes: int, is_large: bool, list_size: int) -> None: ...

    @property
    def is_list(self) -> bool: ...

    @property
    def is_binary(self) -> bool: ...

class ColumnReader:
    """A column chunk that is decoded as a whole, or some rows at a time."""

    def __init__(self, column: Column, *, codec: int, num_rows: int, num_values: int, most_bytes: int, most_page_values: int) -> None: ...

    def scan(self, content: numpy.typing.NDArray[numpy.uint8]) -> int:
        """
        Find the pages in what was read; return where the last one ends, -1 where one is wrong.
        """

    def has(self, first: int, num_rows: int) -> bool:
        """Whether the pages found are likely to have the next rows."""

    def plan(self, first: int, num_rows: int, at: int) -> int:
        """
        Choose the pages of the next rows, to be decoded behind byte `at` of the memory; return where they end
        there, -1 where the rows are too many.
        """

    @property
    def num_entries(self) -> int: ...

    @property
    def has_pages(self) -> bool: ...

class DecodedRows:
    """What was decoded, and where in the memory it begins."""

    @property
    def rows(self) -> int: ...

    @property
    def values(self) -> int: ...

    @property
    def nulls(self) -> int: ...

    @property
    def indices(self) -> int: ...

    @property
    def values_at(self) -> int: ...

    @property
    def valid_at(self) -> int: ...

    @property
    def offsets_at(self) -> int: ...

    @property
    def strings_at(self) -> int: ...

    @property
    def string_bytes(self) -> int: ...

    @property
    def dictionary_values(self) -> int: ...

    @property
    def dictionary_offsets_at(self) -> int: ...

    @property
    def dictionary_at(self) -> int: ...

    @property
    def dictionary_bytes(self) -> int: ...

def decode_columns(readers: Sequence[ColumnReader], memory: numpy.typing.NDArray[numpy.uint8]) -> list[DecodedRows | None]:
    """
    Decode the pages that were planned, all columns in one call; None for each of which one is wrong.
    """

def can_decompress(codec: int) -> bool:
    """
    Whether pages of a codec, a number of the format, are decompressed here.
    """

class PageHeader:
    """What the header of a page says, which is proven by nothing."""

    @property
    def kind(self) -> int: ...

    @property
    def at(self) -> int:
        """Where its content begins."""

    @property
    def stored_bytes(self) -> int: ...

    @property
    def plain_bytes(self) -> int: ...

    @property
    def num_entries(self) -> int: ...

    @property
    def encoding(self) -> int: ...

    @property
    def is_packed(self) -> bool: ...

    @property
    def level_bytes(self) -> int:
        """Of levels that stand uncompressed before the values."""

    @property
    def is_inflated(self) -> bool:
        """Whether it claims to become far more than what is stored of it."""

def read_page_header(content: numpy.typing.NDArray[numpy.uint8]) -> PageHeader | None:
    """
    Return the header of the page at the beginning; None where there is no whole one.
    """

def longest_string(content: numpy.typing.NDArray[numpy.uint8]) -> int:
    """Return how many bytes the longest string of a dictionary page has."""

def sum_of_deltas(content: numpy.typing.NDArray[numpy.uint8]) -> int:
    """
    Return the sum of lengths that are encoded by their differences; -1 where they are none.
    """

def read_footer(content: numpy.typing.NDArray[numpy.uint8], groups: numpy.typing.NDArray[numpy.int64], chunks: numpy.typing.NDArray[numpy.int64]) -> bool:
    """
    Fill in what a footer says of its row groups and column chunks; False where it is corrupt.
    """

def hash_strings(data: numpy.typing.NDArray[numpy.uint8], offsets: numpy.typing.NDArray[numpy.int64], num_buckets: int, out: numpy.typing.NDArray[numpy.int64]) -> None:
    """Write the bucket of each string: its XXH3 modulo `num_buckets`."""

class ExportedBatch:
    """A batch that Arrow exported by the C data interface."""

    def __init__(self, array: CapsuleType) -> None: ...

    def with_nulls(self, columns: numpy.typing.NDArray[numpy.int64]) -> list[int]:
        """
        Return which of some columns, by their numbers [C], may have nulls: their places in `columns`.
        """

class RecordPacker:
    """
    Packs the fixed-width fields of samples into records, from wherever they lie.
    """

    def __init__(self, record_bytes: int) -> None: ...

    def add_field(self, offset: int, item_bytes: int) -> None:
        """
        Begin a field: where it lies in the record, and the bytes of one number of it.
        """

    def add_arrays(self, columns: Sequence[object]) -> None:
        """
        Add the next rows of the field: contiguous arrays [n, ...], which lie side by side in the record.
        """

    def add_batch(self, batch: ExportedBatch, columns: numpy.typing.NDArray[numpy.int64], row_bytes: int, is_signed: bool) -> None:
        """
        Add the next rows of the field: some columns of a batch, by their numbers. Shape [C].
        """

    def pack(self, block: numpy.typing.NDArray[numpy.uint8], start: int, stop: int) -> None:
        """
        Lay the records of rows [start, stop) at the beginning of a block of bytes.
        """

class ListPacker:
    """Packs the lists of samples, of several fields, side by side."""

    def __init__(self) -> None: ...

    def add_field(self, offsets: numpy.typing.NDArray[numpy.int64], value_bytes: int, pieces: Sequence[object]) -> None:
        """
        Add a field: offsets [N + 1], and its values in contiguous arrays, which end between lists.
        """

    def pack(self, block: numpy.typing.NDArray[numpy.uint8], places: numpy.typing.NDArray[numpy.uint32], start: int, stop: int) -> None:
        """
        Lay the lists of rows [start, stop) at the beginning of a block of bytes; places has, for each row, where
        they begin, in units of 8 bytes, and how many values of each field there are. Shape [N, 1 + F].
        """

def mark_changes(data: numpy.typing.NDArray[numpy.uint8], starts: numpy.typing.NDArray[numpy.int64], changes: numpy.typing.NDArray[numpy.bool_]) -> None:
    """
    Mark the rows [N] whose bytes, data[starts[i]:starts[i + 1]], differ from those of the row before.
    """

def find_changed(names: numpy.typing.NDArray[numpy.uint8], versions: numpy.typing.NDArray[numpy.int64], files: numpy.typing.NDArray[numpy.int64], changed: numpy.typing.NDArray[numpy.bool_], patience_ns: int) -> None:
    """
    Note which of some files [K] are not what they were: names [N, bytes], inode, mtime and size [N, 3].
    Keeps the interpreter's lock for `patience_ns` at most, but for one file.
    """

def widen_float16(halves: numpy.typing.NDArray[numpy.uint16], singles: numpy.typing.NDArray[numpy.float32]) -> None:
    """Write each float16, given by its bits, as a float32. Shapes [N]."""

class Rows:
    """Rows of a batch, and where each goes."""

    def __init__(self, parts: list[tuple[WindowChunks, int, numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]] | tuple[WindowChunks, int, WindowOrder, int, int]], places: numpy.typing.NDArray[numpy.int64] | None = None) -> None:
        """
        Of each window, and of one of its tables: slots and rows, int64 [b] each, or the window's order and consecutive
        positions, the first one and how many. Row k goes to `places[k]`, int64 [B], or one after the other.
        """

    def take(self, out: numpy.typing.NDArray[numpy.uint8], at: int) -> None:
        """Copy records to byte `at` of the rows of `out`."""

    def take_with_lists(self, out: numpy.typing.NDArray[numpy.uint8], at: int, group: int, offsets: numpy.typing.NDArray[numpy.int64], values: numpy.typing.NDArray[numpy.uint8]) -> FoundLists:
        """
        Copy records as `take` does, and lists of a group, if `values` has `num_bytes`. Offsets: [F, B + 1].
        """

    def find(self, group: int, offsets: numpy.typing.NDArray[numpy.int64]) -> FoundLists:
        """Find where the lists of a group lie."""

    def take_with_runs(self, out: numpy.typing.NDArray[numpy.uint8], offset: int, runs: numpy.typing.NDArray[numpy.int64]) -> None:
        """Copy records, and read what they share; see `runs`."""

    def runs(self, offset: int, runs: numpy.typing.NDArray[numpy.int64]) -> None:
        """
        Read the uint32 at byte `offset` of each record. Shape [B], in the order of the parts.
        """

class FoundLists:
    """Where the lists of a batch lie."""

    @property
    def begins(self) -> list[int]:
        """First byte of each field's values; -1 where it was not chosen."""

    @property
    def num_bytes(self) -> int:
        """Room that the values need."""

    def choose(self, fields: Sequence[int]) -> None:
        """Have the values of some fields copied alone."""

    def descend(self, offsets: numpy.typing.NDArray[numpy.int64]) -> None:
        """
        Of lists of lists: write the offsets of all inner ones, whose number the last of the outer offsets is.
        """

    def copy(self, out: numpy.typing.NDArray[numpy.uint8]) -> None:
        """Copy all values."""

def distinct(slot: numpy.typing.NDArray[numpy.int64], row: numpy.typing.NDArray[numpy.int64], sizes: numpy.typing.NDArray[numpy.int64], found_slot: numpy.typing.NDArray[numpy.int64], found_row: numpy.typing.NDArray[numpy.int64], number: numpy.typing.NDArray[numpy.int32], counts: numpy.typing.NDArray[numpy.int64]) -> int:
    """
    Find the different rows of each batch in the order in which they come first; see gather.h.
    """

def expand(slot: numpy.typing.NDArray[numpy.int64], first: numpy.typing.NDArray[numpy.int64], offsets: numpy.typing.NDArray[numpy.int64], found_slot: numpy.typing.NDArray[numpy.int64], found_row: numpy.typing.NDArray[numpy.int64]) -> None:
    """
    Write slot and row of each of the consecutive rows that units [B] are made of.
    """

def best_fit(lengths: numpy.typing.NDArray[numpy.int64], length: int, document: numpy.typing.NDArray[numpy.int64], first: numpy.typing.NDArray[numpy.int64], starts: numpy.typing.NDArray[numpy.int64]) -> int:
    """
    Write document and first token of each piece, row by row, and each row's first piece; return how many rows.
    """

def fill_places(num: numpy.typing.NDArray[numpy.int64], offsets: numpy.typing.NDArray[numpy.int64], ids: numpy.typing.NDArray[numpy.int32], positions: numpy.typing.NDArray[numpy.int32]) -> None:
    """
    Write each token's segment, counted from 1 in its packed row, and its place in that segment; 0 is padding.
    """

def pack_values(num: numpy.typing.NDArray[numpy.int64], offsets: numpy.typing.NDArray[numpy.int64], length: int, lists: FoundLists, field: int, first: numpy.typing.NDArray[numpy.int64], num_values: numpy.typing.NDArray[numpy.int64], end: numpy.typing.NDArray[numpy.uint8], pad: numpy.typing.NDArray[numpy.uint8], out: numpy.typing.NDArray[numpy.uint8]) -> None:
    """
    Copy a field's values to their tokens, of each segment's list from value `first` on; then `end`s, then `pad`s.
    """

def permute(index: numpy.typing.NDArray[numpy.int64], start: int, size: int, key: int, out: numpy.typing.NDArray[numpy.int64]) -> None:
    """
    Write where each index goes among `size` values; both count from `start`.
    """

def unpermute(place: numpy.typing.NDArray[numpy.int64], start: int, size: int, key: int, out: numpy.typing.NDArray[numpy.int64]) -> None:
    """Write the index that goes to each place: the inverse of `permute`."""

def mix_blocks(counts: numpy.typing.NDArray[numpy.int64], keys: numpy.typing.NDArray[numpy.uint64], first: int, out: numpy.typing.NDArray[numpy.int64]) -> None:
    """
    Write the component at each place from `first` on, of blocks of counts[j] places that are permuted by keys[j].
    """

def group_places(component: numpy.typing.NDArray[numpy.int64], num_components: int, out: numpy.typing.NDArray[numpy.int64]) -> None:
    """
    Write the places of component 0, ascending, then those of component 1, and so on.
    """

class WindowOrder:
    """
    Which slot and row stand at the positions [start, stop) of a shuffle window.
    """

    def __init__(self, *, start: int, stop: int, keys: numpy.typing.NDArray[numpy.uint64], shuffle: bool, slot_starts: numpy.typing.NDArray[numpy.int64], shifts: numpy.typing.NDArray[numpy.int64], bucket_slots: numpy.typing.NDArray[numpy.int32], bucket_bits: int, first_slot: int) -> None: ...

    def locate(self, position: numpy.typing.NDArray[numpy.int64], slot: numpy.typing.NDArray[numpy.int64], row: numpy.typing.NDArray[numpy.int64]) -> None:
        """
        Write slot, counted from the window's first, and row of each position. Shape [B] each.
        """

    def locate_range(self, first: int, slot: numpy.typing.NDArray[numpy.int64], row: numpy.typing.NDArray[numpy.int64]) -> None:
        """
        Write the same for consecutive positions from `first` on, as many as there is room for.
        """

class Draws:
    """The draws of one epoch by integer weights, chunk by chunk."""

    def __init__(self, cumulated: numpy.typing.NDArray[numpy.int64], chunk_starts: numpy.typing.NDArray[numpy.int64], chunk_draws: numpy.typing.NDArray[numpy.int64], shift: int, key: int) -> None: ...

    def rows(self, chunk: numpy.typing.NDArray[numpy.int64], draw: numpy.typing.NDArray[numpy.int64], out: numpy.typing.NDArray[numpy.int64]) -> None:
        """Write the row of its chunk that each draw takes. Shape [B] each."""

class TraceScanner:
    """Reads a Chrome trace, a row of integers an event."""

    def __init__(self) -> None: ...

    def feed(self, block: numpy.typing.NDArray[numpy.uint8], is_last: bool) -> bytes:
        """
        Take the next bytes of a file; return the rows of the events that end in them: int64 [N, NUM_COLUMNS].
        """

    def texts_from(self, first: int) -> list[bytes]:
        """Return the texts from number `first` on, in UTF-8."""

    @property
    def header(self) -> dict[str, bytes]:
        """JSON of the members beside the events that are of use."""

    @property
    def is_none(self) -> bool:
        """Whether what begins the file is no JSON object or array."""

    @property
    def has_begun(self) -> bool:
        """Whether there was anything but white space."""

    @property
    def has_events(self) -> bool:
        """Whether the array of events was found."""

    @property
    def has_end(self) -> bool:
        """
        Whether all was read up to the end; that of a bare array is optional, for writers that cannot end cleanly.
        """

    @property
    def num_damaged(self) -> int:
        """Events that made no sense."""

    @property
    def num_beyond(self) -> int:
        """Events whose time is too large for microseconds."""

    NUM_COLUMNS: int = 14

    MISSING: int = -9223372036854775808

    TEXT: int = 4611686018427387904

class ChunkMap:
    """A chunk's file in memory, for as long as anything refers to it."""

    def __init__(self, fd: int, num_bytes: int) -> None:
        """Map a file that is open for reading. OSError where the system refuses."""

    @property
    def num_bytes(self) -> int:
        """Of the file."""

    @property
    def is_mapped(self) -> bool:
        """Whether it is the page cache, not memory that it was read into."""

    def view(self) -> memoryview:
        """Return its bytes, as long as it lives."""

def unmap(maps: list[ChunkMap]) -> None:
    """Let go of maps, which must not be used any more, in one go."""

class WindowMemory:
    """Memory that windows are read into, one after the other."""

    def __init__(self) -> None: ...

    def rest(self) -> None:
        """
        Say that a window needed none: after many in a row, the system gets it back.
        """

    def clear(self) -> None:
        """Give the system back what is not in use."""

    @property
    def num_free(self) -> int:
        """Memories that wait to be used again."""

def read_chunks(files: Sequence[tuple[int, int]], memory: WindowMemory, waits: bool) -> list[ChunkMap]:
    """
    Read files, given by descriptor and bytes, by several threads, and return them in memory. `waits`: for
    moments, where as much memory as is wanted at one time is in use. OSError: the disk failed, or a file is
    shorter than it was.
    """

class TableLayout:
    """What the rows of one table are: the arrays that each chunk has of it."""

    def __init__(self, record_bytes: int) -> None:
        """Records are an array, if they have any bytes."""

    def add_strips(self, value_bytes: Sequence[int]) -> None:
        """
        Add fields whose lists lie side by side: arrays of places and of strips.
        """

    def add_field(self, value_bytes: int, is_nested: bool) -> None:
        """
        Add a ragged field that lies alone: arrays of offsets, of inner offsets where it is nested, of values.
        """

class WindowChunks:
    """The chunks of a window, and where the rows of its tables lie."""

    def __init__(self, chunks: Sequence[ChunkMap], places: numpy.typing.NDArray[numpy.int64], tables: Sequence[TableLayout]) -> None:
        """
        Of K chunks: first byte and bytes of each array in its file, in the order of the tables. [K, A, 2].
        ValueError where an array does not lie there, or has another number of rows than its table.
        """

    @property
    def num_slots(self) -> int:
        """K."""

    @property
    def num_mapped(self) -> int:
        """How many of the chunks are mapped; the others were read."""

    def is_in_memory(self) -> bool:
        """
        Return whether its pages lie in memory, as far as a look at a few of them tells.
        """

    def enter(self, most_bytes: int) -> bool:
        """
        Enter pages of chunks that nobody has entered, and return whether all are now.
        """

    def records(self, slot: int) -> memoryview:
        """
        Return the records of the samples of a chunk, as long as the window is open.
        """

    def close(self) -> None:
        """
        Let go of the chunks; whoever gathers from them has them still. Harmless when called again.
        """

def cached_bytes(fd: int, num_bytes: int) -> int:
    """
    Return how many bytes of a file lie in the page cache; all, where the system does not tell.
    """

def bring_in(fd: int, offset: int, num_bytes: int) -> None:
    """
    Read a part of a file into the page cache by huge pages, where the system has such; else do nothing.
    """
