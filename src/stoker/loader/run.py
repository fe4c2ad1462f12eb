"""One pass over (the rest of) an epoch: steps in order, batches ahead of them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from stoker.fields.offsets import Int64
from stoker.host.forks import Home
from stoker.loader.batches import Finisher, Gatherer, Prepared
from stoker.loader.fill import Filler
from stoker.loader.gather.buffers import BufferPool
from stoker.loader.open_datasets import OpenDatasets
from stoker.loader.orders import Orders
from stoker.loader.ready_queue import ReadyQueue
from stoker.loader.residence import offer_window
from stoker.loader.settings import RunSettings
from stoker.loader.streams import EpochStream, MixedStream, Stream
from stoker.loader.windows.in_use import OpenWindow, Windows, num_windows_ahead
from stoker.metrics.stages import Stages, Subject
from stoker.sampling.epoch import EpochOrder
from stoker.sampling.mixture import MixtureEpoch
from stoker.sampling.position import Position
from stoker.sampling.steps import Slice, Steps

# Threads that make batches, at most, unless they call a function of the user's: more of them make fewer batches at a
# time, and take turns with the interpreter's lock for each call of native code.
_MOST_MAKERS = 4


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


class _EpochWindows:
    """Asks for the windows of one data set's own epoch, and opens them.

    Args:
        run: The run that uses them.
        which: Number of the data set.
        order: Order of that epoch.
        mixed: The mixture's epoch that it is a part of; None where the data set stands alone.
    """

    def __init__(self, run: Run, which: int, order: EpochOrder, mixed: MixtureEpoch | None) -> None:
        self._run = run
        self._which = which
        self._order = order
        self._mixed = mixed
        self._mean_chunks = max(1, len(order.window_chunks(0)) if order.num_windows else 0)

    def open(self, number: int) -> OpenWindow:
        """Return a window; waits for its chunks."""
        run, order, chunks = self._run, self._order, self._order.window_chunks(number)
        with run.stages.span("open", subject=self._subject(number)):
            window = run.opened.open_window(self._which, chunks, run.filler)
            run.opened_ahead.append((self._which, chunks))
            if not window.is_in_memory():
                # One read through all of it, before random rows are asked for: a disk is many times as fast so.
                window.settle(goes_on=run.goes_on)
            if (resident := run.settings.delivery.resident) is not None:
                offer_window(resident, window, chunks, run.opened.num_samples)
            return OpenWindow(window, order.tables(number), chunks)

    def request(self, number: int) -> None:
        """Ask for a window's chunks to be built."""
        run, chunks = self._run, self._order.window_chunks(number)
        if (subject := self._subject(number)) is not None:
            run.note_subject(subject, run.opened.numbers(self._which, chunks))
        run.filler.request(run.opened.to_ask_for(self._which, chunks))

    def num_ahead(self) -> int:
        """Return of how many windows ahead the chunks are asked for."""
        filler = self._run.filler
        if self._run.opened.is_tight:
            return 0
        return num_windows_ahead(filler.pool.size, self._mean_chunks, num_short=filler.num_short)

    def _subject(self, number: int) -> Subject | None:
        """Return what a window is for, where it is shown: the first step that uses it."""
        run = self._run
        if not run.stages.shows_each:
            return None
        start = int(self._order.window_starts[number])
        if self._mixed is not None:
            start = self._mixed.first_use(self._which, self._order.epoch, start)
        step = max(start - run.steps.lane_start, 0) // run.steps.part_size
        return (*run.subject_of(step)[:2], number, -1)


class Run:
    """The batches of one rank, from one position of an epoch to its end.

    Args:
        position: Where it begins.
        orders: The orders that it belongs to.
        opened: The data sets that the samples are of.
        pool: Memory for batches.
        settings: See `RunSettings`.
        stages: Told of waiting, gathering and opening.
        turn: Which of the steps it makes.
        room: How many batches it may have ahead to begin with; see `allow`. As many as the settings say unless told.

    Attributes:
        steps: Which samples of each lane belong to which step, from `position` on.
        progress: Where it stands.
        is_abandoned: Whether nobody asks for its batches any more.
        opened_ahead: Data set and chunks of windows that were opened, but are not counted as used yet: an epoch that
            begins before the last one is over uses its chunks when its own first batch is handed over.
    """

    def __init__(
        self,
        *,
        position: Position,
        orders: Orders,
        opened: OpenDatasets,
        pool: BufferPool,
        settings: RunSettings,
        stages: Stages,
        turn: Turn = Turn(),
        room: int | None = None,
    ) -> None:
        config = settings.config
        self.steps = steps = position.steps(global_batch_size=settings.global_batch_size, remainder=config.remainder)
        self.progress = Progress(position, steps)
        self.opened = opened
        self.settings = settings
        self.stages = stages
        self._orders = orders
        self._epoch = position.epoch
        self._first_step = steps.start // steps.global_batch_size  # of the epoch, as `Loader.explain` counts
        self._numbers = range(turn.first, steps.num_steps, turn.every)
        self._num_handed = 0
        self._handed_ns = 0
        self._passing_from = 0  # the step from which on windows may be left behind
        self._subject: Subject | None = None  # of the step that the loop is at, where it is shown
        self._subjects: dict[int, Subject] = {}  # of each chunk that was asked for, where it is shown
        self.is_abandoned = False
        self.opened_ahead: deque[tuple[int, Int64]] = deque()
        self._home = Home()
        self._is_closed = False
        self._closing = threading.RLock()
        self.filler = Filler(
            is_there=opened.is_there,
            build=self._build,
            pool=opened.pool(config.num_threads),
            size_of=lambda number: int(opened.num_samples[number]),
            max_ahead=lambda: config.num_threads if opened.is_tight else None,
            waiting=partial(stages.span, "wait_chunk"),
        )
        self._streams: list[Stream] = [self._stream_of(lane) for lane in orders.lanes_of_epoch(position.epoch)]
        self._finisher = Finisher(settings, opened.spec.compact, stages=stages, epoch=self._epoch)
        self._gatherer = Gatherer(
            self._streams,
            steps,
            opened=opened,
            pool=pool,
            settings=settings,
            stages=stages,
            num_ahead=min(settings.prefetch, len(self._numbers)),
            # What says which data set each sample is of is written to each batch.
            leave_together=self._finisher.takes_together and settings.source_field is None,
        )
        self._queue: ReadyQueue[Prepared] = ReadyQueue(
            self._make,
            num_results=len(self._numbers),
            depth=settings.prefetch,
            num_threads=config.num_threads if config.augment is not None else min(config.num_threads, _MOST_MAKERS),
            # Without threads the user's own function is not called, nor anything copied, before it is asked for.
            max_together=self._gatherer.max_together if settings.prefetch or self._finisher.is_quick else 1,
            waiting=partial(stages.span, "wait_room"),
            room=room,
        )

    def _stream_of(self, lane: EpochOrder | MixtureEpoch) -> Stream:
        if isinstance(lane, EpochOrder):
            return self._epoch_stream(None, 0, lane)
        return MixedStream(lane, partial(self._epoch_stream, lane))

    def _epoch_stream(self, mixed: MixtureEpoch | None, which: int, order: EpochOrder) -> EpochStream:
        """Return the stream of one data set's own epoch."""
        source = _EpochWindows(self, which, order, mixed)
        windows = Windows(
            open_window=source.open,
            request=source.request,
            num_windows=order.num_windows,
            num_ahead=source.num_ahead,
            waiting=partial(self.stages.span, "wait_window"),
        )
        units = self._orders.units_in(which, order.epoch)
        return EpochStream(order, windows, units=units, fragments=self.opened.fragments(which), which=which)

    def goes_on(self) -> bool:
        """Return whether it has not been closed."""
        return not self._is_closed

    def subject_of(self, step: int) -> Subject:
        """Return what work for a step, counted from the run's beginning, is told to be for."""
        return self._epoch, self._first_step + step, -1, -1

    def note_subject(self, subject: Subject, chunks: Iterable[int]) -> None:
        """Note the window that chunks are built for, which was asked for now."""
        epoch, step, window, _ = subject
        self._subjects.update((chunk, (epoch, step, window, chunk)) for chunk in chunks)

    @property
    def num_left(self) -> int:
        """Steps that have not been handed over."""
        return len(self._numbers) - self._num_handed

    @property
    def num_ready(self) -> int:
        """Batches that wait for their step."""
        return self._queue.num_ready

    def allow(self, room: int) -> None:
        """Have no more batches ahead than this from now on: others may count with them."""
        self._queue.allow(room)

    def next(self) -> Prepared:
        """Return the next step's batch.

        Blocks: until it is assembled.

        Raises:
            StopIteration: The epoch is over.
            RuntimeError: The run was closed before.
        """
        start_ns = time.perf_counter_ns()
        stages, numbers, number = self.stages, self._numbers, self._num_handed
        if self._handed_ns:
            stages("step", self._handed_ns, start_ns, 0, self._subject)
            self._handed_ns = 0
        if number == len(numbers):
            raise StopIteration
        self._subject = self._shown(numbers[number])
        try:
            if self._queue.is_ready and not stages.shows_each:  # nothing to wait in
                prepared = self._queue.get()
                stages("wait", start_ns, time.perf_counter_ns(), 0)
            else:
                with stages.span("wait", subject=self._subject):
                    prepared = self._queue.get()
        except Exception as error:
            if self._is_closed:
                # Whatever failed then failed because its cache, windows or threads were being closed.
                raise RuntimeError("the loader was closed before the epoch was over") from None
            error.add_note(f"needed by step {numbers[number]} of this pass over epoch {self._epoch}")
            raise
        while self.opened_ahead:
            self.opened.count_uses(*self.opened_ahead.popleft())
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
        self.filler.stop()
        for stream in self._streams:
            stream.stop()
        with self._closing:
            self._queue.close()
            for stream in self._streams:
                stream.close()
            self.filler.close()

    def _build(self, chunk: int) -> bool:
        with self.stages.span("build", subject=self._subjects.get(chunk)):
            return self.opened.build(chunk)

    def _make(self, number: int, num_wanted: int) -> Iterator[Prepared]:
        """Yield the batches of some of the run's steps, the first of them at least; see `ReadyQueue`."""
        steps = self._numbers[number : number + num_wanted]
        stages, finisher = self.stages, self._finisher
        with stages.span("batch", subject=self._shown(steps[0])) as span:
            gathered = self._gatherer.gather(steps)
            if gathered.together is not None:
                finished = iter(finisher.finish_together(gathered.together))
            else:
                finished = map(finisher.finish, gathered.made, gathered.slices, steps)
            # A span of its own for each takes a tenth of what is left to do, so only where somebody looks at it.
            if not stages.shows_each and (finisher.is_quick or gathered.together is not None):
                span.num_calls = len(gathered.slices)
                yield from finished
                return
            ready = [next(finished)]
        yield ready.pop()
        for step, _ in zip(steps[1:], gathered.slices[1:], strict=False):
            with stages.span("batch", subject=self._shown(step)):
                ready.append(next(finished))
            yield ready.pop()

    def _shown(self, step: int) -> Subject | None:
        return self.subject_of(step) if self.stages.shows_each else None

    def _slices(self, step: int) -> tuple[Slice, ...]:
        return self.steps.slices(step, self.settings.shard)

    def _pass_windows(self, step: int) -> None:
        """Close the windows that only steps before this one needed."""
        steps = self.steps
        pieces = [piece for piece in self._slices(step) if not piece.is_padding]  # which goes back to the beginning
        borders = [self._streams[piece.lane].pass_by(piece.start) for piece in pieces]
        # No step before this one begins behind such a border: nothing has to be looked at until then.
        if borders:
            self._passing_from = max(step + 1, (min(borders) - steps.lane_start) // steps.part_size)
