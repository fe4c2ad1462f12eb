"""All that must be saved to go on: which order, which epoch, how many samples of it are consumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

from stoker.errors import ResumeError
from stoker.identity import ORDER_VERSION
from stoker.order.steps import Steps

# The state's own format, not the order's.
FORMAT_VERSION = 1

# What is counted unless told.
ROWS = "rows"

_WHAT_A_DATA_SET_IS = (
    " (A data set is its files as they were, its filter, columns, fields, sharing, transform and chunk size; and what "
    "keeps rows in one chunk.)"
)

_WORDS = {
    "fingerprint": "the data set",
    "order_version": "the order version",
    "seed": "the seed",
    "shuffle": "shuffle",
    "window": "the window",
    "lanes": "the number of lanes",
    "units": "what is counted",
}


@dataclass(frozen=True, kw_only=True)
class Position:
    """A place in the global order, the same on every rank.

    World size, batch size, remainder, threads and cache are no part of it: they may change between save and load.

    Args:
        fingerprint: Of the data set.
        seed: Of the order.
        shuffle: Whether epochs are permuted.
        window: Chunks that are mixed together; None for all.
        lanes: How many lanes.
        order_version: Of the arithmetic in this package.
        units: What the order counts, and `num_consumed` with it: "rows", or what stands for something else.
        epoch: The epoch that comes next or is under way.
        num_consumed: Samples of that epoch that were handed over, over all ranks.

    Raises:
        ValueError: `epoch` or `num_consumed` is negative.
    """

    fingerprint: str
    seed: int
    shuffle: bool
    window: int | None
    lanes: int = 1
    order_version: str = ORDER_VERSION
    units: str = ROWS
    epoch: int = 0
    num_consumed: int = 0

    def __post_init__(self) -> None:
        for name in ("epoch", "num_consumed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")

    def to_json(self) -> dict[str, object]:
        """Return the position as JSON can write it, under 1 kB."""
        return {"format_version": FORMAT_VERSION} | asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Position:
        """Return the position that `to_json` wrote.

        Raises:
            ResumeError: It was written by a newer Stoker, or by something else.
        """
        if not isinstance(data, Mapping):
            hint = "; it is JSON text: json.loads makes it one" if isinstance(data, str | bytes) else ""
            raise ResumeError(
                f"a saved position is the dict that state_dict() returned, not {type(data).__name__}{hint}",
                saved=data,
                current=FORMAT_VERSION,
            )
        version = data.get("format_version")
        if version is None:
            raise ResumeError(
                f"this is no saved position of a loader: it has no 'format_version', but {_listed(data)}",
                saved=dict(data),
                current=FORMAT_VERSION,
            )
        if version != FORMAT_VERSION:
            raise ResumeError(
                f"the saved position has format {version!r}, and this Stoker reads format {FORMAT_VERSION}: load it "
                "with the version of Stoker that saved it",
                saved=version,
                current=FORMAT_VERSION,
            )
        data = {"units": ROWS} | dict(data)  # those that were saved before there was anything else do not say
        kinds: dict[str, tuple[type, ...]] = {
            "fingerprint": (str,),
            "seed": (int,),
            "shuffle": (bool,),
            "window": (int, type(None)),
            "lanes": (int,),
            "order_version": (str,),
            "units": (str,),
            "epoch": (int,),
            "num_consumed": (int,),
        }
        names = {field.name for field in fields(cls)}
        unsound = [f"{name} is missing" for name in sorted(names - data.keys())]
        unsound += [f"{name} is not known" for name in sorted(data.keys() - names - {"format_version"})]
        unsound = unsound or [
            f"{name} is {data[name]!r}"
            for name, kind in sorted(kinds.items())
            if not isinstance(data[name], kind) or (isinstance(data[name], bool) and bool not in kind)
        ]
        if unsound:
            raise ResumeError(
                f"the saved position is not sound: {', '.join(unsound)}", saved=dict(data), current=sorted(names)
            )
        try:
            return cls(**{name: data[name] for name in names})
        except ValueError as error:
            raise ResumeError(f"the saved position is not sound: {error}", saved=dict(data), current=None) from error

    def check(self, current: Position) -> None:
        """Raise unless this saved position belongs to the order of `current`, whatever epoch that stands in.

        Without shuffling the window decides nothing and may differ.

        Raises:
            ResumeError: Something that decides the order differs; the message names all of it.
        """
        differing = [
            name
            for name in _WORDS
            if getattr(self, name) != getattr(current, name)
            and not (name == "window" and not self.shuffle and not current.shuffle)
        ]
        if differing:
            saved = {name: getattr(self, name) for name in differing}
            now = {name: getattr(current, name) for name in differing}
            what = "; ".join(f"{_WORDS[name]} was {saved[name]!r} and is {now[name]!r}" for name in differing)
            raise ResumeError(
                f"the saved position belongs to another order: {what}. Load it into a loader with the saved "
                f"settings, or start anew without it.{_WHAT_A_DATA_SET_IS if 'fingerprint' in differing else ''}",
                saved=saved,
                current=now,
            )

    def next_epoch(self) -> Position:
        """Return the beginning of the next epoch."""
        return replace(self, epoch=self.epoch + 1, num_consumed=0)

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
        """Return where the next batch comes from: the next epoch where `steps`, begun in mid-epoch, are none.

        That is so where a remainder is dropped and the batch has grown since the position was saved.
        """
        return self.next_epoch() if self.num_consumed and not steps.num_steps else self


def _listed(data: Mapping[str, object]) -> str:
    """Return the first names that something has."""
    names = sorted(map(str, data))
    return f"{', '.join(names[:6])}{', ...' if len(names) > 6 else ''}" if names else "nothing at all"
