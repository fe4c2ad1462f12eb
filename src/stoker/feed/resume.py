"""From a saved state to the position that a loader goes on from, or an error that names what differs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from stoker.errors import ResumeError
from stoker.order.contents import Comparison, Contents, Files, compare
from stoker.order.position import Mixing, Position

Allowed: TypeAlias = Literal["files", "weights"]


@dataclass(frozen=True, kw_only=True)
class Resume:
    """What saved states are checked against: the order of a loader. Picklable, and without anything open.

    Args:
        beginning: Where the loader's epoch 0 begins.
        files: The files of each data set.
        takes_window: Whether the user left the window open: then it is that of the state.
    """

    beginning: Position
    files: tuple[Files, ...]
    takes_window: bool

    def load(self, state: object, allow: Collection[Allowed] = ()) -> Position:
        """Return the position that a state stands for.

        Args:
            state: What `to_json` of a position returned.
            allow: What may differ.

        Raises:
            ResumeError: It belongs to another order; the message names all that differs.
            ValueError: `allow` holds an unknown word.
        """
        check_allowed(allow)
        saved, now = Position.from_json(state), self.beginning
        settings = saved.differences(now)
        if self.takes_window:
            settings.pop("window", None)
        differing = [*settings.values()]
        is_other = saved.fingerprint != now.fingerprint
        if is_other:
            differing += self._mixing_differences(saved)
            differing += self._data_differences(saved)
        if differing:
            raise ResumeError(
                f"the saved position belongs to another order: {'; '.join(differing)}. Load it into a loader of what "
                "was saved, or start anew without it.",
                saved={name: getattr(saved, name) for name in settings} | (_told(saved) if is_other else {}),
                current={name: getattr(now, name) for name in settings} | (_told(now) if is_other else {}),
            )
        window = saved.window if self.takes_window else now.window
        return replace(now, window=window, epoch=saved.epoch, num_consumed=saved.num_consumed)

    def _mixing_differences(self, saved: Position) -> list[str]:
        before, now = saved.mixing, self.beginning.mixing
        if before is None or now is None:
            kinds = [f"a mixture of {', '.join(one.names)}" if one else "one data set" for one in (before, now)]
            return [] if before == now else [f"it was of {kinds[0]} and is of {kinds[1]}"]
        found = []
        if before.names != now.names:
            found.append(f"the data sets of the mixture were {', '.join(before.names)} and are {', '.join(now.names)}")
        if before.weights != now.weights and before.names == now.names:
            found.append(f"the mixture's weights were {_weights(before)} and are {_weights(now)}")
        if before.until != now.until and None not in (before.until, now.until):
            found.append(f"until was {before.until!r} and is {now.until!r}")
        return found

    def _data_differences(self, saved: Position) -> list[str]:
        """Return how data sets of one name differ, in words."""
        found = []
        for which, (name, now) in enumerate(zip(_names(self.beginning), self.beginning.datasets, strict=True)):
            if name in _names(saved):
                before = saved.datasets[_names(saved).index(name)]
                lines = differences(before, now, compare(before, self.files[which]))
                found += [f"{line} in {name!r}" for line in lines] if name else lines
        return found


def check_allowed(allow: Collection[str]) -> None:
    """Raise unless `allow` holds known words alone.

    Raises:
        TypeError: It is one text, or no collection.
        ValueError: A word is unknown.
    """
    known = get_args(Allowed)
    if isinstance(allow, str | bytes) or not isinstance(allow, Collection):
        raise TypeError(f"allow must be a set of words, such as {{{known[0]!r}}}, not {allow!r}")
    for word in allow:
        if word not in known:
            raise ValueError(f"allow holds {word!r}; what may differ is {' and '.join(map(repr, known))}")


def differences(before: Contents, now: Contents, files: Comparison | None) -> list[str]:
    """Return how a data set differs from the one that a state knows, in words; none where the order is the same.

    Args:
        before: What the state says of it.
        now: What it is.
        files: How its files differ; None where the state does not name them.
    """
    if before.fingerprint == now.fingerprint:
        return []
    found = []
    if before.filter != now.filter:
        found.append(f"the filter was {before.filter or 'none'} and is {now.filter or 'none'}")
    if before.draws != now.draws:
        found.append("the weights of the draws are others")
    if files is None:
        if not found or before.num_files != now.num_files or before.num_samples != now.num_samples:
            found.append(
                f"its files are others: {before.num_files:,} files of {before.num_samples:,} samples were "
                f"{now.num_files:,} of {now.num_samples:,}"
            )
    elif files.num_gone == before.num_files and before.num_files and now.num_files:
        found.append(
            f"none of its {now.num_files:,} files, such as {files.added[0]}, is one of the {before.num_files:,} that "
            "the state knows: it is another data set, or its files have other names below their common folder"
        )
    else:
        found += files.differences()
    return found


def _names(position: Position) -> tuple[str, ...]:
    return ("",) if position.mixing is None else position.mixing.names


def _weights(mixing: Mixing) -> str:
    if mixing.weights is None:
        return "none"
    return ", ".join(f"{name}: {weight}" for name, weight in zip(mixing.names, mixing.weights, strict=True))


def _told(position: Position) -> dict[str, object]:
    told: dict[str, object] = {"fingerprint": position.fingerprint}
    if position.mixing is not None:
        told["mixture"] = position.mixing.to_json()
    return told
