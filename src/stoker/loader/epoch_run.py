"""One pass over (the rest of) an epoch: steps in order, batches ahead of them; and the next epoch, begun in time."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from stoker.fields.offsets import Int64
from stoker.host.forks import Home
from stoker.loader.batches import Finisher, Gatherer, Prepared
from stoker.loader.buffers import BufferPool
from stoker.loader.delivery import RunSettings
from stoker.loader.fill import Filler
from stoker.loader.lane import Lane, Subjects
from stoker.loader.opened import OpenDatasets
from stoker.loader.orders import Orders
from stoker.loader.ready_queue import ReadyQueue
from stoker.metrics.stages import Stages, Subject
from stoker.sampling.position import Position
from stoker.sampling.steps import Steps

# Threads that make batches, at most, unless they call a function of the user's: more of them make fewer batches at a
# time, and take turns with the interpreter's lock for each call of native code.
_MOST_MAKERS = 4
# Batches that are made for an epoch nobody has asked for yet: the first step has its own at once, and while it computes
# the others are made. A loader whose epochs lie far apart, as of a validation, holds no more than these meanwhile.
_MOST_READY = 2


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
        self._began, self._steps = began, steps
        self.last: int | None = None

    @property
    def position(self) -> Position:
        """Behind the last step handed over."""
        return self.after(0 if self.last is None else self.last + 1)

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
    """

    def __init__(
        self,
        position: Position,
        orders: Orders,
        opened: OpenDatasets,
        *,
        pool: BufferPool,
        settings: RunSettings,
        stages: Stages,
        turn: Turn = Turn(),
        room: int | None = None,
    ) -> None:
        config, epoch = settings.config, position.epoch
        self.steps = position.steps(global_batch_size=settings.global_batch_size, remainder=config.remainder)
        self.progress = Progress(position, self.steps)
        self.is_abandoned = False
        self._home = Home()
        self._opened, self._settings, self._stages, self._epoch = opened, settings, stages, epoch
        self._numbers = range(turn.first, self.steps.num_steps, turn.every)
        self._num_handed = 0
        self._handed_ns = 0
        self._passing_from = 0  # the step from which on windows may be left behind
        self._subjects = Subjects(stages, epoch, self.steps)
        self._subject: Subject | None = None  # of the step that the loop is at
        # Data set and chunks of windows that were opened, but are not counted as used yet: an epoch that begins before
        # the last one is over uses its chunks when its own first batch is handed over.
        self._uses: deque[tuple[int, Int64]] = deque()
        self._is_closed = False
        self._closing = threading.RLock()
        self._filler = self._make_filler()
        resident = settings.delivery.resident
        told: dict[str, Any] = {"stages": stages, "subjects": self._subjects, "uses": self._uses, "resident": resident}
        self._lanes = [
            Lane(lane, opened, self._filler, units_in=orders.units_in, **told) for lane in orders.lanes_of_epoch(epoch)
        ]
        self._finisher = Finisher(settings, opened.spec.compact, stages=stages, epoch=epoch)
        self._gatherer = Gatherer(
            self._lanes,
            self.steps,
            opened.spec,
            pool=pool,
            settings=settings,
            stages=stages,
            num_ahead=min(settings.prefetch, len(self._numbers)),
            leave_together=self._finisher.takes_together,
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

    def _make_filler(self) -> Filler:
        opened, num_threads = self._opened, self._settings.config.num_threads
        return Filler(
            is_there=opened.is_there,
            build=self._build,
            pool=opened.pool(num_threads),
            size_of=lambda number: int(opened.num_samples[number]),
            max_ahead=lambda: num_threads if opened.is_tight else None,
            waiting=partial(self._stages.span, "wait_chunk"),
        )

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
        stages, numbers, number = self._stages, self._numbers, self._num_handed
        if self._handed_ns:
            stages("step", self._handed_ns, start_ns, 0, self._subject)
            self._handed_ns = 0
        if number == len(numbers):
            raise StopIteration
        try:
            if self._queue.is_ready and not stages.shows_each:  # nothing to wait in
                prepared = self._queue.get()
                stages("wait", start_ns, time.perf_counter_ns(), 0)
            else:
                self._subject = self._subjects.of_step(numbers[number])
                with stages.span("wait", subject=self._subject):
                    prepared = self._queue.get()
        except Exception as error:
            if self._is_closed:
                # Whatever failed then failed because its cache, windows or threads were being closed.
                raise RuntimeError("the loader was closed before the epoch was over") from None
            error.add_note(f"needed by step {numbers[number]} of this pass over epoch {self._epoch}")
            raise
        while self._uses:
            self._opened.count_uses(*self._uses.popleft())
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
        for lane in self._lanes:
            lane.stop()
        with self._closing:
            self._queue.close()
            for lane in self._lanes:
                lane.close()
            self._filler.close()

    def _build(self, chunk: int) -> bool:
        with self._stages.span("build", subject=self._subjects.of_chunk(chunk)):
            return self._opened.build(chunk)

    def _make(self, number: int, num_wanted: int) -> Iterator[Prepared]:
        """Yield the batches of some of the run's steps, the first of them at least; see `ReadyQueue`."""
        steps = self._numbers[number : number + num_wanted]
        stages, finisher = self._stages, self._finisher
        with stages.span("batch", subject=self._subjects.of_step(steps[0])) as span:
            gathered = self._gatherer.gather(steps)
            finished = finisher.finish(gathered, steps)
            # A span of its own for each takes a tenth of what is left to do, so only where somebody looks at it.
            if not stages.shows_each and (finisher.is_quick or gathered.together is not None):
                span.num_calls = len(gathered.slices)
                yield from finished
                return
            ready = [next(finished)]
        yield ready.pop()
        for step, _ in zip(steps[1:], gathered.slices[1:], strict=False):
            with stages.span("batch", subject=self._subjects.of_step(step)):
                ready.append(next(finished))
            yield ready.pop()

    def _pass_windows(self, step: int) -> None:
        """Let go of the windows that only steps before this one needed."""
        steps = self.steps
        borders = [
            self._lanes[piece.lane].pass_by(piece.start)
            for piece in steps.slices(step, self._settings.shard)
            if not piece.is_padding  # which goes back to the beginning
        ]
        # No step before this one begins behind such a border: nothing has to be looked at until then.
        if borders:
            self._passing_from = max(step + 1, (min(borders) - steps.lane_start) // steps.part_size)


class NextEpoch:
    """Begins the run that probably comes next, and keeps it until the loop asks for it.

        batches   ... 508 509 510 511 │                     the last ones are being made, and threads have nothing
                              0   1   │ 2   3   4           left to do: they begin the next epoch

    So no more batches are made ahead than in the middle of an epoch.

    That another epoch comes nobody says. It is believed once a second one has followed the first; by then every chunk
    has been built, too, so nothing is fetched that may not be wanted. A loop that goes on elsewhere, or not at all,
    leaves what was begun to be closed.

    Args:
        prefetch: How many batches a run has ahead; 0 where none may be made before their epoch has begun.

    Attributes:
        lead: Batches before the end of the run from which on the next one is begun; 0 where it is not.
    """

    def __init__(self, *, prefetch: int) -> None:
        self._prefetch = prefetch
        self._now: weakref.ref[Run] | None = None
        self._expected: Position | None = None  # where the run behind the last one that ended begins
        self._is_likely = False
        self.lead = 0
        self._begun: tuple[Position, Run] | None = None

    @property
    def num_ready(self) -> int:
        """Batches that are ready for an epoch that nobody has asked for yet."""
        return 0 if self._begun is None else self._begun[1].num_ready

    def take(self, start: Position) -> Run | None:
        """Return the run that begins at `start`, if it was begun; any other is closed.

        Blocks: until batches in the making are done, where there is another.
        """
        begun, self._begun = self._begun, None
        if begun is None:
            return None
        if begun[0] != start:
            begun[1].close()
            return None
        begun[1].allow(self._prefetch)
        return begun[1]

    def began(self, start: Position, run: Run) -> None:
        """Note the run that the loop is at from now on."""
        self._now = weakref.ref(run)
        self._is_likely = self._prefetch > 0 and start == self._expected
        self._expected = None
        self.lead = self._prefetch - 1 if self._is_likely else 0

    def handed(self, run: Run, begin: Callable[[Position, int], Run]) -> None:
        """Note that a batch was handed over, and begin the next run once nothing is left to make of this one.

        Where more than `lead` batches are left it does nothing, and need not be called.

        Args:
            run: Whose batch.
            begin: Begins a run; the second argument is how many batches it may have ahead.
        """
        if self._now is None or self._now() is not run:
            return
        num_left = run.num_left
        room = min(self._prefetch - num_left, _MOST_READY)  # beside those that are left of this run
        if self._begun is not None:
            self._begun[1].allow(room)
        elif self._is_likely and 0 < num_left <= self.lead:
            start = run.progress.position.next_epoch()
            try:
                self._begun = start, begin(start, room)
            except Exception:  # it belongs to the epoch that cannot begin, and is raised there again
                self._is_likely = False
        if not num_left:
            self._expected = run.progress.position
