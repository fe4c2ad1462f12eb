"""What a run needs besides the order."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.loader.augmenting import Augment
from stoker.loader.delivery import Delivery
from stoker.loader.gather.assemble import Once
from stoker.loader.sequence import SequenceShard
from stoker.loader.units.make import Maker
from stoker.sampling.steps import RankShare


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a run needs besides the order.

    Attributes:
        seed: Seed of the order; also decides `augment`'s randomness.
        shard: This rank.
        num_threads: Threads that assemble batches, and as many that build chunks where some are missing.
        prefetch: Batches ahead of the step; 0 assembles them in the calling thread when one is asked for.
        augment: The user's function on a batch, or None.
        marks_padding: Whether batches get the bool field `sample_mask`, False where a sample only fills the batch up.
        delivery: What batches leave as.
        maker: Makes batches of what the order counts, where that is not rows.
        source_field: Name of the field that says which data set each sample is of, where batches get one.
        sequence_shard: This rank's part of each sequence, where it gets only a part.
        batch_bytes: About how much a batch takes; None where that is not known before one is made.
        once: Whether what samples share is gathered once for all of a batch.
        is_expanded: Whether the delivery then expands it.
    """

    seed: int
    shard: RankShare
    num_threads: int
    prefetch: int
    augment: Augment | None
    marks_padding: bool
    delivery: Delivery
    maker: Maker | None = None
    source_field: str | None = None
    sequence_shard: SequenceShard | None = None
    batch_bytes: float | None = None
    once: Once = "never"
    is_expanded: bool = True
