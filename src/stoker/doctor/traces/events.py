"""A trace in memory: columns of numbers, names once each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.fields.offsets import Int64

Columns = dict[str, npt.NDArray[Any]]  # of several types, by name, before they are `Events`


@dataclass(frozen=True, kw_only=True)
class Events:
    """Events in the order of the file; N of them.

    Attributes:
        kind: A `Kind`. uint8 [N].
        name: Index into the trace's names. int32 [N].
        track: Index into the trace's tracks. int32 [N].
        start: Nanoseconds. int64 [N].
        stop: Nanoseconds, never before `start`. int64 [N].
        correlation: Links a call on the host to what it launched; -1 without one. int64 [N].
        extra: Bytes of a copy, or the sequence number of a collective; -1 without one. int64 [N].
        group: Index into the trace's names of a collective's process group, or -1. int32 [N].
        label: Index into the trace's names of what a collective is ("allreduce"), or -1. int32 [N].
    """

    kind: npt.NDArray[np.uint8]
    name: npt.NDArray[np.int32]
    track: npt.NDArray[np.int32]
    start: Int64
    stop: Int64
    correlation: Int64
    extra: Int64
    group: npt.NDArray[np.int32]
    label: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.kind)

    def where(self, chosen: npt.NDArray[np.bool_] | Int64 | slice) -> Events:
        """Return some of them; a slice without a copy."""
        return Events(
            kind=self.kind[chosen],
            name=self.name[chosen],
            track=self.track[chosen],
            start=self.start[chosen],
            stop=self.stop[chosen],
            correlation=self.correlation[chosen],
            extra=self.extra[chosen],
            group=self.group[chosen],
            label=self.label[chosen],
        )


@dataclass(frozen=True, kw_only=True)
class ProfilerTrack:
    """A thread of a process, or a stream of a device.

    Attributes:
        pid: Process or device: a number, or a text where the file has one.
        tid: Thread or stream.
        process: What the file calls the process, "" where it does not.
    """

    pid: int | str
    tid: int | str
    process: str = ""


@dataclass(frozen=True, kw_only=True)
class ProfilerTrace:
    """One file.

    Attributes:
        path: Where it was read.
        host: What threads of the host did, as far as it matters here.
        device: What devices did.
        names: Their texts.
        tracks: Where they happened.
        header: What the file says about itself, beside the events.
        num_events: Events in the file, those of no interest included.
        num_damaged: Events that made no sense and were left out.
        is_cut: Whether the file ends before its end.
        notes: What to know about it, one sentence each.
    """

    path: str
    host: Events
    device: Events
    names: tuple[str, ...]
    tracks: tuple[ProfilerTrack, ...]
    header: dict[str, object] = field(default_factory=dict)
    num_events: int = 0
    num_damaged: int = 0
    is_cut: bool = False
    notes: tuple[str, ...] = ()

    def without_events(self) -> ProfilerTrace:
        """Return all but the events, which are what takes memory."""
        none = np.empty(0, np.int64)
        return replace(self, host=self.host.where(none), device=self.device.where(none), names=())

    @property
    def base_ns(self) -> int:
        """Nanoseconds to add to a time of this file to have the time of day, 0 where times already are."""
        base = self.header.get("baseTimeNanoseconds", 0)
        try:
            return int(float(base)) if isinstance(base, str) else int(base)  # type: ignore[call-overload]
        except (TypeError, ValueError, OverflowError):
            return 0
