"""One sentence: is the loader the limit, how sure is that, and what would batches in RAM give? Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from stoker.doctor.watch.device import DeviceTimes
from stoker.words import factor_text, share_text

Limit: TypeAlias = Literal["data", "epoch-start", "model", "contention", "unknown"]
Confidence: TypeAlias = Literal["high", "medium", "low"]

# A wait of less than this share of the time is not worth fixing.
WORTH_FIXING = 0.05
# Replay and prediction agree where they are this near; timings of single runs differ by about as much.
_AGREE = 0.15
# Steps from which means settle; see `judge`.
_FEW, _ENOUGH = 20, 200


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What the replay test measured: steps on batches in RAM, and real ones.

    Attributes:
        num_steps: Replayed steps that count: the second half, when the loader has filled its queues behind them.
        num_batches: Different batches that were handed out again.
        num_bytes: Their size, as far as it could be seen.
        step_s: Mean time of a replayed step and its wait.
        real_s: Mean time of a real step and its wait, epochs' first ones among them.
    """

    num_steps: int
    num_batches: int
    num_bytes: int
    step_s: float
    real_s: float

    @property
    def gain(self) -> float:
        """How many times faster it ran with batches in RAM."""
        return self.real_s / self.step_s if self.step_s > 0 else 1.0


@dataclass(frozen=True, kw_only=True)
class WatchVerdict:
    """Whether the loader is the limit.

    Attributes:
        limit: "data": the loader. "epoch-start": the loader, but only when an epoch begins. "model": the step.
            "contention": the step, which the loader slows by working beside it. "unknown": too little was seen.
        sentence: For people.
        gain: How many times faster it would run with batches in RAM; 1 where nothing is to be gained.
        confidence: How sure that is.
        because: Why so sure, or so unsure.
    """

    limit: Limit
    sentence: str
    gain: float
    confidence: Confidence
    because: str


def judge(
    *,
    num_steady: int,
    wait_share: float,
    epoch_start_share: float,
    replay: Replay | None,
    is_async: bool,
    device: DeviceTimes | None,
) -> WatchVerdict:
    """Return the verdict on what was measured.

    Args:
        num_steady: Steps that count.
        wait_share: Share of all time that counts in which the loop waited: for batches, and for epochs' first ones.
        epoch_start_share: Share of all that time that went into epochs' first batches.
        replay: The replay test, where it was made.
        is_async: Steps may only launch work that a device does later.
        device: Times of some steps by the device's own clock, where it has any.
    """
    if num_steady == 0:
        return WatchVerdict(
            limit="unknown",
            sentence="the run is too short to say: no step ended after the warm-up",
            gain=1.0,
            confidence="low",
            because="watch a longer run, or leave out fewer warm-up steps (warmup=)",
        )
    if device is not None:  # its own idle share in place of that of the steady steps
        wait_share, is_async = epoch_start_share + device.idle_share * (1 - epoch_start_share), False
    expected = 1 / max(1 - wait_share, 1e-6)
    confidence, because = _confidence(num_steady, expected, replay, is_async=is_async)
    who = "step" if device is None else "device"
    limit, sentence, gain = _limit(who, wait_share, epoch_start_share, expected, replay)
    return WatchVerdict(limit=limit, sentence=sentence, gain=gain, confidence=confidence, because=because)


def _limit(who: str, share: float, starts: float, expected: float, replay: Replay | None) -> tuple[Limit, str, float]:
    waits = f"the {who} waits {share_text(share)} of the time"
    gain = expected if replay is None else replay.gain
    by_replay = "" if replay is None else f" (replay measured {factor_text(gain)})"
    faster = f"it ran {factor_text(gain)} times faster: both share cores, memory or the way to the device"
    if share < WORTH_FIXING:
        if replay is not None and gain >= 1 + 2 * WORTH_FIXING:
            return "contention", f"the loader slows the step it feeds: {waits}, but with batches in RAM {faster}", gain
        return "model", f"nothing to gain: the model is the limit, {waits}{by_replay}", 1.0
    if gain < 1 + WORTH_FIXING:  # by a replay, for what is expected is more
        hidden = f"with batches in RAM it ran no faster{by_replay}: the wait hides behind the device's work"
        return "model", f"nothing to gain: {waits}, and {hidden}", 1.0
    limit: Limit = "epoch-start" if starts > share / 2 else "data"
    kind = "data-bound" if share >= 0.5 else "partly data-bound"
    if limit == "epoch-start":
        kind = "data-bound when an epoch begins"
    if starts >= WORTH_FIXING:
        waits += f", {share_text(starts)} for epochs' first batches"
    would = f"with batches in RAM it would run {factor_text(expected)} times faster{by_replay}"
    return limit, f"{kind}: {waits}; {would}", gain


def _confidence(num: int, expected: float, replay: Replay | None, *, is_async: bool) -> tuple[Confidence, str]:
    steps = f"{num:,} step{'' if num == 1 else 's'}"
    if num < _FEW:
        return "low", f"only {steps} counted"
    if replay is not None:
        if abs(replay.gain / expected - 1) <= _AGREE:
            return "high", f"what the stall predicts and what the replay measured agree, over {steps}"
        return (
            "medium",
            f"the stall predicts a gain of {factor_text(expected)} times, the replay measured "
            f"{factor_text(replay.gain)}: trust the replay",
        )
    if is_async:
        return (
            "low",
            "steps may only launch work on a device, which then goes on while the loop waits: the wait is an upper "
            "bound; pass synchronize= or device=, or try replay=50",
        )
    if num < _ENOUGH:
        return "medium", f"{steps} counted, and no replay test was made"
    return "medium", "the verdict rests on times alone; replay=50 in a test run makes it certain"
