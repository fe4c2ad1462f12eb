"""Gathers the events of a trace into columns while it is read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stoker._native import TraceScanner, find_trace_event
from stoker.doctor.traces.columns import GrowingColumns
from stoker.doctor.traces.events import Columns, Events, ProfilerTrace, ProfilerTrack
from stoker.doctor.traces.links import flows_to_correlations
from stoker.doctor.traces.names import (
    DEVICE_KINDS,
    FLOW_CATEGORIES,
    HOST_KINDS,
    EventKind,
    Is,
    device_kind,
    event_kind,
    kind_of_process,
    what_is,
)
from stoker.doctor.traces.pairs import close_pairs
from stoker.fields.offsets import Int64

if TYPE_CHECKING:
    from stoker.doctor.traces.window import ByteWindow

# Columns of a row, as the scanner writes them; see native/trace_events.h.
(_PHASE, _CATEGORY, _NAME, _PID, _TID, _START, _LENGTH, _CORRELATION, _BYTES, _SEQUENCE, _GROUP, _LABEL, _FLOW) = range(
    13
)
_ROWS = 1 << 16
# A broken event is given up on when its end is not found within so many bytes.
_MAX_EVENT_BYTES = 32 << 20
_COMPLETE, _BEGIN, _END, _META, _FLOW_FROM, _FLOW_TO = (ord(letter) for letter in "XBEMsf")
_KEEP_PYTHON = Is.DATA_WAIT | Is.COLLATE | Is.SYNC
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
    "label": np.int32,
}

_IS_HOST = np.array([kind in HOST_KINDS for kind in EventKind])
_IS_DEVICE = np.array([kind in DEVICE_KINDS for kind in EventKind])
_IS_SPAN = np.array([code in (_COMPLETE, _BEGIN, _END) for code in range(256)])
_IS_ARROW = np.array([code in (_FLOW_FROM, _FLOW_TO) for code in range(256)])


class Collector:
    """Takes rows from the scanner, keeps those that matter, and makes a `ProfilerTrace` of them.

    Attributes:
        has_ended: Whether the array of events had its closing bracket.
    """

    def __init__(self) -> None:
        self._scanner = TraceScanner()
        self._rows: Int64 = np.empty((_ROWS, TraceScanner.NUM_COLUMNS), np.int64)
        self._num_damaged = 0  # events that did not end; others the scanner counts
        self._names: list[str] = []
        self._kinds: list[int] = []
        self._flows: list[bool] = []
        self._keeps_python: list[bool] = []
        self._columns = GrowingColumns(_TYPES)
        self._tracks: dict[tuple[int, int], int] = {}
        self._processes: dict[int, str] = {}
        self._num_events = 0
        self._num_without_time = 0
        self._has_correlations = False
        self.has_ended = False

    def read_array(self, window: ByteWindow) -> None:
        """Read events up to the end of their array, or of the file."""
        self.has_ended = False
        while True:
            num, window.at, why = self._scanner.scan(window.data, window.at, window.stop, self._rows)
            self._take(self._rows[:num])
            if why == TraceScanner.ENDED:
                self.has_ended = True
                return
            if why == TraceScanner.MORE:
                is_stuck = window.stop - window.at > _MAX_EVENT_BYTES
                has_more = not is_stuck and window.more()
                if not has_more and (window.is_empty or not self._skip_damage(window)):
                    return

    def _skip_damage(self, window: ByteWindow) -> bool:
        """Go to the next event behind one that does not end, or is none; False where there is no other."""
        self._num_damaged += 1
        found = find_trace_event(window.data, window.at + 1, window.stop)
        if found < 0:
            return False
        window.at = found
        return True

    def _learn_names(self) -> None:
        """Decode texts that are new, and decide what they mean as a category and as a Python function."""
        for content in self._scanner.texts_from(len(self._names)):
            text = content.decode("utf-8", errors="replace")
            if "\\" in text:
                try:
                    text = str(json.loads(f'"{text}"', strict=False))
                except ValueError:
                    text = text.replace('\\"', '"')
            self._names.append(text)
            self._kinds.append(int(event_kind(text)))
            self._flows.append(text.strip().lower() in FLOW_CATEGORIES)
            self._keeps_python.append(bool(what_is(text, EventKind.PYTHON) & _KEEP_PYTHON))

    def _take(self, rows: Int64) -> None:
        self._learn_names()
        self._num_events += len(rows)
        phase = rows[:, _PHASE]
        self._take_metadata(rows[phase == _META])
        # A number of -1 stands for no text: the last entry of each table.
        kind = np.array([*self._kinds, int(EventKind.UNKNOWN)], np.uint8)[rows[:, _CATEGORY]]
        keeps_python = np.array([*self._keeps_python, False], bool)[rows[:, _NAME]]
        is_flow = _IS_ARROW[phase] & np.array([*self._flows, False], bool)[rows[:, _CATEGORY]]
        is_span = _IS_SPAN[phase]
        wanted = is_span & ((kind != EventKind.IGNORED) & ((kind != EventKind.PYTHON) | keeps_python) | (phase == _END))
        if not self._has_correlations:
            self._has_correlations = bool(np.any(_IS_DEVICE[kind] & (rows[:, _CORRELATION] > 0)))
        if not self._has_correlations:  # then only arrows tell which call launched what
            wanted |= is_flow
        has_time = rows[:, _START] != TraceScanner.MISSING
        self._num_without_time += int(np.count_nonzero(wanted & ~has_time))
        chosen = np.flatnonzero(wanted & has_time)
        if not chosen.size:
            return
        rows, phase, kind = rows[chosen], phase[chosen], kind[chosen]
        kind[is_flow[chosen]] = EventKind.IGNORED
        extra = np.where(kind == EventKind.MEMCPY, rows[:, _BYTES], rows[:, _SEQUENCE])
        link = np.where(is_flow[chosen], rows[:, _FLOW], rows[:, _CORRELATION])
        self._columns.append(
            {
                "phase": phase,
                "kind": kind,
                "name": rows[:, _NAME],
                "track": self._track_numbers(rows[:, _PID], rows[:, _TID]),
                "start": rows[:, _START],
                # MISSING is negative too: an event without a length has none.
                "length": np.maximum(rows[:, _LENGTH], 0),
                "correlation": np.maximum(link, -1),
                "extra": np.maximum(extra, -1),
                "group": rows[:, _GROUP],
                "label": rows[:, _LABEL],
            }
        )

    def _take_metadata(self, rows: Int64) -> None:
        for row in rows:
            name = self._names[row[_NAME]] if row[_NAME] >= 0 else ""
            if row[_LABEL] >= 0 and name == "process_name":
                self._processes[int(row[_PID])] = self._names[row[_LABEL]]

    def _track_numbers(self, pids: Int64, tids: Int64) -> Int64:
        """Return the number of each event's track. [N]."""
        # Runs of equal pairs are long: only where one ends is a look-up needed.
        borders = np.flatnonzero(np.concatenate([[True], (pids[1:] != pids[:-1]) | (tids[1:] != tids[:-1])]))
        numbers = [
            self._tracks.setdefault(pair, len(self._tracks))
            for pair in zip(pids[borders].tolist(), tids[borders].tolist(), strict=True)
        ]
        lengths = np.diff(np.append(borders, pids.size))
        return np.repeat(np.array(numbers, np.int64), lengths)

    def finish(self, *, path: str, header: dict[str, object], is_cut: bool, notes: tuple[str, ...]) -> ProfilerTrace:
        """Return what was read, beginnings and ends paired, each event with its final kind."""
        self._learn_names()
        columns: Columns = self._columns.take()
        tracks = tuple(
            ProfilerTrack(pid=self._text(pid), tid=self._text(tid), process=self._processes.get(pid, ""))
            for pid, tid in self._tracks
        )
        columns, num_open = close_pairs(columns)
        if not self._has_correlations:
            columns = flows_to_correlations(columns)
        is_span = columns.pop("phase") == _COMPLETE
        if not is_span.all():  # a copy of everything is what the largest traces can least afford
            columns = {name: column[is_span] for name, column in columns.items()}
        length = columns.pop("length")
        length += columns["start"]
        columns["stop"] = length
        columns["kind"] = self._final_kinds(columns, tracks)
        on_host = _IS_HOST[columns["kind"]]
        order = np.concatenate([np.flatnonzero(on_host), np.flatnonzero(_IS_DEVICE[columns["kind"]])])
        for name in columns:  # one after the other, so that no more than one is held twice
            columns[name] = columns[name][order]
        events, num_host = Events(**columns), int(on_host.sum())
        num_damaged = self._scanner.num_damaged + self._num_damaged
        if is_cut and num_damaged:  # the event that the end cuts is no damage
            num_damaged -= 1
        return ProfilerTrace(
            path=path,
            host=events.where(slice(0, num_host)),
            device=events.where(slice(num_host, None)),
            names=tuple(self._names),
            tracks=tracks,
            header=header,
            num_events=self._num_events,
            num_damaged=num_damaged + self._num_without_time,
            is_cut=is_cut,
            notes=(*notes, *([f"{num_open:,} begin or end events have no partner"] if num_open else [])),
        )

    def _text(self, number: int) -> int | str:
        return self._names[number - TraceScanner.TEXT] if number >= TraceScanner.TEXT else number

    def _final_kinds(self, columns: Columns, tracks: tuple[ProfilerTrack, ...]) -> npt.NDArray[np.uint8]:
        """Tell events without a category by their process, and communication from computation by its name."""
        kind, names = columns["kind"].copy(), columns["name"]
        unknown = kind == EventKind.UNKNOWN
        if unknown.any():
            of_track = [int(kind_of_process(track.process or str(track.pid))) for track in tracks]
            kind[unknown] = np.array(of_track, np.uint8)[columns["track"][unknown]]
        for device in (EventKind.KERNEL, EventKind.COLLECTIVE):
            here = kind == device
            used = np.unique(names[here])
            final = np.full(len(self._names) + 1, int(device), np.uint8)
            final[used] = [int(device_kind(self._names[name] if name >= 0 else "", device)) for name in used.tolist()]
            kind[here] = final[names[here]]
        return kind
