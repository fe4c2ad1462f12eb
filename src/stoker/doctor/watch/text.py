"""A report as a small text: the sentence first, then where the time goes, then what was noticed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stoker.doctor.watch.words import bar_text, factor_text, share_text, time_text
from stoker.words import count_text

if TYPE_CHECKING:
    from stoker.doctor.watch.report import WatchReport

_WIDTH = 100
_BAR = 40


def render(report: WatchReport) -> str:
    """Return the text, without a line break at its end."""
    return "\n".join(_lines(report))


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
            f"steps of {time_text(device.busy_s)}, {device.num:,} sampled"
        )
    if report.replay is not None:
        yield (
            f"  replay    {time_text(report.replay.step_s)} a step with batches in RAM, "
            f"{time_text(report.replay.real_s)} with real ones: {factor_text(report.replay.gain)} times"
        )
    if len(report.parts) > 1:
        yield f"  run       {''.join(_tick(share) for share in report.parts)}   stall share, from the beginning to now"
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
        yield f"  {name:<8}{share_text(share):>6}  {bar_text(share, _BAR)}  {numbers}"


def _ranks(report: WatchReport) -> Iterator[str]:
    longest = max(figures.stall_s + figures.step_s for figures in report.ranks)
    for figures in report.ranks:
        stall = bar_text(figures.stall_s / longest, _BAR // 2).rstrip() if longest else ""
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


def _tick(share: float) -> str:
    return "▁▂▃▄▅▆▇█"[min(7, int(share * 8))]
