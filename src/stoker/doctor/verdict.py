"""The verdict: a pure function of what was measured. Screen, page and JSON say nothing else.

demand   what the step was seen to eat: of batches in RAM, or of any path that gave it as much
busy     today's rate / demand; the rest is lost
fixes    paths that ran and gave more than today's by more than chance
bounds   what cannot be tried here: no more than so much can come of it
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from stoker.doctor.bounds import bounds_of
from stoker.doctor.causes import margin_of, stages_of, why
from stoker.doctor.results import (
    ARROW,
    COLUMNS,
    DEDUPLICATED,
    LARGER,
    MODEL,
    PROCESSES,
    RAM,
    SHARED,
    STAGE_NAMES,
    SUPPLY,
    TENSORS,
    THREADS,
    Bound,
    Measurements,
    PathResult,
)
from stoker.doctor.words import factor_text, rate_text, share_text, time_text

KEEPS_UP = 0.95
"""A path that gives this share of what the step could eat is not what limits."""

# Fixes, the easiest first: of two that give the same, that one.
_FIXES = (TENSORS, DEDUPLICATED, THREADS, PROCESSES, LARGER, COLUMNS, ARROW)
# A fix gives more than this beyond chance, or it is none. Of two that lie within the second, the easier one is better.
_GAIN, _SAME = 1.05, 1.03
# Others who take more of the machine than this are told of.
_BUSY = 0.1
# Rates of the same thing that lie further apart than this are not of the same machine.
_DRIFTED = 1.1
_CERTAIN, _LIKELY = 0.95, 0.8


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
        stages: Keys of the stages it names; ("step",) where the model is the limit.
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

    kind: str
    sentence: str
    stages: tuple[str, ...]
    sureness: float
    sure: str
    demand_s: float | None
    busy: float | None
    lost_share: float | None
    then: str
    step_parts: tuple[StepPart, ...]
    fixes: tuple[Fix, ...]
    bounds: tuple[Bound, ...]
    epoch_s: float
    money: Money | None
    notes: tuple[str, ...]


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
        return verdict_of(self.numbers)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as what JSON can write."""
        content: dict[str, Any] = _finite({"verdict": asdict(self.verdict), **asdict(self.numbers)})
        for path, one in zip(content["paths"], self.numbers.paths, strict=True):
            path["rate_s"] = one.rate_s
        for verified, done in zip(content["verified"], self.numbers.verified, strict=True):
            verified["error"] = done.error
        return content


def verdict_of(numbers: Measurements) -> Verdict:
    """Return the verdict on the path that the samples take now."""
    today = numbers.path(numbers.today)
    if today is None or today.rate_s <= 0:
        return _unknown(numbers)
    demand_s = demand_of(numbers)
    busy = None if demand_s is None else today.rate_s / demand_s
    is_fed = busy is not None and busy >= KEEPS_UP
    stages = (MODEL,) if is_fed else stages_of(numbers, today, demand_s)
    fixes = () if is_fed else _fixes(numbers, today, demand_s)
    bounds = bounds_of(numbers, today, demand_s=demand_s, stages=stages)
    sureness = _sureness(numbers, today, busy=busy, num_named=len(stages))
    kind = "open" if busy is None else "fed" if is_fed else "starved"
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
        then=_then(fixes, is_fed=is_fed),
        step_parts=_parts(numbers, today, demand_s, stages),
        fixes=fixes,
        bounds=bounds,
        epoch_s=numbers.data.num_samples / today.rate_s,
        money=_money(numbers, today, busy, fixes),
        notes=(*_notes(numbers), *numbers.notes),
    )


def demand_of(numbers: Measurements) -> float | None:
    """Return what the step could eat: batches in RAM, with a loader's work beside them where both want the same cores.

    A path that was seen to give the step more than that shows that it eats more.
    """
    if numbers.step is None:
        return None
    base = numbers.path(SHARED) or numbers.path(RAM)
    if base is None:
        return None
    seen = [path.rate_s for path in numbers.paths if path.key != RAM and is_comparable(numbers, path)]
    return max([base.rate_s, *seen]) or None


def drift_of(numbers: Measurements) -> float:
    """Return how many times as much as batches in RAM any path gave the step; no more than 1 on a quiet machine."""
    base, demand_s = numbers.path(SHARED) or numbers.path(RAM), demand_of(numbers)
    return 1.0 if base is None or demand_s is None or base.rate_s <= 0 else demand_s / base.rate_s


def is_comparable(numbers: Measurements, path: PathResult) -> bool:
    """Return whether a path's step is the one of today's: a real one takes another time for other batches."""
    step = numbers.step
    if step is None or not path.has_step:
        return False
    return step.is_given or (path.batch_size == step.batch_size and path.key != COLUMNS)


def limit_now(numbers: Measurements, path: PathResult, demand_s: float | None) -> str:
    """Return the key of what limits a path: the model where it is fed."""
    if demand_s is not None and path.has_step and path.rate_s >= KEEPS_UP * demand_s:
        return MODEL
    return stages_of(numbers, path, None)[0]


def sure_word(sureness: float) -> str:
    """Return a chance as a word."""
    return "certain" if sureness >= _CERTAIN else "likely" if sureness >= _LIKELY else "a guess"


# ---------------------------------------------------------------------- what is said


def _starved(
    numbers: Measurements, today: PathResult, demand_s: float | None, stages: tuple[str, ...], sureness: float
) -> str:
    assert demand_s is not None
    step_s, period_s = today.batch_size / demand_s, today.batch_size / today.rate_s
    behind = f", and hides {STAGE_NAMES[stages[1]]} behind it" if len(stages) > 1 else ""
    at_most = "at most " if _is_bound(today) else ""
    return (
        f"{_who(numbers, today, stages[0])} starves the step ({sure_word(sureness)}){behind}: {at_most}"
        f"{rate_text(today.rate_s)} samples/s come where it could eat {rate_text(demand_s)}, so it stands idle "
        f"{share_text(1 - today.rate_s / demand_s)} of the time, {time_text(period_s - step_s)} at each step of "
        f"{time_text(step_s)}."
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
        f"{_who(numbers, today, stages[0])} is what limits ({sure_word(sureness)}): {rate_text(today.rate_s)} "
        f"samples/s can come, enough for steps of {time_text(today.batch_size / today.rate_s)} or longer with batches "
        f"of {today.batch_size:,}. Give --step-time or --step to know whether that is too little."
    )


def _who(numbers: Measurements, today: PathResult, key: str) -> str:
    name, reason = STAGE_NAMES[key], why(numbers, today, key)
    return name[:1].upper() + name[1:] + (f" ({reason})" if reason else "")


def _then(fixes: tuple[Fix, ...], *, is_fed: bool) -> str:
    if is_fed:
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
    others = [path.others for path in numbers.paths]
    if others and max(others) > _BUSY:
        notes.append(
            f"Others took up to {share_text(max(others))} of the processors while this was measured: on a quiet "
            "machine rates are higher, and surer. A larger --budget is a longer look."
        )
    drift = drift_of(numbers)
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


def _unknown(numbers: Measurements) -> Verdict:
    sentence = "Too little was measured to say anything."
    return Verdict(
        kind="unknown", sentence=sentence, stages=(), sureness=0.5, sure=sure_word(0.5), demand_s=None, busy=None,
        lost_share=None, then="", step_parts=(), fixes=(), bounds=(), epoch_s=0.0, money=None,
        notes=(*_notes(numbers), *numbers.notes),
    )  # fmt: skip


# ---------------------------------------------------------------------- what is reckoned


def _fixes(numbers: Measurements, today: PathResult, demand_s: float | None) -> tuple[Fix, ...]:
    found = []
    for key in _FIXES:
        path = numbers.path(key)
        if path is None or key == numbers.today:
            continue
        chance = math.hypot(path.doubt, today.doubt)
        if path.rate_s <= today.rate_s * max(_GAIN, 1 + min(chance, 0.5)):
            continue
        is_known = demand_s is not None and is_comparable(numbers, path)
        found.append(
            Fix(
                key=key,
                text=path.name,
                how=path.how,
                rate_s=path.rate_s,
                times=path.rate_s / today.rate_s,
                busy=path.rate_s / demand_s if is_known and demand_s is not None else None,
                limit=limit_now(numbers, path, demand_s if is_known else None),
            )
        )
    return tuple(sorted(found, key=lambda fix: (-round(math.log(fix.rate_s) / math.log(_SAME)), _FIXES.index(fix.key))))


def _sureness(numbers: Measurements, today: PathResult, *, busy: float | None, num_named: int) -> float:
    """Return the chance that it is as it looks: on this side of what the step needs, and this stage."""
    sureness = 1.0
    if busy is not None:
        base = numbers.path(SHARED) or numbers.path(RAM)
        doubt = math.hypot(today.doubt, 0.0 if base is None else base.doubt, math.log(drift_of(numbers)))
        sureness = 0.5 * (1 + math.erf(abs(math.log(max(busy, 1e-12) / KEEPS_UP)) / doubt / math.sqrt(2)))
        if busy >= KEEPS_UP:
            # Fed or nearly so: that nothing is to gain is as sure as that the step runs nearly all of the time.
            sureness = max(sureness, 0.5 * (1 + math.erf((busy - 0.8) / doubt / math.sqrt(2))))
    if (busy is None or busy < KEEPS_UP) and num_named < 2:
        sureness = min(sureness, 0.6 + margin_of(numbers, today))
    return max(0.5, min(1.0, sureness))


def _parts(
    numbers: Measurements, today: PathResult, demand_s: float | None, stages: tuple[str, ...]
) -> tuple[StepPart, ...]:
    if demand_s is None:
        return ()
    period_s, step_s = today.batch_size / today.rate_s, today.batch_size / demand_s
    ram = numbers.path(RAM)
    alone_s = step_s if ram is None or ram.rate_s <= demand_s else today.batch_size / ram.rate_s
    parts = [StepPart(key=MODEL, name="training step", seconds=alone_s)]
    if step_s > alone_s * 1.02:
        parts.append(StepPart(key=SHARED, name="cores that the loader takes", seconds=step_s - alone_s))
    elif step_s > alone_s:
        parts = [StepPart(key=MODEL, name="training step", seconds=step_s)]
    if period_s > step_s:
        name = "hand-over" if stages == (MODEL,) else f"waits for {STAGE_NAMES[stages[0]]}"
        parts.append(StepPart(key="" if stages == (MODEL,) else stages[0], name=name, seconds=period_s - step_s))
    return tuple(parts)


def _money(numbers: Measurements, today: PathResult, busy: float | None, fixes: tuple[Fix, ...]) -> Money | None:
    if numbers.gpu_hour is None:
        return None
    epoch = numbers.data.num_samples / today.rate_s / 3600 * numbers.gpu_hour * numbers.num_gpus
    stalls = 0.0 if busy is None else epoch * (1 - busy)
    return Money(epoch=epoch, stalls=stalls, best_fix=epoch / fixes[0].times if fixes else epoch)


def _is_bound(path: PathResult) -> bool:
    return path.disk_bound is not None and path.disk_bound.at_most_s < path.rate.samples_s


def _finite(value: Any) -> Any:
    """Return a value without infinities and NaNs, which JSON does not know."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
