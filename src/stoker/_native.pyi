"""Stoker's native core: plain data in, plain data out."""

import numpy
import numpy.typing


def permute(index: numpy.typing.NDArray[numpy.int64], start: int, size: int, key: int, out: numpy.typing.NDArray[numpy.int64]) -> None:
    """
    Write where each index goes among `size` values; both count from `start`.
    """
