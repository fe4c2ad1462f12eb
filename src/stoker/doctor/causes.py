"""Which stage a path spends its time on, and why: read from the threads' own clocks in runs of it. Pure.

    loop ◄── batches ◄── windows ◄── chunks built ◄── bytes

Whoever waits is not to blame: the first in this row that does not wait for the next one is. None of this says how fast
a path is; that was measured. It says where the time went.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from stoker.doctor.results import BUILD_STAGES, FREE_LINK, LARGER, SOURCE, Measurements, PathResult

# Threads that assemble batches and wait this much of their time for windows have nothing to assemble.
_MOSTLY = 0.5
# Threads that build are idle this much of the time where a few huge chunks are waited for; chunks are uneven below.
_IDLE, _EVEN = 0.6, 0.6
# Batches four times as large give so many times more where it is the work on each that limits.
_WORK_A_BATCH = 1.4
# Of a core or of the lock: in use for this share, it is what limits.
_IN_USE, _HELD = 0.8, 0.6
# Others who take more of the cores than this are what they lack.
_TAKEN = 0.5
# A network that carries this share of its best is full.
_FULL = 0.7
# A stage that would starve the step by itself is named, where it is not far beyond what comes today.
_STARVES = 0.9


def limit_of(stages: Mapping[str, float], *, build_share: float, evenness: float) -> str:
    """Return the stage that a path spends most of its time on; "" where nothing was told.

    Args:
        stages: Seconds that threads spent in each, a sample.
        build_share: Share of the time in which threads that build did.
        evenness: Of its chunks; see `DataFacts`.
    """
    building = {key: stages[key] for key in BUILD_STAGES if stages.get(key, 0.0) > 0}
    batch_s, window_s = stages.get("batch", 0.0), stages.get("wait_window", 0.0)
    if building and window_s > _MOSTLY * batch_s:
        if build_share < 1 - _IDLE and evenness < _EVEN:
            return "skew"
        return max(building, key=lambda key: building[key])
    if window_s > _MOSTLY * batch_s > 0:
        return "open"
    making = {key: stages.get(key, 0.0) for key in ("gather", "augment", "copy")}
    return max(making, key=lambda key: making[key]) if batch_s else ""


def stages_of(numbers: Measurements, today: PathResult, demand_s: float | None) -> tuple[str, ...]:
    """Return the stages to name for a path that starves the step: the one that limits, and one that hides behind it.

    Args:
        numbers: What was measured.
        today: The path.
        demand_s: What the step could eat; None without one.
    """
    first = _first(numbers, today)
    if demand_s is None or today.key != SOURCE:
        return (first,)
    behind = sorted(
        (stage for stage in numbers.stages if stage.key != first and stage.supply_s < _STARVES * demand_s),
        key=lambda stage: stage.supply_s,
    )
    return (first, *(stage.key for stage in behind[:1]))


def margin_of(numbers: Measurements, today: PathResult) -> float:
    """Return how far the stage that takes most is ahead of the next one: 0 for a tie, 1 where there is no other."""
    larger = numbers.path(LARGER)
    if today.limit not in BUILD_STAGES and larger is not None and larger.rate_s > 0:
        # Work on samples, or on batches: as sure as it is that larger batches give so much more, or do not.
        apart = abs(math.log(larger.rate_s / (_WORK_A_BATCH * today.rate_s)))
        return min(1.0, apart / (3 * math.hypot(larger.doubt, today.doubt)))
    times = sorted((today.stages.get(key, 0.0) for key in BUILD_STAGES), reverse=True)
    if today.limit not in BUILD_STAGES or times[0] <= 0:
        return 1.0
    return (times[0] - times[1]) / times[0]


def why(numbers: Measurements, today: PathResult, key: str) -> str:
    """Return what a stage lacks, in a few words; "" where nothing tells."""
    stage = numbers.stage(key)
    if today.disk_bound is not None and today.disk_bound.at_most_s < today.rate.samples_s:
        return "the disk reads no faster"
    is_crowded = today.others > _TAKEN and today.cores_used > _IN_USE * numbers.cores * (1 - today.others)
    if key == "fetch":
        reason = _why_fetch(numbers, today)
        return "others take the cores" if is_crowded and reason != "the network is full" else reason
    if is_crowded:
        return "others take the cores"
    if key == "dequeue":
        return "it runs in the training loop's own thread"
    if key == "batch":
        return "batches are small"
    if stage is not None and stage.gil_share is not None and stage.gil_share > _HELD:
        return "it holds the GIL, so one core does it all"
    if stage is not None and stage.waits:
        return "it waits for something else, and more threads would wait at once"
    if today.cores_used > _IN_USE * numbers.cores * (1 - today.others):
        return "all cores are busy, most with this"
    return "too few threads" if key in BUILD_STAGES else ""


def _first(numbers: Measurements, today: PathResult) -> str:
    if today.disk_bound is not None and today.disk_bound.at_most_s < today.rate.samples_s:
        return "fetch" if today.key == SOURCE else "open"
    larger = numbers.path(LARGER)
    if today.limit in BUILD_STAGES or larger is None:
        return today.limit
    gain = larger.rate_s / today.rate_s
    is_sure = math.log(max(gain, 1e-9)) > math.hypot(larger.doubt, today.doubt)
    return "batch" if gain > _WORK_A_BATCH and is_sure else today.limit


def _why_fetch(numbers: Measurements, today: PathResult) -> str:
    found = {one.key: one.value for one in numbers.ceilings}
    if not numbers.data.is_remote or "network" not in found:
        return "the disk reads no faster"
    bytes_s = today.rate.samples_s * numbers.data.source_bytes
    free = numbers.path(FREE_LINK)
    if bytes_s >= _FULL * found["network"] or free is None:
        return "the network is full"
    # One read's time is that until its first byte, then that of its bytes over one connection.
    read_s = numbers.data.source_bytes * numbers.data.num_samples / max(1, numbers.data.num_chunks)
    transfer_s = read_s / max(1.0, found.get("connection", 1.0))
    return "threads wait for the first byte" if found["latency"] > transfer_s else "each connection brings little"
