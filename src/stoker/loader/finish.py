"""From what was gathered to what is handed over: widened, augmented, prepared for where it goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from stoker.fields.compact import Compact, widen
from stoker.fields.offsets import Int32
from stoker.fields.spec import Arrays, Deduplicated, Ragged
from stoker.loader.augmenting import Augmenter
from stoker.loader.delivery import DeliveryForm
from stoker.loader.gather.together import Together
from stoker.loader.settings import RunSettings
from stoker.loader.units.make import Made
from stoker.loader.units.packing import sequences_of
from stoker.metrics.stages import Stages, timed
from stoker.sampling.steps import Slice


class Prepared(NamedTuple):
    """What the threads have made ready for a step.

    Attributes:
        content: What the delivery prepared.
        num_samples: Samples of the batch.
    """

    content: Any
    num_samples: int


class Finisher:
    """Makes of what was gathered what a step gets.

        gathered ─► widened ─► padding marked ─► augmented ─► prepared for where it goes

    Args:
        settings: See `RunSettings`.
        compact: Fields that are kept in a narrower form, by name.
        stages: Told of augmenting and copying.
        epoch: Decides, beside the seed and the place of a batch, the randomness of `augment`.

    Attributes:
        is_quick: Whether it takes little beside gathering: nothing is copied, and nothing of the user's is called.
    """

    def __init__(self, settings: RunSettings, compact: Mapping[str, Compact], *, stages: Stages, epoch: int) -> None:
        delivery, config = settings.delivery, settings.config
        is_augmented = config.augment is not None
        self._settings = settings
        self._stages = stages
        self._augmenter = None if config.augment is None else Augmenter(config.augment, seed=config.seed, epoch=epoch)
        # What looks at values or cuts shapes wants them as they are delivered, and so does a loop without a device.
        is_widened = bool(compact) and not (delivery.widens and not is_augmented and config.sequence_shard is None)
        self._form = DeliveryForm(
            is_augmented=is_augmented,
            sequence_shard=config.sequence_shard,
            is_expanded=config.deduplicated == "expand",
            compact=compact,
            is_widened=is_widened,
        )
        self._tells_sequences = settings.maker.tells_sequences
        self._changes = (
            is_widened
            or config.marks_padding
            or self._tells_sequences
            or is_augmented
            or config.sequence_shard is not None
        )
        self._prepare = self._copied if delivery.copies else delivery.prepare
        self.is_quick = not (is_augmented or delivery.copies)
        # In threads it pays for what copies alone: each of the calls it takes gives the interpreter's lock up.
        pays = delivery.copies or not settings.prefetch
        self._prepare_together = delivery.prepare_together if pays and not self._changes else None

    @property
    def takes_together(self) -> bool:
        """Whether batches that were gathered in one go may leave as one: nothing is done to one by itself before."""
        return self._prepare_together is not None

    def finish(self, made: Made, slices: Sequence[Slice], step: int) -> Prepared:
        """Return a batch as it is handed over."""
        if self._changes:
            made = self._changed(made, slices, step)
        return Prepared(self._prepare(made, self._form), made.num_samples)

    def finish_together(self, together: Together) -> list[Prepared]:
        """Return batches that leave as one, each as it is handed over."""
        assert self._prepare_together is not None
        if self._settings.delivery.copies:
            with self._stages.span("copy", together.assembled.size_bytes) as span:
                span.num_calls = len(together.sizes)
                prepared = self._prepare_together(together, self._form)
        else:
            prepared = self._prepare_together(together, self._form)
        return list(map(Prepared, prepared, together.sizes))

    def _changed(self, made: Made, slices: Sequence[Slice], step: int) -> Made:
        settings, form = self._settings, self._form
        arrays = _widened(made.arrays, form.compact) if form.is_widened else made.arrays
        if settings.config.marks_padding:
            is_padding = [np.full(piece.num_samples, piece.is_padding) for piece in slices]
            arrays["sample_mask"] = ~np.concatenate([np.zeros(0, dtype=np.bool_), *is_padding])
        if self._tells_sequences:
            arrays |= sequences_of(cast("Int32", arrays["segment_ids"]))
        if self._augmenter is not None:
            with timed(self._stages, "augment"):
                arrays = self._augmenter(arrays, slices, step=step)
        if settings.config.sequence_shard is not None:
            settings.config.sequence_shard.check_batch(arrays)
        return made._replace(arrays=arrays)

    def _copied(self, made: Made, form: DeliveryForm) -> Any:
        with self._stages.span("copy", made.assembled.size_bytes):
            return self._settings.delivery.prepare(made, form)


def _widened(arrays: Arrays, compact: Mapping[str, Compact]) -> Arrays:
    return {name: _wide(array, compact[name]) if name in compact else array for name, array in arrays.items()}


def _wide(array: Any, compact: Compact) -> Any:
    if isinstance(array, Deduplicated):
        return Deduplicated(_wide(array.values, compact), array.index)
    if isinstance(array, Ragged):
        return Ragged(_wide(array.values, compact), array.offsets)
    return widen(array, compact)
