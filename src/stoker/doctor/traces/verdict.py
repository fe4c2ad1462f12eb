"""One sentence: whether the device idles, why, and what the data have to do with it."""

from __future__ import annotations

from statistics import median

from stoker.doctor.traces.result import TraceResult
from stoker.doctor.traces.timeline import ARRIVES_NS
from stoker.doctor.traces.times import CPU_ONLY, NO_EVENTS, RankTimes
from stoker.words import range_text, share_text, time_text

# Below this share a reason is not worth a sentence.
_LITTLE = 0.05
# Pageable copies that block the host for so much of the time are worth a word beside the largest reason.
_PAGEABLE = 0.01

# What follows "idles 54 % of the time: 30 % ", and what to do about it.
_REASONS = {
    "data": ("waiting for data", "find the stage that is too slow with `stoker doctor`"),
    "copying_pageable": (
        "while the host copies from pageable memory, which blocks it",
        "pin the batches (`pin_memory=True`) and copy with `non_blocking=True`",
    ),
    "synchronising": (
        "because the host waits until the device has no work left (synchronising)",
        "take `.item()`, `.cpu()` and `torch.cuda.synchronize()` out of the step",
    ),
    "launching": (
        "while the host is busy launching work",
        "launch fewer, larger operators: `torch.compile`, CUDA graphs, a larger batch",
    ),
    "queued": (
        "though its next work was launched already: it waits for another stream, an event or a collective",
        "look at what the device's streams wait for (`wait_stream`, events, collectives, copies), not at the host",
    ),
    "short_kernels": (
        "between kernels that were launched already: they are many, and short",
        "run fewer, longer kernels: `torch.compile`, CUDA graphs, a larger batch",
    ),
    "unattributed": (
        "for a reason that no event in the trace explains",
        "profile again with `ProfilerActivity.CPU` and `with_stack=True`, which show what the host does there",
    ),
    "exposed_comm": ("communicate", "overlap communication with computation, or send less of it"),
    "exposed_copy": (
        "copy",
        "copy a batch while the step before it computes (pinned memory, `non_blocking=True`, a stream of its own), or "
        "copy less of it: narrower types, only what the step needs",
    ),
}


def verdict_of(result: TraceResult) -> str:
    """Return the answer about all files."""
    if result.status == NO_EVENTS:
        return _nothing(result)
    if result.status == CPU_ONLY:
        return _host_only(result)
    said = _sentence(result)
    straggler = result.straggler
    return said if straggler is None else f"{_straggler_sentence(result, straggler)} {said}"


def advice_of(result: TraceResult) -> list[str]:
    """Return what to do about the largest reason, and about pageable copies; empty where there is nothing to do."""
    found = []
    reason, share = _largest(result)
    if share >= _LITTLE:
        if result.straggler is not None and reason == "exposed_comm":
            found.append(f"begin with rank {result.straggler.rank}: while the others communicate, they wait for it")
        else:
            found.append(_words(result, reason)[1])
    wall = sum(rank.wall for rank in result.with_device)
    blocked = result.copies[2]
    pin = _REASONS["copying_pageable"][1]
    if wall and blocked >= _PAGEABLE * wall and pin not in found:
        found.append(f"{pin}: copies from pageable memory block the host {share_text(blocked / wall)} of the time")
    return found


def why_of(result: TraceResult, rank: RankTimes) -> str:
    """Return what a rank spends more time on than the others do, "" where that is nothing."""
    others = [other for other in result.with_device if other is not rank]
    if not others:
        return ""
    parts = {
        "waits for data": "data",
        "copies from pageable memory": "copying_pageable",
        "computes": "compute",
        "launches": "launching",
        "synchronises": "synchronising",
        "is idle without a known reason": "unattributed",
    }

    def a_step(one: RankTimes, name: str) -> float:
        total: int = getattr(one.times, name)
        return total / max(len(one.steps), 1)

    more = {
        words: a_step(rank, name) - median(a_step(other, name) for other in others) for words, name in parts.items()
    }
    words = max(more, key=lambda key: more[key])
    length = rank.step_ns or rank.times.wall
    if not length or more[words] < 0.01 * length:
        return ""
    of = " a step" if rank.steps else ""
    return f"it {words} {duration(more[words])}{of} longer than the others"


def duration(ns: float) -> str:
    """Return a length of time: "12.3 ms"."""
    return time_text(ns / 1e9)


def _largest(result: TraceResult) -> tuple[str, float]:
    """Return the largest reason, a part of the times, and its share."""
    times = result.times
    ns = {name: getattr(times, name) for name in _REASONS if name != "short_kernels"}
    reason = max(ns, key=lambda key: ns[key])
    return reason, ns[reason] / max(times.wall, 1)


def _words(result: TraceResult, reason: str) -> tuple[str, str]:
    """Return what is said of a reason, and what to do about it."""
    name, in_range = result.largest_range
    if reason == "unattributed" and name:
        where = f"{share_text(in_range / result.times.wall)} in {name}"
        return f"while the host launches nothing ({where})", f"look at {name}: the host is in it, and launches nothing"
    if reason == "queued" and result.times.queued < ARRIVES_NS * sum(rank.num_queued for rank in result.ranks):
        return _REASONS["short_kernels"]
    return _REASONS[reason]


def _sentence(result: TraceResult) -> str:
    times = result.times
    is_many = len(result.with_device) > 1 or len(result.with_device[0].devices) > 1
    where = f"The {result.device_word}{'s' if is_many else ''}"
    are, idle_word = ("are", "idle") if is_many else ("is", "idles")
    reason, share = _largest(result)
    busy, idle, data = (share_text(times.share(part)) for part in ("busy", "idle", "data"))
    waiting = f"Waiting for data is {data}"
    if not all(rank.has_names for rank in result.with_device):
        waiting = "Waiting for data does not show: profile with `ProfilerActivity.CPU`, too"
    if share < _LITTLE:
        return f"{where} {are} busy {busy} of the time. Waiting for data is {data}: nothing to gain."
    if reason in ("exposed_comm", "exposed_copy"):
        does = f"{'do' if is_many else 'does'} nothing but {_REASONS[reason][0]}"
        said = f"{where} {does} {share_text(share)} of the time, and "
        return f"{said}{idle_word} {idle}. {waiting}."
    said = f"{where} {idle_word} {idle} of the time: {share_text(share)} {_words(result, reason)[0]}"
    if reason != "data":
        return f"{said}. {waiting}."
    step, bounds = result.step_ns, result.without_wait_ns
    if step is None or bounds is None:
        return f"{said}."
    return f"{said}. Without that wait, a step takes {range_text(*bounds, duration)} instead of {duration(step)}."


def _straggler_sentence(result: TraceResult, rank: RankTimes) -> str:
    others = len(result.with_device) - 1
    waited = rank.collective_waits[1] / others / max(len(rank.steps), 1)
    a_step = " a step" if rank.steps else ""
    why = why_of(result, rank)
    return (
        f"Rank {rank.rank} makes the others wait, {duration(waited)}{a_step} each: it comes last to its collectives"
        f"{'; ' + why if why else ''}."
    )


def _host_only(result: TraceResult) -> str:
    traces = [trace for rank in result.ranks for trace in rank.traces]
    if any(trace.num_without_length for trace in traces):
        return "Work of devices has no duration here, so it does not show whether one idles."
    said = "CPU only: no device did anything here, so it does not show whether one idles."
    if any(trace.is_cut for trace in traces):
        said = "The file is cut off before any work of a device, so it does not show whether one idles."
    share = result.host_data_wait_share
    return f"{said} The training loop waited for data {share_text(share)} of the time." if share else said


def _nothing(result: TraceResult) -> str:
    traces = [trace for rank in result.ranks for trace in rank.traces]
    notes = [note for trace in traces for note in trace.notes if note.startswith("the file")]
    if any(trace.num_events for trace in traces):
        notes.append("no event here is an operator, a call or work on a device")
    notes += [note for rank in result.ranks for _, note in rank.notes if note.startswith("the file")]
    return f"Nothing to look at: {notes[0] if notes else 'there are no events'}."
