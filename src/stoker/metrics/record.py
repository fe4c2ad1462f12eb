"""`Trace`: what every thread did, span by span, as a Chrome trace (Trace Event Format), which Perfetto reads too.

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

import gzip
import importlib
import itertools
import json
import os
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from stoker.arguments import explain_arguments, flag, integer
from stoker.metrics.stages import Ranges, Span, Stages

# The order of tracks in a viewer: the training loop, whom the others serve, comes first.
_ROLES = {"stoker-batch": "batches", "stoker-window": "windows", "stoker-build": "builds", "stoker-open": "footers"}


@explain_arguments({})
class Trace:
    """A recording of what every thread of one or more loaders does: which stage, from when to when, for which step.

        trace = Trace()
        with Loader(dataset, batch_size=64, trace=trace) as loader:
            for batch in loader:
                ...
        trace.write("trace.json")       # open it in https://ui.perfetto.dev or chrome://tracing

    It keeps the latest spans of each thread, about 200 bytes each, so it may stay on for as long as training runs and
    be written at any time; what was dropped is counted, and said in the file. It costs less than a microsecond a span.

    Args:
        max_spans: Spans kept a thread.
        nvtx: Show spans as NVTX ranges too, where a GPU profiler such as Nsight Systems sees them; needs torch with
            CUDA, or `pip install 'stoker[nvtx]'`.

    Raises:
        ImportError: There is neither, and `nvtx` asks for it.
    """

    def __init__(self, *, max_spans: int = 65_536, nvtx: bool = False) -> None:
        self._max_spans = integer(max_spans, "max_spans")
        self._ranges = _nvtx_ranges() if flag(nvtx, "nvtx") else None
        self._began_ns, self._began_unix_ns = time.perf_counter_ns(), time.time_ns()
        self._recorded: list[tuple[str, Stages]] = []

    def stages(self, name: str) -> Stages:
        """Return what a loader of this name tells of its work."""
        stages = Stages(max_spans=self._max_spans, ranges=self._ranges)
        self._recorded.append((name, stages))
        return stages

    @property
    def num_dropped(self) -> int:
        """Spans that are lost because later ones took their place."""
        return sum(stages.num_dropped for _, stages in self._recorded)

    def spans(self) -> dict[str, list[Span]]:
        """Return the spans kept, by thread, each thread's in the order in which they ended.

        Threads of several loaders are told apart by the loader's name: "train: stoker-batch-0".
        """
        found: dict[str, list[Span]] = {}
        for of, stages in self._loaders():
            for track in stages.tracks():
                found.setdefault(of + track.name, []).extend(track.recorded())
        return found

    def write(self, path: str | Path) -> None:
        """Write everything kept so far as a Chrome trace, which Perfetto reads too; compressed where it ends in .gz.

        Producers, the queue of ready batches and the training loop are tracks of their own; each span carries its
        step, and an arrow leads from a batch's making to the step that used it. Whole or not at all: written aside,
        and renamed.

        Raises:
            OSError: It cannot be written there.
        """
        path = Path(path)
        is_packed = path.suffix == ".gz"
        aside = path.with_name(f".{path.name}.{os.getpid()}.part")
        about = {
            "producer": "stoker",
            "began_unix_ns": str(self._began_unix_ns),  # as text: JSON numbers are not exact beyond 2**53
            "num_dropped_spans": self.num_dropped,
        }
        encode = json.JSONEncoder(separators=(",", ":")).encode
        try:
            # Packed without a name or a time inside: the same spans are the same bytes.
            with aside.open("wb") as raw, gzip.GzipFile("", "wb", 3, raw, mtime=0) if is_packed else raw as out:
                out.write(b'{"displayTimeUnit":"ms","otherData":' + encode(about).encode() + b',"traceEvents":[\n')
                for number, event in enumerate(self._events()):
                    out.write(b",\n" * bool(number) + encode(event).encode())
                out.write(b"\n]}\n")
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Trace records one process and cannot go to another; make one there")

    def _loaders(self) -> list[tuple[str, Stages]]:
        """Return what each loader told, and what its tracks are called after it, where there are several."""
        return [("" if len(self._recorded) == 1 else f"{name}: ", stages) for name, stages in self._recorded]

    def _events(self) -> Iterator[dict[str, Any]]:
        pid, began_ns = os.getpid(), self._began_ns

        def event(kind: str, tid: int, at_ns: int, **more: object) -> dict[str, Any]:
            return {"ph": kind, "pid": pid, "tid": tid, "ts": (at_ns - began_ns) / 1000, **more}

        yield event("M", pid, began_ns, name="process_name", args={"name": f"stoker on {socket.gethostname()}"})
        places, arrows = itertools.count(1), itertools.count()
        tids = itertools.chain([pid], (tid for tid in itertools.count(1) if tid != pid))
        for of, stages in self._loaders():
            tracks = [(_role(one.name), one.recorded(), one.num_dropped) for one in stages.tracks()]
            used = _uses(span for _, spans, _ in tracks for span in spans)
            ends = {id(span): number for pair, number in zip(used["step"], arrows, strict=False) for span in pair}
            for (_, _, name), spans, num_dropped in sorted(tracks, key=lambda track: track[0]):
                for beside, nested in enumerate(_nest(spans)):
                    tid, label = next(tids), f"{of}{name}" + (f" ({beside + 1})" if beside else "")
                    yield event("M", tid, began_ns, name="thread_name", args={"name": label})
                    yield event("M", tid, began_ns, name="thread_sort_index", args={"sort_index": next(places)})
                    if num_dropped and not beside:
                        text = f"{num_dropped:,} earlier spans were dropped: max_spans is too small for them"
                        yield event("i", tid, nested[0].start_ns if nested else began_ns, name=text, s="t")
                    for span in nested:
                        kind, took = "loop" if span.stage in used else "producer", span.stop_ns - span.start_ns
                        yield event(
                            "X", tid, span.start_ns, name=span.stage, cat=kind, dur=took / 1000, args=_about(span)
                        )
                        if (arrow := ends.get(id(span))) is not None:
                            end = {"ph": "s"} if span.stage == "batch" else {"ph": "f", "bp": "e"}
                            yield event("s", tid, span.start_ns, name="batch", cat="batch", id=arrow) | end
            # Only batches both ends of which are there count, so what a full ring has dropped distorts nothing.
            changes = [one for made, wait in used["wait"] for one in ((made.stop_ns, -1), (wait.stop_ns, 1))]
            level = 0
            for at_ns, change in sorted(changes):  # who comes as another goes, comes first
                level -= change
                yield event("C", pid, at_ns, name=f"{of}queue", args={"batches ready": level})


def _uses(spans: Iterable[Span]) -> dict[str, list[tuple[Span, Span]]]:
    """Return each batch's making with the wait for it, and with the step: what the loop's own thread tells.

    A loop that was left early comes to the same steps of the same epoch again: the first span after a making is its.
    """
    found: dict[str, list[tuple[Span, Span]]] = {"wait": [], "step": []}
    steps: dict[tuple[int, int], list[Span]] = {}
    for span in spans:
        if span.stage == "batch" or span.stage in found:
            steps.setdefault((span.epoch, span.step), []).append(span)
    for of_step in steps.values():
        open_ends: dict[str, Span] = {}
        # By their ends: a wait may have begun before the batch was begun.
        for span in sorted(of_step, key=lambda span: (span.stop_ns, span.stage != "batch")):
            if span.stage == "batch":
                open_ends = {"wait": span, "step": span}
            elif (made := open_ends.get(span.stage)) and (span.stage == "wait" or span.start_ns > made.start_ns):
                found[span.stage].append((open_ends.pop(span.stage), span))
    return found


def _nest(spans: Iterable[Span]) -> list[list[Span]]:
    """Share spans of one thread out over as many tracks as it takes for them to nest; mostly that is one.

    Returns: tracks, each with its spans by beginning, an outer one before an inner one. At least one, maybe empty.
    """
    tracks: list[list[Span]] = [[]]
    stacks: list[list[int]] = [[]]  # ends of the spans that are open on each, innermost last
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.stop_ns)):
        for track, stack in zip(tracks, stacks, strict=True):  # noqa: B007 used behind the loop
            while stack and stack[-1] <= span.start_ns:
                stack.pop()
            if not stack or span.stop_ns <= stack[-1]:
                break
        else:
            track, stack = [], []
            tracks.append(track)
            stacks.append(stack)
        track.append(span)
        stack.append(span.stop_ns)
    return tracks


def _role(thread: str) -> tuple[int, str, str]:
    """Return where a thread's track stands, and its label behind that."""
    if not thread.startswith("stoker-"):
        return 0, thread, f"loop ({thread})"
    for place, (prefix, role) in enumerate(_ROLES.items(), 1):
        if thread.startswith(prefix):
            return place, thread, f"{role} {thread.removeprefix(prefix).lstrip('-')}".strip()
    return len(_ROLES) + 1, thread, thread


def _about(span: Span) -> dict[str, int]:
    known = {name: getattr(span, name) for name in ("step", "epoch", "window", "chunk")}
    size = {"bytes": span.num_bytes} if span.num_bytes else {}
    return {name: value for name, value in known.items() if value >= 0} | size


def _nvtx_ranges() -> Ranges:
    """Return NVTX's ranges: torch's where it has CUDA, else those of the package `nvtx`."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_available():
        return cuda.nvtx.range_push, cuda.nvtx.range_pop
    try:
        nvtx = importlib.import_module("nvtx")
    except ImportError as error:
        raise ImportError(
            "NVTX ranges need torch with CUDA, imported before, or the package nvtx: pip install 'stoker[nvtx]'"
        ) from error
    return nvtx.push_range, nvtx.pop_range
