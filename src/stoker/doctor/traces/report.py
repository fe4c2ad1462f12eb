"""The answer as one JSON object; docs/how-to/trace.md says what each field is."""

from __future__ import annotations

from dataclasses import fields, replace

from stoker.doctor.traces.result import TraceResult
from stoker.doctor.traces.times import StepTimes, Times
from stoker.doctor.traces.verdict import advice_of, verdict_of, why_of

_SHARES = {
    "busy_share": "busy",
    "idle_share": "idle",
    "data_wait_share": "waiting_for_data",
    "collate_share": "collating",
    "pageable_copy_share": "copying_pageable",
    "launch_share": "launching",
    "sync_share": "synchronising",
    "queued_share": "queued",
    "unattributed_share": "unattributed",
    "compute_share": "compute",
    "comm_share": "communication",
    "exposed_comm_share": "exposed_comm",
    "exposed_copy_share": "exposed_copy",
}


def as_json(result: TraceResult) -> dict[str, object]:
    """Return everything."""
    straggler = result.straggler
    return {
        "verdict": verdict_of(result),
        "advice": advice_of(result),
        **_figures(result),
        "num_ranks": len(result.ranks),
        "straggler": None if straggler is None else straggler.rank,
        "straggler_reason": None if straggler is None else why_of(result, straggler) or None,
        "num_matched_collectives": result.num_matched,
        "ranks": [_rank(replace(result, ranks=(rank,))) for rank in result.ranks],
    }


def _rank(alone: TraceResult) -> dict[str, object]:
    """Return what is said of one rank; the figures are those of a result that has no other."""
    rank = alone.ranks[0]
    traces = rank.traces
    waited, imposed = rank.collective_waits or (None, None)
    return {
        "rank": rank.rank,
        "paths": [trace.path for trace in traces],
        "world_size": traces[0].info.get("world_size"),
        "backend": traces[0].info.get("backend"),
        "devices": [{"name": name, **_shares(rank.devices[device])} for device, name in rank.device_names.items()],
        "wall_us": rank.wall / 1e3,
        **_figures(alone),
        "collective_wait_us": None if waited is None else waited / 1e3,
        "imposed_wait_us": None if imposed is None else imposed / 1e3,
        "num_events": sum(trace.num_events for trace in traces),
        "is_truncated": any(trace.is_cut for trace in traces),
        "notes": [note for _, note in rank.notes],
        "steps": [_step(step) for step in rank.all_steps],
    }


def _figures(of: TraceResult) -> dict[str, object]:
    (name, ns), wall = of.largest_range, of.times.wall
    return {
        "status": of.status,
        **_shares(of.times),
        "largest_range": {"name": name, "share": ns / wall} if name and wall else None,
        "step_us": None if of.step_ns is None else of.step_ns / 1e3,
        "step_without_data_wait_us": _bounds(of.without_wait_ns),
        "pageable_copies": of.copies[0],
        "pageable_bytes": of.copies[1],
        "host_data_wait_share": of.host_data_wait_share,
    }


def _step(step: StepTimes) -> dict[str, object]:
    return {
        "step": step.number,
        "is_counted": step.is_counted,
        "start_us": step.start / 1e3,
        "step_us": step.length / 1e3,
        "step_without_data_wait_us": _bounds((step.least, step.most)) if step.times.wall else None,
        "host_data_wait_us": step.wants_data / 1e3,
        "time_us": _times(step.times),
    }


def _shares(times: Times) -> dict[str, object]:
    return {
        **{name: times.share(part) for name, part in _SHARES.items()},
        # Of communication, not of the wall time: how well it hides.
        "comm_compute_overlap_share": times.overlap / times.communication if times.communication else None,
        "time_us": _times(times),
    }


def _times(times: Times) -> dict[str, float] | None:
    names = (*(part.name for part in fields(times)), "idle", "exposed_comm", "exposed_copy")
    return {name: getattr(times, name) / 1e3 for name in names} if times.wall else None


def _bounds(ns: tuple[float, float] | None) -> list[float] | None:
    return None if ns is None else [bound / 1e3 for bound in ns]
