"""One watch: the stopwatch, what is made of it, and who is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from stoker.doctor.watch.device import CudaClock, DeviceSampler, may_be_async
from stoker.doctor.watch.iterator import Batch, WatchedIterator
from stoker.doctor.watch.meter import Meter
from stoker.doctor.watch.ranks import RankFigures, rank_here, read_ranks, write_rank
from stoker.doctor.watch.replay import Replayer
from stoker.doctor.watch.report import WatchReport, make_report
from stoker.doctor.watch.tally import StepKind
from stoker.doctor.watch.traits import LoaderTraits
from stoker.fields.spec import parse_size

# Two CUDA events cost some microseconds: every 8th step keeps that far below 1 % at 1,000 steps/s.
_DEVICE_EVERY = 8


class Session:
    """What lives as long as a watch. It knows no loader, so that a loader ends when its loop lets go of it.

    Args:
        traits: What the loader is.
        warmup: As the others, an argument of `watch`.
        replay: See `watch`.
        replay_limit: See `watch`.
        synchronize: See `watch`.
        device: See `watch`.
        ranks: See `watch`.
        on_report: See `watch`.
        clock: See `watch`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range.
        ImportError: `device` is given and there is no torch.
    """

    def __init__(
        self,
        *,
        traits: LoaderTraits | None = None,
        warmup: int = 10,
        replay: int = 0,
        replay_limit: int | str = "1GB",
        synchronize: Callable[[], object] | None = None,
        device: str | None = None,
        ranks: str | Path | None = None,
        on_report: Callable[[WatchReport], object] | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
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
        if ranks is not None and not isinstance(ranks, str | Path):
            raise TypeError(f"ranks must be a folder that all ranks share, not {ranks!r}")
        limit_bytes = parse_size(replay_limit, name="replay_limit")
        sampler = None if device is None else DeviceSampler(CudaClock(device), every=_DEVICE_EVERY)
        self.traits = traits or LoaderTraits()
        self.meter = Meter(warmup=warmup, clock=clock, synchronize=synchronize, device=sampler)
        self._replayer = Replayer(num_steps=replay, limit_bytes=limit_bytes, warmup=warmup) if replay else None
        self._ranks = None if ranks is None else Path(ranks).expanduser()
        self._on_report = on_report

    def begin_epoch(self, loader: Iterable[Batch]) -> WatchedIterator[Batch]:
        """Return the watched iterator of one epoch."""
        started = self.meter.now()
        iterator = iter(loader)
        self.meter.begin_epoch(self.meter.now() - started)
        return WatchedIterator(iterator, meter=self.meter, on_end=self.end_epoch, replayer=self._replayer)

    def end_epoch(self) -> None:
        """Tell who wants to know."""
        if self._ranks is not None:
            write_rank(self._ranks, self._figures(), world_size=rank_here()[1])
        if self._on_report is not None:
            self._on_report(self.report())

    def report(self) -> WatchReport:
        """Return what was seen so far."""
        rank, world_size = rank_here()
        meter, replayer = self.meter, self._replayer
        return make_report(
            meter.look(),
            traits=self.traits,
            replayed=(0, 0) if replayer is None else (replayer.num_batches, replayer.num_bytes),
            device=meter.device_times(),
            is_async=not meter.is_synchronized and may_be_async(),
            ranks=self._known_ranks(world_size),
            num_epochs=meter.num_epochs,
            num_steps=meter.num_steps,
            first_batch_s=meter.first_batch_s,
            rank=rank,
            world_size=world_size,
        )

    def _known_ranks(self, world_size: int) -> tuple[RankFigures, ...]:
        if self._ranks is None:
            return ()
        write_rank(self._ranks, self._figures(), world_size=world_size)
        return read_ranks(self._ranks, world_size=world_size)

    def _figures(self) -> RankFigures:
        seen = self.meter.look()
        return RankFigures(
            rank=rank_here()[0],
            num_steps=seen.num_of[StepKind.STEADY],
            stall_s=seen.stall.mean_s,
            step_s=seen.step.mean_s,
        )
