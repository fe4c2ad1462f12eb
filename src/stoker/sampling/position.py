"""All that must be saved to go on: which order, which epoch, how many samples of it are consumed, and of what.

Of the files a state tells enough to know old ones from new ones and to name what differs:

one file     ┆ hash of its name below the root ┆ hash of the samples of each of its chunks ┆
               5 bytes                           3

Where the files lie, when they were written and what a chunk is made of are no part of it: the same files elsewhere, or
the same rows with other columns, have the same order.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from fractions import Fraction
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from stoker.errors import ResumeError
from stoker.fields.offsets import Int64, UInt64
from stoker.hashing import ORDER_VERSION, fingerprint
from stoker.host.forks import cached_property
from stoker.sampling.epoch import shares
from stoker.sampling.mixture import Leg, MixtureOrder, Until
from stoker.sampling.steps import Remainder, Steps
from stoker.words import count_text, some_of

# The state's own format, not the order's.
FORMAT_VERSION = 2

ROWS = "rows"

_NAME_BYTES, _LAYOUT_BYTES = 5, 3
_LAYOUT_BITS = np.uint64(8 * _LAYOUT_BYTES)
# Above that a state says how many files there are, but not which: 11 letters a file are 1.1 MB.
MAX_FILES = 100_000
# Names of files that a message shows.
_NUM_SHOWN = 3

_WORDS = {
    "order_version": "the order version",
    "seed": "the seed",
    "shuffle": "shuffle",
    "window": "the window",
    "lanes": "the number of lanes",
    "units": "what is counted",
}


@dataclass(frozen=True)
class Mixing:
    """How a mixture was made of its data sets."""

    names: tuple[str, ...]
    weights: tuple[str, ...] | None  # as fractions of 1; None where each sample comes once
    until: Until | None  # None where it means nothing


@dataclass(frozen=True, kw_only=True)
class Position:
    """A place in the global order, the same on every rank.

    World size, batch size, remainder, threads and cache are no part of it: they may change between save and load. So
    may where the files lie, the columns and what is made of them.

    Raises:
        ValueError: `epoch` or `num_consumed` is negative, or `window` or `lanes` below 1.
    """

    datasets: tuple[Contents, ...]
    mixture: Mixing | None = None  # None for one data set, which stands alone
    seed: int
    shuffle: bool
    window: int | None
    lanes: int = 1
    order_version: str = ORDER_VERSION
    units: str = ROWS  # what the order counts, and `num_consumed` with it
    epoch: int = 0  # that comes next or is under way
    num_consumed: int = 0  # samples of it that were handed over, over all ranks
    leg: Leg | None = None  # where a mixture went on by other weights or over other files

    def __post_init__(self) -> None:
        for name, least in {"epoch": 0, "num_consumed": 0, "window": 1, "lanes": 1}.items():
            value = getattr(self, name)
            if value is not None and not least <= value < 1 << 63:
                raise ValueError(f"{name} must be {least} at least, and need no more than 63 bits, got {value}")

    @property
    def fingerprint(self) -> str:
        """A hash of the data sets and of how they are mixed."""
        return fingerprint_of(self.datasets, self.mixture)

    def to_json(self) -> dict[str, object]:
        """Return the position as JSON can write it: under 1 kB, and 11 bytes a file."""
        return {"format_version": FORMAT_VERSION, "fingerprint": self.fingerprint, **to_json(self)}

    @classmethod
    def from_json(cls, data: object) -> Position:
        """Return the position that `to_json` wrote.

        Raises:
            ResumeError: It was written by a newer Stoker, or by something else.
        """
        if not isinstance(data, Mapping):
            hint = "; it is JSON text: json.loads makes it one" if isinstance(data, str | bytes) else ""
            what = f"a saved position is the dict that state_dict() returned, not {type(data).__name__}{hint}"
            raise ResumeError(what, saved=data, current=FORMAT_VERSION)
        version = data.get("format_version")
        if version is None:
            names = sorted(map(str, data))
            listed = f"{', '.join(names[:6])}{', ...' * (len(names) > 6)}" if names else "nothing at all"
            what = f"this is no saved position of a loader: it has no 'format_version', but {listed}"
            raise ResumeError(what, saved=dict(data), current=FORMAT_VERSION)
        if version != FORMAT_VERSION:
            raise ResumeError(
                f"the saved position has format {version!r}, and this Stoker reads format {FORMAT_VERSION}: load it "
                "with the version of Stoker that saved it",
                saved=version,
                current=FORMAT_VERSION,
            )
        given = {name: value for name, value in data.items() if name not in ("format_version", "fingerprint")}
        try:
            found: Position = from_json(cls, given, "")
            for one in found.datasets:
                one.check()
            mixing, leg = found.mixture, found.leg
            weights = None if mixing is None else mixing.weights
            if not set("".join(weights or ())) <= set("0123456789/"):  # such as "1e999999999", worked out for ever
                raise ValueError(f"mixture.weights is {weights!r}")
            num = 1 if mixing is None else len(mixing.names)
            if mixing is not None and len(set(mixing.names)) < num:
                raise ValueError(f"mixture.names has a name twice: {', '.join(mixing.names)}")
            of_each: list[tuple[object, ...] | None] = [found.datasets, weights]
            of_each += [] if leg is None else [leg.given, leg.streams]
            if not num or any(one is not None and len(one) != num for one in of_each):
                raise ValueError(f"it tells of {len(found.datasets)} data sets, and in parts of others")
        except ValueError as error:
            what = f"the saved position is not sound: {error}"
            raise ResumeError(what, saved=dict(data), current=[one.name for one in fields(cls)]) from error
        return found

    @property
    def has_grown(self) -> bool:
        """Whether files were added to the epoch under way."""
        return any(one.segments is not None for one in self.datasets)

    def differences(self, current: Position) -> dict[str, str]:
        """Return which of the settings that decide the order differ from those of `current`, and how, in words.

        Without shuffling the window decides nothing and may differ.
        """
        return {
            name: f"{words} was {getattr(self, name)!r} and is {getattr(current, name)!r}"
            for name, words in _WORDS.items()
            if getattr(self, name) != getattr(current, name)
            and not (name == "window" and not self.shuffle and not current.shuffle)
        }

    def at(self, epoch: int) -> Position:
        """Return the beginning of an epoch that is not under way: all files as one, whenever they were added."""
        # The data sets of a mixture go on with epochs of their own.
        datasets = self.datasets if self.mixture is not None else tuple(one.whole() for one in self.datasets)
        return replace(self, datasets=datasets, epoch=epoch).again()

    def again(self) -> Position:
        """Return the beginning of the epoch under way, or of its leg: what came before that is not known any more."""
        leg = self.leg
        return replace(self, num_consumed=leg.start if leg is not None and leg.epoch == self.epoch else 0)

    def steps(self, *, global_batch_size: int, remainder: Remainder) -> Steps:
        """Return the steps from here to the end of the epoch, if there may be such; see `Steps`."""
        if self.mixture is None:
            lane_sizes = tuple(sum(sizes) for sizes in zip(*shares(self.datasets[0].sizes, self.lanes), strict=True))
        else:
            lane_sizes = self.mixture_order().lane_sizes_in(self.epoch)
        return Steps(
            lane_sizes=lane_sizes,
            global_batch_size=global_batch_size,
            remainder=remainder,
            start=self.num_consumed,
            first=self.again().num_consumed,
        )

    def mixture_order(self) -> MixtureOrder:
        """Return which data set gives the sample at each position, as far as their sizes alone decide it."""
        mixing = self.mixture
        assert mixing is not None
        return MixtureOrder(
            [[one.num_samples] for one in self.datasets],
            names=mixing.names,
            weights=None if mixing.weights is None else [Fraction(weight) for weight in mixing.weights],
            until=mixing.until or "first",
            shuffle=self.shuffle,
            seed=self.seed,
            window=None,
            lanes=self.lanes,
        ).going_on(self.leg)

    def after(self, step: int, steps: Steps) -> Position:
        """Return the position once `step` of `steps` is handed over: after the last one, the next epoch's beginning."""
        if step + 1 == steps.num_steps:
            return self.at(self.epoch + 1)
        return replace(self, num_consumed=steps.consumed_before(step + 1))

    def settled(self, steps: Steps) -> Position:
        """Return where the next batch comes from: here, or in the next epoch if no step is left of one under way.

        That is so where a remainder is dropped and the batch has grown since the position was saved.
        """
        return self.at(self.epoch + 1) if self.num_consumed and not steps.num_steps else self


def fingerprint_of(datasets: Sequence[Contents], mixing: Mixing | None) -> str:
    """Return what tells the order of these data sets, mixed in this way, from all others."""
    if mixing is None:
        return datasets[0].fingerprint
    return fingerprint("mixture", {"parts": [one.fingerprint for one in datasets], **to_json(mixing)})


def to_json(value: Any) -> Any:
    """Return dataclasses as dicts and tuples as lists."""
    if is_dataclass(value):
        return {one.name: to_json(getattr(value, one.name)) for one in fields(value)}
    return [to_json(one) for one in value] if isinstance(value, tuple) else value


def from_json(kind: Any, data: Any, place: str) -> Any:
    """Return what `to_json` made of a value of a type, if it is that to the last name: a bool is no number.

    Raises:
        ValueError: It is something else; the message says at which place in the whole.
    """
    args, origin = get_args(kind), get_origin(kind)
    if origin in (Union, UnionType):  # with None
        return None if data is None else from_json(args[0], data, place)
    if is_dataclass(kind) and isinstance(data, Mapping):
        kinds, inside = get_type_hints(kind), f"{place}." if place else ""
        differ = [f"{inside}{name} is missing" for name in sorted(kinds.keys() - data.keys())]
        differ += [f"{inside}{name} is not known" for name in sorted(map(str, data.keys() - kinds.keys()))]
        if differ:
            raise ValueError(", ".join(differ))
        values = {name: from_json(one, data[name], f"{inside}{name}") for name, one in kinds.items()}
        return kind(**values)  # type: ignore[operator]
    if origin is tuple and isinstance(data, list | tuple):
        kinds_of = args[:1] * len(data) if args[-1] is Ellipsis else args
        if len(kinds_of) == len(data):
            return tuple(from_json(one, data[i], f"{place}[{i}]") for i, one in enumerate(kinds_of))
    elif data in args if origin is Literal else type(data) is kind:
        return data
    raise ValueError(f"{place} is {data!r}")


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What the order of one data set is made of.

    Where files were added to the epoch under way, they came with segments: each file has the number of its segment.
    """

    fingerprint: str
    filter: str | None  # as text that differs where filters do
    draws: str | None  # what stands for the weights that samples are drawn by
    num_files: int  # with samples
    num_samples: int  # what the order counts of it
    files: str | None  # their entries in base64, in their fixed order; None above `MAX_FILES`
    segments: str | None = None  # a byte for each file in base64; None where all were there from the beginning
    segment_sizes: tuple[int, ...] = ()  # what the order counts of each; empty where there is one

    def check(self) -> None:
        """Raise a ValueError where what was read from a state contradicts itself."""
        num_files = self.num_files if self.files is None else len(_entries_of(self.files))
        # As many as are written down: the number that the state says may be anything.
        segments, sizes = None if self.segments is None else _decoded(self.segments), self.sizes
        is_told = not self.segment_sizes if segments is None else self.segment_sizes and len(segments) == num_files
        is_sound = num_files == self.num_files >= 0 and (num_files or not self.num_samples)
        is_counted = {*(segments or b"\0")} == {*range(len(sizes))} and sum(sizes) == self.num_samples < 1 << 63
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

    def grown(self, before: Contents, found: Comparison) -> Contents:
        """Return the same with segments: those that an earlier state knows, and one more for the files that are new.

        Raises:
            ResumeError: There are more segments than a byte can number, or the state counts other samples.
        """
        known = before.file_segments
        number = int(known.max(initial=0)) + 1 if len(known) else 0
        numbers = np.append(known.astype(np.int64), number)[found.place]  # -1 is the last one
        if not numbers.any():
            return self.whole()
        sizes = tuple(int(found.counts[numbers == i].sum()) for i in range(int(numbers.max()) + 1))
        why = None
        if len(sizes) > 1 << 8:
            why = "goes no further: files were added to its epoch 255 times already"
        elif sizes[: len(before.sizes)] != before.sizes:
            why = f"is not sound: its segments have {before.sizes} samples, and the files that came with them {sizes}"
        if why is not None:
            raise ResumeError(f"the saved position {why}", saved=before.sizes, current=sizes)
        text = base64.b64encode(numbers.astype(np.uint8).tobytes()).decode()
        return replace(self, segments=text, segment_sizes=sizes)


@dataclass(frozen=True)
class OpenFiles:
    """The files of a data set that is open, to be compared with those of a saved one. Picklable."""

    root: str  # folder that names are told below, with its slash
    names: tuple[str, ...]  # of those that have samples, in their fixed order
    layouts: UInt64  # hash of the samples of each file's chunks: [F]
    counts: Int64  # what the order counts of each file: [F]

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


def describe(files: OpenFiles, *, filter: str | None, draws: str | None) -> Contents:  # noqa: A002
    """Return what the order of a data set is made of; see `Contents`."""
    entries = files.entries.astype("<u8").tobytes()
    digest = hashlib.blake2b(entries, digest_size=16).hexdigest()
    return Contents(
        fingerprint=fingerprint("order", {"files": digest, "filter": filter, "draws": draws}),
        filter=filter,
        draws=draws,
        num_files=len(files.names),
        num_samples=int(files.counts.sum()),
        files=base64.b64encode(entries).decode() if len(files.names) <= MAX_FILES else None,
    )


def layouts_of(samples: Sequence[Int64]) -> UInt64:
    """Return a hash of the samples of each file's chunks; chunks without any do not count. Shape [F]."""
    texts = [counts.astype("<i8").tobytes() for counts in samples]
    known = {text: _hashed(text, _LAYOUT_BYTES) for text in set(texts)}
    return np.array([known[text] for text in texts], np.uint64)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The files of a data set that is open beside those that a state knows."""

    place: Int64  # where in the state's list each file stands, -1 where it does not: [F]
    counts: Int64  # what the order counts of each file: [F]
    added: tuple[str, ...]  # names of files that the state does not know
    changed: tuple[str, ...]  # of those whose chunks have other samples now
    num_gone: int  # how many files of the state are there no more
    is_in_order: bool  # whether those that both know stand in the same order

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
        place = np.arange(now.num_files)
        return Comparison(place=place, counts=files.counts, added=(), changed=(), num_gone=0, is_in_order=True)
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
        counts=files.counts,
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
