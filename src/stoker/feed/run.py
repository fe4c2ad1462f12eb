"""One pass over (the rest of) an epoch: steps in order, batches ahead of them."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from stoker.feed.assemble import Part, assemble
from stoker.feed.buffers import BufferPool
from stoker.feed.chunks import Chunks
from stoker.feed.fill import Filler
from stoker.feed.handover import Batch, Handover
from stoker.feed.prefetch import Prefetch
from stoker.feed.subjects import Subjects
from stoker.feed.units.expand import Units
from stoker.feed.units.make import Made, Maker, UnitPart
from stoker.feed.window import Window
from stoker.feed.windows import Windows
from stoker.identity import order_key
from stoker.order.epoch import EpochOrder, locate_range
from stoker.order.plain import Int64, Tables
from stoker.order.position import Position
from stoker.order.shard import Shard
from stoker.order.steps import Slice, Steps
from stoker.spec import Arrays
from stoker.trace.stages import Stages, timed

Augment = Callable[[Arrays, np.random.Generator], Arrays]


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a run needs besides the order.

    Attributes:
        seed: Seed of the order; also decides `augment`'s randomness.
        shard: This rank.
        num_threads: Threads that assemble batches, and as many that build chunks where some are missing.
        prefetch: Batches ahead of the step; 0 assembles each in the calling thread when it is asked for.
        augment: The user's function on a batch, or None.
        marks_padding: Whether batches get the bool field `sample_mask`, False where a sample only fills the batch up.
        handover: What batches leave as.
        maker: Makes batches of what the order counts, where that is not rows.
    """

    seed: int
    shard: Shard
    num_threads: int
    prefetch: int
    augment: Augment | None
    marks_padding: bool
    handover: Handover
    maker: Maker | None = None


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


@dataclass(frozen=True, slots=True)
class Mapped:
    """An open window, and how its samples are found.

    Attributes:
        window: Where they lie.
        tables: Which of them stand at which positions; rows are counted through the window, other units in their
            chunk.
        chunks: Chunk of each slot, in fixed order. Shape [K].
    """

    window: Window
    tables: Tables
    chunks: Int64

    def settle(self, goes_on: Callable[[], bool]) -> None:
        """Bring the window's pages to where they are used."""
        self.window.settle(goes_on=goes_on)

    def close(self) -> None:
        """Close the window."""
        self.window.close()


class Prepared(NamedTuple):
    """What the threads have made ready for a step.

    Attributes:
        content: What the handover prepared.
        num_samples: Samples of the batch.
    """

    content: Any
    num_samples: int


class Run:
    """The batches of one rank, from one position of an epoch to its end.

    Args:
        position: Where it begins.
        orders: Order of the epoch in each lane.
        steps: Which samples of each lane belong to which step, from `position` on.
        chunks: Where the samples are.
        pool: Memory for batches.
        settings: See `RunSettings`.
        stages: Told of waiting, gathering and opening.
        turn: Which of the steps it makes.
        units: What the order counts in this epoch, where that is not rows.
    """

    def __init__(
        self,
        *,
        position: Position,
        orders: Sequence[EpochOrder],
        steps: Steps,
        chunks: Chunks,
        pool: BufferPool,
        settings: RunSettings,
        stages: Stages,
        turn: Turn = Turn(),
        units: Units | None = None,
    ) -> None:
        self.position = position
        self.steps = steps
        self._orders = orders
        self._chunks = chunks
        self._pool = pool
        self._settings = settings
        self._stages = stages
        self._epoch = position.epoch
        self._units = units
        self._numbers = range(turn.first, steps.num_steps, turn.every)
        self._num_handed = 0
        self._handed_ns = 0
        self._subjects = Subjects(epoch=self._epoch, steps=steps, num_lanes=len(orders))
        self._passed = [0] * len(orders)
        # Asked for twice: when a step is assembled, and to see what it leaves behind.
        self._slices = lru_cache(maxsize=64)(partial(steps.slices, shard=settings.shard))
        self._is_closed = False
        self._closing = threading.RLock()
        self._filler = Filler(
            is_there=chunks.is_there,
            build=self._build,
            num_threads=chunks.num_builders(settings.num_threads),
            max_ahead=settings.num_threads if chunks.is_tight else None,
            waiting=partial(stages.span, "wait_chunk"),
        )
        self._windows = [self._windows_of(order) for order in orders]
        self._borders: list[list[int]] = [order.window_starts.tolist() for order in orders]
        self._prefetch: Prefetch[Prepared] = Prefetch(
            self._make,
            num_results=len(self._numbers),
            depth=settings.prefetch,
            num_threads=settings.num_threads,
            waiting=partial(stages.span, "wait_room"),
        )

    def _windows_of(self, order: EpochOrder) -> Windows[Mapped]:
        def open_window(number: int) -> Mapped:
            with self._stages.span("open", subject=self._subjects.asking(order, number)):
                window = self._chunks.open_window(order.window_chunks(number), self._filler)
                if not window.is_in_memory:
                    # One read through all of it, before random rows are asked for: a disk is many times as fast so.
                    window.settle(goes_on=lambda: not self._is_closed)
                tables = order.tables(number, window.first_row if self._units is None else None)
                return Mapped(window, tables, order.window_chunks(number))

        def request(number: int) -> None:
            self._subjects.asking(order, number)
            counts = self._chunks.counts()
            self._stages.sample("cache", hits=counts.num_reused, built=counts.num_built, mended=counts.num_mended)
            self._filler.request(order.window_chunks(number).tolist())

        return Windows(
            open_window=open_window,
            request=request,
            num_windows=order.num_windows,
            builds_ahead=not self._chunks.is_tight,
            waiting=partial(self._stages.span, "wait_window"),
        )

    @property
    def is_over(self) -> bool:
        """Whether all its steps have been handed over."""
        return self._num_handed == len(self._numbers)

    @property
    def num_ready(self) -> int:
        """Batches that wait for their step."""
        return self._prefetch.num_ready

    def next(self) -> Prepared:
        """Return the next step's batch.

        Blocks: until it is assembled.

        Raises:
            StopIteration: The epoch is over.
            RuntimeError: The run was closed before.
        """
        start_ns = time.perf_counter_ns()
        if self._handed_ns:
            last = self._subjects.of_step(self._numbers[self._num_handed - 1])
            self._stages("step", self._handed_ns, start_ns, 0, last)
            self._handed_ns = 0
        try:
            prepared = self._waited()
        except StopIteration:
            raise
        except Exception as error:
            if self._is_closed:
                # Whatever failed then failed because its cache, windows or threads were being closed.
                raise RuntimeError("the loader was closed before the epoch was over") from None
            step = self._numbers[self._num_handed]
            error.add_note(f"needed by step {step} of this pass over epoch {self._epoch}")
            raise
        self.position = self.position.after(self._numbers[self._num_handed], self.steps)
        self._num_handed += 1
        self._pass_windows()
        self._handed_ns = time.perf_counter_ns()
        return prepared

    def _waited(self) -> Prepared:
        if self.is_over:
            return self._prefetch.get()  # which says so
        with self._stages.span("wait", subject=self._subjects.of_step(self._numbers[self._num_handed])):
            return self._prefetch.get()

    def close(self) -> None:
        """Stop all threads of the run and give everything back. Harmless when called again.

        Blocks: until batches in the making are done.
        """
        self._is_closed = True
        # First everyone is told, then joined: a thread that waits for another one's work is freed by that one's stop.
        self._filler.stop()
        for windows in self._windows:
            windows.stop()
        with self._closing:
            self._prefetch.close()
            for windows in self._windows:
                windows.close()
            self._filler.close()

    def _build(self, chunk: int) -> bool:
        with self._stages.span("build", subject=self._subjects.of_chunk(chunk)):
            return self._chunks.build(chunk)

    def _make(self, number: int) -> Prepared:
        with self._stages.span("batch", subject=self._subjects.of_step(self._numbers[number])):
            return self._make_batch(number)

    def _make_batch(self, number: int) -> Prepared:
        step = self._numbers[number]
        slices = self._slices(step)
        acquired: list[tuple[Windows[Mapped], int]] = []
        try:
            parts = [part for piece in slices for part in self._parts(piece, acquired)]
            start_ns = time.perf_counter_ns()
            made = self._gathered(parts)
        finally:
            for windows, window in acquired:
                windows.release(window)
        self._stages("gather", start_ns, time.perf_counter_ns(), made.size_bytes)
        arrays = made.arrays
        if self._settings.marks_padding:
            is_padding = [np.full(piece.num_samples, piece.is_padding) for piece in slices]
            arrays["sample_mask"] = ~np.concatenate([np.zeros(0, dtype=np.bool_), *is_padding])
        if self._settings.augment is not None:
            places = ",".join(f"{piece.lane}:{piece.start}:{piece.stop}" for piece in slices)
            key = order_key(seed=self._settings.seed, epoch=self._epoch, purpose=f"augment:{places}")
            with timed(self._stages, "augment"):
                arrays = self._settings.augment(arrays, np.random.Generator(np.random.Philox(key=key)))
        is_augmented = self._settings.augment is not None
        batch = Batch(arrays, made.assembled, is_augmented, made.shaping, made.has_records)
        return Prepared(self._handed_to(batch), made.num_samples)

    def _gathered(self, parts: Sequence[UnitPart]) -> Made:
        if self._units is not None and self._settings.maker is not None:
            return self._settings.maker.make(self._units, parts, self._pool)
        rows = [Part(window, slot, row) for window, _, slot, row in parts]
        assembled = assemble(self._chunks.spec, rows, self._pool)
        return Made(assembled.views(), assembled, None, True, assembled.num_samples, assembled.size_bytes)

    def _parts(self, piece: Slice, acquired: list[tuple[Windows[Mapped], int]]) -> list[UnitPart]:
        """Cut a slice of a lane at the borders of windows; the windows are open, and noted in `acquired`."""
        windows, borders = self._windows[piece.lane], self._borders[piece.lane]
        parts = []
        start = piece.start
        while start < piece.stop:
            number = bisect_right(borders, start) - 1
            stop = min(piece.stop, borders[number + 1])
            mapped = windows.acquire(number)
            acquired.append((windows, number))
            parts.append(UnitPart(mapped.window, mapped.chunks, *locate_range(start, stop, mapped.tables)))
            start = stop
        return parts

    def _handed_to(self, batch: Batch) -> Any:
        handover = self._settings.handover
        if not handover.copies:
            return handover.prepare(batch)
        with self._stages.span("copy", batch.assembled.size_bytes):
            return handover.prepare(batch)

    def _pass_windows(self) -> None:
        """Close the windows that only steps already handed over needed."""
        if self.is_over:
            return
        for piece in self._slices(self._numbers[self._num_handed]):
            number = bisect_right(self._borders[piece.lane], piece.start) - 1
            if not piece.is_padding and number > self._passed[piece.lane]:  # padding goes back to the beginning
                self._passed[piece.lane] = number
                self._windows[piece.lane].pass_by(number)


def let_go(close: Callable[[], None]) -> None:
    """Close what nobody refers to any more, from whatever thread found that out.

    Garbage in cycles is found in any thread that runs Python, so perhaps in one of those that `close` waits for.
    """
    if threading.current_thread().name.startswith("stoker-"):
        threading.Thread(target=close, name="stoker-close", daemon=True).start()
    else:
        close()
