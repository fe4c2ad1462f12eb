"""All that must be saved to go on: which order, which epoch, how many samples of it are consumed, and of what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, fields, is_dataclass, replace
from fractions import Fraction
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from stoker.errors import ResumeError
from stoker.hashing import ORDER_VERSION, fingerprint
from stoker.sampling.contents import Contents
from stoker.sampling.epoch import shares
from stoker.sampling.mixture import Leg, MixtureOrder, Until
from stoker.sampling.steps import Remainder, Steps

# The state's own format, not the order's.
FORMAT_VERSION = 2

# What is counted unless told.
ROWS = "rows"

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
    """How a mixture was made of its data sets.

    Attributes:
        names: Of the data sets, in their order.
        weights: Share of each, as a fraction of 1; None where each sample comes once.
        until: Which data set ends an epoch; None where that means nothing.
    """

    names: tuple[str, ...]
    weights: tuple[str, ...] | None
    until: Until | None


@dataclass(frozen=True, kw_only=True)
class Position:
    """A place in the global order, the same on every rank.

    World size, batch size, remainder, threads and cache are no part of it: they may change between save and load. So
    may where the files lie, the columns and what is made of them.

    Args:
        datasets: What the order of each data set is made of.
        mixture: How they are mixed; None for one that stands alone.
        seed: Of the order.
        shuffle: Whether epochs are permuted.
        window: Chunks that are mixed together; None for all.
        lanes: How many lanes.
        order_version: Of the arithmetic in this package.
        units: What the order counts, and `num_consumed` with it: "rows", or a text that stands for another unit.
        epoch: The epoch that comes next or is under way.
        num_consumed: Samples of that epoch that were handed over, over all ranks.
        leg: Where a mixture went on by other weights or over other files, if it did.

    Raises:
        ValueError: `epoch` or `num_consumed` is negative, or `window` or `lanes` below 1.
    """

    datasets: tuple[Contents, ...]
    mixture: Mixing | None = None
    seed: int
    shuffle: bool
    window: int | None
    lanes: int = 1
    order_version: str = ORDER_VERSION
    units: str = ROWS
    epoch: int = 0
    num_consumed: int = 0
    leg: Leg | None = None

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
            of_each: list[Sized] = [found.datasets]
            if mixing is not None and mixing.weights is not None:
                of_each.append(mixing.weights)
                if not set("".join(mixing.weights)) <= set("0123456789/"):  # such as "1e999999999", worked out for ever
                    raise ValueError(f"mixture.weights is {mixing.weights!r}")
            if leg is not None:
                of_each += [leg.given, leg.streams]
            num = 1 if mixing is None else len(mixing.names)
            if not num or any(len(one) != num for one in of_each):
                raise ValueError(f"it tells of {len(found.datasets)} data sets, and in parts of others")
        except ValueError as error:
            what = f"the saved position is not sound: {error}"
            raise ResumeError(what, saved=dict(data), current=[one.name for one in fields(cls)]) from error
        return found

    @property
    def has_grown(self) -> bool:
        """Whether files were added to the epoch under way."""
        return any(one.segments is not None for one in self.datasets)

    @property
    def is_special(self) -> bool:
        """Whether its order is another one than that of a loader which is made anew."""
        return self.has_grown or self.leg is not None

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

    def next_epoch(self) -> Position:
        """Return the beginning of the next epoch: all files as one, whenever they were added."""
        return self.at(self.epoch + 1)

    def at(self, epoch: int) -> Position:
        """Return the beginning of an epoch that is not under way."""
        # The data sets of a mixture go on with epochs of their own.
        datasets = self.datasets if self.mixture is not None else tuple(one.whole() for one in self.datasets)
        return replace(self, datasets=datasets, epoch=epoch).again()

    def again(self) -> Position:
        """Return the beginning of the epoch under way, or of its leg: what came before that is not known any more."""
        is_in_leg = self.leg is not None and self.leg.epoch == self.epoch
        return replace(self, num_consumed=self.leg.start if self.leg is not None and is_in_leg else 0)

    def steps(self, *, global_batch_size: int, remainder: Remainder) -> Steps:
        """Return the steps from here to the end of the epoch.

        Raises:
            ValueError: As `Steps` says.
        """
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
        """Return the position once `step` of `steps` is handed over: after the last one, the next epoch's beginning.

        Raises:
            ValueError: `step` is none of `steps`, or `steps` begin before this position.
        """
        consumed = steps.consumed_before(step + 1)
        if consumed < self.num_consumed:
            raise ValueError(f"after step {step} {consumed} samples are consumed: fewer than {self.num_consumed}")
        return self.next_epoch() if step + 1 == steps.num_steps else replace(self, num_consumed=consumed)

    def settled(self, steps: Steps) -> Position:
        """Return where the next batch comes from: here, or in the next epoch if no step is left of one under way.

        That is so where a remainder is dropped and the batch has grown since the position was saved.
        """
        return self.next_epoch() if self.num_consumed and not steps.num_steps else self


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
