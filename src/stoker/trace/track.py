"""What one thread has done: totals, and the latest spans in a ring."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from stoker.trace.stages import OpenSpan

# A plain tuple of integers: the garbage collector leaves such tuples alone, however many a ring holds.
Subject: TypeAlias = tuple[int, int, int, int]
"""What work is about: (epoch, step, window, chunk), -1 where that is not known.

The step is the one that needs the work first, counted from the epoch's beginning."""

Recorded: TypeAlias = tuple[str, int, int, int, Subject]
"""(stage, start_ns, stop_ns, num_bytes, subject)."""

NOTHING: Subject = (-1, -1, -1, -1)


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of work of one thread.

    Attributes:
        stage: Which stage.
        start_ns: When it began, in ns of `time.perf_counter_ns`.
        stop_ns: When it ended.
        num_bytes: Bytes that went through.
        epoch: Epoch it was for, -1 where that is not known.
        step: Step that needs it first, counted from the epoch's beginning; -1 where that is not known.
        window: Number of the window in its lane, -1 where it is not about one.
        chunk: Number of the chunk, -1 where it is not about one.
    """

    stage: str
    start_ns: int
    stop_ns: int
    num_bytes: int
    epoch: int
    step: int
    window: int
    chunk: int


class Total:
    """What one thread has done in one stage so far.

    Attributes:
        num_calls: Pieces of work.
        busy_ns: Nanoseconds spent on them.
        num_bytes: Bytes that went through.
    """

    __slots__ = ("busy_ns", "num_bytes", "num_calls")

    def __init__(self) -> None:
        self.num_calls = 0
        self.busy_ns = 0
        self.num_bytes = 0


class _Totals(dict[str, Total]):
    """Totals by stage, in the order in which stages first ran."""

    def __missing__(self, stage: str) -> Total:
        total = self[stage] = Total()
        return total


class Track:
    """One thread's totals and spans. Written by that thread alone, read by any.

    Attributes:
        name: Of the thread.
        totals: By stage.
        spans: The latest spans, None where there is no trace.
        num_spans: Spans ever put there.
        subject: What the thread is working for.
        open_span: The innermost span it is in.
        is_free: Whether its thread has ended, so that another one may go on with it.
    """

    __slots__ = ("is_free", "name", "num_spans", "open_span", "spans", "subject", "totals")

    def __init__(self, name: str, *, max_spans: int) -> None:
        self.name = name
        self.totals = _Totals()
        self.spans: deque[Recorded] | None = deque(maxlen=max_spans) if max_spans else None
        self.num_spans = 0
        self.subject = NOTHING
        self.open_span: OpenSpan | None = None
        self.is_free = False

    @property
    def num_dropped(self) -> int:
        """Spans that the full ring has pushed out."""
        return 0 if self.spans is None else self.num_spans - len(self.spans)

    def take(self) -> Owner:
        """Make it the calling thread's, for as long as the result lives."""
        self.is_free = False
        self.subject = NOTHING
        self.open_span = None
        return Owner(self)

    def recorded(self) -> list[Span]:
        """Return the spans that the ring holds, in the order in which they ended."""
        spans = () if self.spans is None else self.spans.copy()
        return [Span(stage, start, stop, num_bytes, *subject) for stage, start, stop, num_bytes, subject in spans]


class Owner:
    """Lies in a thread's local storage: when the thread ends, it goes, and the track is free."""

    __slots__ = ("_track",)

    def __init__(self, track: Track) -> None:
        self._track = track

    def __del__(self) -> None:
        self._track.is_free = True
