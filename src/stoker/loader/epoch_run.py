"""One pass over (the rest of) an epoch: steps in order, batches ahead of them, and where the next pass begins."""

from __future__ import annotations

import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from stoker.host.forks import this_process
from stoker.loader.batches import Batches
from stoker.loader.gather import Together
from stoker.loader.lane import Lane
from stoker.loader.opened import OpenDatasets, filler_of
from stoker.loader.orders import Orders
from stoker.loader.shard import BRING_TOGETHER
from stoker.loader.window import Window
from stoker.metrics.stages import Stages, Subject
from stoker.sampling.position import Position
from stoker.sampling.steps import Steps

# Threads that make batches, at most, unless they call a function of the user's: more of them make fewer batches at a
# time, and take turns with the interpreter's lock for each call of native code.
_MOST_MAKERS = 4

_log = logging.getLogger("stoker")

Result: TypeAlias = tuple[Any, int]
"""A batch as it was prepared, and how many samples it has."""


class ReadyQueue:
    """Gives results 0, 1, 2, ... in this order, made by threads up to `depth` ahead of the caller.

        make    ... 8 7   6 5    two threads, each at two results at a time; as many as `depth` wait or are being made
        ready       4 3          5 is still being made: the caller would wait for it after 3 and 4
        caller  2                has been handed 0, 1, 2

    The first results are made one at a time, so that the first of all comes soon; then as many as are ahead already,
    but at most `max_together`. With depth 0 the caller makes them, when one is asked for that is not there.

    An exception of making result i is raised where i was due, after all results before it, and ends the sequence.

    Args:
        make: Called with the number of a result and how many are wanted from there on; yields that many of them or
            fewer, in order, but at least one. From several threads at once.
        waiting: Gives the block in which a thread waits for room.
    """

    def __init__(
        self,
        make: Callable[[int, int], Iterable[Result]],
        *,
        num_results: int,
        depth: int,
        num_threads: int,
        max_together: int,
        waiting: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._make, self._num_results, self._depth, self._waiting = make, num_results, depth, waiting
        num_threads = min(max(1, num_threads), depth, num_results)
        # Not more than lets every thread make some while as many wait: else one that is done waits for the caller.
        self._max_together = max(1, min(max_together, depth // (num_threads + 1)) if depth else max_together)
        # One lock, but two conditions: nobody is woken to find nothing to do. Entered again by a caller who makes a
        # result and closes the queue meanwhile.
        self._lock = threading.RLock()
        self._made, self._taken = threading.Condition(self._lock), threading.Condition(self._lock)
        self._ready: dict[int, Result] = {}
        self._failed: dict[int, BaseException] = {}
        self._num_idle = 0  # threads that wait for room
        self._next_to_make = self._next_to_hand = 0
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"stoker-batch-{i}", daemon=True) for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_ready(self) -> bool:
        """Whether the next result waits to be handed over."""
        return self._next_to_hand in self._ready

    @property
    def num_ready(self) -> int:
        """How many results wait to be handed over."""
        return len(self._ready)

    def get(self) -> Result:
        """Return the next result once it is made; called as often as there are any.

        Raises:
            InterruptedError: The queue was closed before.
        """
        with self._lock:  # held while the caller itself makes a result: `close` waits for that
            number = self._next_to_hand
            if not self._depth and number not in self._ready and not self._is_closed:
                # At most as many as were handed over already: the first of all comes soon.
                self._make_some(number, min(max(1, number), self._max_together, self._num_results - number))
            while number not in self._ready:
                if number in self._failed:
                    self._is_closed = True
                    self._taken.notify_all()
                    raise self._failed[number]
                if self._is_closed:
                    raise InterruptedError("closed before all results were handed over")
                self._made.wait()
            self._next_to_hand = number + 1
            if self._num_idle and (self._num_to_make() or self._is_done()):
                self._taken.notify()
            return self._ready.pop(number)

    def close(self) -> None:
        """Stop the threads, once results in the making are done, and drop what nobody will take."""
        with self._lock:
            self._is_closed = True
            self._made.notify_all()
            self._taken.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._ready.clear()

    def _work(self) -> None:
        while numbers := self._claim():
            while numbers:
                if not (num_made := self._make_some(numbers.start, len(numbers))):
                    return
                numbers = numbers[num_made:]

    def _make_some(self, number: int, num_wanted: int) -> int:
        """Make the results from a number on, and return how many; 0 where nothing more is to be made."""
        first = number
        try:
            for result in self._make(number, num_wanted):
                with self._lock:
                    if self._is_closed and self._depth:  # a caller who makes them still gets the one it asked for
                        return 0
                    self._ready[number] = result
                    if number == self._next_to_hand:
                        self._made.notify()
                number += 1
                del result  # the caller owns it now: a reference would keep its buffer from being reused
        except BaseException as error:  # whatever it is, it belongs to the step that was due
            if not self._depth and not isinstance(error, Exception):
                raise  # but what interrupts the caller does so now
            with self._lock:
                self._failed[number] = error
                self._made.notify_all()
                self._taken.notify_all()
            return 0
        return number - first

    def _claim(self) -> range:
        """Return the numbers to make next, none when there is nothing left to do."""
        with self._lock:
            has_room = self._is_done() or self._num_to_make()
        # The lock inside: whoever is told of the wait may take its time.
        with nullcontext() if has_room else self._waiting(), self._lock:
            self._num_idle += 1
            while not (self._is_done() or self._num_to_make()):
                self._taken.wait()
            self._num_idle -= 1
            first = self._next_to_make
            if not self._is_done():
                self._next_to_make += self._num_to_make()
            return range(first, self._next_to_make)

    def _num_to_make(self) -> int:
        """Return how many to make at a time, as many as are ahead already, within what is left; 0 without room."""
        ahead = self._next_to_make - self._next_to_hand
        num = min(max(1, ahead), self._max_together, self._num_results - self._next_to_make)
        return num if ahead + num <= self._depth else 0

    def _is_done(self) -> bool:
        return self._is_closed or bool(self._failed) or self._next_to_make >= self._num_results


class Run:
    """The batches of one rank, from one position of an epoch to its end.

    Of its steps it makes those of its `turn`, where several processes make the batches of one rank in turn: 7 steps,

        step               0   1   2   3   4   5   6
        slice(0, None, 3)  █           █           █
        slice(1, None, 3)      █           █
        slice(2, None, 3)          █           █
    """

    def __init__(
        self,
        position: Position,
        orders: Orders,
        opened: OpenDatasets,
        *,
        batches: Batches,
        epochs: Epochs,
        stages: Stages,
        turn: slice = slice(None),
    ) -> None:
        config, epoch = batches.config, position.epoch
        # Which samples of each lane belong to which step, from `position` on.
        self.steps = position.steps(global_batch_size=batches.global_batch_size, remainder=config.remainder)
        self.began, self.ranks = position, config.ranks
        self.num_done = 0  # steps up to the last one that was handed over, that one included
        self.is_abandoned = False  # nobody asks for its batches any more
        self._home, self._epochs = this_process(), epochs
        self._opened, self._batches, self._stages, self._epoch = opened, batches, stages, epoch
        self._numbers = range(self.steps.num_steps)[turn]
        self.num_left = len(self._numbers)  # steps that have not been handed over
        self._handed_ns = 0
        self._passing_from = 0  # the step from which on windows may be left behind
        self._subject: Subject | None = None  # of the step that the loop is at
        self._is_closed = False
        self._closing = threading.RLock()
        self._filler = filler_of(opened.datasets, config.num_threads, stages)
        shard, has_mirror = batches.shard, config.cache.mirror is not None
        told: dict[str, Any] = {"stages": stages, "subject_at": self._subject_at, "on_open": self._note_opened}
        told |= {"units_in": orders.units_in, "begins_at": shard.rank / shard.world_size if has_mirror else 0.0}
        self._lanes = [Lane(lane, opened, self._filler, **told) for lane in orders.order.lanes_of_epoch(epoch)]
        self.queue = ReadyQueue(
            self._make,
            num_results=len(self._numbers),
            depth=batches.prefetch,
            num_threads=config.num_threads if config.augment is not None else min(config.num_threads, _MOST_MAKERS),
            max_together=batches.max_together,
            waiting=partial(stages.span, "wait_room"),
        )

    def next(self) -> Any:
        """Return the next step's batch once it is assembled; raise StopIteration where the epoch is over.

        Raises:
            RuntimeError: The run was closed before.
        """
        start_ns = time.perf_counter_ns()
        stages, numbers, number = self._stages, self._numbers, len(self._numbers) - self.num_left
        if self._handed_ns:
            stages("step", self._handed_ns, start_ns, 0, self._subject)
            self._handed_ns = 0
        if not self.num_left:
            self._epochs.ended(self)
            raise StopIteration
        try:
            if self.queue.is_ready and not stages.shows_each:  # nothing to wait in
                prepared, num_samples = self.queue.get()
                stages("wait", start_ns, time.perf_counter_ns(), 0)
            else:
                self._subject = self._subject_of(numbers[number])
                with stages.span("wait", subject=self._subject):
                    prepared, num_samples = self.queue.get()
        except Exception as error:
            if self._is_closed:
                # Whatever failed then failed because its cache, windows or threads were being closed.
                raise RuntimeError("the loader was closed before the epoch was over") from None
            error.add_note(f"needed by step {numbers[number]} of this pass over epoch {self._epoch}")
            raise
        self.num_done = numbers[number] + 1
        self.num_left -= 1
        if self.num_left and numbers[number + 1] >= self._passing_from:
            self._pass_windows(numbers[number + 1])
        self._handed_ns = time.perf_counter_ns()
        batch = self._batches.delivery.deliver(prepared)
        self._epochs.handed(self, num_samples)  # not before: where that fails, the loop does not have it
        return batch

    def abandon(self) -> None:
        """Close it in a thread of its own, because nobody asks for its batches any more.

        Python calls this in whatever thread drops the last reference or collects garbage: perhaps in one that `close`
        would wait for, or that holds a lock which closing needs. In the main thread a Ctrl-C during the wait would be
        lost, since a finalizer cannot raise. `close` waits for what the new thread has begun.
        In a fork, which has none of the run's threads, this does nothing.
        """
        if not self._home.is_here:
            return
        self.is_abandoned = True
        try:
            threading.Thread(target=self.close, name="stoker-close").start()
        except RuntimeError:  # the interpreter is ending, and begins no more threads
            self.close()

    def close(self) -> None:
        """Stop all threads of the run, once batches in the making are done, and give everything back."""
        self._is_closed = True
        # First everyone is told, then joined: a thread that waits for another one's work is freed by that one's stop.
        self._filler.stop()
        for lane in self._lanes:
            lane.stop()
        with self._closing:
            self.queue.close()
            for lane in self._lanes:
                lane.close()
            self._filler.close()

    def _subject_of(self, step: int) -> Subject | None:
        """Return what work for a step is for, where that is shown; the epoch's steps, as `Loader.explain` counts."""
        first_step = self.steps.start // self.steps.global_batch_size
        return (self._epoch, first_step + step, -1, -1) if self._stages.shows_each else None

    def _subject_at(self, position: int) -> Subject | None:
        """Return what work for a position of a lane is for."""
        return self._subject_of(max(position - self.steps.lane_start, 0) // self.steps.part_size)

    def _note_opened(self, window: Window) -> None:
        """Count a use of each chunk, and offer a device those of them that do not lie there yet."""
        self._opened.count_uses(window.which, window.chunks)
        if (resident := self._batches.resident) is not None:
            for slot in np.flatnonzero(resident.first_row[window.chunks] < 0).tolist():
                records = np.frombuffer(window.records(slot), dtype=np.uint8)
                resident.offer(int(window.chunks[slot]), records.reshape(-1, window.layout.spec.record_bytes))

    def _make(self, number: int, num_wanted: int) -> Iterator[Result]:
        """Yield the batches of some of the run's steps, the first of them at least; see `ReadyQueue`."""
        steps = self._numbers[number : number + num_wanted]
        stages, batches = self._stages, self._batches
        with stages.span("batch", subject=self._subject_of(steps[0])) as span:
            slices, made = batches.gather(self._lanes, self.steps, steps)
            finished = batches.finish(made, slices, steps, self._epoch)
            # A span of its own for each takes a tenth of what is left to do, so only where somebody looks at it.
            if not stages.shows_each and (batches.is_quick or isinstance(made, Together)):
                span.num_calls = len(slices)
                yield from finished
                return
            ready = [next(finished)]
        yield ready.pop()
        for step in steps[1 : len(slices)]:
            with stages.span("batch", subject=self._subject_of(step)):
                ready.append(next(finished))
            yield ready.pop()

    def _pass_windows(self, step: int) -> None:
        """Let go of the windows that only steps before this one needed."""
        steps = self.steps
        borders = [
            self._lanes[piece.lane].pass_by(piece.start)
            for piece in steps.slices(step, self._batches.shard)
            if not piece.is_padding  # which goes back to the beginning
        ]
        # No step before that one begins behind such a border: nothing has to be looked at until then.
        if borders:
            self._passing_from = max(step + 1, (min(borders) - steps.lane_start) // steps.part_size)


class BatchIterator(Iterator[Any]):
    """The batches of one run; begins it with the first, and closes it when it ends, fails, or is let go.

    Threads may share it: each batch goes to one of them, and each of them comes to the end.
    """

    def __init__(self, begin: Callable[[], Run]) -> None:
        self._begin, self._home = begin, this_process()
        self._run: Run | None = None
        self._asking = threading.RLock()
        self._is_over = False

    def __next__(self) -> Any:
        if not self._home.is_here:  # not by a call for each batch
            self._home.check("this iterator")
        with self._asking:
            if self._is_over:
                raise StopIteration
            run = self._run
            try:
                if run is None:
                    self._run = run = self._begin()
                    self._abandoning = weakref.finalize(self, run.abandon)
                    self._abandoning.atexit = False  # the loader closes its runs then, and waits for them
                elif not sys.modules.keys().isdisjoint(BRING_TOGETHER):  # which they may have done since
                    run.ranks.prove()
                return run.next()
            except BaseException:
                self._is_over = True
                if run is not None:
                    self._abandoning.detach()
                    run.close()
                raise


class Epochs:
    """Where a loader stands: behind which batch, and where its next run begins; at first, where epoch 0 does."""

    def __init__(self, beginning: Position) -> None:
        self.num_steps = self.num_samples = 0  # of batches handed over
        self.go_to(beginning)

    @property
    def at(self) -> Position:
        """Where the next batch comes from."""
        return self.start if self.is_restored else self.after()

    def after(self, num_steps: int | None = None) -> Position:
        """Return what a state tells once so many steps of this pass are handed over; unless told, as many as are."""
        began, steps, num_done = self._pass  # once: another thread may hand over the next one
        return position_after(began, steps, num_done if num_steps is None else num_steps)

    def go_to(self, start: Position, *, told: Position | None = None) -> None:
        """Begin the next `for` there; `told` is what a state says until then, where a state said where that is."""
        self.start, self.is_restored = start, told is not None
        # Where it began, its steps from there, and how many are handed over. The position is computed when asked for:
        # hardly anybody asks after every step.
        self._pass: tuple[Position, Steps | None, int] = told or start, None, 0

    def enter(self, run: Run) -> None:
        """Note that the loop is at a run from now on; left early, it is begun again."""
        self._pass, self.start, self.is_restored = (run.began, run.steps, 0), run.began.again(), False

    def handed(self, run: Run, num_samples: int) -> None:
        """Note that the loop has a batch of a run; behind its last one, the next `for` begins."""
        self.num_steps += 1
        self.num_samples += num_samples
        self._pass = run.began, run.steps, run.num_done
        if not run.num_left:
            self.start = position_after(run.began, run.steps, run.num_done)  # another thread may be at another run

    def ended(self, run: Run) -> None:
        """Go on behind an epoch without steps: a loop that runs until some epoch would never end otherwise."""
        began, steps = run.began, run.steps
        if steps.num_steps or self._pass[1] is not steps:  # or the loop is at another run by now
            return
        _log.warning(
            "epoch %d is over without a step: %s of %s left, global batches of %d, remainder=%r",
            began.epoch,
            f"{steps.num_samples - steps.start:,}",
            f"{steps.num_samples:,} samples",
            steps.global_batch_size,
            steps.remainder,
        )
        self.go_to(began.at(began.epoch + 1))


def position_after(began: Position, steps: Steps | None, num_steps: int) -> Position:
    """Return where a pass stands once so many of its steps are handed over; a ValueError where it has fewer."""
    there = 0 if steps is None else steps.num_steps
    if not 0 <= num_steps <= there:
        raise ValueError(f"this pass has {there} steps, not {num_steps}")
    return began if steps is None or not num_steps else began.after(num_steps - 1, steps)
