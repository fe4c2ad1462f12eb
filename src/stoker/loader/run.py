"""One pass over (the rest of) an epoch: steps in order, batches ahead of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from stoker.host.forks import Home
from stoker.loader.fill import Filler
from stoker.loader.finish import Finisher, Prepared
from stoker.loader.gather.buffers import BufferPool
from stoker.loader.gathering import Gatherer
from stoker.loader.open_datasets import OpenDatasets
from stoker.loader.prefetch import Prefetch, num_makers
from stoker.loader.residence import offer_window
from stoker.loader.run_settings import RunSettings
from stoker.loader.streams import EpochStream, Mapped, MixedStream, Stream
from stoker.loader.subjects import Subjects
from stoker.loader.units.expand import Units
from stoker.loader.windows.in_use import Windows, num_windows_ahead
from stoker.metrics.stages import Stages, Subject
from stoker.sampling.epoch import EpochOrder
from stoker.sampling.mixture import MixtureEpoch
from stoker.sampling.position import Position
from stoker.sampling.steps import Slice, Steps


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Which steps of a pass a run makes: every `every`-th, from `first` on; all of them unless told.

    For several processes that make the batches of one rank in turn: 7 steps, `every=3`

        step        0   1   2   3   4   5   6
        first=0     █           █           █
        first=1         █           █
        first=2             █           █
    """

    first: int = 0
    every: int = 1


class Progress:
    """Where a run stands. Its position is worked out for those who ask: after every step, hardly anybody does.

    Args:
        began: Where the run began.
        steps: Its steps, counted from there; None where it has not begun.

    Attributes:
        last: The last step that was handed over, None before the first.
    """

    __slots__ = ("_began", "_steps", "last")

    def __init__(self, began: Position, steps: Steps | None = None) -> None:
        self._began = began
        self._steps = steps
        self.last: int | None = None

    @property
    def position(self) -> Position:
        """Behind the last step handed over."""
        if self._steps is None or self.last is None:
            return self._began
        return self._began.after(self.last, self._steps)

    def after(self, num_steps: int) -> Position:
        """Return where it stands once so many steps of it are handed over.

        Raises:
            ValueError: It has fewer.
        """
        there = 0 if self._steps is None else self._steps.num_steps
        if not 0 <= num_steps <= there:
            raise ValueError(f"this pass has {there} steps, not {num_steps}")
        return self._began if not num_steps or self._steps is None else self._began.after(num_steps - 1, self._steps)


class Run:
    """The batches of one rank, from one position of an epoch to its end.

    Args:
        position: Where it begins.
        orders: Order of the epoch in each lane.
        steps: Which samples of each lane belong to which step, from `position` on.
        opened: The data sets that the samples are of.
        pool: Memory for batches.
        settings: See `RunSettings`.
        stages: Told of waiting, gathering and opening.
        turn: Which of the steps it makes.
        units_in: Returns what the order counts of a data set in one of its own epochs, None for rows.
        held: Batches of another run that count with those that this one may have ahead; see `hold`.

    Attributes:
        steps: As given.
        progress: Where it stands.
        is_abandoned: Whether nobody asks for its batches any more.
    """

    def __init__(
        self,
        *,
        position: Position,
        orders: Sequence[EpochOrder] | Sequence[MixtureEpoch],
        steps: Steps,
        opened: OpenDatasets,
        pool: BufferPool,
        settings: RunSettings,
        stages: Stages,
        turn: Turn = Turn(),
        units_in: Callable[[int, int], Units | None],
        held: int = 0,
    ) -> None:
        self.steps = steps
        self.progress = Progress(position, steps)
        self._opened = opened
        self._settings = settings
        self._stages = stages
        self._epoch = position.epoch
        self._units_in = units_in
        self._numbers = range(turn.first, steps.num_steps, turn.every)
        self._num_handed = 0
        self._handed_ns = 0
        self._passing_from = 0  # the step from which on windows may be left behind
        self._subject: Subject | None = None  # of the step that the loop is at, where it is shown
        self._subjects = Subjects(epoch=self._epoch, steps=steps, num_lanes=len(orders))
        self.is_abandoned = False
        self._home = Home()
        self._is_closed = False
        self._closing = threading.RLock()
        self._pool = opened.pool(settings.num_threads)
        self._filler = Filler(
            is_there=opened.is_there,
            build=self._build,
            pool=self._pool,
            size_of=lambda number: int(opened.num_samples[number]),
            max_ahead=lambda: settings.num_threads if opened.is_tight else None,
            num_short=opened.num_short,
            waiting=partial(stages.span, "wait_chunk"),
        )
        self._streams: list[Stream] = [self._stream_of(order) for order in orders]
        self._finisher = Finisher(settings, opened.spec.compact, stages=stages, epoch=self._epoch)
        self._gatherer = Gatherer(
            self._streams,
            partial(steps.slices_of, shard=settings.shard),
            opened=opened,
            pool=pool,
            settings=settings,
            stages=stages,
            num_ahead=min(settings.prefetch, len(self._numbers)),
            # What says which data set each sample is of is written to each batch.
            leave_together=self._finisher.takes_together and settings.source_field is None,
        )
        # Without threads the user's own function is not called, nor anything copied, before it is asked for.
        max_together = self._gatherer.max_together if settings.prefetch or self._finisher.is_quick else 1
        self._prefetch: Prefetch[Prepared] = Prefetch(
            self._make,
            num_results=len(self._numbers),
            depth=settings.prefetch,
            num_threads=settings.num_threads
            if settings.augment is not None
            else num_makers(settings.num_threads, depth=settings.prefetch, max_together=max_together),
            max_together=max_together,
            waiting=partial(stages.span, "wait_room"),
            held=held,
        )

    def _stream_of(self, order: EpochOrder | MixtureEpoch) -> Stream:
        if isinstance(order, EpochOrder):
            return self._epoch_stream(0, order, lambda number: int(order.window_starts[number]))

        def open_epoch(which: int, own: EpochOrder) -> EpochStream:
            return self._epoch_stream(
                which, own, lambda number: order.first_use(which, own.epoch, int(own.window_starts[number]))
            )

        return MixedStream(order, open_epoch)

    def _epoch_stream(self, which: int, order: EpochOrder, start_of: Callable[[int], int]) -> EpochStream:
        """Return the stream of one data set's own epoch; `start_of` says where in the lane a window is first used."""
        units = self._units_in(which, order.epoch)

        def asking(number: int) -> Subject:
            numbers = self._opened.numbers(which, order.window_chunks(number))
            return self._subjects.asking(number, start=start_of(number), chunks=numbers)

        def open_window(number: int) -> Mapped:
            with self._stages.span("open", subject=asking(number)):
                following = order.window_chunks(number + 1) if number + 1 < order.num_windows else ()
                window = self._opened.open_window(which, order.window_chunks(number), self._filler, following)
                if not window.is_in_memory():
                    # One read through all of it, before random rows are asked for: a disk is many times as fast so.
                    window.settle(goes_on=lambda: not self._is_closed)
                if (resident := self._settings.delivery.resident) is not None:
                    offer_window(resident, window, order.window_chunks(number), self._opened.num_samples)
                return Mapped(window, order.tables(number), order.window_chunks(number))

        def request(number: int) -> None:
            asking(number)
            counts = self._opened.counts()
            self._stages.sample("cache", hits=counts.num_reused, built=counts.num_built, mended=counts.num_mended)
            self._filler.request(self._opened.to_ask_for(which, order.window_chunks(number)))

        window_chunks = max(1, len(order.window_chunks(0)) if order.num_windows else 0)

        def num_ahead() -> int:
            if self._opened.is_tight:
                return 0
            return num_windows_ahead(self._pool.size, window_chunks, num_short=self._filler.num_short)

        windows = Windows(
            open_window=open_window,
            request=request,
            num_windows=order.num_windows,
            num_ahead=num_ahead,
            waiting=partial(self._stages.span, "wait_window"),
        )
        return EpochStream(order, windows, units=units, fragments=self._opened.fragments(which), which=which)

    @property
    def num_left(self) -> int:
        """Steps that have not been handed over."""
        return len(self._numbers) - self._num_handed

    @property
    def num_ready(self) -> int:
        """Batches that wait for their step."""
        return self._prefetch.num_ready

    @property
    def num_behind_borders(self) -> int:
        """Of all steps, how many at the end need no window but the last of each lane; 0 where windows are few."""
        steps, borders = self.steps, [stream.last_border for stream in self._streams]
        known = [border for border in borders if border is not None]
        if not known or len(known) < len(borders):
            return 0
        return min(len(self._numbers), steps.num_steps + (steps.lane_start - max(known)) // steps.part_size)

    def ask_first(self) -> None:
        """Have the first windows of this rank's lanes opened, though no batch may be made yet."""
        for lane in {piece.lane for piece in self._slices(self._numbers[0]) if not piece.is_padding}:
            self._streams[lane].ask_first()

    def hold(self, num: int) -> None:
        """Have so many batches less ahead from now on: those that are left of the run before this one."""
        self._prefetch.hold(num)

    def next(self) -> Prepared:
        """Return the next step's batch.

        Blocks: until it is assembled.

        Raises:
            StopIteration: The epoch is over.
            RuntimeError: The run was closed before.
        """
        start_ns = time.perf_counter_ns()
        stages, numbers, number = self._stages, self._numbers, self._num_handed
        if self._handed_ns:
            stages("step", self._handed_ns, start_ns, 0, self._subject)
            self._handed_ns = 0
        if number == len(numbers):
            raise StopIteration
        self._subject = self._subject_of(numbers[number])
        try:
            if self._prefetch.is_ready and not stages.shows_each:  # nothing to wait in
                prepared = self._prefetch.get()
                stages("wait", start_ns, time.perf_counter_ns(), 0)
            else:
                with stages.span("wait", subject=self._subject):
                    prepared = self._prefetch.get()
        except Exception as error:
            if self._is_closed:
                # Whatever failed then failed because its cache, windows or threads were being closed.
                raise RuntimeError("the loader was closed before the epoch was over") from None
            error.add_note(f"needed by step {numbers[number]} of this pass over epoch {self._epoch}")
            raise
        self.progress.last = numbers[number]
        self._num_handed = number = number + 1
        if number < len(numbers) and numbers[number] >= self._passing_from:
            self._pass_windows(numbers[number])
        self._handed_ns = time.perf_counter_ns()
        return prepared

    def abandon(self) -> None:
        """Close it in a thread of its own, because nobody asks for its batches any more.

        Who finds that out is Python, in whatever thread it counts references or looks for garbage: perhaps in one that
        `close` would wait for, or that holds a lock which closing needs; and in the main thread a Ctrl-C during the
        wait would be lost, since nothing can be raised from there. `close` waits for what that thread has begun.
        A fork does nothing: it has no threads of a run.
        """
        if not self._home.is_here:
            return
        self.is_abandoned = True
        try:
            threading.Thread(target=self.close, name="stoker-close").start()
        except RuntimeError:  # the interpreter is ending, and begins no more threads
            self.close()

    def close(self) -> None:
        """Stop all threads of the run and give everything back. Harmless when called again.

        Blocks: until batches in the making are done.
        """
        self._is_closed = True
        # First everyone is told, then joined: a thread that waits for another one's work is freed by that one's stop.
        self._filler.stop()
        for stream in self._streams:
            stream.stop()
        with self._closing:
            self._prefetch.close()
            for stream in self._streams:
                stream.close()
            self._filler.close()

    def _build(self, chunk: int) -> bool:
        with self._stages.span("build", subject=self._subjects.of_chunk(chunk)):
            return self._opened.build(chunk)

    def _make(self, number: int, num_wanted: int) -> Iterator[list[Prepared]]:
        """Yield the batches of some of the run's steps, the first of them at least; see `Prefetch`."""
        numbers = self._numbers[number : number + num_wanted]
        stages, finisher = self._stages, self._finisher
        ready: list[Prepared] = []
        try:
            with stages.span("batch", subject=self._subject_of(numbers[0])) as span:
                gathered, slices = self._gatherer.gather(numbers)
                if gathered.together is not None:
                    finished = iter(finisher.finish_together(gathered.together))
                else:
                    finished = map(finisher.finish, gathered.made, slices, numbers)
                is_quick = finisher.is_quick or gathered.together is not None
                # A span of its own for each takes a tenth of what is left to do, so only where somebody looks at it.
                num_now = len(slices) if is_quick and not stages.shows_each else 1
                span.num_calls = num_now
                for _ in range(num_now):
                    ready.append(next(finished))  # noqa: PERF401  kept where a later one fails
            for i in range(num_now, len(slices)):
                if not is_quick:
                    yield ready
                    ready = []
                with stages.span("batch", subject=self._subject_of(numbers[i])):
                    ready.append(next(finished))
        except Exception:
            if ready:  # they come before the error
                yield ready
            raise
        yield ready

    def _subject_of(self, step: int) -> Subject | None:
        return self._subjects.of_step(step) if self._stages.shows_each else None

    def _slices(self, step: int) -> tuple[Slice, ...]:
        return self.steps.slices(step, self._settings.shard)

    def _pass_windows(self, step: int) -> None:
        """Close the windows that only steps before this one needed."""
        steps = self.steps
        pieces = [piece for piece in self._slices(step) if not piece.is_padding]  # which goes back to the beginning
        borders = [self._streams[piece.lane].pass_by(piece.start) for piece in pieces]
        # No step before this one begins behind such a border: nothing has to be looked at until then.
        if borders:
            self._passing_from = max(step + 1, (min(borders) - steps.lane_start) // steps.part_size)
