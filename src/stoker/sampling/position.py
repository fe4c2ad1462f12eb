"""All that must be saved to go on: which order, which epoch, how many samples of it are consumed, and of what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple, get_args

from stoker.errors import ResumeError
from stoker.hashing import ORDER_VERSION, fingerprint
from stoker.sampling.contents import Contents, Kinds, checked_values
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
_KINDS: Kinds = {
    "fingerprint": (str,),
    "seed": (int,),
    "shuffle": (bool,),
    "window": (int, type(None)),
    "lanes": (int,),
    "order_version": (str,),
    "units": (str,),
    "epoch": (int,),
    "num_consumed": (int,),
    "leg": (Mapping, type(None)),
    "mixture": (Mapping, type(None)),
    "datasets": (Sequence,),
}
_MIXTURE_KINDS: Kinds = {"names": (list,), "weights": (list, type(None)), "until": (str, type(None))}
_LEG_KINDS: Kinds = {"epoch": (int,), "start": (int,), "given": (list, tuple), "streams": (list, tuple)}


class Mixing(NamedTuple):
    """How a mixture was made of its data sets.

    Attributes:
        names: Of the data sets, in their order.
        weights: Share of each, as a fraction of 1; None where each sample comes once.
        until: Which data set ends an epoch; None where that means nothing.
    """

    names: tuple[str, ...]
    weights: tuple[str, ...] | None
    until: Until | None

    def to_json(self) -> dict[str, object]:
        """Return it as JSON can write it."""
        return {"names": [*self.names], "weights": self.weights and [*self.weights], "until": self.until}


@dataclass(frozen=True, kw_only=True)
class Position:
    """A place in the global order, the same on every rank.

    World size, batch size, remainder, threads and cache are no part of it: they may change between save and load. So
    may where the files lie, the columns and what is made of them.

    Args:
        datasets: What the order of each data set is made of.
        mixing: How they are mixed; None for one that stands alone.
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
        ValueError: `epoch` or `num_consumed` is negative.
    """

    datasets: tuple[Contents, ...]
    mixing: Mixing | None = None
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
        for name in ("epoch", "num_consumed"):
            if not 0 <= getattr(self, name) < 1 << 63:
                raise ValueError(f"{name} must not be negative, nor need more than 63 bits, got {getattr(self, name)}")

    @property
    def fingerprint(self) -> str:
        """A hash of the data sets and of how they are mixed."""
        return fingerprint_of(self.datasets, self.mixing)

    def to_json(self) -> dict[str, object]:
        """Return the position as JSON can write it: under 1 kB, and 11 bytes a file."""
        return {
            "format_version": FORMAT_VERSION,
            "fingerprint": self.fingerprint,
            **{name: getattr(self, name) for name in (*_WORDS, "epoch", "num_consumed")},
            "leg": None if self.leg is None else self.leg._asdict(),
            "mixture": None if self.mixing is None else self.mixing.to_json(),
            "datasets": [one.to_json() for one in self.datasets],
        }

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
            what = f"this is no saved position of a loader: it has no 'format_version', but {_listed(data)}"
            raise ResumeError(what, saved=dict(data), current=FORMAT_VERSION)
        if version != FORMAT_VERSION:
            raise ResumeError(
                f"the saved position has format {version!r}, and this Stoker reads format {FORMAT_VERSION}: load it "
                "with the version of Stoker that saved it",
                saved=version,
                current=FORMAT_VERSION,
            )
        try:
            return cls._from(data)
        except ValueError as error:
            what = f"the saved position is not sound: {error}"
            raise ResumeError(what, saved=dict(data), current=sorted(_KINDS)) from error

    @classmethod
    def _from(cls, data: Mapping[str, Any]) -> Position:
        given = {name: value for name, value in data.items() if name != "format_version"}
        checked_values(given, _KINDS, "a position")
        found = cls(
            datasets=tuple(Contents.from_json(one) for one in data["datasets"]),
            mixing=None if data["mixture"] is None else _mixing_from(data["mixture"]),
            leg=None if data["leg"] is None else _leg_from(data["leg"], len(data["datasets"])),
            **{name: data[name] for name in (*_WORDS, "epoch", "num_consumed")},
        )
        if len(found.datasets) != (1 if found.mixing is None else len(found.mixing.names)):
            raise ValueError(f"it tells of {len(found.datasets)} data sets")
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
        datasets = self.datasets if self.mixing is not None else tuple(one.whole() for one in self.datasets)
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
        first = self.again().num_consumed
        if self.mixing is None:
            lane_sizes = tuple(sum(sizes) for sizes in zip(*shares(self.datasets[0].sizes, self.lanes), strict=True))
        else:
            lane_sizes = self.mixture().lane_sizes_in(self.epoch)
        return Steps(
            lane_sizes=lane_sizes,
            global_batch_size=global_batch_size,
            remainder=remainder,
            start=self.num_consumed,
            first=first,
        )

    def mixture(self) -> MixtureOrder:
        """Return which data set gives the sample at each position, as far as their sizes alone decide it."""
        mixing = self.mixing
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
    return fingerprint("mixture", {"parts": [one.fingerprint for one in datasets], **mixing.to_json()})


def _mixing_from(data: object) -> Mixing:
    values = checked_values(data, _MIXTURE_KINDS, "a mixture")
    names, weights, until = values["names"], values["weights"], values["until"]
    texts = names if weights is None else [*names, *weights]
    if not all(isinstance(one, str) for one in texts) or len(texts) not in (len(names), 2 * len(names)):
        raise ValueError(f"the names and weights of a mixture are {names!r} and {weights!r}")
    if until is not None and until not in get_args(Until):
        raise ValueError(f"until of a mixture is {until!r}")
    return Mixing(names=tuple(names), weights=None if weights is None else tuple(weights), until=until)


def _leg_from(data: object, num_datasets: int) -> Leg:
    values = checked_values(data, _LEG_KINDS, "a leg")
    streams = [tuple(stream) for stream in values["streams"] if isinstance(stream, list | tuple)]
    numbers = [values["epoch"], values["start"], *values["given"], *(number for stream in streams for number in stream)]
    is_sound = all(type(number) is int and number >= 0 for number in numbers) and all(len(one) == 2 for one in streams)
    if not is_sound or not len(values["given"]) == len(streams) == len(values["streams"]) == num_datasets:
        raise ValueError(f"leg is {data!r}")
    return Leg(values["epoch"], values["start"], tuple(values["given"]), tuple(streams))


def _listed(data: Mapping[str, object]) -> str:
    names = sorted(map(str, data))
    return f"{', '.join(names[:6])}{', ...' if len(names) > 6 else ''}" if names else "nothing at all"
