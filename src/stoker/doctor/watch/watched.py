"""`watch`: any loader, watched, with no change to the loop; and the session of a watch, which knows no loader."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self

from stoker.doctor.watch.device import CudaClock, DeviceSampler, may_be_async
from stoker.doctor.watch.iterator import Batch, WatchedIterator
from stoker.doctor.watch.meter import Meter
from stoker.doctor.watch.ranks import RankFigures, rank_here, read_ranks, write_rank
from stoker.doctor.watch.replay import Replayer
from stoker.doctor.watch.report import WatchReport, make_report
from stoker.doctor.watch.tally import StepKind
from stoker.doctor.watch.traits import LoaderTraits, traits_of
from stoker.fields.spec import parse_size

# Two CUDA events cost some microseconds: every 8th step keeps that far below 1 % at 1,000 steps/s.
_DEVICE_EVERY = 8
# What a watched loader keeps to itself; every other attribute is the loader's.
_OWN = frozenset(("loader", "_session", "_stream", "_options"))
# What a loop, or a framework, may ask of a loader itself: a watched one has those that its loader has.
_ASKED_OF_ITSELF = ("__len__", "__getitem__", "__contains__", "__reversed__", "__length_hint__", "__call__", "__bool__")
_OF_FUNCTIONS = ("synchronize", "on_report", "clock")


def watch(
    loader: Iterable[Batch],
    *,
    warmup: int = 10,
    replay: int = 0,
    replay_limit: int | str = "1GB",
    synchronize: Callable[[], object] | None = None,
    device: str | None = None,
    ranks: str | Path | None = None,
    on_report: Callable[[WatchReport], object] | None = None,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Watched[Batch]:
    """Return `loader`, watched: the same batches, and `report()` says whether the loop waits for them, and why.

        watched = stoker.watch(loader)
        for batch in watched:
            step(batch)
        print(watched.report())

    Batches, their order, exceptions and what becomes of the loader when a loop is left early stay as they are; len()
    and attributes are the loader's. With `replay` alone the loop gets more than the loader gives.

    Args:
        loader: Anything a `for` can go over: a torch DataLoader, an iterator of Hugging Face datasets, Ray Data,
            litData, Mosaic or Grain, a generator, a loader of Stoker.
        warmup: Steps at the very beginning that do not count.
        replay: Steps of the replay test. After `warmup` and that many real steps (or when the first epoch ends, if it
            is shorter), the loop gets that many extra steps on batches it has had. It shows what batches in RAM
            would really give. The model trains on those batches again: for test runs, not for one that counts.
        replay_limit: Bytes of batches that are kept for it, "1GB" or a number.
        synchronize: Waits for the device, such as `torch.cuda.synchronize`; called at the end of every step, so that
            work which the step only launched counts as step. It keeps the loop from running ahead of the device.
        device: "cuda": also time some steps by CUDA events, on the device's clock and without waiting for it.
        ranks: A folder that all ranks share: each writes a small file of its means there, and no rank waits for
            another.
        on_report: Called with a report when an epoch ends, or is left early; `print` shows it.
        clock: Nanoseconds since any moment; for tests.

    Raises:
        TypeError: `loader` cannot be iterated over, or an argument has the wrong type.
        ValueError: An argument is out of range.
        ImportError: `device` is given and there is no torch.
    """
    own = type(loader)
    if not hasattr(own, "__iter__") and not hasattr(own, "__getitem__"):
        raise TypeError(f"watch needs what a for loop can go over, not {own.__name__}")
    options: dict[str, Any] = {
        "warmup": warmup,
        "replay": replay,
        "replay_limit": replay_limit,
        "synchronize": synchronize,
        "device": device,
        "ranks": ranks,
        "on_report": on_report,
        "clock": clock,
    }
    asked = tuple(name for name in _ASKED_OF_ITSELF if getattr(own, name, None) is not None)
    return _class_of(asked, is_stream=hasattr(own, "__next__"))(loader, options)


class Session:
    """What lives as long as a watch. It knows no loader, so that a loader ends when its loop lets go of it.

    Args:
        traits: What the loader is.
        warmup: As all others, an argument of `watch`, which says what it is.
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


class Watched(Generic[Batch]):
    """A loader that is watched; `watch` makes it.

    What is not here is the loader's: attributes are read from it and set on it. `loader` is the loader itself, for
    what asks for its type.
    """

    def __init__(self, loader: Iterable[Batch], options: dict[str, Any]) -> None:
        self.loader = loader
        self._options = options
        self._session = Session(**options, traits=traits_of(loader))

    def __iter__(self) -> Iterator[Batch]:
        """Begin an epoch, as the loader does."""
        return self._session.begin_epoch(self.loader)

    def report(self) -> WatchReport:
        """Return what was seen so far, of all steps that are over. Any thread may ask, at any time."""
        return self._session.report()

    def close(self) -> None:
        """Close the loader, where it can be closed."""
        close = getattr(self.loader, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Self:
        enter = getattr(type(self.loader), "__enter__", None)
        if enter is not None:
            enter(self.loader)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        leave = getattr(type(self.loader), "__exit__", None)
        if leave is not None:
            return bool(leave(self.loader, kind, error, trace))
        self.close()
        return None

    def __getattr__(self, name: str) -> Any:
        if name in _OWN or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.loader, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.loader, name)

    def __dir__(self) -> Iterable[str]:
        return sorted({*object.__dir__(self), *dir(self.loader)})

    def __repr__(self) -> str:
        return f"watch({self.loader!r})"

    def __copy__(self) -> Watched[Batch]:
        return watch(copy.copy(self.loader), **self._options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Watched[Batch]:
        return watch(copy.deepcopy(self.loader, memo), **self._options)

    def __reduce__(self) -> tuple[Any, ...]:
        """Go to another process as a watch of its own, which tells nobody here."""
        plain = {name: value for name, value in self._options.items() if name not in _OF_FUNCTIONS}
        return functools.partial(watch, **plain), (self.loader,)


class WatchedStream(Watched[Batch]):
    """A watched iterator or generator: as without a watch, a second `for` goes on where the first one stopped."""

    def __init__(self, loader: Iterable[Batch], options: dict[str, Any]) -> None:
        super().__init__(loader, options)
        self._stream: WatchedIterator[Batch] | None = None

    def __iter__(self) -> Iterator[Batch]:
        """Go on."""
        if self._stream is None:
            self._stream = self._session.begin_epoch(self.loader)
        else:
            self._session.meter.pause()  # what was done between two loops is not a step
        return self._stream

    def __next__(self) -> Batch:
        if self._stream is None:
            self._stream = self._session.begin_epoch(self.loader)
        return next(self._stream)


@functools.cache
def _class_of(names: tuple[str, ...], *, is_stream: bool) -> type[Watched[Any]]:
    """Return a class with methods that hand on to the loader; `len` of a replay test is the loader's, too."""

    def handing_on(name: str) -> Callable[..., Any]:
        def method(self: Watched[Any], *arguments: Any, **options: Any) -> Any:
            return getattr(self.loader, name)(*arguments, **options)

        return method

    base: type[Watched[Any]] = WatchedStream if is_stream else Watched
    return type(base.__name__, (base,), {name: handing_on(name) for name in names})
