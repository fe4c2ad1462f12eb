"""The iterator that stands in for the loader's own: the same batches in the same order, and a stopwatch beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from stoker.doctor.watch.meter import Meter
from stoker.doctor.watch.replay import Replayer
from stoker.doctor.watch.tally import StepKind
from stoker.doctor.watch.traits import late_workers

Batch = TypeVar("Batch")

# After a stall of 1 ms it is worth some microseconds to look at what lay ready behind the batch.
_LONG_NS = 1_000_000


class WatchedIterator(Generic[Batch]):
    """Hands on what another iterator gives, exceptions included, and times it.

    It alone holds the loader's iterator: when a loop lets go of it, that one ends as it would without a watch.

    Args:
        iterator: The loader's own.
        meter: Takes the moments.
        on_end: Called once: when the iterator is exhausted, or a loop lets go of it before.
        replayer: Hands some batches out again, for the replay test.
    """

    def __init__(
        self,
        iterator: Iterator[Batch],
        *,
        meter: Meter,
        on_end: Callable[[], None],
        replayer: Replayer | None = None,
    ) -> None:
        self._iterator = iterator
        self._replayer = replayer
        self._is_exhausted = False
        self._meter = meter
        self._on_end = on_end
        self._late_workers = late_workers(iterator)
        self._is_over = False
        self._begun_at = meter.num_steps

    def __iter__(self) -> WatchedIterator[Batch]:
        return self

    def __next__(self) -> Batch:
        meter, replayer = self._meter, self._replayer
        meter.ask()
        if replayer is not None and replayer.is_due(at_end=self._is_exhausted):
            return self._again(replayer)
        try:
            if self._is_exhausted:
                raise StopIteration
            batch = next(self._iterator)
        except StopIteration:
            if replayer is not None and not self._is_exhausted:
                self._is_exhausted = True
                if replayer.is_due(at_end=True):
                    meter.ask()  # the wait for the end of the epoch is no replayed batch's stall
                    return self._again(replayer)
            self._end()
            raise
        meter.got(None if replayer is None else replayer.take(batch))
        if self._late_workers is not None and meter.stall_ns > _LONG_NS:
            meter.late = self._late_workers()
        return batch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_iterator" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._iterator, name)  # send, throw, close, state_dict, ...

    def __length_hint__(self) -> int:
        hint = getattr(type(self._iterator), "__length_hint__", None) or getattr(type(self._iterator), "__len__", None)
        return hint(self._iterator) if hint is not None else NotImplemented

    def __del__(self) -> None:
        if self._meter.num_steps > self._begun_at:
            self._end()

    def _again(self, replayer: Replayer) -> Batch:
        batch: Batch = replayer.next()
        self._meter.got(StepKind.REPLAY)
        return batch

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._on_end()
