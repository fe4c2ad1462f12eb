"""Arguments that a class does not have, answered with what it has instead."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

_Class = TypeVar("_Class", bound=type)

_known: dict[str, tuple[str, ...]] = {}
"""Public class -> names of its arguments."""


def explain_arguments(hints: Mapping[str, str], *, options: Iterable[str] = ()) -> Callable[[_Class], _Class]:
    """Return a class decorator: an argument that `__init__` does not have is a TypeError with the way out.

    The signature stays what it is, for readers, editors and type checkers.

    Args:
        hints: Name that other libraries use -> what to do here.
        options: Names that `__init__` takes as `**options`.
    """

    def decorate(cls: _Class) -> _Class:
        init: Callable[..., None] = cls.__init__  # type: ignore[misc]
        parameters = [*inspect.signature(init).parameters.values()][1:]
        names = (*(one.name for one in parameters if one.kind is not one.VAR_KEYWORD), *options)
        positional = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
        named = cls.__name__
        _known[named] = names

        @functools.wraps(init)
        def checked(self: Any, *args: Any, **kwargs: Any) -> None:
            for name in kwargs:
                if name not in names:
                    raise TypeError(f"{named} has no argument {name!r}{_way_out(name, names, hints)}")
            if len(args) > len(positional):
                raise TypeError(
                    f"{named} takes {' and '.join(positional) or 'nothing'} by position, and what follows by name: "
                    f"which argument is {args[len(positional)]!r}? It has {', '.join(names[len(positional) :])}"
                )
            init(self, *args, **kwargs)

        cls.__init__ = checked  # type: ignore[misc]
        return cls

    return decorate


def _way_out(name: str, names: tuple[str, ...], hints: Mapping[str, str]) -> str:
    if name in hints:
        return f": {hints[name]}"
    owners = [owner for owner, theirs in _known.items() if name in theirs]
    if owners:
        return f": it is an argument of {' and of '.join(owners)}"
    near = difflib.get_close_matches(name.lower(), names, n=2, cutoff=0.6)
    return f"; near: {', '.join(near)}" if near else f"; it has {', '.join(names)}"
