"""What a counting pass found, as a few arrays: kept in one file, mapped when it is there and whole.

┆ magic ┆ digest of all that follows ┆ header bytes ┆ header: JSON ┆ pad ┆ array ┆ pad ┆ array ...
  8       16                           8                                each at a multiple of 64
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stoker.fields.offsets import Int64
from stoker.storage.files import write_aside

# Raise it when the same rows and the same question give other arrays.
FORMAT_VERSION = 1

_log = logging.getLogger("stoker")
_MAGIC = b"STKUNT01"
_ALIGN = 64
_PREFIX = len(_MAGIC) + 16 + 8
_DTYPES = {"int64": np.dtype("<i8")}


@dataclass(frozen=True, kw_only=True)
class Index:
    """The units of a data set. K is the number of its fragments.

    Attributes:
        row_starts: Where each fragment's rows begin among all that pass, and the end. Shape [K + 1].
        arrays: What else finds the rows of a unit; which arrays, the kind of unit says.
        numbers: What was counted on the way, for reports.
    """

    row_starts: Int64
    arrays: Mapping[str, Int64] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)


def keep_index(path: Path, index: Index) -> None:
    """Write `index` to one file; a disk that does not take it is a warning."""
    arrays = {"row_starts": index.row_starts, **index.arrays}
    described = []
    end = 0
    for name, array in arrays.items():
        described.append({"name": name, "dtype": "int64", "length": len(array), "offset": end})
        end = _aligned(end + array.nbytes)
    header = json.dumps({"numbers": dict(index.numbers), "arrays": described}, sort_keys=True).encode()
    start = _aligned(_PREFIX + len(header))

    def pieces() -> list[bytes | memoryview]:
        found: list[bytes | memoryview] = [len(header).to_bytes(8, "little"), header]
        found.append(bytes(start - _PREFIX - len(header)))
        for array in arrays.values():
            stored = np.ascontiguousarray(array, dtype=_DTYPES["int64"])
            found += [stored.data.cast("B") if stored.size else b"", bytes(_aligned(stored.nbytes) - stored.nbytes)]
        return found

    def write(draft: Path) -> None:
        digest = hashlib.blake2b(digest_size=16)
        with draft.open("wb") as file:
            file.write(bytes(_PREFIX - 8))
            for piece in pieces():
                digest.update(piece)
                file.write(piece)
            file.seek(0)
            file.write(_MAGIC + digest.digest())

    write_aside(path, write)


def kept_index(path: Path) -> Index | None:
    """Return what `keep_index` wrote, mapped; None where nothing is kept, or what is kept is damaged."""
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # ValueError: an empty file
        _log.warning("the kept units %s cannot be read (%s): they are counted again", path, error)
        return None
    view = memoryview(content)
    is_sound = view[:8] == _MAGIC and view[8:24] == hashlib.blake2b(view[24:], digest_size=16).digest()
    if not is_sound:
        view.release()
        content.close()
        _log.warning("the kept units %s are damaged: they are counted again", path)
        return None
    length = int.from_bytes(view[24:32], "little")
    header = json.loads(bytes(view[_PREFIX : _PREFIX + length]))
    start = _aligned(_PREFIX + length)
    arrays = {
        one["name"]: np.frombuffer(view, _DTYPES[one["dtype"]], one["length"], start + one["offset"])
        if one["length"]
        else np.empty(0, np.int64)
        for one in header["arrays"]
    }
    return Index(row_starts=arrays.pop("row_starts"), arrays=arrays, numbers=header["numbers"])


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGN) * _ALIGN
