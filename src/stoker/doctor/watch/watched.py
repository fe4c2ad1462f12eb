"""`watch`: any loader, watched, with no change to the loop; and the session of a watch, which knows no loader."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from stoker.doctor.watch.device import DeviceSampler, may_be_async
from stoker.doctor.watch.meter import Meter, StepKind
from stoker.doctor.watch.ranks import RankFigures, rank_here, read_ranks, write_rank
from stoker.doctor.watch.replay import Replayer
from stoker.doctor.watch.report import WatchReport, make_report
from stoker.doctor.watch.traits import LoaderTraits, late_workers, traits_of

Batch = TypeVar("Batch")

# Two CUDA events cost some microseconds: every 8th step keeps that far below 1 % at 1,000 steps/s.
_DEVICE_EVERY = 8
# After a stall of 1 ms it is worth some microseconds to look at what lay ready behind the batch.
_LONG_NS = 1_000_000
# What a watched loader keeps to itself; every other attribute is the loader's.
_OWN = frozenset(("loader", "_session", "_stream"))
# What a loop, or a framework, may ask of a loader itself: a watched one has those that its loader has.
_ASKED_OF_ITSELF = (
    *("__len__", "__getitem__", "__contains__", "__reversed__", "__length_hint__", "__call__", "__bool__"),
    "__next__",  # an iterator or generator
)


def watch(
    loader: Iterable[Batch],
    *,
    warmup: int = 10,
    replay: int = 0,
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
            would really give. The model trains on those batches again: for test runs, not for one that counts. Up
            to eight are kept for it, and a gigabyte.
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
    options: dict[str, Any] = {**locals()}
    own = type(options.pop("loader"))
    if not hasattr(own, "__iter__") and not hasattr(own, "__getitem__"):
        raise TypeError(f"watch needs what a for loop can go over, not {own.__name__}")
    return _watched(loader, Session(options))


def _watched(loader: Iterable[Batch], session: Session) -> Watched[Batch]:
    asked = tuple(name for name in _ASKED_OF_ITSELF if getattr(type(loader), name, None) is not None)
    session.traits = traits_of(loader)
    return _class_of(asked)(loader, session)


class Session:
    """What lives as long as a watch. It knows no loader, so that a loader ends when its loop lets go of it.

    Attributes:
        options: Those of `watch`, all of them; it raises what is raised here.
        traits: What the loader is.
        meter: Has the times.
        replayer: Of the replay test, None where none was asked for.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        for name in ("warmup", "replay"):
            num = options[name]
            if isinstance(num, bool) or not isinstance(num, int):
                raise TypeError(f"{name} must be a number of steps, not {num!r}")
            if num < 0:
                raise ValueError(f"{name} must be a number of steps from 0 on, not {num}")
        for name in ("synchronize", "on_report"):
            if options[name] is not None and not callable(options[name]):
                raise TypeError(f"{name} must be a function, not {options[name]!r}")
        synchronize, device, ranks = (options[name] for name in ("synchronize", "device", "ranks"))
        if synchronize is not None and device is not None:
            raise ValueError("synchronize= and device= measure the same in two ways: give one of them")
        if ranks is not None and not isinstance(ranks, str | Path):
            raise TypeError(f"ranks must be a folder that all ranks share, not {ranks!r}")
        sampler = None if device is None else DeviceSampler(device, every=_DEVICE_EVERY)
        self.options = options
        self.traits = LoaderTraits()
        self.meter = Meter(warmup=options["warmup"], clock=options["clock"], synchronize=synchronize, device=sampler)
        self.replayer = Replayer(num_steps=options["replay"], warmup=options["warmup"]) if options["replay"] else None

    def begin_epoch(self, loader: Iterable[Batch]) -> WatchedIterator[Batch]:
        """Return the watched iterator of one epoch."""
        started = self.meter.now()
        iterator = iter(loader)
        self.meter.begin_epoch(self.meter.now() - started)
        return WatchedIterator(iterator, self)

    def end_epoch(self) -> None:
        """Tell who wants to know."""
        if self.options["on_report"] is not None:
            self.options["on_report"](self.report())
        else:
            self._write_rank(*rank_here())

    def report(self) -> WatchReport:
        """Return what was seen so far."""
        rank, world_size = rank_here()
        folder = self._write_rank(rank, world_size)
        return make_report(
            self.meter,
            self.replayer,
            traits=self.traits,
            is_async=not (self.options["synchronize"] or self.options["device"]) and may_be_async(),
            ranks=() if folder is None else read_ranks(folder, world_size=world_size),
            rank=rank,
            world_size=world_size,
        )

    def _write_rank(self, rank: int, world_size: int) -> Path | None:
        """Write this rank's figures where ranks share theirs, and return that folder."""
        if self.options["ranks"] is None:
            return None
        folder, seen = Path(self.options["ranks"]).expanduser(), self.meter.look()
        num, stall_s, step_s = seen.num(StepKind.STEADY), seen.spread(0).mean_s, seen.spread(1).mean_s
        write_rank(folder, RankFigures(rank=rank, num_steps=num, stall_s=stall_s, step_s=step_s), world_size=world_size)
        return folder


class WatchedIterator(Generic[Batch]):
    """Hands on what another iterator gives, exceptions included, and times it.

    It alone holds the loader's iterator: when a loop lets go of it, that one ends as it would without a watch.
    The session is told when the iterator is exhausted, or a loop lets go of it before.
    """

    def __init__(self, iterator: Iterator[Batch], session: Session) -> None:
        self._iterator = iterator
        self._session = session
        self._meter = session.meter
        self._replayer = session.replayer
        self._late_workers = late_workers(iterator)
        self._is_exhausted = False
        self._is_over = False
        self._begun_at = session.meter.num_steps

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
            meter.end_epoch()
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
            self._session.end_epoch()


class Watched(Generic[Batch]):
    """A loader that is watched; `watch` makes it.

    What is not here is the loader's: attributes are read from it and set on it. `loader` is the loader itself, for
    what asks for its type.
    """

    def __init__(self, loader: Iterable[Batch], session: Session) -> None:
        self.loader = loader
        self._session = session
        self._stream: WatchedIterator[Batch] | None = None  # of a loader that is an iterator itself

    def __iter__(self) -> Iterator[Batch]:
        """Begin an epoch, as the loader does; an iterator goes on where the last `for` stopped."""
        if not hasattr(type(self), "__next__"):
            return self._session.begin_epoch(self.loader)
        if self._stream is None:
            self._stream = self._session.begin_epoch(self.loader)
        else:
            self._session.meter.pause()  # what was done between two loops is not a step
        return self._stream

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
        return _watched(copy.copy(self.loader), Session(self._session.options))

    def __deepcopy__(self, memo: dict[int, Any]) -> Watched[Batch]:
        return _watched(copy.deepcopy(self.loader, memo), Session(self._session.options))

    def __reduce__(self) -> tuple[Any, ...]:
        """Go to another process as a watch of its own, which tells nobody here."""
        plain = {name: self._session.options[name] for name in ("warmup", "replay", "device", "ranks")}
        return functools.partial(watch, **plain), (self.loader,)


@functools.cache
def _class_of(names: tuple[str, ...]) -> type[Watched[Any]]:
    """Return a class with methods that hand on to the loader; `len` of a replay test is the loader's, too."""

    def handing_on(name: str) -> Callable[..., Any]:
        def method(self: Watched[Any], *arguments: Any, **options: Any) -> Any:
            return getattr(self.loader, name)(*arguments, **options)

        return method

    def goes_on(self: Watched[Any]) -> Any:
        return next(self._stream or iter(self))

    methods = {name: goes_on if name == "__next__" else handing_on(name) for name in names}
    return type("Watched", (Watched,), methods)
