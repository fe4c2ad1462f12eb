"""Arguments of public classes: of the right type, and those that a class does not have answered with what it has."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

_Class = TypeVar("_Class", bound=type)

_known: dict[str, tuple[str, ...]] = {}
"""Public class -> names of its arguments."""


def explain_arguments(
    hints: Mapping[str, str], *, options: Mapping[str, object] | None = None, types: type | None = None
) -> Callable[[_Class], _Class]:
    """Return a class decorator: an argument that `__init__` does not have is a TypeError with the way out.

    The signature stays what it is, for readers, editors and type checkers; `help` shows options one by one. `hints` say
    what to do here in place of a name that other libraries use. `options` are the defaults of what `__init__` takes as
    `**options`, and `types` is their TypedDict.
    """

    def decorate(cls: _Class) -> _Class:
        init: Callable[..., None] = cls.__init__  # type: ignore[misc]
        parameters = [one for one in inspect.signature(init).parameters.values() if one.kind is not one.VAR_KEYWORD][1:]
        if options is not None and types is not None:
            parameters += [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=one.__forward_arg__)
                for (name, one), default in zip(types.__annotations__.items(), options.values(), strict=True)
            ]
            cls.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        names = tuple(one.name for one in parameters)
        positional = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
        needed = [one.name for one in parameters if one.default is one.empty and one.kind is not one.VAR_POSITIONAL]
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
            for name in needed:
                if name not in kwargs and name not in positional[: len(args)]:
                    raise TypeError(f"{named} needs {name!r}; it has {', '.join(names)}")
            init(self, *args, **kwargs)

        cls.__init__ = checked  # type: ignore[misc]
        return cls

    return decorate


def _way_out(name: str, names: tuple[str, ...], hints: Mapping[str, str]) -> str:
    if name in hints:
        return f": {hints[name]}"
    owners = [owner for owner, theirs in _known.items() if name in theirs]
    if owners and not near(name, names, cutoff=0.85):
        return f": it is an argument of {' and of '.join(owners)}"
    return f"; {near(name, names) or 'it has ' + ', '.join(names)}"


def near(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return which names are like one that is none of them, for messages; "" where none is."""
    folded = {one.casefold(): one for one in names}
    found = difflib.get_close_matches(name.casefold(), folded, n=2, cutoff=cutoff)
    return f"did you mean {' or '.join(repr(folded[one]) for one in found)}?" if found else ""


def integer(value: object, name: str, *, at_least: int | None = 1, at_most: int = 2**63 - 1) -> int:
    """Return an argument as an integer; NumPy's are integers, bools are none. `at_least` None sets no limits."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    if at_least is not None and value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, not {value}")
    if at_least is not None and value > at_most:
        raise ValueError(f"{name} must be at most {at_most:,}, not {value}")
    return int(value)


def flag(value: object, name: str) -> bool:
    """Return an argument as a bool; anything else, however true Python finds it, is a TypeError."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return bool(value)


def names(value: object, name: str) -> tuple[str, ...]:
    """Return an argument that is one name or several in an order, each once, none empty.

    A set will not do: its order is another one in each process.
    """
    if isinstance(value, str):
        value = (value,)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, bytes | bytearray) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a name or a sequence of names, not {value!r}")
    for one in value:
        if not isinstance(one, str):
            raise TypeError(f"{name} must hold names, not {one!r}")
    if not all(value):
        raise ValueError(f"{name} has a name that is empty")
    if len(set(value)) != len(value):
        raise ValueError(f"{name} names {next(one for one in value if list(value).count(one) > 1)!r} twice")
    return tuple(map(str, value))


def check_function(value: object, name: str, *parameters: str) -> None:
    """Raise a TypeError where an argument is no function, or takes other arguments."""
    wanted = f"{name} must be a function of {', '.join(parameters)}"
    if not callable(value):
        raise TypeError(f"{wanted}, not {value!r}")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # some that are written in C do not tell
        return
    try:
        signature.bind(*parameters)
    except TypeError as error:
        raise TypeError(f"{wanted}, but {function_name(value)}{signature} cannot be called so: {error}") from None


def function_name(function: object) -> str:
    """Return what a function is called."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__
