"""One watch: the stopwatch, what is made of it, and who is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from stoker.doctor.watch.device import CudaClock, DeviceSampler, may_be_async
from stoker.doctor.watch.iterator import Batch, ReplayingIterator, WatchedIterator
from stoker.doctor.watch.meter import Meter
from stoker.doctor.watch.ranks import RankFigures, gather, rank_here, read_ranks, write_rank
from stoker.doctor.watch.replay import Replayer
from stoker.doctor.watch.report import Circumstances, WatchReport, make_report
from stoker.doctor.watch.traits import LoaderTraits
from stoker.fields.spec import parse_size

# Two CUDA events cost some microseconds: every 8th step keeps that far below 1 % at 1,000 steps/s.
_DEVICE_EVERY = 8


class Session:
    """What lives as long as a watch. It knows no loader, so that a loader ends when its loop lets go of it.

    Args:
        meter: Takes the moments.
        replayer: The replay test, where one was asked for.
        ranks: True gathers, a folder gets files, False leaves other ranks alone.
        on_report: Told when an epoch ends.
        traits: What the loader is.
    """

    def __init__(
        self,
        *,
        meter: Meter,
        replayer: Replayer | None = None,
        ranks: bool | Path = False,
        on_report: Callable[[WatchReport], object] | None = None,
        traits: LoaderTraits | None = None,
    ) -> None:
        self.meter = meter
        self.traits = traits or LoaderTraits()
        self._replayer = replayer
        self._ranks = ranks
        self._on_report = on_report
        self._gathered: tuple[RankFigures, ...] = ()

    def begin_epoch(self, loader: Iterable[Batch]) -> WatchedIterator[Batch]:
        """Return the watched iterator of one epoch."""
        started = self.meter.now()
        iterator = iter(loader)
        self.meter.begin_epoch(self.meter.now() - started)
        if self._replayer is None:
            return WatchedIterator(iterator, meter=self.meter, on_end=self.end_epoch)
        return ReplayingIterator(iterator, meter=self.meter, on_end=self.end_epoch, replayer=self._replayer)

    def end_epoch(self, is_whole: bool) -> None:
        """Tell who wants to know.

        Args:
            is_whole: It ran to its end. Only then do ranks meet: one that left early would be waited for in vain.
        """
        if self._ranks is True and is_whole:
            self._gathered = gather(self._figures())
        elif isinstance(self._ranks, Path):
            write_rank(self._ranks, self._figures(), world_size=rank_here()[1])
        if self._on_report is not None:
            self._on_report(self.report())

    def report(self) -> WatchReport:
        """Return what was seen so far."""
        rank, world_size = rank_here()
        meter, replayer = self.meter, self._replayer
        return make_report(
            meter.look(),
            Circumstances(
                num_epochs=meter.num_epochs,
                num_steps=meter.num_steps,
                first_batch_s=meter.first_batch_s,
                traits=self.traits,
                replayed=(0, 0) if replayer is None else (replayer.num_batches, replayer.num_bytes),
                device=meter.device_times(),
                is_async=not meter.is_synchronized and may_be_async(),
                ranks=self._known_ranks(world_size),
                rank=rank,
                world_size=world_size,
            ),
        )

    def _known_ranks(self, world_size: int) -> tuple[RankFigures, ...]:
        if isinstance(self._ranks, Path):
            write_rank(self._ranks, self._figures(), world_size=world_size)
            return read_ranks(self._ranks, world_size=world_size)
        return self._gathered

    def _figures(self) -> RankFigures:
        seen = self.meter.look()
        return RankFigures(
            rank=rank_here()[0], num_steps=seen.stall.num, stall_s=seen.stall.mean_s, step_s=seen.step.mean_s
        )


def new_session(
    *,
    warmup: int = 10,
    replay: int = 0,
    replay_limit: int | str = "1GB",
    synchronize: Callable[[], object] | None = None,
    device: str | None = None,
    ranks: bool | str | Path = False,
    on_report: Callable[[WatchReport], object] | None = None,
    clock: Callable[[], int] = time.perf_counter_ns,
    traits: LoaderTraits | None = None,
) -> Session:
    """Return a session with the arguments of `watch`, checked.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range.
        ImportError: `device` is given and there is no torch.
    """
    for value, name in ((warmup, "warmup"), (replay, "replay")):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be a number of steps, not {value!r}")
        if value < 0:
            raise ValueError(f"{name} must be a number of steps from 0 on, not {value}")
    for hook, name in ((synchronize, "synchronize"), (on_report, "on_report")):
        if hook is not None and not callable(hook):
            raise TypeError(f"{name} must be a function, not {hook!r}")
    if synchronize is not None and device is not None:
        raise ValueError("synchronize= and device= measure the same in two ways: give one of them")
    if not isinstance(ranks, bool | str | Path):
        raise TypeError(f"ranks must be True, or a folder that all ranks share, not {ranks!r}")
    limit_bytes = parse_size(replay_limit, name="replay_limit")
    sampler = None if device is None else DeviceSampler(CudaClock(device), every=_DEVICE_EVERY)
    return Session(
        meter=Meter(warmup=warmup, clock=clock, synchronize=synchronize, device=sampler),
        replayer=Replayer(num_steps=replay, limit_bytes=limit_bytes, warmup=warmup) if replay else None,
        ranks=Path(ranks).expanduser() if isinstance(ranks, str | Path) else ranks,
        on_report=on_report,
        traits=traits,
    )
