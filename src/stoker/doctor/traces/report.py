"""The answer as one JSON object; docs/how-to/trace.md says what each field is."""

from __future__ import annotations

from dataclasses import fields

from stoker.doctor.traces.result import RankResult, TraceResult
from stoker.doctor.traces.times import StepTimes, Times
from stoker.doctor.traces.verdict import fix_of, verdict_of, why_of

SHARES = {
    "busy_share": "busy",
    "idle_share": "idle",
    "data_wait_share": "waiting_for_data",
    "collate_share": "collating",
    "pageable_copy_share": "copying_pageable",
    "launch_share": "launching",
    "sync_share": "synchronising",
    "pipeline_bubble_share": "pipeline_bubble",
    "unattributed_share": "unattributed",
    "compute_share": "compute",
    "comm_share": "communication",
    "exposed_comm_share": "exposed_comm",
    "exposed_copy_share": "exposed_copy",
}
"""Shares of the wall time, and which of `Times` each is."""


def as_json(result: TraceResult) -> dict[str, object]:
    """Return everything."""
    straggler = result.straggler
    schedule = result.schedule
    return {
        "verdict": verdict_of(result),
        "advice": fix_of(result),
        "status": result.status,
        **_shares(result.times),
        "step_us": _us(result.step_ns),
        "best_case_step_us": _us(result.best_case_step_ns),
        "pageable_copies": sum(rank.measured.num_pageable for rank in result.ranks),
        "pageable_bytes": sum(rank.measured.pageable_bytes for rank in result.ranks),
        "host_data_wait_share": max((rank.host_data_wait_share or 0.0 for rank in result.ranks), default=None),
        "time_us": _times(result.times),
        "num_ranks": len(result.ranks),
        "straggler": None if straggler is None else straggler.rank,
        "straggler_reason": None if straggler is None else why_of(result, straggler) or None,
        "num_matched_collectives": result.waits.num_matched,
        "are_clocks_aligned": result.waits.is_aligned,
        "pipeline": None
        if schedule is None
        else {
            "schedule": schedule.name,
            "stages": schedule.num_stages,
            "microbatches": schedule.num_microbatches,
            "virtual": schedule.num_virtual,
            "expected_bubble_share": schedule.bubble_share,
        },
        "ranks": [_rank(result, rank) for rank in result.ranks],
    }


def _rank(result: TraceResult, rank: RankResult) -> dict[str, object]:
    measured, trace = rank.measured, rank.measured.trace
    index = result.with_device.index(rank) if rank in result.with_device else None
    waits = result.waits
    return {
        "rank": rank.rank,
        "path": rank.path,
        "status": rank.status,
        "world_size": rank.info.get("world_size"),
        "backend": rank.info.get("backend"),
        "devices": rank.device_names,
        "wall_us": (measured.stop - measured.start) / 1e3,
        **_shares(rank.times),
        "step_us": _us(rank.step_ns),
        "best_case_step_us": _us(rank.best_case_step_ns),
        "pageable_copies": measured.num_pageable,
        "pageable_bytes": measured.pageable_bytes,
        "host_data_wait_share": rank.host_data_wait_share,
        "time_us": _times(rank.times),
        "collective_wait_us": None if index is None else waits.waited[index] / 1e3,
        "imposed_wait_us": None if index is None else waits.imposed[index] / 1e3,
        "pipeline_bubble_us": None
        if rank.bubble is None
        else {
            "expected": rank.bubble.expected / 1e3,
            "in_idle": rank.bubble.in_idle / 1e3,
            "in_exposed_comm": rank.bubble.in_exposed_comm / 1e3,
        },
        "num_events": trace.num_events,
        "is_truncated": trace.is_cut,
        "notes": rank.notes,
        "steps": [_step(step, has_device=bool(measured.devices)) for step in measured.steps],
    }


def _step(step: StepTimes, *, has_device: bool) -> dict[str, object]:
    return {
        "step": step.number,
        "start_us": step.start / 1e3,
        "step_us": step.length / 1e3,
        "best_case_step_us": step.least / 1e3 if has_device else None,
        "host_data_wait_us": step.wants_data / 1e3,
        "time_us": _times(step.times),
    }


def _shares(times: Times) -> dict[str, float | None]:
    found = {name: times.share(part) for name, part in SHARES.items()}
    # Of communication, not of the wall time: how well it hides.
    overlap = times.overlap / times.communication if times.communication else None
    return {**found, "comm_compute_overlap_share": overlap}


def _times(times: Times) -> dict[str, float] | None:
    return {part.name: getattr(times, part.name) / 1e3 for part in fields(times)} if times.wall else None


def _us(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e3
