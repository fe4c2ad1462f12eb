"""The verdict: a pure function of what was measured. Screen, page and JSON say nothing else.

    demand   what the step was seen to eat: of batches in RAM, or of any path that gave it as much
    busy     today's rate / demand; the rest is lost
    cause    the stage whose own figure explains today's rate; none is named without a figure
    fixes    paths that ran and gave more than today's by more than chance
    bounds   what cannot be tried here: no more than so much can come of it

    loop ◄── batches ◄── windows ◄── chunks built ◄── bytes

Whoever waits is not to blame: the first in this row that does not wait for the next one is. The threads' own clocks
say where the time went; they never overrule how fast a path was seen to be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from stoker.doctor.results import (
    ARROW,
    BUILD_STAGES,
    COLUMNS,
    DEDUPLICATED,
    FREE_LINK,
    LARGER,
    MODEL,
    PROCESSES,
    RAM,
    SHARED,
    SOURCE,
    STAGE_NAMES,
    SUPPLY,
    TENSORS,
    THREADS,
    UNKNOWN,
    Bound,
    Measurements,
    PathResult,
)
from stoker.doctor.words import factor_text, rate_text, share_text, time_text

KEEPS_UP = 0.95
"""A path that gives this share of what the step could eat is not what limits."""
CERTAIN, LIKELY = 0.95, 0.8

# Fixes, the easiest first: of two that give the same, that one.
_FIXES = (TENSORS, DEDUPLICATED, THREADS, PROCESSES, LARGER, COLUMNS, ARROW)
# A fix gives more than this beyond chance, or it is none. Of two that lie within the second, the easier one is better.
_GAIN, _SAME = 1.05, 1.03
# Others who take more of the machine than this, and repeats that lie so far apart: nothing is certain any more, and
# from the second pair on not even likely.
_BUSY, _SPREAD, _VERY_BUSY, _WIDE = 0.1, 0.12, 0.4, 0.4
# Rates of the same thing that lie further apart than this are not of the same machine.
_DRIFTED = 1.1
# What is verified comes within this of what was promised, or it is told.
_BROKEN = 0.15
# Threads that assemble batches and wait this much of their time for windows have nothing to assemble.
_MOSTLY = 0.5
# Threads that build are idle this much of the time where a few huge chunks are waited for; chunks are uneven below.
_IDLE, _EVEN = 0.6, 0.6
# A stage in which less than this of one thread is at work cannot be what a path spends its time on.
_AT_WORK = 0.15
# A stage that gives so many times as much alone as came is not what limits.
_FAR_MORE = 5.0
# Nor is any of a path that gives so many times what the step eats, as long as there is no step.
_COULD = 2.0
# Cores in use for this share are what limits. Others who take more of them are what lacks, to whom uses any.
_IN_USE, _TAKEN, _USED = 0.8, 0.5, 0.1
# A network that carries this share of its best is full.
_FULL = 0.7
# A stage that would starve the step by itself is named, where it is not far beyond what comes today.
_STARVES = 0.9


@dataclass(frozen=True, kw_only=True)
class Fix:
    """A change that was tried, and gave more.

    Attributes:
        key: Of its path.
        text: What to do: "tensors on SSD".
        how: What to write for it.
        rate_s: Samples/s that came.
        times: That over today's.
        busy: Share of the time in which the step runs then; None where another step or none ran.
        limit: Key of the stage that limits then.
    """

    key: str
    text: str
    how: str
    rate_s: float
    times: float
    busy: float | None
    limit: str


@dataclass(frozen=True, kw_only=True)
class StepPart:
    """Part of the time between two steps.

    Attributes:
        key: Of the stage that is waited for; "step" for the step itself, "shared" for what the loader takes from it.
        name: As people read it.
        seconds: Of each step. All parts together are the time between two steps.
    """

    key: str
    name: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Money:
    """What an epoch costs, in whatever currency the price was given.

    Attributes:
        epoch: Today.
        stalls: Of that, the time in which the step waits.
        best_fix: With the best fix; as today where there is none.
    """

    epoch: float
    stalls: float
    best_fix: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is wrong.

    Attributes:
        kind: "starved", "fed" where the model is the limit, "open" without a step, "unknown" of too little.
        sentence: Which stage, how sure, what it costs: one sentence.
        stages: Keys of the stages it names; ("step",) where the model is the limit, ("",) where no figure tells.
        sureness: 0.5 to 1: the chance that it is so, from the spread of the repeats and from what others took.
        sure: The same in a word: "certain", "likely", "a guess".
        demand_s: Samples/s that the step could eat; None without one.
        busy: Share of the time in which the step runs today; None without one.
        lost_share: What is left of the time; None without a step.
        then: What comes after it, as a sentence; "" where nothing does.
        step_parts: Where the time between two steps goes; empty without a step.
        fixes: Best first.
        bounds: Of what cannot be tried.
        epoch_s: Seconds of an epoch today.
        money: Where a price was given.
        notes: What a reader should know.
    """

    kind: str = "unknown"
    sentence: str = "Too little was measured to say anything."
    stages: tuple[str, ...] = ()
    sureness: float = 0.5
    sure: str = "a guess"
    demand_s: float | None = None
    busy: float | None = None
    lost_share: float | None = None
    then: str = ""
    step_parts: tuple[StepPart, ...] = ()
    fixes: tuple[Fix, ...] = ()
    bounds: tuple[Bound, ...] = ()
    epoch_s: float = 0.0
    money: Money | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DoctorResult:
    """What was measured, and what follows from it.

    Attributes:
        numbers: What was measured.
    """

    numbers: Measurements

    @cached_property
    def verdict(self) -> Verdict:
        """What follows."""
        return conclude(self.numbers)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as what JSON can write."""
        content: dict[str, Any] = _finite({"verdict": asdict(self.verdict), **asdict(self.numbers)})
        for path, one in zip(content["paths"], self.numbers.paths, strict=True):
            path |= {"rate_s": one.rate_s, "limit": limit_of(self.numbers, one)}
        for verified, done in zip(content["verified"], self.numbers.verified, strict=True):
            verified["error"] = done.error
        return content


def conclude(numbers: Measurements) -> Verdict:
    """Return the verdict on the path that the samples take now."""
    notes = (*_notes(numbers), *numbers.notes)
    today = numbers.path(numbers.today)
    if today is None or today.rate_s <= 0:
        return Verdict(notes=notes)
    demand_s = demand_of(numbers)
    busy = None if demand_s is None else today.rate_s / demand_s
    kind = "open" if busy is None else "fed" if busy >= KEEPS_UP else "starved"
    stages = (MODEL,) if kind == "fed" else causes_of(numbers, today, demand_s)
    fixes = () if kind == "fed" else _fixes(numbers, today, demand_s)
    sureness = _sureness(numbers, today, busy, stages)
    sentence = {"open": _open, "fed": _fed, "starved": _starved}[kind](numbers, today, demand_s, stages, sureness)
    return Verdict(
        kind=kind,
        sentence=sentence,
        stages=stages,
        sureness=sureness,
        sure=sure_word(sureness),
        demand_s=demand_s,
        busy=busy,
        lost_share=None if busy is None else 1 - busy,
        then=_then(kind, fixes),
        step_parts=_parts(numbers, today, demand_s, stages),
        fixes=fixes,
        bounds=_bounds(numbers, today, demand_s, stages),
        epoch_s=numbers.data.num_samples / today.rate_s,
        money=_money(numbers, today, busy, fixes),
        notes=notes,
    )


def demand_of(numbers: Measurements) -> float | None:
    """Return what the step could eat: batches in RAM, with a loader's work beside them where both want the same cores.

    Today's own runs tell, too: what the step ate in the time in which its loop did not wait, with the cores as they
    were just then. A path that was seen to give the step more shows that it eats more.
    """
    base, today = _base(numbers), numbers.path(numbers.today)
    if numbers.step is None or base is None:
        return None
    own_s = math.inf if today is None or today.stall >= 1 else today.rate.samples_s / (1 - today.stall)
    seen = [path.rate_s for path in numbers.paths if path.key not in (RAM, SHARED) and is_comparable(numbers, path)]
    return max([min(base.rate_s, own_s), *seen]) or None


def is_comparable(numbers: Measurements, path: PathResult) -> bool:
    """Return whether a path's step is the one of today's: a real one takes another time for other batches."""
    step = numbers.step
    if step is None or not path.has_step:
        return False
    return step.is_given or (path.batch_size == step.batch_size and path.key != COLUMNS)


def limit_of(numbers: Measurements, path: PathResult) -> str:
    """Return the key of what limits a path: the model where it is fed; "" of those that others are compared with."""
    if path.key in (RAM, SHARED, SUPPLY):
        return UNKNOWN
    demand_s = demand_of(numbers) if is_comparable(numbers, path) else None
    if demand_s is not None and path.rate_s >= KEEPS_UP * demand_s:
        return MODEL
    return causes_of(numbers, path, demand_s)[0] if path.key == numbers.today else cause_of(numbers, path)


def sure_word(sureness: float) -> str:
    """Return a chance as a word."""
    return "certain" if sureness >= CERTAIN else "likely" if sureness >= LIKELY else "a guess"


# ---------------------------------------------------------------------- why


def cause_of(numbers: Measurements, path: PathResult) -> str:
    """Return the stage that a path spends its time on; UNKNOWN where none has a figure that explains it."""
    times = path.stages
    if path.is_disk_bound:
        return "fetch" if path.key in (SOURCE, THREADS, PROCESSES, COLUMNS) else "open"
    if "dequeue" in times:
        # The loop's thread alone converts: as long as it does so all the time, nothing else can limit.
        is_loop = times["dequeue"] * path.rate.samples_s >= _MOSTLY
        return "dequeue" if is_loop or times["dequeue"] * numbers.num_threads > times.get("draw", 0.0) else "draw"
    batch_s, window_s = times.get("batch", 0.0), times.get("wait_window", 0.0)
    is_waiting = window_s > _MOSTLY * batch_s
    building = {key: times[key] for key in BUILD_STAGES if times.get(key, 0.0) > 0}
    if is_waiting and building:
        if path.build_share < 1 - _IDLE and numbers.data.evenness < _EVEN:
            return "skew"
        return _at_work(numbers, path, building)
    if is_waiting:
        return "open"
    fixed = _fixed_share(numbers, path)
    if fixed is not None and fixed[0] > 0.5:
        return "batch"
    return _at_work(numbers, path, {key: times.get(key, 0.0) for key in ("gather", "augment", "copy")})


def causes_of(numbers: Measurements, today: PathResult, demand_s: float | None) -> tuple[str, ...]:
    """Return the stages to name for a path that starves the step: what limits, and what would behind it."""
    first = cause_of(numbers, today)
    if _could_feed(numbers, demand_s) is not None:
        return (UNKNOWN,)
    if demand_s is None or today.key != SOURCE:
        return (first,)
    behind = [one for one in numbers.stages if one.key != first and one.supply_s < _STARVES * demand_s]
    if first == UNKNOWN:
        return (min(behind, key=lambda one: one.supply_s).key,) if behind else (first,)
    return (first, *(one.key for one in sorted(behind, key=lambda one: one.supply_s)[:1]))


def _could_feed(numbers: Measurements, demand_s: float | None) -> float | None:
    """Return how many times what the step eats today's path gives without it, where that is far more than enough.

    Then no stage is too slow: the step and the loader want the same cores.
    """
    supply = numbers.path(SUPPLY)
    if demand_s is None or supply is None or supply.is_disk_bound or supply.rate_s < _COULD * demand_s:
        return None
    return supply.rate_s / demand_s


def _at_work(numbers: Measurements, path: PathResult, times: Mapping[str, float]) -> str:
    """Return the stage with most threads in it; UNKNOWN where hardly any is in any, or all of them could give far more.

    A thread's time in a stage holds what it waited for a core: what gives many times as much alone is no cause.
    """
    rate_s = path.rate.samples_s
    could = {stage.key: stage.supply_s for stage in numbers.stages}
    limits = {key: spent for key, spent in times.items() if could.get(key, 0.0) <= _FAR_MORE * rate_s}
    key = max(limits, key=lambda key: limits[key], default=UNKNOWN)
    return key if key and limits[key] * rate_s >= _AT_WORK else UNKNOWN


def _fixed_share(numbers: Measurements, path: PathResult) -> tuple[float, float] | None:
    """Return which share of a batch's time does not grow with its size, and how far off that may be.

    A batch takes a + b · size: two sizes tell a from b. None where no larger batches ran.
    """
    larger = numbers.path(LARGER)
    if larger is None or path.key != numbers.today or larger.rate_s <= 0 or path.rate_s <= 0:
        return None
    size, gain = larger.batch_size / path.batch_size, larger.rate_s / path.rate_s
    if size <= 1:
        return None
    share = size * (1 - 1 / gain) / (size - 1)
    return share, size / (size - 1) / gain * math.hypot(larger.doubt, path.doubt)


def _why(numbers: Measurements, today: PathResult, key: str) -> str:
    """Return what a stage lacks, in a few words; "" where nothing tells."""
    stage = numbers.stage(key)
    is_full = today.cores_used > max(_USED, _IN_USE * numbers.cores * (1 - today.others))
    if today.is_disk_bound:
        return "the disk reads no faster"
    reason = _why_fetch(numbers, today) if key == "fetch" else ""
    if reason == "the network is full":
        return reason
    if today.others > _TAKEN and is_full:
        return "others take the cores"
    if key == UNKNOWN:
        times = _could_feed(numbers, demand_of(numbers))
        if times is None:
            return "no stage of it has a figure that explains why"
        return f"which without the step gives {factor_text(times)} times what the step eats: they share the cores"
    if reason:
        return reason
    if key in ("dequeue", "batch"):
        return {"dequeue": "it runs in the training loop's own thread", "batch": "batches are small"}[key]
    if stage is not None and stage.is_locked:
        return "it holds the GIL, so one core does it all"
    if stage is not None and stage.waits:
        return "it waits for something else, and more threads would wait at once"
    if is_full:
        return "all cores are busy, most with this"
    return "too few threads" if key in BUILD_STAGES else ""


def _why_fetch(numbers: Measurements, today: PathResult) -> str:
    network_s, latency_s = numbers.ceiling("network"), numbers.ceiling("latency")
    if not numbers.data.is_remote or network_s is None or latency_s is None:
        return "the disk reads no faster"
    if today.rate.samples_s * numbers.data.source_bytes >= _FULL * network_s:
        return "the network is full"
    # One read's time is that until its first byte, then that of its bytes over one connection.
    read_bytes = numbers.data.source_bytes * numbers.data.num_samples / max(1, numbers.data.num_chunks)
    transfer_s = read_bytes / max(1.0, numbers.ceiling("connection") or 1.0)
    return "threads wait for the first byte" if latency_s > transfer_s else "each connection brings little"


def _sureness(numbers: Measurements, today: PathResult, busy: float | None, stages: tuple[str, ...]) -> float:
    """Return the chance that it is as it looks: on this side of what the step needs, and this stage."""
    base = _base(numbers)
    judged = [today] if base is None or busy is None else [today, base]
    sureness = 1.0
    if busy is not None:
        doubt = math.hypot(*(path.doubt for path in judged), math.log(_drift(numbers)))
        sureness = _chance(abs(math.log(max(busy, 1e-12) / KEEPS_UP)) / doubt)
        if busy >= KEEPS_UP:
            # Fed or nearly so: that nothing is to gain is as sure as that the step runs nearly all of the time.
            sureness = max(sureness, _chance((busy - 0.8) / doubt))
    if stages != (MODEL,) and len(stages) == 1:
        sureness = min(sureness, _cause_sureness(numbers, today, stages[0]))
    others, spread = max(path.others for path in judged), max(path.rate.spread for path in judged)
    if others > _VERY_BUSY or spread > _WIDE:
        sureness = min(sureness, LIKELY - 0.01)
    elif others > _BUSY or spread > _SPREAD:
        sureness = min(sureness, CERTAIN - 0.01)
    return max(0.5, min(1.0, sureness))


def _cause_sureness(numbers: Measurements, today: PathResult, key: str) -> float:
    """Return the chance that it is this stage rather than the next one."""
    if key == UNKNOWN:
        return 0.5
    times = sorted((today.stages.get(one, 0.0) for one in BUILD_STAGES), reverse=True)
    if key in BUILD_STAGES and not today.is_disk_bound:
        return 0.6 + (times[0] - times[1]) / times[0] if times[0] > 0 else 0.5
    fixed = _fixed_share(numbers, today)
    if key in ("batch", "gather", "augment", "copy"):
        if fixed is not None:
            return _chance(abs(fixed[0] - 0.5) / fixed[1])
        return 0.6 + today.stages.get(key, 0.0) / max(today.stages.get("batch", 0.0), 1e-12)
    return 1.0


def _chance(sigmas: float) -> float:
    return 0.5 * (1 + math.erf(sigmas / math.sqrt(2)))


# ---------------------------------------------------------------------- what is said


def _starved(
    numbers: Measurements, today: PathResult, demand_s: float | None, stages: tuple[str, ...], sureness: float
) -> str:
    assert demand_s is not None
    step_s, period_s = today.batch_size / demand_s, today.batch_size / today.rate_s
    behind = f", and hides {STAGE_NAMES[stages[1]]} behind it" if len(stages) > 1 else ""
    return (
        f"{_who(numbers, today, stages[0])} starves the step ({sure_word(sureness)}){behind}: "
        f"{'at most ' if today.is_disk_bound else ''}{rate_text(today.rate_s)} samples/s come where it could eat "
        f"{rate_text(demand_s)}, so it stands idle {share_text(1 - today.rate_s / demand_s)} of the time, "
        f"{time_text(period_s - step_s)} at each step of {time_text(step_s)}."
    )


def _fed(numbers: Measurements, today: PathResult, demand_s: float | None, _: tuple[str, ...], sureness: float) -> str:
    assert demand_s is not None
    supply = numbers.path(SUPPLY)
    lead = f"The model is the limit ({sure_word(sureness)}), and there is nothing to gain from the data path"
    if supply is None or supply.rate_s < 1.05 * demand_s:
        return f"{lead}: it runs {share_text(today.rate_s / demand_s)} of the time, though hardly more could come."
    return (
        f"{lead}: the loader could feed {factor_text(supply.rate_s / demand_s)} times the {rate_text(demand_s)} "
        "samples/s that the step eats."
    )


def _open(numbers: Measurements, today: PathResult, _: float | None, stages: tuple[str, ...], sureness: float) -> str:
    return (
        f"{_who(numbers, today, stages[0])} is what limits ({sure_word(sureness)}): "
        f"{'at most ' if today.is_disk_bound else ''}{rate_text(today.rate_s)} samples/s can come, enough for steps of "
        f"{time_text(today.batch_size / today.rate_s)} or longer with batches of {today.batch_size:,}. Give "
        "--step-time or --step to know whether that is too little."
    )


def _who(numbers: Measurements, today: PathResult, key: str) -> str:
    name, reason = STAGE_NAMES[key], _why(numbers, today, key)
    return name[:1].upper() + name[1:] + (f" ({reason})" if reason else "")


def _then(kind: str, fixes: tuple[Fix, ...]) -> str:
    if kind == "fed":
        return ""
    if not fixes:
        return "Nothing that could be tried here gave more."
    best = fixes[0]
    return (
        f"With {best.text} {rate_text(best.rate_s)} samples/s came ({factor_text(best.times)} times today's), and "
        f"{STAGE_NAMES[best.limit]} limits then."
    )


def _notes(numbers: Measurements) -> list[str]:
    notes = []
    if numbers.interrupted:
        notes.append(f"The examination was interrupted ({numbers.interrupted}): what was measured until then is here.")
    others = max((path.others for path in numbers.paths), default=0.0)
    if others > _BUSY:
        notes.append(
            f"Others took up to {share_text(others)} of the processors while this was measured: on a quiet machine "
            "rates are higher, and surer. A larger --budget is a longer look."
        )
    today = numbers.path(numbers.today)
    if today is not None and today.rate.spread > _SPREAD:
        what = "Repeats of today's path" if today.rate.num_rounds > 1 else "Parts of the one run of today's path"
        notes.append(
            f"{what} gave {rate_text(today.rate.low)} to {rate_text(today.rate.high)} samples/s: "
            "nothing that follows from it is certain."
        )
    for one in numbers.verified:
        path = numbers.path(one.fix)
        if path is not None and abs(one.error) > _BROKEN:
            notes.append(
                f"Run once more, {path.name} gave {rate_text(one.measured.samples_s)} samples/s, not the "
                f"{rate_text(one.promised_s)} that came before: neither is to be relied on."
            )
    drift = _drift(numbers)
    if drift > _DRIFTED:
        notes.append(
            f"A path gave the step {factor_text(drift)} times what batches in RAM gave: the machine was another one "
            "from one run to the next, and so are these rates."
        )
    ram, shared = numbers.path(RAM), numbers.path(SHARED)
    if ram is not None and shared is not None and shared.rate_s < KEEPS_UP * ram.rate_s:
        notes.append(
            f"The step and the loader share processors: with a loader at work beside it the step eats "
            f"{rate_text(shared.rate_s)} samples/s of batches in RAM, alone {rate_text(ram.rate_s)}."
        )
    return notes


# ---------------------------------------------------------------------- what is reckoned


def _base(numbers: Measurements) -> PathResult | None:
    return numbers.path(SHARED) or numbers.path(RAM)


def _drift(numbers: Measurements) -> float:
    """Return how many times what batches in RAM gave the step was seen to eat; 1 on a quiet machine."""
    base, demand_s = _base(numbers), demand_of(numbers)
    return 1.0 if base is None or demand_s is None or base.rate_s <= 0 else demand_s / base.rate_s


def _fixes(numbers: Measurements, today: PathResult, demand_s: float | None) -> tuple[Fix, ...]:
    found = []
    for key in _FIXES:
        path = numbers.path(key)
        if path is None or key == numbers.today:
            continue
        chance = math.hypot(path.doubt, today.doubt)
        if path.rate_s <= today.rate_s * max(_GAIN, 1 + min(chance, 0.5)):
            continue
        busy = path.rate_s / demand_s if demand_s is not None and is_comparable(numbers, path) else None
        found.append(
            Fix(
                key=key,
                text=path.name,
                how=path.how,
                rate_s=path.rate_s,
                times=path.rate_s / today.rate_s,
                busy=busy,
                limit=limit_of(numbers, path),
            )
        )
    return tuple(sorted(found, key=lambda fix: (-round(math.log(fix.rate_s) / math.log(_SAME)), _FIXES.index(fix.key))))


def _parts(
    numbers: Measurements, today: PathResult, demand_s: float | None, stages: tuple[str, ...]
) -> tuple[StepPart, ...]:
    if demand_s is None:
        return ()
    period_s, step_s = today.batch_size / today.rate_s, today.batch_size / demand_s
    ram = numbers.path(RAM)
    alone_s = step_s if ram is None or ram.rate_s <= demand_s else today.batch_size / ram.rate_s
    if step_s <= alone_s * 1.02:
        alone_s = step_s
    parts = [StepPart(key=MODEL, name="training step", seconds=alone_s)]
    if step_s > alone_s:
        parts.append(StepPart(key=SHARED, name="cores that the loader takes", seconds=step_s - alone_s))
    if period_s > step_s:
        is_fed = stages == (MODEL,)
        name = "hand-over" if is_fed else f"waits for {STAGE_NAMES[stages[0]]}"
        parts.append(StepPart(key=UNKNOWN if is_fed else stages[0], name=name, seconds=period_s - step_s))
    return tuple(parts)


def _money(numbers: Measurements, today: PathResult, busy: float | None, fixes: tuple[Fix, ...]) -> Money | None:
    if numbers.gpu_hour is None:
        return None
    epoch = numbers.data.num_samples / today.rate_s / 3600 * numbers.gpu_hour * numbers.num_gpus
    stalls = 0.0 if busy is None else epoch * (1 - busy)
    return Money(epoch=epoch, stalls=stalls, best_fix=epoch / fixes[0].times if fixes else epoch)


def _bounds(
    numbers: Measurements, today: PathResult, demand_s: float | None, stages: tuple[str, ...]
) -> tuple[Bound, ...]:
    """Return what cannot be tried here and may give more than today's path, the highest first.

    A bound is no promise: a link twice as fast gives at most twice as much, and no more than one without limits gave.
    """
    supply, found = numbers.path(SUPPLY), list[Bound]()
    if stages == (MODEL,):
        if supply is None or demand_s is None or supply.rate_s < 2 * demand_s:
            return ()
        num_gpus = math.floor(supply.rate_s / demand_s)
        why = "what this loader gives with no step behind it: it can feed no more of them"
        text = f"steps like this one on {num_gpus:,} GPUs of this host"
        return (Bound(key="gpus", text=text, at_most_s=supply.rate_s, why=why),)
    if today.key == SOURCE and numbers.data.is_remote and "fetch" in stages:
        free = numbers.path(FREE_LINK)
        most_s = min(2 * today.rate_s, math.inf if free is None else max(free.rate_s, today.rate_s))
        why = "twice today's rate, and no more than came with the bytes already in memory"
        found.append(Bound(key="network", text="a link twice as fast", at_most_s=most_s, why=why))
    stage = numbers.stage(stages[0])
    is_waiting = stages[0] in ("fetch", "open", "skew") or (stage is not None and stage.waits)
    if not is_waiting and today.cores_used >= _IN_USE * numbers.cores * (1 - today.others):
        most_s, network_s = 2 * today.rate_s, numbers.ceiling("network")
        if today.key == SOURCE and numbers.data.is_remote and network_s is not None:
            most_s = min(most_s, max(today.rate_s, network_s / max(1e-9, numbers.data.source_bytes)))
        text = f"{2 * numbers.cores:.3g} cores in place of {numbers.cores:.3g}"
        why = "twice today's rate: cores share memory, a lock and a link"
        found.append(Bound(key="cores", text=text, at_most_s=most_s, why=why))
    if today.is_disk_bound:
        most_s = min(2 * today.rate_s, today.rate.samples_s)
        text, why = "a disk twice as fast, or memory for the data set", "twice the disk's pace, and no more than came "
        found.append(Bound(key="disk", text=text, at_most_s=most_s, why=why + "from memory"))
    capped = [replace(bound, at_most_s=min(bound.at_most_s, demand_s or math.inf)) for bound in found]
    worth = [bound for bound in capped if bound.at_most_s > _GAIN * today.rate_s]
    return tuple(sorted(worth, key=lambda bound: -bound.at_most_s))


def _finite(value: Any) -> Any:
    """Return a value without infinities and NaNs, which JSON does not know."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
