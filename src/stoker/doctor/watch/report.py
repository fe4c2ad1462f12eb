"""What was seen, as one frozen result: `to_json` for programs, `str` for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stoker.doctor.watch.device import DeviceTimes
from stoker.doctor.watch.findings import Finding, find_patterns
from stoker.doctor.watch.meter import COUNTED, Meter, StepKind, Tally, TimeSpread
from stoker.doctor.watch.ranks import RankFigures, find_straggler
from stoker.doctor.watch.replay import Replayer
from stoker.doctor.watch.traits import LoaderTraits
from stoker.doctor.watch.verdict import Replay, WatchVerdict, judge
from stoker.errors import printable
from stoker.words import bar_text, count_text, factor_text, share_text, time_text

_WIDTH = 100
_BAR = 40


@dataclass(frozen=True, kw_only=True)
class WatchReport:
    """Why a training loop waited, or that it did not.

    `str(report)` is a small text for a terminal or a log.

    Attributes:
        verdict: The sentence, what it would be worth to fix, how sure.
        findings: Patterns that cost time, dearest first.
        stall_share: Share of the steady time that the loop waited for batches.
        step_share: The rest of it: the step. Both sum to 1 where there was a steady step.
        stall: The stalls of steady steps.
        step: The times of those steps.
        seconds: All watched time by what it was: "stall", "step", "epoch_start", "warmup", "replay", "left_out".
        num_epochs: Epochs begun.
        num_steps: Batches handed over.
        num_steady: Steps that the shares and spreads rest on.
        num_warmup: Steps left out at the beginning.
        num_left_out: Steps left out later: beside a checkpoint, behind a replay.
        num_epoch_starts: First batches of epochs, the very first left out.
        first_batch_s: What the very first batch took: the start of the loader.
        parts: Stall share over the run, in at most 32 parts: none has more than twice the steps of another, but that
            the last may be shorter.
        replay: The replay test, where it was made.
        device: Times by the device's own clock, where they were taken.
        is_async: Steps may only have launched work that a device did later.
        ranks: One line a rank, where they were gathered.
        rank: Of this process.
        world_size: Ranks that train together.
    """

    verdict: WatchVerdict
    findings: tuple[Finding, ...]
    stall_share: float
    step_share: float
    stall: TimeSpread
    step: TimeSpread
    seconds: Mapping[str, float]
    num_epochs: int
    num_steps: int
    num_steady: int
    num_warmup: int
    num_left_out: int
    num_epoch_starts: int
    first_batch_s: float
    parts: tuple[float, ...]
    replay: Replay | None
    device: DeviceTimes | None
    is_async: bool
    ranks: tuple[RankFigures, ...]
    rank: int
    world_size: int

    def to_json(self) -> dict[str, Any]:
        """Return everything as dicts, lists, numbers and texts that JSON can write."""
        content = asdict(self)
        if self.replay is not None:
            content["replay"]["gain"] = self.replay.gain
        return content

    def __str__(self) -> str:
        return printable("\n".join(_lines(self)))


def make_report(
    meter: Meter,
    replayer: Replayer | None,
    *,
    traits: LoaderTraits,
    is_async: bool,
    ranks: tuple[RankFigures, ...],
    **more: Any,
) -> WatchReport:
    """Return the report on what a meter has seen; `more` are fields of `WatchReport` that are taken as they are."""
    seen, device = meter.look(), None if meter.device is None else meter.device.times()
    seconds = {kind: (seen.stall_s(kind), seen.step_s(kind)) for kind in StepKind}
    stall_s, steady_s = seconds[StepKind.STEADY][0], sum(seconds[StepKind.STEADY])
    replay, straggler = _replay(seen, replayer), find_straggler(ranks)
    return WatchReport(
        verdict=judge(
            num_steady=seen.num(StepKind.STEADY),
            wait_share=seen.stall_s(*COUNTED) / max(seen.counted_s, 1e-12),
            epoch_start_share=seconds[StepKind.EPOCH_START][0] / max(seen.counted_s, 1e-12),
            replay=replay,
            is_async=is_async,
            device=device if device is not None and device.num else None,
        ),
        findings=(*([straggler] if straggler else []), *find_patterns(seen, traits)),
        stall_share=stall_s / steady_s if steady_s > 0 else 0.0,
        step_share=1 - stall_s / steady_s if steady_s > 0 else 0.0,
        stall=seen.spread(0),
        step=seen.spread(1),
        seconds={
            "stall": stall_s,
            "step": seen.step_s(*COUNTED),
            "epoch_start": seconds[StepKind.EPOCH_START][0],
            **{kind.name.lower(): sum(seconds[kind]) for kind in StepKind if kind not in COUNTED},
        },
        num_epochs=meter.num_epochs,
        num_steps=meter.num_steps,
        num_steady=seen.num(StepKind.STEADY),
        num_warmup=seen.num(StepKind.WARMUP),
        num_left_out=seen.num(StepKind.LEFT_OUT),
        num_epoch_starts=seen.num(StepKind.EPOCH_START),
        first_batch_s=meter.first_batch_s,
        parts=_parts(seen),
        replay=replay,
        device=device,
        is_async=is_async,
        ranks=ranks,
        **more,
    )


def _parts(seen: Tally) -> tuple[float, ...]:
    joined = [part.sum(axis=0) for part in np.array_split(seen.parts, min(32, len(seen.parts)) or 1)]
    return tuple(float(stall / max(1, stall + step)) for num, stall, step in joined if num)


def _replay(seen: Tally, replayer: Replayer | None) -> Replay | None:
    replayed = seen.replayed
    if replayer is None or len(replayed) < 2 or not seen.num(StepKind.STEADY):
        return None
    counted = replayed[len(replayed) // 2 :]  # while the first half runs, the loader fills its queues
    return Replay(
        num_steps=len(counted),
        num_batches=replayer.num_batches,
        num_bytes=replayer.num_bytes,
        step_s=float(counted.sum()) / len(counted) / 1e9,
        real_s=seen.counted_s / seen.num(*COUNTED),
    )


def _lines(report: WatchReport) -> Iterator[str]:
    verdict = report.verdict
    yield from textwrap.wrap(verdict.sentence, _WIDTH)
    yield from textwrap.wrap(f"confidence {verdict.confidence}: {verdict.because}", _WIDTH)
    if report.num_steady:
        yield ""
        yield from _table(report)
    if report.device is not None and report.device.num:
        device = report.device
        yield (
            f"  device    {share_text(device.idle_share)} idle by its own clock: {time_text(device.idle_s)} between "
            f"steps of {time_text(device.busy_s)}, {count_text(device.num, 'step')} sampled"
        )
    if report.replay is not None:
        yield (
            f"  replay    {time_text(report.replay.step_s)} a step with batches in RAM, "
            f"{time_text(report.replay.real_s)} with real ones: {factor_text(report.replay.gain)} times as fast"
        )
    if len(report.parts) > 1:
        ticks = "".join("▁▂▃▄▅▆▇█"[min(7, int(share * 8))] for share in report.parts)
        yield f"  run       {ticks}   stall share, from the beginning to now"
    for finding in report.findings:
        yield ""
        head = f"{share_text(finding.share):>5} of the time: {finding.sentence}"
        yield from textwrap.wrap(head, _WIDTH, initial_indent="  ", subsequent_indent="         ")
        yield from textwrap.wrap(finding.advice, _WIDTH, initial_indent="       → ", subsequent_indent="         ")
    if report.ranks:
        yield ""
        yield from _ranks(report)
    yield ""
    yield from textwrap.wrap(_facts(report), _WIDTH, initial_indent="  ", subsequent_indent="  ")


def _table(report: WatchReport) -> Iterator[str]:
    heads = "".join(f"{head:>10}" for head in ("mean", "p50", "p95", "p99", "max"))
    yield f"{'':{_BAR + 20}}{heads}"
    for name, share, spread in (
        ("stall", report.stall_share, report.stall),
        ("step", report.step_share, report.step),
    ):
        times = (spread.mean_s, spread.p50_s, spread.p95_s, spread.p99_s, spread.max_s)
        numbers = "".join(f"{time_text(value):>10}" for value in times)
        yield f"  {name:<8}{share_text(share):>6}  {bar_text(share, _BAR):<{_BAR}}  {numbers}"


def _ranks(report: WatchReport) -> Iterator[str]:
    longest = max(figures.stall_s + figures.step_s for figures in report.ranks)
    for figures in report.ranks:
        stall = bar_text(figures.stall_s / longest, _BAR // 2) if longest else ""
        step = "░" * round(figures.step_s / longest * _BAR / 2) if longest else ""
        yield (
            f"  rank {figures.rank:<4} {stall + step:<{_BAR // 2 + 2}} waits {time_text(figures.stall_s)}, "
            f"steps {time_text(figures.step_s)}"
        )


def _facts(report: WatchReport) -> str:
    facts = [f"{count_text(report.num_steady, 'step')} counted of {report.num_steps:,}"]
    facts.append(f"in {count_text(report.num_epochs, 'epoch')}")
    if report.num_warmup:
        facts.append(f"{report.num_warmup:,} at the beginning left out")
    if report.num_left_out:
        facts.append(f"{report.num_left_out:,} later left out")
    facts.append(f"first batch after {time_text(report.first_batch_s)}")
    if report.num_epoch_starts:
        mean_s = report.seconds["epoch_start"] / report.num_epoch_starts
        facts.append(f"later epochs' first batch after {time_text(mean_s)}")
    facts.append(f"{time_text(sum(report.seconds.values()))} watched")
    if report.world_size > 1:
        facts.append(f"rank {report.rank} of {report.world_size}")
    return " · ".join(facts)
