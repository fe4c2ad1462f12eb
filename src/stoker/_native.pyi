"""Stoker's native core: plain data in, plain data out."""

from collections.abc import Iterator

import numpy
import numpy.typing


class Draws:
    """The draws of one epoch by integer weights, chunk by chunk."""

    def __init__(self, cumulated: numpy.typing.NDArray[numpy.int64], chunk_starts: numpy.typing.NDArray[numpy.int64], chunk_draws: numpy.typing.NDArray[numpy.int64], shift: int, key: int) -> None: ...

    def rows(self, chunk: numpy.typing.NDArray[numpy.int64], draw: numpy.typing.NDArray[numpy.int64], out: numpy.typing.NDArray[numpy.int64]) -> None:
        """Write the row of its chunk that each draw takes. Shape [B] each."""

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

    def __init__(self, *, start: int, stop: int, key: int, shuffle: bool, slot_starts: numpy.typing.NDArray[numpy.int64], shifts: numpy.typing.NDArray[numpy.int64], guide: numpy.typing.NDArray[numpy.int32], guide_shift: int, first_slot: int) -> None: ...

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...

    def locate(self, position: numpy.typing.NDArray[numpy.int64], slot: numpy.typing.NDArray[numpy.int64], row: numpy.typing.NDArray[numpy.int64]) -> None:
        """
        Write slot, counted from the window's first, and row of each position. Shape [B] each.
        """

    def locate_range(self, first: int, slot: numpy.typing.NDArray[numpy.int64], row: numpy.typing.NDArray[numpy.int64]) -> None:
        """
        Write the same for consecutive positions from `first` on, as many as there is room for.
        """

    def __iter__(self) -> Iterator[object]:
        """
        What numba's loops of gathering take, until they are native themselves.
        """
