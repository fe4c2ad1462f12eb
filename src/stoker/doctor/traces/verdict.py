"""One sentence: whether the device idles, why, and what the data have to do with it."""

from __future__ import annotations

from statistics import median

from stoker.doctor.traces.result import CPU_ONLY, NO_EVENTS, RankResult, TraceResult
from stoker.doctor.traces.times import Times

# Below this share a reason is not worth a sentence.
_LITTLE = 0.05

# What follows "idle 54 % of the time: ".
_REASONS = {
    "data": "{share} waiting for data",
    "copying_pageable": "{share} while the host copies from pageable memory, which blocks it",
    "synchronising": "{share} while the host waits for the device (synchronising)",
    "launching": "{share} while the host is busy launching work",
    "unattributed": "{share} for a reason that no event in the trace explains",
    "exposed_comm": "",
    "pipeline_bubble": "{share} by the pipeline's schedule",
}
_FIXES = {
    "data": "find the stage that is too slow with `stoker doctor`",
    "copying_pageable": "pin the batches (`pin_memory=True`) and copy with `non_blocking=True`",
    "synchronising": "take `.item()`, `.cpu()` and `torch.cuda.synchronize()` out of the step",
    "launching": "fewer, larger operators: `torch.compile`, CUDA graphs, a larger batch",
    "unattributed": "profile again with `with_stack=True`, which shows what Python does there",
    "exposed_comm": "overlap communication with computation, or send less of it",
    "pipeline_bubble": "more microbatches a step, or an interleaved schedule",
}


def verdict_of(result: TraceResult) -> str:
    """Return the answer about all files."""
    if result.status == NO_EVENTS:
        return _nothing(result.ranks[0]) if len(result.ranks) == 1 else "There are no events in any of these traces."
    if result.status == CPU_ONLY:
        return _host_only(result.ranks)
    where = "The GPU" if len(result.with_device) == 1 and len(result.ranks[0].measured.devices) < 2 else "The GPUs"
    said = _sentence(where, result.times, result.step_ns, result.best_case_step_ns)
    straggler = result.straggler
    if straggler is None:
        return said
    return f"{_straggler_sentence(result, straggler)} {said}"


def fix_of(result: TraceResult) -> str | None:
    """Return what to do about the largest reason, None where there is nothing to do."""
    reason, share = _largest(result.times)
    if share < _LITTLE:
        return None
    if result.straggler is not None and reason == "exposed_comm":
        return f"begin with rank {result.straggler.rank}: while the others communicate, they mostly wait for it"
    return _FIXES[reason]


def why_of(result: TraceResult, rank: RankResult) -> str:
    """Return what a rank spends more time on than the others do, "" where that is nothing."""
    others = [other for other in result.with_device if other is not rank]
    if not others:
        return ""
    parts = {
        "waits for data": ("waiting_for_data", "collating"),
        "copies from pageable memory": ("copying_pageable",),
        "computes": ("compute",),
        "launches": ("launching",),
        "synchronises": ("synchronising",),
        "is idle without a known reason": ("unattributed",),
    }

    def a_step(one: RankResult, names: tuple[str, ...]) -> float:
        total: int = sum(getattr(one.times, name) for name in names)
        return total / max(len(one.measured.steps), 1)

    more = {
        words: a_step(rank, names) - median(a_step(other, names) for other in others) for words, names in parts.items()
    }
    words = max(more, key=lambda key: more[key])
    length = rank.step_ns or rank.times.wall
    if not length or more[words] < 0.01 * length:
        return ""
    of = " a step" if rank.measured.steps else ""
    return f"it {words} {duration(more[words])}{of} longer than the others"


def duration(ns: float) -> str:
    """Return a length of time: "12.3 ms"."""
    if not ns:
        return "0"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size:
            value = ns / size
            return f"{value:,.0f} {unit}" if value >= 99.95 else f"{value:.1f} {unit}"
    return f"{ns:.0f} ns"


def percent(share: float | None) -> str:
    """Return a share: "33 %", "0.4 %"."""
    if share is None:
        return "–"
    value = 100 * share
    return f"{value:.1f} %" if 0.05 <= value < 9.95 else f"{value:.0f} %"


def _largest(times: Times) -> tuple[str, float]:
    wall = max(times.wall, 1)
    shares = {
        "data": (times.waiting_for_data + times.collating) / wall,
        **{name: getattr(times, name) / wall for name in _REASONS if name != "data"},
    }
    reason = max(shares, key=lambda key: shares[key])
    return reason, shares[reason]


def _sentence(where: str, times: Times, step: float | None, best: float | None) -> str:
    is_many = where.endswith("s")
    are, idle_word = ("are", "idle") if is_many else ("is", "idles")
    reason, share = _largest(times)
    busy, idle = times.share("busy") or 0.0, times.share("idle") or 0.0
    data = (times.waiting_for_data + times.collating) / max(times.wall, 1)
    if share < _LITTLE:
        return f"{where} {are} busy {percent(busy)} of the time. Waiting for data is {percent(data)}: nothing to gain."
    if reason == "exposed_comm":
        said = f"{where} {'do' if is_many else 'does'} nothing but communicate {percent(share)} of the time, and "
        return f"{said}{idle_word} {percent(idle)}. Waiting for data is {percent(data)}."
    said = f"{where} {idle_word} {percent(idle)} of the time: {_REASONS[reason].format(share=percent(share))}"
    if reason != "data":
        return f"{said}. Waiting for data is {percent(data)}."
    if step is None or best is None:
        return f"{said}."
    return f"{said}. Without that wait, a step takes at best {duration(best)} instead of {duration(step)}."


def _straggler_sentence(result: TraceResult, rank: RankResult) -> str:
    others = len(result.with_device) - 1
    index = result.with_device.index(rank)
    waited = result.waits.imposed[index] / others / max(len(rank.measured.steps), 1)
    a_step = " a step" if rank.measured.steps else ""
    why = why_of(result, rank)
    return (
        f"Rank {rank.rank} makes the others wait, {duration(waited)}{a_step} each: its collectives start last"
        f"{'; ' + why if why else ''}."
    )


def _host_only(ranks: tuple[RankResult, ...]) -> str:
    said = "CPU only: no device did anything in this trace, so it cannot say whether one idles."
    if len(ranks) > 1:
        said = "CPU only: no device did anything in these traces, so they cannot say whether one idles."
    worst = max(ranks, key=lambda rank: rank.host_data_wait_share or 0.0)
    share = worst.host_data_wait_share
    return f"{said} The training loop waited for data {percent(share)} of the time." if share else said


def _nothing(rank: RankResult) -> str:
    trace = rank.measured.trace
    for note in trace.notes:
        if note.startswith("the file"):
            return f"Nothing to look at: {note}."
    if trace.is_cut and not trace.num_events:
        return "Nothing to look at: the file ends before its first event."
    if trace.num_events:
        return "Nothing to look at: none of the events in this trace is an operator, a call or work on a device."
    return "Nothing to look at: there are no events in this trace."
