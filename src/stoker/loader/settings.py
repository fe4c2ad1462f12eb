"""What follows from a loader's arguments once its data set is open, and once its ranks are known."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from stoker.dataset.units.kinds import Grouped, NGram
from stoker.loader.config import LoaderConfig, Once, default_prefetch
from stoker.loader.delivery import Delivery
from stoker.loader.opened import OpenDatasets
from stoker.loader.sequence import SequenceShard
from stoker.loader.shard import Shard
from stoker.loader.units import Maker

_log = logging.getLogger("stoker")


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
    num_sets: int
    source_field: str | None
    batch_bytes: float | None
    may_begin_early: bool

    @property
    def once(self) -> Once:
        """Whether what samples share is gathered once for all of a batch."""
        return self.config.once(expands=self.delivery.expands)


def settle(
    config: LoaderConfig,
    shard: Shard,
    opened: OpenDatasets,
    *,
    num_units: int,
    maker: Maker,
    delivery: Delivery,
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
    global_batch_size = config.global_size(shard)
    if global_batch_size < shard.world_size:
        _log.warning(
            "a global batch of %d samples leaves some of %d ranks without any in every step; give it one a rank at "
            "least",
            global_batch_size,
            shard.world_size,
        )
    unit_bytes = _unit_bytes(config, opened, maker, num_units)
    batch_bytes = None if unit_bytes is None else global_batch_size / shard.world_size * unit_bytes
    prefetch = config.prefetch
    if prefetch is None:
        prefetch = default_prefetch(batch_bytes, crosses=delivery.copies)
    # A function that the user may change between two epochs must not be asked before the second one begins.
    is_simple = config.augment is None and config.unit is None and opened.mixture is None
    return RunSettings(
        config=config,
        shard=shard,
        global_batch_size=global_batch_size,
        prefetch=prefetch,
        delivery=delivery,
        maker=maker,
        num_sets=len(opened.datasets),
        source_field=None if opened.mixture is None else opened.mixture.source_field,
        batch_bytes=batch_bytes,
        may_begin_early=is_simple and not opened.is_tight and delivery.resident is None,
    )


def _unit_bytes(config: LoaderConfig, opened: OpenDatasets, maker: Maker, num_units: int) -> float | None:
    """Return about how much one of what the order counts takes in a batch; None where only making one tells."""
    unit = config.unit
    if (row_bytes := maker.row_bytes) is not None:
        return row_bytes
    num_rows = 1.0
    if isinstance(unit, Grouped):
        if opened.mixture is not None:
            return None
        num_rows = int(opened.num_samples.sum()) / max(1, num_units)
    elif isinstance(unit, NGram):
        num_rows = unit.length
    return num_rows * opened.sample_bytes


def make_maker(config: LoaderConfig, opened: OpenDatasets) -> Maker:
    """Return what makes batches of what the order counts; checks names and shapes.

    Raises:
        ValueError: A field that is asked for is not there, of another shape, or in the way.
    """
    maker = Maker(config.unit, opened.spec, marks_padding=config.marks_padding)
    if config.sequence_shard is not None:
        config.sequence_shard.spec_of(maker.spec)
        _check_uncut(config.sequence_shard, config, opened)
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


def _check_uncut(sequence_shard: SequenceShard, config: LoaderConfig, opened: OpenDatasets) -> None:
    for name in sequence_shard.fields if config.deduplicated == "unique" else ():
        if opened.spec[name].deduplicated_by is not None:
            raise ValueError(
                f"sequence_shard cuts {name!r}, which comes as it is shared; leave it out of deduplicate=, or take "
                "deduplicated='expand'"
            )
