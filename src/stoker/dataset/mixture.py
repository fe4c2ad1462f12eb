"""Several data sets as one: what the user wants mixed, and in which shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from numbers import Real
from typing import Literal, get_args

from stoker.arguments import explain_arguments
from stoker.dataset.dataset import Dataset
from stoker.errors import FieldError
from stoker.fields.spec import Spec

_Until = Literal["first", "last"]

# What other mixers call it, and what it is here.
_HINTS = {
    "probabilities": "say weights=, name -> share in any scale",
    "proportions": "say weights=, name -> share in any scale",
    "stopping_strategy": "say until='first' or 'last', the data set that ends an epoch when it is used up",
}


@explain_arguments(_HINTS)
class Mixture:
    """Several data sets, mixed by weights; goes wherever a `Dataset` goes into a loader.

        mixture = stoker.Mixture({"web": web, "code": code}, weights={"web": 0.7, "code": 0.3}, until="first")

        batch of 10    w w c w w w c w c w      7 of web, 3 of code, on average, and nearly so in every batch

    Like a `Dataset`, it reads no file when it is made. The samples of all data sets must have the same fields,
    with the same dtypes and shapes.

    Each data set is a stream of its own epochs, each shuffled anew, and is read to its end before any of its samples
    comes again. Every epoch of the mixture takes the same number of samples from each, and leaves it where it stopped:

        mixture      │ epoch 0             │ epoch 1             │
        web          │ 0 ········ epoch 0  │ 0 ········ epoch 1  │    700 of 700: used up first, so it sets the length
        code         │ epoch 0 ············ ····· │ epoch 1 ····· │    300 of 500, then the other 200 and 100 anew

    Args:
        datasets: Name -> data set. Shuffles and the order of the fields come from the names and the first data set.
        weights: Name -> share, in any scale. None takes every sample of every data set once an epoch.
        until: "first" ends an epoch when the first data set is used up, "last" when the last one is: the others then
            begin again meanwhile. Without weights all end together.
        source_field: Name of an int32 field to add to every batch: the number of the sample's data set, in the order
            of `datasets`. None adds none.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A weight is missing, has no data set, or is not a positive number; or there is no data set; or two
            of them give one value of a field different codes.

    Examples:
        >>> Mixture({"web": Dataset("web/"), "code": Dataset("code/")}, weights={"web": 7, "code": 3})
        Mixture({'web': Dataset('web/'), 'code': Dataset('code/')}, weights={'web': 7, 'code': 3}, until='first')
    """

    def __init__(
        self,
        datasets: Mapping[str, Dataset],
        *,
        weights: Mapping[str, float | Fraction] | None = None,
        until: _Until = "first",
        source_field: str | None = None,
    ) -> None:
        if not isinstance(datasets, Mapping):
            raise TypeError(f"a mixture is of named data sets: give a dict, not {type(datasets).__name__}")
        for name, dataset in datasets.items():
            if not isinstance(name, str) or not name:
                raise TypeError(f"the name of a data set must be a text that is not empty, not {name!r}")
            if not isinstance(dataset, Dataset):
                raise TypeError(f"{name!r} must be a stoker.Dataset, not {type(dataset).__name__}")
        if not datasets:
            raise ValueError("a mixture needs at least one data set")
        if until not in get_args(_Until):
            raise ValueError(f"until must be 'first' or 'last', not {until!r}")
        if source_field is not None and (not isinstance(source_field, str) or not source_field):
            raise TypeError(f"source_field must be the name of a field, not {source_field!r}")
        _check_codes(datasets)
        self.datasets: dict[str, Dataset] = dict(datasets)
        self.weights = None if weights is None else _checked_weights(weights, self.names)
        self.until: _Until = until
        self.source_field = source_field

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the data sets."""
        return tuple(self.datasets)

    def check_specs(self, specs: Mapping[str, Spec]) -> Spec:
        """Return the one spec that all data sets, by their names, have; else the error lists every difference."""
        first, *others = self.names
        differences = {name: _differences(specs[first], specs[name]) for name in others}
        if any(differences.values()):
            lines = [f"  {name}: {line}" for name in others for _, line in differences[name]]
            raise FieldError(
                f"the samples of a mixture must all have the fields of the first data set, {first!r}:\n"
                + "\n".join(lines)
                + "\nName the fields the same in each Dataset(fields=...), with the same dtype and shape.",
                columns=sorted({field for name in others for field, _ in differences[name] if field}),
            )
        if self.source_field is not None and self.source_field in {entry.name for entry in specs[first]}:
            raise ValueError(f"source_field {self.source_field!r} is the name of a field: choose another one")
        return specs[first]

    def __repr__(self) -> str:
        parts = [repr(self.datasets)]
        if self.weights is not None:
            parts.append(f"weights={self.weights}, until={self.until!r}")
        if self.source_field is not None:
            parts.append(f"source_field={self.source_field!r}")
        return f"Mixture({', '.join(parts)})"


def _checked_weights(weights: Mapping[str, float | Fraction], names: tuple[str, ...]) -> dict[str, float | Fraction]:
    if not isinstance(weights, Mapping):
        raise TypeError(f"weights must name a share for each data set, such as {{{names[0]!r}: 1}}, not {weights!r}")
    missing, unknown = sorted(set(names) - weights.keys()), sorted(map(str, weights.keys() - set(names)))
    if missing:
        raise ValueError(
            f"weights name no share for {', '.join(map(repr, missing))}: leave the data set out, or give one"
        )
    if unknown:
        raise ValueError(f"weights name {', '.join(map(repr, unknown))}, and there is no such data set")
    for name in names:
        weight: object = weights[name]
        if isinstance(weight, bool) or not isinstance(weight, Real):
            raise TypeError(f"the weight of {name!r} must be a number, not {weight!r}")
        if not (math.isfinite(float(weight)) and float(weight) > 0):
            raise ValueError(f"the weight of {name!r} must be positive, not {weight}: leave out what has no share")
    return {name: weights[name] for name in names}


def _check_codes(datasets: Mapping[str, Dataset]) -> None:
    """Raise where one value of a field gets different codes: nothing in a batch would show which of them is meant."""
    known: dict[str, tuple[str, object]] = {}  # name of a field -> the first data set that codes it, and how
    for name, dataset in datasets.items():
        for field, its in dataset.fields.items():
            if its.vocabulary is None and its.hash_buckets is None:
                continue
            words = [*map(str, its.vocabulary or ())]  # a column may hold integers here and texts there
            coding = words, its.unknown, its.hash_buckets
            first, other = known.setdefault(field, (name, coding))
            if coding != other:
                raise ValueError(
                    f"a value of {field!r} would have one code in {first!r} and another one in {name!r}: give both the "
                    "same vocabulary= and unknown=, or as many hash_buckets="
                )


def _differences(expected: Spec, found: Spec) -> list[tuple[str, str]]:
    """Return each field in which a spec differs, and how; of fields in another order one line, without a field."""
    ours, theirs = ({entry.name: entry for entry in spec} for spec in (expected, found))
    lines = [(name, f"has no field {entry}") for name, entry in ours.items() if name not in theirs]
    lines += [(name, f"has a field more, {entry}") for name, entry in theirs.items() if name not in ours]
    for name, entry in ours.items():
        if (their := theirs.get(name, entry)) != entry:
            our_text, their_text = str(entry), str(their)
            if our_text == their_text:  # ranges of steps that differ in their last digits
                our_text, their_text = f"{our_text} ({entry.compact})", f"{their_text} ({their.compact})"
            lines.append((name, f"has {their_text} where it is {our_text}"))
    if not lines and [*ours] != [*theirs]:
        lines = [("", f"has the fields in the order {', '.join(theirs)}, not {', '.join(ours)}")]
    return lines
