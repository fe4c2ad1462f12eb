"""A trace in memory: columns of numbers, names once each."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.doctor.traces.names import EventNames
from stoker.fields.offsets import Int64

_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_. ]?(\d+)", re.IGNORECASE)

Columns = dict[str, npt.NDArray[Any]]  # of several types, by name, before they are `Events`


@dataclass(frozen=True, kw_only=True)
class Events:
    """Events in the order of the file; N of them.

    Attributes:
        kind: An `EventKind`. uint8 [N].
        name: Index into the trace's texts. int32 [N].
        track: Index into the trace's tracks. int32 [N].
        start: Nanoseconds. int64 [N].
        stop: Nanoseconds, never before `start`. int64 [N].
        correlation: Links a call on the host to what it launched; -1 without one. int64 [N].
        extra: Bytes of a copy, or the sequence number of a collective; -1 without one. int64 [N].
        group: Index into the trace's texts of a collective's process group, or -1. int32 [N].
        members: Index into the trace's texts of the ranks in that group, or -1. int32 [N].
        label: Index into the trace's texts of what a collective is ("allreduce"), or -1. int32 [N].
    """

    kind: npt.NDArray[np.uint8]
    name: npt.NDArray[np.int32]
    track: npt.NDArray[np.int32]
    start: Int64
    stop: Int64
    correlation: Int64
    extra: Int64
    group: npt.NDArray[np.int32]
    members: npt.NDArray[np.int32]
    label: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.kind)

    def where(self, chosen: npt.NDArray[np.bool_] | Int64 | slice) -> Events:
        """Return some of them; a slice without a copy."""
        return Events(**{column.name: getattr(self, column.name)[chosen] for column in fields(self)})


@dataclass(frozen=True, kw_only=True)
class ProfilerTrack:
    """A thread of a process, or a stream of a device; `process` is what the file calls that, "" where it does not."""

    pid: int | str
    tid: int | str
    process: str = ""


def device_names(header: dict[str, object]) -> dict[str, str]:
    """Return what a file's header calls devices, by their ids."""
    listed = header.get("deviceProperties")
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    return {str(entry.get("id")): str(entry.get("name", "")) for entry in entries}


@dataclass(frozen=True, kw_only=True)
class ProfilerTrace:
    """One file, or what one process of several did in it.

    Attributes:
        host: What threads of the host did, as far as it matters here.
        texts: Names of events, and what else is text.
        tracks: Where they happened.
        device_word: What its devices are: "GPU", "NPU", ...
        process: What the file calls the process, where it has several that train.
        header: What the file says about itself, beside the events.
        num_events: Events in the file, those of no interest included.
        num_damaged: Events that made no sense and were left out.
        num_without_length: Events of devices that say when they began and not how long they took; left out.
        is_cut: Whether the file ends before its end.
        notes: What to know about it, one sentence each.
    """

    path: str
    host: Events
    device: Events
    texts: tuple[str, ...]
    tracks: tuple[ProfilerTrack, ...]
    names: EventNames
    device_word: str
    process: str = ""
    header: dict[str, object]
    num_events: int
    num_damaged: int
    num_without_length: int
    is_cut: bool
    notes: tuple[str, ...]

    def without_events(self) -> ProfilerTrace:
        """Return all but the events, which are what takes memory."""
        none = np.empty(0, np.int64)
        return replace(self, host=self.host.where(none), device=self.device.where(none), texts=())

    @property
    def device_names(self) -> dict[str, str]:
        """What the file calls its devices, by their ids."""
        return device_names(self.header)

    @property
    def span(self) -> tuple[int, int]:
        """When its first event begins and the last one ends; zeros where there are none."""
        there = [events for events in (self.host, self.device) if len(events)]
        begin = min((int(events.start.min()) for events in there), default=0)
        return begin, max((int(events.stop.max()) for events in there), default=0)

    @property
    def info(self) -> dict[str, object]:
        """What the file says of its place among the ranks."""
        found = self.header.get("distributedInfo")
        return found if isinstance(found, dict) else {}

    @property
    def rank(self) -> int | None:
        """Its rank: by the file, else by its name; None where neither says so."""
        said = self.info.get("rank")
        if isinstance(said, (int, str)) and str(said).lstrip("-").isdigit():
            return int(said)
        in_name = _RANK_IN_NAME.search(self.process or Path(self.path).name)
        return int(in_name[1]) if in_name else None

    @property
    def base_ns(self) -> int:
        """Nanoseconds to add to a time of this file to have the time of day, 0 where times already are."""
        base = self.header.get("baseTimeNanoseconds", 0)
        try:
            return int(float(base)) if isinstance(base, str) else int(base)  # type: ignore[call-overload]
        except (TypeError, ValueError, OverflowError):
            return 0
