"""How batches leave, and what else a run needs: what follows from a loader's arguments, data sets and ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.dataset.units.kinds import Grouped, NGram, Pack
from stoker.fields.compact import Compact
from stoker.fields.spec import Array
from stoker.loader.buffers import plain_buffer
from stoker.loader.config import LoaderConfig, Once, default_prefetch
from stoker.loader.gather import Together
from stoker.loader.lane import Resident
from stoker.loader.opened import OpenDatasets
from stoker.loader.sequence import SequenceShard
from stoker.loader.shard import Shard
from stoker.loader.units import Made, Maker, make_maker

_log = logging.getLogger("stoker")


@dataclass(frozen=True, kw_only=True)
class DeliveryForm:
    """How the batches of a run leave, all of them alike.

    Attributes:
        is_augmented: Whether `augment` has been at their fields, which may be no views of what was gathered then.
        sequence_shard: Which part of each sequence leaves; None for all of it.
        is_expanded: Whether what was gathered once leaves as each sample's; else as `Deduplicated`.
        compact: The fields that are kept narrower than they leave, and how each is widened.
        is_widened: Whether the fields are widened already; what was gathered never is.
    """

    is_augmented: bool
    sequence_shard: SequenceShard | None
    is_expanded: bool
    compact: Mapping[str, Compact]
    is_widened: bool

    def cut(self, name: str, array: Any) -> Any:
        """Return what leaves of a field, an array or a tensor: all of it, or this rank's part of each sequence."""
        if self.sequence_shard is None or name not in self.sequence_shard.fields:
            return array
        return self.sequence_shard.part(array)


class Delivery:
    """Batches as dicts of NumPy arrays, as they were gathered; a loader for another framework brings its own.

    Must not refer to the loader, which could never be let go.

    Attributes:
        copies: Whether `prepare` copies the batch to a device: time worth a stage of its own.
        expands: Whether it expands what samples share behind the copy, so that each value is copied once.
        widens: Whether it widens what is kept narrower behind the copy, so that narrow values are copied.
        resident: Records that stay on a device, which need not be gathered; None without any.
    """

    copies = False
    expands = False
    widens = False
    resident: Resident | None = None

    def allocate(self, num_bytes: int) -> Array:
        """Return memory for batches, uint8, shape [num_bytes]."""
        return plain_buffer(num_bytes)

    def prepare(self, made: Made, form: DeliveryForm) -> Any:
        """Do what can be done ahead of the step; runs in the threads that assemble."""
        if form.sequence_shard is None:
            return made.arrays
        return {name: form.cut(name, array) for name, array in made.arrays.items()}

    @property
    def prepare_together(self) -> Callable[[Together, DeliveryForm], Sequence[Any]] | None:
        """Does what `prepare` does for several batches as one, and returns what it made of each; None if it cannot."""
        return None

    def deliver(self, prepared: Any) -> Any:
        """Return what the loop gets; runs in the loop's own thread, when the step is due."""
        return prepared


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a run needs besides the order.

    Attributes:
        config: Arguments of the loader.
        shard: This rank.
        global_batch_size: Samples a step over all ranks.
        prefetch: Batches ahead of the step; 0 makes them in the calling thread when one is asked for.
        delivery: What batches leave as.
        maker: Makes batches of what the order counts.
        once: Whether what samples share is gathered once for all of a batch.
        num_sets: How many data sets there are.
        source_field: Name of the field that says which data set each sample is of, where batches get one.
        batch_bytes: About how much a batch takes; None where that is not known before one is made.
        may_begin_early: Whether batches may be made before their epoch has begun.
    """

    config: LoaderConfig
    shard: Shard
    global_batch_size: int
    prefetch: int
    delivery: Delivery
    maker: Maker
    once: Once
    num_sets: int
    source_field: str | None
    batch_bytes: float | None
    may_begin_early: bool


def settle(
    config: LoaderConfig, shard: Shard, opened: OpenDatasets, *, num_units: int, maker: Maker, delivery: Delivery
) -> RunSettings:
    """Return what runs need, now that the ranks are known.

    Args:
        config: Arguments of the loader.
        shard: This rank.
        opened: The data sets.
        num_units: What the order counts, in an epoch.
        maker: See `RunSettings`.
        delivery: See `RunSettings`.

    Raises:
        ValueError: An argument contradicts the number of ranks.
    """
    size = config.global_size(shard)
    if size < shard.world_size:
        _log.warning(
            "a global batch of %d samples leaves some of %d ranks without any in every step; give it one a rank at "
            "least",
            size,
            shard.world_size,
        )
    unit_bytes = _unit_bytes(config, opened, maker, num_units)
    batch_bytes = None if unit_bytes is None else size / shard.world_size * unit_bytes
    is_mixed = opened.mixture is not None
    # A function that the user may change between two epochs must not be asked before the second one begins.
    is_simple = config.augment is None and config.unit is None and not is_mixed
    return RunSettings(
        config=config,
        shard=shard,
        global_batch_size=size,
        prefetch=default_prefetch(batch_bytes, crosses=delivery.copies) if config.prefetch is None else config.prefetch,
        delivery=delivery,
        maker=maker,
        once=_once(config, expands=delivery.expands),
        num_sets=len(opened.datasets),
        source_field=None if opened.mixture is None else opened.mixture.source_field,
        batch_bytes=batch_bytes,
        may_begin_early=is_simple and not opened.is_tight and delivery.resident is None,
    )


def _once(config: LoaderConfig, *, expands: bool) -> Once:
    if config.deduplicated == "unique":
        return "always"
    needs_each = config.augment is not None or isinstance(config.unit, NGram | Pack)
    return "where it pays" if expands and not needs_each else "never"


def _unit_bytes(config: LoaderConfig, opened: OpenDatasets, maker: Maker, num_units: int) -> float | None:
    """Return about how much one of what the order counts takes in a batch; None where only making one tells."""
    unit = config.unit
    if maker.unit_bytes is not None:
        return maker.unit_bytes
    if isinstance(unit, Grouped):
        if opened.mixture is not None:
            return None
        return int(opened.num_samples.sum()) / max(1, num_units) * opened.sample_bytes
    return opened.sample_bytes * (unit.length if isinstance(unit, NGram) else 1)


def checked_maker(config: LoaderConfig, opened: OpenDatasets) -> Maker:
    """Return what makes batches of what the order counts; checks names and shapes.

    Raises:
        ValueError: A field that is asked for is not there, of another shape, or in the way.
    """
    maker = make_maker(config.unit, opened.spec, marks_padding=config.remainder == "pad")
    if (shard := config.sequence_shard) is not None:
        shard.spec_of(maker.spec)
        for name in shard.fields if config.deduplicated == "unique" else ():
            if opened.spec[name].deduplicated_by is not None:
                raise ValueError(
                    f"sequence_shard cuts {name!r}, which comes as it is shared; leave it out of deduplicate=, or take "
                    "deduplicated='expand'"
                )
    return maker


def check_resident(config: LoaderConfig, opened: OpenDatasets) -> None:
    """Raise where rows on a device would not be the batch's as they are.

    Raises:
        ValueError: Something else is asked of them, too.
    """
    conflicts = {
        "a Mixture": opened.mixture is not None,
        "Dataset(deduplicate=...)": bool(opened.spec.keys),
        "group_by=, weights= or sequence=": config.unit is not None,
        "augment=": config.augment is not None,
        "sequence_shard=": config.sequence_shard is not None,
        "fields that are all lists": not opened.spec.record_bytes,
    }
    for what, is_so in conflicts.items():
        if is_so:
            raise ValueError(f"resident= keeps rows on the device as they are, which {what} do not fit: leave one out")
