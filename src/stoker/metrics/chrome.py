"""Spans as a Chrome trace (Trace Event Format, JSON), which Perfetto's importer reads too.

Rules of that format that decide what is written here, beyond its names:

- Slices of one thread must nest; Perfetto drops one that does not. So what overlaps gets a track beside.
- Times are microseconds; a double holds the nanoseconds that the importers round to for 100 days of recording.
- Events of the same time keep the file's order, so an outer slice comes before an inner one that begins with it.
- A flow binds to the innermost slice that was begun before it: its events come right behind their slice.
- A number as thread id stands for a thread of the system, and the process's own id for its main thread.
- Counters belong to the process, and are called by their name and the name of the value.

Source:
    Trace Event Format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU;
    Perfetto's importer, src/trace_processor/importers (json_trace_parser_impl.cc, json_trace_tokenizer.cc,
    slice_tracker.cc), read in November 2026.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from stoker.metrics.stages import Span

# The order of tracks in a viewer: the training loop, whom the others serve, comes first.
_ROLES = {"stoker-batch": "batches", "stoker-window": "windows", "stoker-build": "builds", "stoker-open": "footers"}
# Stages of the training loop's own thread: all there is on its track where batches are made ahead.
_LOOP = frozenset({"wait", "step"})


Recording: TypeAlias = "tuple[str, Sequence[tuple[str, Sequence[Span], int]]]"
"""What one loader has recorded: its name, and for each thread its name, its spans, and how many before were dropped."""


def lines(recordings: Sequence[Recording], *, began_ns: int, began_unix_ns: int) -> Iterator[bytes]:
    """Yield the lines of the file.

    Args:
        recordings: One a loader.
        began_ns: What becomes time 0, in ns of `time.perf_counter_ns`.
        began_unix_ns: The same time in ns since 1970.
    """
    about = {
        "producer": "stoker",
        "began_unix_ns": str(began_unix_ns),  # as text: JSON numbers are not exact beyond 2**53
        "num_dropped_spans": sum(dropped for _, tracks in recordings for _, _, dropped in tracks),
    }
    yield b'{"displayTimeUnit":"ms","otherData":' + json.dumps(about).encode() + b',"traceEvents":[\n'
    write, separator = json.JSONEncoder(separators=(",", ":")).encode, ""
    for event in _events(recordings, began_ns):
        yield f"{separator}{write(event)}".encode()
        separator = ",\n"
    yield b"\n]}\n"


def _events(recordings: Sequence[Recording], began_ns: int) -> Iterator[dict[str, Any]]:
    pid = os.getpid()

    def event(kind: str, tid: int, at_ns: int, **more: object) -> dict[str, Any]:
        return {"ph": kind, "pid": pid, "tid": tid, "ts": (at_ns - began_ns) / 1000, **more}

    yield event("M", pid, began_ns, name="process_name", args={"name": f"stoker on {socket.gethostname()}"})
    tids = itertools.chain([pid], (tid for tid in itertools.count(1) if tid != pid))
    place = itertools.count(1)
    for number, recording in enumerate(recordings):
        loader, tracks = recording
        of = "" if len(recordings) == 1 else f"{loader}: "
        made_and_used = enumerate(_pairs(recording, "step"), number << 32)
        arrows = {id(span): arrow for arrow, pair in made_and_used for span in pair}
        for name, spans, dropped in sorted(tracks, key=lambda track: _role(track[0])):
            for beside, nested in enumerate(nest(spans)):
                tid = next(tids)
                label = f"{of}{_role(name)[2]}" + (f" ({beside + 1})" if beside else "")
                yield event("M", tid, began_ns, name="thread_name", args={"name": label})
                yield event("M", tid, began_ns, name="thread_sort_index", args={"sort_index": next(place)})
                if dropped and not beside:
                    text = f"{dropped:,} earlier spans were dropped: max_spans is too small for them"
                    yield event("i", tid, nested[0].start_ns if nested else began_ns, name=text, s="t")
                for span in nested:
                    category, took = (
                        "loop" if span.stage in _LOOP else "producer",
                        (span.stop_ns - span.start_ns) / 1000,
                    )
                    yield event("X", tid, span.start_ns, name=span.stage, cat=category, dur=took, args=_about(span))
                    if (arrow := arrows.get(id(span))) is not None:
                        end = {"ph": "s"} if span.stage == "batch" else {"ph": "f", "bp": "e"}
                        yield event("s", tid, span.start_ns, name="batch", cat="batch", id=arrow) | end
        for at_ns, level in queue(recording):
            yield event("C", pid, at_ns, name=f"{of}queue", args={"batches ready": level})


def nest(spans: Iterable[Span]) -> list[list[Span]]:
    """Share spans of one thread out over as many tracks as it takes for them to nest; mostly that is one.

    Returns: tracks, each with its spans by beginning, an outer one before an inner one. At least one, maybe empty.
    """
    tracks: list[list[Span]] = [[]]
    stacks: list[list[int]] = [[]]
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.stop_ns)):
        number = next((number for number, stack in enumerate(stacks) if _fits(span, stack)), len(tracks))
        if number == len(tracks):
            tracks.append([])
            stacks.append([])
        tracks[number].append(span)
        stacks[number].append(span.stop_ns)
    return tracks


def _fits(span: Span, stack: list[int]) -> bool:
    """Return whether a span lies beside or inside those whose ends are on the stack, innermost last."""
    while stack and stack[-1] <= span.start_ns:
        stack.pop()
    return not stack or span.stop_ns <= stack[-1]


def queue(recording: Recording) -> list[tuple[int, int]]:
    """Return (time_ns, batches that are ready and not yet handed over), a change each.

    Only batches both ends of which are among the spans count, so what a full ring has dropped distorts nothing.
    """
    pairs = _pairs(recording, "wait")
    changes = [(made.stop_ns, 1) for made, _ in pairs] + [(wait.stop_ns, -1) for _, wait in pairs]
    changes.sort(key=lambda change: (change[0], -change[1]))
    return list(zip((at for at, _ in changes), itertools.accumulate(change for _, change in changes), strict=True))


def _pairs(recording: Recording, stage: str) -> list[tuple[Span, Span]]:
    """Return each batch's making with the span of the loop that it led to.

    A loop that was left early comes to the same steps of the same epoch again: the first span after a making is its.
    """
    ends: dict[tuple[int, int], list[Span]] = {}
    for _, spans, _ in recording[1]:
        for span in spans:
            if span.stage in ("batch", stage):
                ends.setdefault((span.epoch, span.step), []).append(span)
    pairs = []
    for spans in ends.values():
        made: Span | None = None
        # By their ends: a wait may have begun before the batch was begun.
        for span in sorted(spans, key=lambda span: (span.stop_ns, span.stage != "batch")):
            if span.stage == "batch":
                made = span
            elif made is not None and (stage == "wait" or span.start_ns > made.start_ns):
                pairs.append((made, span))
                made = None
    return pairs


def _role(thread: str) -> tuple[int, str, str]:
    """Return where a thread's track stands, and its label behind that."""
    for place, (prefix, role) in enumerate(_ROLES.items()):
        if thread.startswith(prefix):
            return place + 1, thread, f"{role} {thread.removeprefix(prefix).lstrip('-')}".strip()
    is_ours = thread.startswith("stoker-")
    return (len(_ROLES) + 1 if is_ours else 0), thread, thread if is_ours else f"loop ({thread})"


def _about(span: Span) -> dict[str, int]:
    known = {"step": span.step, "epoch": span.epoch, "window": span.window, "chunk": span.chunk}
    return {name: value for name, value in known.items() if value >= 0} | (
        {"bytes": span.num_bytes} if span.num_bytes else {}
    )
