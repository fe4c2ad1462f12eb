"""Gathers the events of a trace into columns while it is read, and puts together what belongs together.

That is a beginning and its end, and a call and what it launched.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker._native import TraceScanner
from stoker.doctor.traces.events import Columns, Events, ProfilerTrace, ProfilerTrack, device_names
from stoker.doctor.traces.names import (
    DEVICE_KINDS,
    FLOW_CATEGORIES,
    HOST_KINDS,
    EventKind,
    EventNames,
    device_word,
    event_kind,
    kind_of_process,
)
from stoker.fields.offsets import Int64

# Columns of a row, as the scanner writes them; see native/trace_events.h.
_PHASE, _CATEGORY, _NAME, _PID, _TID, _START, _LENGTH = range(7)
_CORRELATION, _BYTES, _SEQUENCE, _GROUP, _MEMBERS, _LABEL, _FLOW = range(7, 14)
_COMPLETE, _BEGIN, _END, _META, _FLOW_FROM, _FLOW_TO = (ord(letter) for letter in "XBEMsf")
# Frames of Python that are shorter say nothing that the frame around them does not, and are most of all events.
_MIN_FRAME_NS = 10_000
_TYPES: dict[str, type[np.generic]] = {
    "phase": np.uint8,
    "kind": np.uint8,
    "name": np.int32,
    "track": np.int32,
    "start": np.int64,
    "length": np.int64,
    "correlation": np.int64,
    "extra": np.int64,
    "group": np.int32,
    "members": np.int32,
    "label": np.int32,
}

_IS_HOST = np.array([kind in HOST_KINDS for kind in EventKind])
_IS_DEVICE = np.array([kind in DEVICE_KINDS for kind in EventKind])
_IS_SPAN = np.isin(np.arange(256), (_COMPLETE, _BEGIN, _END))
_IS_ARROW = np.isin(np.arange(256), (_FLOW_FROM, _FLOW_TO))


class Collector:
    """Takes rows from its scanner of bytes, keeps those that matter, and makes a `ProfilerTrace` of them."""

    def __init__(self, names: EventNames) -> None:
        self.scanner = TraceScanner()
        self._names = names
        self._texts: list[str] = []
        self._kinds = [int(EventKind.UNKNOWN)]  # of texts as categories, and of none: the last entry is number -1
        self._flows = [False]
        self._parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in _TYPES}
        self._tracks: dict[tuple[int, int], int] = {}
        self._processes: dict[int, str] = {}
        self._num_events = 0
        self._num_timeless = 0
        self._has_correlations = False

    def take(self, block: npt.NDArray[np.uint8], *, is_last: bool = False) -> None:
        """Take the next bytes of the file."""
        content = self.scanner.feed(block, is_last)
        rows = np.frombuffer(content, np.int64).reshape(-1, TraceScanner.NUM_COLUMNS)
        self._learn_texts()
        self._num_events += len(rows)
        phase = rows[:, _PHASE]
        self._take_metadata(rows[phase == _META])
        kind = np.array(self._kinds, np.uint8)[rows[:, _CATEGORY]]
        is_flow = _IS_ARROW[phase] & np.array(self._flows, bool)[rows[:, _CATEGORY]]
        is_short = (kind == EventKind.PYTHON) & (phase == _COMPLETE) & (rows[:, _LENGTH] < _MIN_FRAME_NS)
        wanted = _IS_SPAN[phase] & ((kind != EventKind.IGNORED) & ~is_short | (phase == _END))
        if not self._has_correlations:
            self._has_correlations = bool(np.any(_IS_DEVICE[kind] & (rows[:, _CORRELATION] > 0)))
        if not self._has_correlations:  # then only arrows tell which call launched what
            wanted |= is_flow
        has_time = rows[:, _START] != TraceScanner.MISSING
        self._num_timeless += int(np.count_nonzero(wanted & ~has_time))
        chosen = np.flatnonzero(wanted & has_time)
        if not chosen.size:
            return
        rows, phase, kind, is_flow = rows[chosen], phase[chosen], kind[chosen], is_flow[chosen]
        kind[is_flow] = EventKind.IGNORED
        found: Columns = {
            "phase": phase,
            "kind": kind,
            "name": rows[:, _NAME],
            "track": self._track_numbers(rows[:, _PID], rows[:, _TID]),
            "start": rows[:, _START],
            "length": np.maximum(rows[:, _LENGTH], -1),  # MISSING is negative too
            "correlation": np.maximum(np.where(is_flow, rows[:, _FLOW], rows[:, _CORRELATION]), -1),
            "extra": np.maximum(np.where(kind == EventKind.MEMCPY, rows[:, _BYTES], rows[:, _SEQUENCE]), -1),
            "group": rows[:, _GROUP],
            "members": rows[:, _MEMBERS],
            "label": rows[:, _LABEL],
        }
        for name, type_ in _TYPES.items():
            self._parts[name].append(found[name].astype(type_))

    def _learn_texts(self) -> None:
        """Decode texts that are new, and decide what they mean as a category."""
        for content in self.scanner.texts_from(len(self._texts)):
            text = content.decode(errors="replace")
            if "\\" in text:
                try:
                    text = str(json.loads(f'"{text}"', strict=False))
                except ValueError:
                    text = text.replace('\\"', '"')
            self._texts.append(text)
            self._kinds.insert(-1, int(event_kind(text)))
            self._flows.insert(-1, text.strip().lower() in FLOW_CATEGORIES)

    def _take_metadata(self, rows: Int64) -> None:
        for row in rows:
            name = self._texts[row[_NAME]] if row[_NAME] >= 0 else ""
            if row[_LABEL] >= 0 and name == "process_name":
                self._processes[int(row[_PID])] = self._texts[row[_LABEL]]

    def _track_numbers(self, pids: Int64, tids: Int64) -> Int64:
        """Return the number of each event's track. [N]."""
        # Runs of equal pairs are long: only where one ends is a look-up needed.
        borders = np.flatnonzero(np.concatenate([[True], (pids[1:] != pids[:-1]) | (tids[1:] != tids[:-1])]))
        numbers = [
            self._tracks.setdefault(pair, len(self._tracks))
            for pair in zip(pids[borders].tolist(), tids[borders].tolist(), strict=True)
        ]
        return np.repeat(np.array(numbers, np.int64), np.diff(np.append(borders, pids.size)))

    def finish(self, *, path: str, header: dict[str, object], is_cut: bool, notes: list[str]) -> ProfilerTrace:
        """Return what was read, beginnings and ends paired, each event with its final kind."""
        # One column after the other, so that no more than one is held twice.
        columns: Columns = {
            name: np.concatenate([np.empty(0, type_), *self._parts.pop(name)]) for name, type_ in _TYPES.items()
        }
        tracks = tuple(
            ProfilerTrack(pid=self._text(pid), tid=self._text(tid), process=self._processes.get(pid, ""))
            for pid, tid in self._tracks
        )
        columns, num_lone = _close_pairs(columns)
        columns["kind"] = self._final_kinds(columns, tracks)
        if not self._has_correlations:
            _follow_arrows(columns)
        is_span, kind = columns.pop("phase") == _COMPLETE, columns["kind"]
        length = columns.pop("length")
        has_length = length >= 0
        columns["stop"] = columns["start"] + np.maximum(length, 0)
        on_host = np.flatnonzero(is_span & _IS_HOST[kind])
        on_device = np.flatnonzero(is_span & _IS_DEVICE[kind] & has_length)
        order = np.concatenate([on_host, on_device])
        for name in columns:
            columns[name] = columns[name][order]
        events = Events(**columns)
        if num_lone:
            notes.append(f"{num_lone:,} begin or end events have no partner")
        num_beyond = self.scanner.num_beyond
        if num_beyond:
            notes.append(
                f"the file has {num_beyond:,} times that are too large for microseconds since 1970 (nanoseconds?): "
                "`ts` and `dur` are in microseconds, whatever `displayTimeUnit` says"
            )
        num_damaged = self.scanner.num_damaged + max(self._num_timeless - num_beyond, 0)
        return ProfilerTrace(
            path=path,
            host=events.where(slice(0, on_host.size)),
            device=events.where(slice(on_host.size, None)),
            texts=tuple(self._texts),
            tracks=tracks,
            names=self._names,
            device_word=device_word([*self._texts, *device_names(header).values()]),
            header=header,
            num_events=self._num_events,
            # The event that the end cuts is no damage.
            num_damaged=num_damaged - bool(is_cut and num_damaged),
            num_without_length=int(np.count_nonzero(is_span & _IS_DEVICE[kind] & ~has_length)),
            is_cut=is_cut,
            notes=tuple(notes),
        )

    def _text(self, number: int) -> int | str:
        return self._texts[number - TraceScanner.TEXT] if number >= TraceScanner.TEXT else number

    def _final_kinds(self, columns: Columns, tracks: tuple[ProfilerTrack, ...]) -> npt.NDArray[np.uint8]:
        """Tell events without a category by their process, and communication from computation by its name."""
        kind, names = columns["kind"], columns["name"]
        unknown = kind == EventKind.UNKNOWN
        if unknown.any():
            of_track = [int(kind_of_process(track.process or str(track.pid))) for track in tracks]
            kind[unknown] = np.array(of_track, np.uint8)[columns["track"][unknown]]
        for device in (EventKind.KERNEL, EventKind.COLLECTIVE):
            here = np.flatnonzero(kind == device)
            used, inverse = np.unique(names[here], return_inverse=True)
            final = [self._names.device_kind(self._texts[name] if name >= 0 else "", device) for name in used.tolist()]
            kind[here] = np.array(final, np.uint8)[inverse]
        return kind


def _close_pairs(columns: Columns) -> tuple[Columns, int]:
    """Make one whole event of each beginning and its end.

    An end closes the last open beginning of its track, of its name where it has one: at one time, a file may have the
    next beginning before the last end. A beginning without an end lasts until the last time in the file, as viewers
    show it; an end without a beginning is dropped.

    Args:
        columns: Columns of equal length, "phase", "track", "start" and "length" among them.

    Returns:
        The columns, ends dropped, and how many events had no partner.
    """
    phase, start, length = columns["phase"], columns["start"], columns["length"]
    parts = np.flatnonzero((phase == _BEGIN) | (phase == _END))
    if not parts.size:
        return columns, 0
    last = int((start + np.maximum(length, 0)).max())
    # In the order of time; at the same time in the order of the file, which is the order in which it happened.
    order = parts[np.lexsort((parts, start[parts], columns["track"][parts]))]
    stacks: dict[int, list[int]] = {}
    num_lone, name = 0, columns["name"]
    for index, track, is_begin in zip(
        order.tolist(), columns["track"][order].tolist(), (phase[order] == _BEGIN).tolist(), strict=True
    ):
        stack = stacks.setdefault(track, [])
        if is_begin:
            stack.append(index)
        elif stack:
            near = range(-1, -1 - min(len(stack), 64), -1)  # where beginnings have no ends, the stack only grows
            begun = stack.pop(next((at for at in near if name[stack[at]] == name[index]), -1))
            length[begun] = start[index] - start[begun]
        else:
            num_lone += 1
    for begun in (index for stack in stacks.values() for index in stack):
        num_lone += 1
        length[begun] = last - start[begun]
    phase[phase == _BEGIN] = _COMPLETE
    return {name: column[phase != _END] for name, column in columns.items()}, num_lone


def _follow_arrows(columns: Columns) -> None:
    """Give each event the id of the arrow that begins or ends in it: where events have no correlation of their own.

    An arrow's end belongs to the event of its track that begins last before it and has not ended.

    Args:
        columns: As the collector has them; arrows are rows of phase "s" and "f", their id under "correlation".
    """
    phase, kind, start, track = columns["phase"], columns["kind"], columns["start"], columns["track"]
    is_call = kind == EventKind.RUNTIME
    if not is_call.any():  # the profiler of before Kineto has no calls: its arrows begin in operators
        is_call = kind == EventKind.HOST_OP
    for letter, ends in ((_FLOW_FROM, is_call), (_FLOW_TO, _IS_DEVICE[kind])):
        arrows = np.flatnonzero(phase == letter)
        targets = np.flatnonzero(ends & (phase == _COMPLETE))
        for number in np.unique(track[arrows]).tolist():
            mine = arrows[track[arrows] == number]
            here = targets[track[targets] == number]
            if not here.size:
                continue
            here = here[np.argsort(start[here], kind="stable")]
            place = np.searchsorted(start[here], start[mine], side="right") - 1
            hit = here[np.maximum(place, 0)]
            inside = (place >= 0) & (start[mine] <= start[hit] + columns["length"][hit])
            columns["correlation"][hit[inside]] = columns["correlation"][mine[inside]]
