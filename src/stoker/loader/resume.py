"""From a saved state to the position that a loader goes on from, or an error that names what differs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from stoker.errors import ResumeError
from stoker.sampling.mixture import Leg
from stoker.sampling.position import Comparison, Contents, Mixing, OpenFiles, Position, compare, to_json
from stoker.sampling.steps import Steps

_IN_LANES = "a mixture in several lanes cannot go on with other weights or files: make it with lanes=1, or as it was"

Allowed: TypeAlias = Literal["files", "weights"]


@dataclass(frozen=True, kw_only=True)
class Resume:
    """What saved states are checked against: the order of a loader. Picklable, and without anything open."""

    beginning: Position  # where the loader's epoch 0 begins
    files: tuple[OpenFiles, ...]  # of each data set
    takes_window: bool  # the user left the window open: then it is that of the state

    def load(
        self, state: object, allow: Collection[Allowed], steps_of: Callable[[Position], Steps]
    ) -> tuple[Position, Position]:
        """Return the position that a state stands for, where nothing differs but what may, and where its next batch is.

        Raises:
            ResumeError: It belongs to another order, and the message names all that differs; or no step begins there.
        """
        saved = self.adopt(Position.from_json(state), allow)
        try:
            return saved, saved.settled(steps_of(saved))
        except ValueError as error:
            consumed = saved.num_consumed
            raise ResumeError(
                f"the saved position is not sound: no step begins behind {consumed:,} samples of its epoch ({error})",
                saved=saved.to_json(),
                current=None,
            ) from error

    def adopt(self, saved: Position, allow: Collection[Allowed] = ()) -> Position:
        """Return a position of this loader's order that stands where one of another loader's does; see `load`."""
        check_allowed(allow)
        now, allowed, leg = self.beginning, set(allow), saved.leg
        settings = saved.differences(now)
        if self.takes_window:
            settings.pop("window", None)
        mixing = self._mixing_differences(saved, allowed)
        names, names_now = (("",) if one.mixture is None else one.mixture.names for one in (saved, now))
        pairs = [(which, name, names.index(name)) for which, name in enumerate(names_now) if name in names]
        compared = [
            compare(saved.datasets[number], now.datasets[which], self.files[which]) for which, _, number in pairs
        ]
        is_same = saved.mixture == now.mixture and all(found is not None and found.is_same for found in compared)
        if now.mixture is not None and not is_same and not settings and not mixing:
            leg = _leg(saved, now)
        datasets, others = [*now.datasets], list[str]()
        is_beginning, may_go_on = not saved.num_consumed, False
        for (which, name, number), found in zip(pairs, compared, strict=True):
            before = saved.datasets[number]
            if leg is not None:
                is_beginning = not leg.streams[which][1]
                if saved.leg is None or saved.leg.streams[number][0] != leg.streams[which][0]:
                    before = before.whole()  # the epoch of its own to which files were added is over
            datasets[which], lines, may = _after(before, datasets[which], found, is_beginning, grows="files" in allowed)
            others += [f"{line} in {name!r}" for line in lines] if name else lines
            may_go_on = may_go_on or may
        if not is_same and not mixing and not settings and now.mixture is not None and now.lanes > 1 and allowed:
            others.append(_IN_LANES)
        if settings or mixing or others:
            words: set[Allowed] = {"files"} if may_go_on else set()
            if any("weights" in line or "until" in line for line in mixing) and "weights" not in allowed:
                words.add("weights")
            asks = ", ".join(map(repr, sorted(words | allowed)))
            hint = f", go on with load_state_dict(state, allow={{{asks}}})" if words and now.lanes == 1 else ""
            is_other = bool(mixing or others)
            raise ResumeError(
                f"the saved position belongs to another order: {'; '.join([*settings.values(), *mixing, *others])}. "
                f"Load it into a loader of what was saved{hint}, or start anew without it.",
                saved={name: getattr(saved, name) for name in settings} | (_told(saved) if is_other else {}),
                current={name: getattr(now, name) for name in settings} | (_told(now) if is_other else {}),
            )
        if leg is not None and not (leg.epoch or leg.start or any(own or place for own, place in leg.streams)):
            leg = None  # nothing has come yet
        return replace(
            now,
            datasets=tuple(datasets),
            window=saved.window if self.takes_window else now.window,
            epoch=saved.epoch,
            num_consumed=saved.num_consumed,
            leg=leg,
        )

    def _mixing_differences(self, saved: Position, allowed: set[Allowed]) -> list[str]:
        """Return how the mixture differs from the saved one in what may not differ, in words."""
        before, now = saved.mixture, self.beginning.mixture
        if before is None or now is None:
            kinds = [f"a mixture of {', '.join(one.names)}" if one else "one data set" for one in (before, now)]
            return [] if before == now else [f"it was of {kinds[0]} and is of {kinds[1]}"]
        found, gone = [], set(before.names) - set(now.names)
        needed: set[Allowed] = {"files"} if set(before.names) != set(now.names) else set()
        if before.weights is not None or now.weights is not None:
            needed.add("weights")
        if before.names != now.names and (not needed <= allowed or (gone and now.weights is None)):
            found.append(f"the data sets of the mixture were {', '.join(before.names)} and are {', '.join(now.names)}")
        if before.weights != now.weights and before.names == now.names and "weights" not in allowed:
            found.append(f"the mixture's weights were {_weights(before)} and are {_weights(now)}")
        if before.until != now.until and None not in (before.until, now.until) and "weights" not in allowed:
            found.append(f"until was {before.until!r} and is {now.until!r}")
        return found


def _after(
    before: Contents, now: Contents, found: Comparison | None, is_beginning: bool, *, grows: bool
) -> tuple[Contents, list[str], bool]:
    """Return what a data set is after a state: as it is, or with the segments of the epoch under way.

    Where the epoch `is_beginning`, none of its samples came before the state was saved; `grows` says that files may
    differ. Beside it comes why that is no position of this order, in words, and whether `allow={"files"}` would let it
    go on.
    """
    filters: list[str] = []
    if before.filter != now.filter:
        filters = [f"the filter was {before.filter or 'none'} and is {now.filter or 'none'}"]
    draws = [] if before.draws == now.draws else ["the weights of the draws are others"]
    if found is not None and found.is_same:
        return now.grown(before, found), [*filters, *draws], False
    lines = _file_differences(before, now, found)
    if grows and is_beginning:
        return now, filters, False
    if now.draws is not None:
        told = "draws by weight from other files are other draws until the epoch is over"
        lines = [f"{line} ({told})" for line in lines]
    elif found is not None and found.only_grew:
        return (now.grown(before, found), filters, False) if grows else (now, [*filters, *lines], True)
    elif grows:
        lines = [f"{line} (an epoch under way keeps the files that it began with)" for line in lines]
    return now, [*filters, *draws, *lines], False


def _leg(saved: Position, now: Position) -> Leg | None:
    """Return where a mixture goes on that differs from the saved one, in its weights or its files."""
    assert saved.mixture is not None
    assert now.mixture is not None
    if now.lanes > 1:  # refused, unless it is the same but for the folder that names are told below
        return saved.leg
    try:
        epoch = saved.mixture_order().epoch(saved.epoch)
        given = epoch.given_before(saved.num_consumed)
        streams = epoch.streams_at(saved.num_consumed)
    except (ValueError, ZeroDivisionError) as error:  # the latter of a weight such as "1/0"
        raise ResumeError(f"the saved position is not sound: {error}", saved=saved.to_json(), current=None) from error
    if saved.leg is not None and saved.leg.epoch == saved.epoch:
        given = tuple(before + more for before, more in zip(saved.leg.given, given, strict=True))
    names = {name: number for number, name in enumerate(saved.mixture.names)}
    here = [names.get(name) for name in now.mixture.names]  # a data set that comes new begins its first epoch
    return Leg(
        epoch=saved.epoch,
        start=saved.num_consumed,
        given=tuple(0 if number is None else given[number] for number in here),
        streams=tuple((0, 0) if number is None else streams[number] for number in here),
    )


def check_allowed(allow: Collection[str]) -> None:
    """Raise a `TypeError` where `allow` is one text, or no collection, and a `ValueError` of a word that is unknown."""
    known = get_args(Allowed)
    if isinstance(allow, str | bytes) or not isinstance(allow, Collection):
        raise TypeError(f"allow must be a set of words, such as {{{known[0]!r}}}, not {allow!r}")
    for word in allow:
        if word not in known:
            raise ValueError(f"allow holds {word!r}; what may differ is {' and '.join(map(repr, known))}")


def _file_differences(before: Contents, now: Contents, found: Comparison | None) -> list[str]:
    """Return how the files of a data set differ from those that a state knows, in words."""
    if found is None:
        return [
            f"its files are others: {before.num_files:,} files of {before.num_samples:,} samples were "
            f"{now.num_files:,} of {now.num_samples:,}"
        ]
    if found.num_gone == before.num_files and before.num_files and now.num_files:
        return [
            f"none of its {now.num_files:,} files, such as {found.added[0]}, is one of the {before.num_files:,} that "
            "the state knows: it is another data set, or its files have other names below their common folder"
        ]
    return found.differences()


def _weights(mixing: Mixing) -> str:
    if mixing.weights is None:
        return "none"
    return ", ".join(f"{name}: {weight}" for name, weight in zip(mixing.names, mixing.weights, strict=True))


def _told(position: Position) -> dict[str, object]:
    told: dict[str, object] = {"fingerprint": position.fingerprint}
    if position.mixture is not None:
        told["mixture"] = to_json(position.mixture)
    return told
