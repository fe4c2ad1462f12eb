"""The user's function on each batch: called with randomness of its own, its answer checked, its errors named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from stoker.arguments import function_name
from stoker.fields.spec import Arrays
from stoker.hashing import order_key, sample_seeds
from stoker.sampling.steps import Slice


class SampleGenerator(np.random.Generator):
    """The generator that `augment` gets: NumPy's, with a seed for each sample beside it.

    What it draws itself depends on which samples the batch has: on the batch size and on the number of ranks.
    `seeds` does not: a sample has the same one in an epoch whatever batch and rank it comes in, and another one in the
    next epoch.

        np.random.default_rng(rng.seeds[i])          a generator for sample i alone
        (rng.seeds >> np.uint64(11)) * 2.0**-53      a number in [0, 1) for each sample

    Attributes:
        seeds: uint64, shape [B]; of groups, windows or packed rows, one each.
    """

    seeds: npt.NDArray[np.uint64]

    def __init__(self, bit_generator: np.random.BitGenerator, seeds: npt.NDArray[np.uint64]) -> None:
        super().__init__(bit_generator)
        self.seeds = seeds

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.bit_generator, self.seeds)


Augment: TypeAlias = "Callable[[Arrays, SampleGenerator], Arrays]"


def augmented(augment: Augment, batch: Arrays, slices: Sequence[Slice], *, seed: int, step: int, epoch: int) -> Arrays:
    """Return the batch that `augment` makes of one, which has the samples of `slices`; `step` is for errors alone.

    Raises where it returns no mapping of names to arrays, or other rows, or has changed `sample_mask`.
    """
    told = f"augment ({function_name(augment)}), on step {step} of this pass over epoch {epoch},"
    expected = {name: num for name, field in batch.items() if (num := _num_rows(field)) is not None}
    mask: Any = batch.get("sample_mask")
    mask = None if mask is None else mask.copy()
    try:
        found: Any = augment(batch, _generator(slices, seed, epoch))
    except StopIteration as error:  # which would look like the end of the epoch
        raise RuntimeError(f"{told} raised StopIteration") from error
    except Exception as error:
        error.add_note(f"raised by {told}")
        raise
    if not isinstance(found, Mapping):
        what = "None" if found is None else f"a {type(found).__qualname__}"
        forgotten = ": does it end without `return batch`?" if found is None else ""
        raise TypeError(f"{told} returned {what}, not a dict of arrays{forgotten}")
    for name, field in found.items():
        if not isinstance(name, str):
            raise TypeError(f"{told} returned a dict with the key {name!r}; fields have names")
        if field is None:
            raise TypeError(f"{told} returned None as field {name!r}; leave it out, or give an array")
    _check_rows(found, expected, told)
    if mask is None:
        return dict(found)
    if "sample_mask" in found and not np.array_equal(found["sample_mask"], mask):
        raise ValueError(
            f"{told} has changed 'sample_mask', which says what fills the batch up; give what it says a name of its own"
        )
    return {**found, "sample_mask": mask}


def _generator(slices: Sequence[Slice], seed: int, epoch: int) -> SampleGenerator:
    places = ",".join(f"{piece.lane}:{piece.start}:{piece.stop}" for piece in slices)
    seeds = [
        sample_seeds(
            order_key(seed=seed, epoch=epoch, purpose=f"seeds:{piece.lane}"),
            np.arange(piece.start, piece.stop, dtype=np.uint64),
        )
        for piece in slices
    ]
    key = order_key(seed=seed, epoch=epoch, purpose=f"augment:{places}")
    return SampleGenerator(np.random.Philox(key=key), np.concatenate([np.empty(0, np.uint64), *seeds]))


def _check_rows(found: Mapping[str, Any], expected: Mapping[str, int], told: str) -> None:
    """Raise where fields that came in have another number of rows.

    Fields that are new may have any: not all that a model wants is one a sample. Of groups, rows may be left out where
    `group_offsets` says so.
    """
    wanted = dict(expected)
    wanted.pop("cu_seqlens", None)  # segments may be others
    offsets = found.get("group_offsets")
    if "group_offsets" in wanted and offsets is not None and len(offsets) == wanted["group_offsets"]:
        num_rows = int(offsets[-1])
        of_groups = ("group_offsets", "sample_mask")
        wanted = {name: num if name in of_groups else num_rows for name, num in wanted.items()}
    now = {name: _num_rows(field) for name, field in found.items()}
    wrong = next((name for name, num in now.items() if name in wanted and num != wanted[name]), None)
    if wrong is not None:
        rows = f"with {now[wrong]:,} rows" if now[wrong] is not None else "that has no rows"
        raise ValueError(
            f"{told} returned field {wrong!r} {rows}, but the batch has {wanted[wrong]:,}: every rank must get as many "
            "samples as the order says; leave rows out with Dataset(filters=...), or mark them in a field of their own"
        )
    if not {*now.values()} & {*wanted.values()}:
        names, nums = ", ".join(map(repr, found)), ", ".join(f"{num:,}" for num in dict.fromkeys(wanted.values()))
        raise ValueError(f"{told} returned {names or 'no field'}, none with as many rows as the batch has: {nums}")


def _num_rows(field: Any) -> int | None:
    try:
        return len(field)
    except TypeError:  # a number, or an array without dimensions
        return None
