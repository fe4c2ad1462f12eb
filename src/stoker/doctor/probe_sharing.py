"""Repeated features kept once: the sample's chunks built so, beside those that are as they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from stoker.doctor.fill import fill_cache
from stoker.doctor.runs import Sample
from stoker.doctor.sampled import SampledDataset
from stoker.errors import StokerError
from stoker.plan.savings import SharingFound, find_sharing


@dataclass(frozen=True, kw_only=True)
class RepeatedFields:
    """The sample with what repeats in it kept once.

    Attributes:
        sample: To run on.
        how: What to write for it.
    """

    sample: Sample
    how: str


def keep_shared(sample: Sample, folder: Path, *, num_threads: int) -> RepeatedFields | None:
    """Build the warm chunks of a sample once more, features that repeat kept once; None where none are worth it.

    Args:
        sample: As it is.
        folder: For the cache.
        num_threads: Threads that build.
    """
    if sample.catalogue.dataset.deduplicate:
        return None
    try:
        found = find_sharing(SampledDataset(sample.catalogue, sample.warm_units).open())
        if not found.keys:
            return None
        catalogue = sample.catalogue.sharing({one.key: one.patterns or (one.key,) for one in found.keys})
        fill_cache(SampledDataset(catalogue, sample.warm_units), folder, num_threads=num_threads)
    except StokerError:  # what can be built as it is, and not so, is no advice
        return None
    return RepeatedFields(sample=replace(sample, catalogue=catalogue, warm=folder), how=_how(found))


def _how(found: SharingFound) -> str:
    keys = ", ".join(f'"{one.key}": [...]' for one in found.keys)
    return f"Dataset(deduplicate={{{keys}}}): stoker inspect --deduplicate"
