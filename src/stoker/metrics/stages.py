"""Time and bytes of each stage of the path: totals always, single spans where a trace asks for them.

A stage may lie inside another on its thread, so times of stages add up to more than the time that passed:

    loop      wait ┆ step
    batches   batch [ wait_window ┆ gather ┆ augment ┆ copy ] ┆ wait_room
    windows   open [ wait_chunk ]
    builds    build [ fetch ┆ decode ┆ transform ┆ convert ┆ publish ]
    opening   list ┆ footers
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias

from stoker.host.forks import open_in_forks

Subject: TypeAlias = tuple[int, int, int, int]
"""What work is about: (epoch, step, window, chunk), -1 where that is not known.

The step is the one that needs the work first, counted from the epoch's beginning."""

NOTHING: Subject = (-1, -1, -1, -1)

Ranges: TypeAlias = tuple[Callable[[str], object], Callable[[], object]]
"""Begins a range of a name on the calling thread, and ends the last one: NVTX's, which a GPU profiler shows."""

# Once more time than this has passed, whoever tells of work next also tells the status file.
NEVER_NS = 1 << 63


class Span(NamedTuple):
    """A piece of work of one thread, by the clock of `time.perf_counter_ns`; what it is about is a `Subject`."""

    stage: str
    start_ns: int
    stop_ns: int
    num_bytes: int
    epoch: int
    step: int
    window: int
    chunk: int


@dataclass(frozen=True, kw_only=True)
class StageTotal:
    """What a stage has done so far: pieces of work, seconds spent on them, added over threads, and bytes."""

    num_calls: int = 0
    busy_s: float = 0.0
    num_bytes: int = 0

    def since(self, earlier: StageTotal) -> StageTotal:
        """Return what was added after `earlier`."""
        return StageTotal(**{name: value - getattr(earlier, name) for name, value in vars(self).items()})


class Track:
    """One thread's totals and spans. Written by that thread alone, read by any.

    Totals are pieces of work, ns spent on them, and bytes, by stage, in the order in which stages first ran. `subject`
    is what the thread is working for, `open_span` the innermost span it is in.
    """

    __slots__ = ("_thread", "name", "num_spans", "open_span", "spans", "subject", "totals")

    def __init__(self, name: str, *, max_spans: int) -> None:
        self.name = name
        self.totals: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        # The latest: plain tuples of integers, which the garbage collector leaves alone, however many a ring holds.
        self.spans: deque[tuple[str, int, int, int, Subject]] | None = deque(maxlen=max_spans) if max_spans else None
        self.num_spans = 0  # ever put there

    def begin(self, thread: threading.Thread) -> None:
        """Go on with a thread."""
        self._thread, self.subject = weakref.ref(thread), NOTHING
        self.open_span: OpenSpan | None = None

    @property
    def is_free(self) -> bool:
        """Whether its thread has ended, so that another one may go on with it."""
        thread = self._thread()
        return thread is None or not thread.is_alive()

    @property
    def num_dropped(self) -> int:
        """Spans that the full ring has pushed out."""
        return 0 if self.spans is None else self.num_spans - len(self.spans)

    def recorded(self) -> list[Span]:
        """Return the spans that the ring holds, in the order in which they ended."""
        spans = () if self.spans is None else self.spans.copy()
        return [Span(stage, start, stop, num_bytes, *subject) for stage, start, stop, num_bytes, subject in spans]


class Stages:
    """Totals by stage, and spans; called with each piece of work: (stage, start_ns, stop_ns, num_bytes).

    Each thread writes to a track of its own, without a lock; the track of a thread that has ended goes to the next
    one of its name, so that memory is bounded by the threads alive at once. The latest `max_spans` of each are kept;
    `ranges` are shown every span that is entered and left, by stage and subject: "gather, step 12".
    """

    def __init__(self, *, max_spans: int = 0, ranges: Ranges | None = None) -> None:
        self.max_spans, self.ranges = max_spans, ranges
        # Whether each piece of work is shown, in a trace or a profiler; else only what all of them came to.
        self.shows_each = bool(max_spans) or ranges is not None
        # Work that ends later than this calls it: for whoever wants to be called now and then, without a thread.
        self.due_ns = NEVER_NS
        self.on_due: Callable[[str, int], None] | None = None
        self._lock = threading.Lock()
        self._local = threading.local()
        self._tracks: list[Track] = []

    def __call__(
        self,
        stage: str,
        start_ns: int,
        stop_ns: int,
        num_bytes: int,
        subject: Subject | None = None,
        num_calls: int = 1,
    ) -> None:
        """Add a piece of work, or some at once; `subject` is that of the span around it unless told."""
        try:  # by no call: this happens thousands of times a second
            track: Track = self._local.track
        except AttributeError:
            track = self._new_track()
        total = track.totals[stage]
        total[0] += num_calls
        total[1] += stop_ns - start_ns
        if num_bytes:
            total[2] += num_bytes
        if track.spans is not None:
            track.spans.append((stage, start_ns, stop_ns, num_bytes, subject or track.subject))
            track.num_spans += 1
        if stop_ns > self.due_ns and self.on_due is not None:
            self.on_due(stage, stop_ns)

    def span(self, stage: str, num_bytes: int = 0, subject: Subject | None = None) -> OpenSpan:
        """Return a block whose time is a piece of work, also when it fails; spans inside it inherit the subject."""
        return OpenSpan(self, stage, num_bytes, subject)

    def totals(self) -> dict[str, StageTotal]:
        """Return the totals so far, added over threads, in the order in which stages first ran on each."""
        found: dict[str, list[list[int]]] = {}
        for track in self.tracks():
            for stage, total in list(track.totals.items()):
                found.setdefault(stage, []).append(total)
        sums = {stage: map(sum, zip(*totals, strict=True)) for stage, totals in found.items()}
        return {
            stage: StageTotal(num_calls=num_calls, busy_s=busy_ns / 1e9, num_bytes=num_bytes)
            for stage, (num_calls, busy_ns, num_bytes) in sums.items()
        }

    def active(self) -> dict[str, int]:
        """Return how many threads are inside each stage right now, of stages whose spans are entered and left."""
        counts: defaultdict[str, int] = defaultdict(int)
        for track in self.tracks():
            span = track.open_span
            while span is not None:
                counts[span.stage] += 1
                span = span.outer
        return dict(counts)

    def tracks(self) -> list[Track]:
        """Return the tracks of all threads, in the order in which they came."""
        with self._lock:
            return list(self._tracks)

    @property
    def num_dropped(self) -> int:
        """Spans that a full ring has pushed out."""
        return sum(track.num_dropped for track in self.tracks())

    def _new_track(self) -> Track:
        thread = threading.current_thread()
        # Threads of the user's: numbers in their names would make a track for each that ever lived.
        name = thread.name if thread.name.startswith("stoker-") else thread.name.partition("-")[0]
        with self._lock:
            free = (track for track in self._tracks if track.is_free and track.name == name)
            if (track := next(free, None)) is None:
                track = Track(name, max_spans=self.max_spans)
                self._tracks.append(track)
            track.begin(thread)
        self._local.track = track
        return track


class OpenSpan:
    """A block that is timed. Use it in one with block, once; `num_bytes` and `num_calls` may be set inside."""

    __slots__ = ("_stages", "_subject", "_track", "num_bytes", "num_calls", "outer", "stage", "start_ns", "stop_ns")

    def __init__(self, stages: Stages, stage: str, num_bytes: int, subject: Subject | None) -> None:
        self._stages, self._subject = stages, subject
        self.stage, self.num_bytes, self.num_calls = stage, num_bytes, 1

    def __enter__(self) -> Self:
        stages = self._stages
        try:
            track: Track = stages._local.track
        except AttributeError:
            track = stages._new_track()
        self._track = track
        self.outer: OpenSpan | None = track.open_span
        track.open_span = self
        if self._subject is not None:
            # Kept here until the block is left: what is told inside is about this.
            track.subject, self._subject = self._subject, track.subject
        if stages.ranges is not None:
            stages.ranges[0](_range_name(self.stage, track.subject))
        self.start_ns = time.perf_counter_ns()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_ns = stop_ns = time.perf_counter_ns()
        stages, track = self._stages, self._track
        if stages.ranges is not None:
            stages.ranges[1]()
        stages(self.stage, self.start_ns, stop_ns, self.num_bytes, None, self.num_calls)
        track.open_span = self.outer
        if self._subject is not None:
            track.subject = self._subject


def _range_name(stage: str, subject: Subject) -> str:
    _, step, window, chunk = subject
    about = (("chunk", chunk), ("window", window), ("step", step))
    return next((f"{stage}, {what} {number}" for what, number in about if number >= 0), stage)


NO_STAGES = Stages()
"""Told of work that nobody looks at."""
open_in_forks(NO_STAGES._lock)
