"""Whether what a loader was asked for fits what the data set turned out to be."""

from __future__ import annotations

from stoker.loader.config import LoaderConfig
from stoker.loader.open_datasets import OpenDatasets
from stoker.loader.sequence import SequenceShard
from stoker.loader.units.make import Maker


def make_maker(config: LoaderConfig, opened: OpenDatasets) -> Maker | None:
    """Return what makes batches of anything but rows; checks names and shapes in any case.

    Raises:
        ValueError: A field that is asked for is not there, of another shape, or in the way.
    """
    unit, sequence_shard, marks_padding = config.unit, config.sequence_shard, config.marks_padding
    maker = None if unit is None else Maker(unit, opened.spec, marks_padding=marks_padding)
    spec = opened.spec.delivered if maker is None else maker.spec
    if maker is None and marks_padding and any(entry.name == "sample_mask" for entry in spec):
        raise ValueError(
            "remainder='pad' gives batches an array 'sample_mask' of their own, but the data set has a field of "
            'this name: call it otherwise, with fields={"other": stoker.Field(columns="sample_mask")}'
        )
    if sequence_shard is not None:
        sequence_shard.spec_of(spec)
        _check_uncut(sequence_shard, config, opened)
    return maker


def check_resident(config: LoaderConfig, opened: OpenDatasets) -> None:
    """Raise where rows on a device would not be the batch's as they are.

    Raises:
        ValueError: Something else is asked of them, too.
    """
    conflicts = {
        "a Mixture": opened.is_mixed,
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
