"""What an order is made of, as a saved state tells it: enough to know old files from new ones and to name what differs.

one file     ┆ hash of its name below the root ┆ hash of the samples of each of its chunks ┆
               5 bytes                           3

Where the files lie, when they were written and what a chunk is made of are no part of it: the same files elsewhere, or
the same rows with other columns, have the same order.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stoker.errors import ResumeError
from stoker.fields.offsets import Int64, UInt64
from stoker.hashing import fingerprint
from stoker.words import count_text, some_of

_NAME_BYTES, _LAYOUT_BYTES = 5, 3
_LAYOUT_BITS = np.uint64(8 * _LAYOUT_BYTES)
# Above that a state says how many files there are, but not which: 11 letters a file are 1.1 MB.
MAX_FILES = 100_000
# Names of files that a message shows.
_NUM_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What the order of one data set is made of.

    Attributes:
        fingerprint: Of all of it.
        filter: The filter, as text that differs where filters do; None where there is none.
        draws: What stands for the weights that samples are drawn by; None where they are not.
        num_files: Files with samples.
        num_samples: What the order counts of it.
        files: The files' entries in base64, in their fixed order; None above `MAX_FILES`.
        segments: Where files were added to the epoch under way: a byte for each file, in base64, with the number of the
            segment that it came with; None where all were there from the beginning.
        segment_sizes: What the order counts of each segment; empty where there is one.
    """

    fingerprint: str
    filter: str | None
    draws: str | None
    num_files: int
    num_samples: int
    files: str | None
    segments: str | None = None
    segment_sizes: tuple[int, ...] = ()

    def check(self) -> None:
        """Raise where what was read from a state contradicts itself.

        Raises:
            ValueError: It does.
        """
        num_files = self.num_files if self.files is None else len(_entries_of(self.files))
        # As many as are written down: the number that the state says may be anything.
        segments, sizes = None if self.segments is None else _decoded(self.segments), self.sizes
        is_told = not self.segment_sizes if segments is None else self.segment_sizes and len(segments) == num_files
        is_sound = num_files == self.num_files >= 0 and (num_files or not self.num_samples)
        is_counted = max(segments or b"", default=0) + 1 == len(sizes) and sum(sizes) == self.num_samples < 1 << 63
        if not (is_told and is_sound and is_counted and min(sizes) >= 0):
            raise ValueError("num_files, files and segments of a data set do not go together")

    @property
    def sizes(self) -> tuple[int, ...]:
        """What the order counts of each segment: at least one."""
        return self.segment_sizes or (self.num_samples,)

    def whole(self) -> Contents:
        """Return the same with all files as one."""
        return replace(self, segments=None, segment_sizes=())

    @property
    def file_segments(self) -> npt.NDArray[np.uint8]:
        """Number of the segment that each file came with. Shape [F]."""
        if self.segments is None:
            return np.zeros(self.num_files, np.uint8)
        return np.frombuffer(_decoded(self.segments), np.uint8)

    def grown(self, before: Contents, place: Int64) -> Contents:
        """Return the same with segments: those that an earlier state knows, and one more for the files that are new.

        Args:
            before: What the state says.
            place: Where in its list each file stands, -1 where it does not. Shape [F].

        Raises:
            ResumeError: There are more segments than a byte can number, or the state counts other samples.
        """
        known, more, is_new = before.file_segments, self.num_samples - sum(before.sizes), bool((place < 0).any())
        number = int(known.max(initial=0)) + 1 if len(known) else 0
        numbers = np.append(known.astype(np.int64), number)[place]  # -1 is the last one
        if not numbers.any():
            return self.whole()
        if numbers.max() > np.iinfo(np.uint8).max or more < 0 or (more and not is_new):
            what = "files were added to its epoch 255 times already, or it counts other samples of its files"
            raise ResumeError(f"the saved position goes no further: {what}", saved=before.sizes, current=self.sizes)
        text = base64.b64encode(numbers.astype(np.uint8).tobytes()).decode()
        return replace(self, segments=text, segment_sizes=(*before.sizes, *((more,) if is_new else ())))


@dataclass(frozen=True)
class OpenFiles:
    """The files of a data set that is open, to be compared with those of a saved one. Picklable.

    Args:
        root: Folder that names are told below, with its slash.
        names: Of the files that have samples, below the root, in their fixed order.
        layouts: Hash of the samples of each file's chunks. Shape [F].
    """

    root: str
    names: tuple[str, ...]
    layouts: UInt64

    @cached_property
    def entries(self) -> UInt64:
        """What stands for each file. Shape [F]."""
        return _entries(self.names, self.layouts)

    def entries_below(self) -> Iterator[tuple[Sequence[int], UInt64]]:
        """Yield which files lie below some other root, and their entries with names as they are below that one.

        Folders that the data set was, before it was made of several of them, or of a part of one.
        """
        parts = self.root.rstrip("/").split("/")
        for i in reversed(range(len(parts))):
            above = "/".join(parts[i:]) + "/"
            yield range(len(self.names)), _entries([above + name for name in self.names], self.layouts)
        inside: dict[str, list[int]] = {}
        for number, name in enumerate(self.names):
            at = name.find("/")
            while at >= 0:
                inside.setdefault(name[: at + 1], []).append(number)
                at = name.find("/", at + 1)
        for folder, numbers in inside.items():
            yield numbers, _entries([self.names[i][len(folder) :] for i in numbers], self.layouts[numbers])


def describe(files: OpenFiles, *, filter: str | None, draws: str | None, num_samples: int) -> Contents:  # noqa: A002
    """Return what the order of a data set is made of; see `Contents`."""
    entries = files.entries.astype("<u8").tobytes()
    digest = hashlib.blake2b(entries, digest_size=16).hexdigest()
    return Contents(
        fingerprint=fingerprint("order", {"files": digest, "filter": filter, "draws": draws}),
        filter=filter,
        draws=draws,
        num_files=len(files.names),
        num_samples=num_samples,
        files=base64.b64encode(entries).decode() if len(files.names) <= MAX_FILES else None,
    )


def layouts_of(samples: Sequence[Int64]) -> UInt64:
    """Return a hash of the samples of each file's chunks; chunks without any do not count. Shape [F]."""
    texts = [counts.astype("<i8").tobytes() for counts in samples]
    known = {text: _hashed(text, _LAYOUT_BYTES) for text in set(texts)}
    return np.array([known[text] for text in texts], np.uint64)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The files of a data set that is open beside those that a state knows.

    Attributes:
        place: Where in the state's list each file stands, -1 where it does not. Shape [F].
        added: Names of files that the state does not know.
        changed: Names of files whose chunks have other samples now.
        num_gone: How many files of the state are there no more.
        is_in_order: Whether those that both know stand in the same order.
    """

    place: Int64
    added: tuple[str, ...]
    changed: tuple[str, ...]
    num_gone: int
    is_in_order: bool

    @property
    def is_same(self) -> bool:
        """Whether they are the same files."""
        return self.only_grew and not self.added

    @property
    def only_grew(self) -> bool:
        """Whether every file that the state knows is there as it was."""
        return not self.changed and not self.num_gone and self.is_in_order

    def differences(self) -> list[str]:
        """Return what differs, in words."""
        found = [f"{count_text(len(self.added), 'file')} more: {some_of(self.added, _NUM_SHOWN)}"] if self.added else []
        if self.num_gone:
            found.append(f"{count_text(self.num_gone, 'file')} fewer")
        if self.changed:
            found.append(
                f"{count_text(len(self.changed), 'file')} cut into chunks of other numbers of samples, because of "
                f"other rows, row groups, columns or chunk_size: {some_of(self.changed, _NUM_SHOWN)}"
            )
        return found if self.is_in_order else [*found, "the files stand in another order"]


def compare(saved: Contents, now: Contents, files: OpenFiles) -> Comparison | None:
    """Return how the files of a data set differ from those that a state knows; None where it does not name them."""
    if saved.fingerprint == now.fingerprint and saved.num_files == now.num_files:
        return Comparison(place=np.arange(now.num_files), added=(), changed=(), num_gone=0, is_in_order=True)
    if saved.files is None:
        return None
    known, entries = _entries_of(saved.files), files.entries
    by_name: dict[int, int] = {}
    for number, name in enumerate((known >> _LAYOUT_BITS).tolist()):
        by_name.setdefault(name, number)

    def places(entries: UInt64) -> Int64:
        return np.array([by_name.get(name, -1) for name in (entries >> _LAYOUT_BITS).tolist()], np.int64)

    place = places(entries)
    if (place < 0).all():  # told below another root, perhaps
        for inside, others in files.entries_below():
            found = places(others)
            if (found >= 0).sum() > (place >= 0).sum():
                place, entries = np.full_like(place, -1), np.zeros_like(entries)
                place[inside], entries[inside] = found, others
    there = np.flatnonzero(place >= 0)
    return Comparison(
        place=place,
        added=tuple(files.names[i] for i in np.flatnonzero(place < 0)),
        changed=tuple(files.names[i] for i in there[known[place[there]] != entries[there]]),
        num_gone=len(known) - len(np.unique(place[there])),
        is_in_order=bool((np.diff(place[there]) > 0).all()),
    )


def _entries(names: Sequence[str], layouts: UInt64) -> UInt64:
    hashes = np.array([_hashed(name.encode("utf-8", "surrogateescape"), _NAME_BYTES) for name in names], np.uint64)
    return hashes << _LAYOUT_BITS | layouts


def _entries_of(text: str) -> UInt64:
    """Return the entries that a state holds. Shape [F]."""
    content = _decoded(text)
    if len(content) % (_NAME_BYTES + _LAYOUT_BYTES):
        raise ValueError(f"the list of files has not {_NAME_BYTES + _LAYOUT_BYTES} bytes a file")
    return np.frombuffer(content, "<u8")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"this is no base64: {text[:20]!r}") from error


def _hashed(content: bytes, num_bytes: int) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=num_bytes).digest(), "little")
