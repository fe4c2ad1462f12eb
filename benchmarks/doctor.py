"""Does the doctor find what was planted, and how far are its predictions from what the fixes really give?"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.elsewhere import applied, on_cores
from benchmarks.measure import Answer
from benchmarks.planted import CASES, RANKS, SLOW_RANK, Case
from stoker.demo.data import DemoData, MeteredLink, ranking_dataset
from stoker.doctor.examine import examine
from stoker.doctor.fill import fill_cache
from stoker.doctor.probe_machine import Disk, Pace, pace
from stoker.doctor.ranks import compare_ranks
from stoker.doctor.results import DoctorResult
from stoker.doctor.settings import DoctorSettings
from stoker.doctor.step import TimedStep
from stoker.doctor.verify import TODAY

BUDGET_S = 60.0
_RANK_BUDGET_S = 20.0
# Rates of one path on one machine, as shares of each other; and how often a case is examined at most.
_SAME = 0.06
_MOST_EXAMINATIONS = 3
# Looks at the processors' speed that lie no further apart than this share of their mean: nobody else works here.
_NUM_LOOKS, _CALM = 20, 0.03


@dataclass(frozen=True)
class Finding:
    """What came of a case.

    Attributes:
        name: The case.
        is_named: Whether the verdict names what was planted.
        errors: |predicted / measured - 1| of each fix.
        remark: All of it as a line.
    """

    name: str
    is_named: bool
    errors: list[float]
    remark: str


def run(
    data: DemoData,
    folder: Path,
    *,
    num_rounds: int,
    names: Collection[str] = (),
    kept: Path | None = None,
    patience_s: float = 0.0,
) -> Answer:
    """Ask it of the demo and of every planted case; an error is |predicted / measured - 1|.

    Args:
        data: The demo's.
        folder: For caches.
        num_rounds: Is nothing to it: every case is looked at once.
        names: Only these cases, and not the ranks.
        kept: File of findings, a line each: what is there is not asked again, what is found is added.
        patience_s: How long to wait, before each case, for a machine on which nobody else works.
    """
    del num_rounds
    done = _read(kept)
    findings: list[Finding] = []
    for case in (*CASES, _demo(data)):
        if names and case.name not in names:
            continue
        finding = done.get(case.name)
        if finding is None:
            finding = _find(case, folder / "doctor", patience_s=patience_s)
            if kept is not None:
                with kept.open("a") as file:
                    file.write(json.dumps(asdict(finding)) + "\n")
        findings.append(finding)
        print(finding.remark, file=sys.stderr, flush=True)  # all of them take an hour
    found, num_cases = sum(finding.is_named for finding in findings), len(findings)
    remarks = [finding.remark for finding in findings]
    if not names:
        results = [examine_case(case, folder / "doctor", budget_s=_RANK_BUDGET_S, verify_all=False) for case in RANKS]
        ranks = compare_ranks([result.to_json() for result in results])
        found += (ranks.rank, ranks.stage) == (SLOW_RANK, "fetch")
        num_cases += 1
        remarks.append(f"one slow rank of {len(RANKS)}: {ranks.sentence}")
    errors = [error for finding in findings for error in finding.errors]
    return Answer(
        question="doctor: predictions that are right within 5 %, and within 15 %",
        ours=statistics.median(errors),
        ceiling=max(errors),
        unit="error: the median as ours, the worst as the ceiling",
        ratios=(found / num_cases,),
        promise=1.0,
        remarks=(
            f"median error {statistics.median(errors):.1%}, worst {max(errors):.1%}, of {len(errors)} predictions; "
            f"planted stages named: {found} of {num_cases}",
            *remarks,
        ),
        data="the demo's ranking rows, and the planted cases' own",
    )


def _read(kept: Path | None) -> dict[str, Finding]:
    if kept is None or not kept.exists():
        return {}
    found = [Finding(**json.loads(line)) for line in kept.read_text().splitlines()]
    return {finding.name: finding for finding in found}


def _find(case: Case, folder: Path, *, patience_s: float) -> Finding:
    wait_for_calm(patience_s)
    result, num_times = _examined(case, folder)
    is_named = case.stages <= set(result.verdict.stages)
    mark = "named" if is_named else f"NOT NAMED, but {', '.join(result.verdict.stages)}"
    again = f" (examined {num_times} times)" if num_times > 1 else ""
    return Finding(
        name=case.name,
        is_named=is_named,
        # Today's path was measured to be described, so it is no prediction.
        errors=[abs(tried.error) for tried in result.tried if tried.fix != TODAY],
        remark=f"{case.name}{again}: {', '.join(sorted(case.stages))} {mark}; {_tried(result)}",
    )


def wait_for_calm(
    patience_s: float, *, look: Callable[[], Pace] = pace, clock: Callable[[], float] = time.monotonic
) -> None:
    """Return when nobody else works on this machine, or patience is at its end.

    Args:
        patience_s: How long to wait.
        look: Looks at the processors.
        clock: Seconds.
    """
    until_s = clock() + patience_s
    while clock() < until_s:
        speeds = [look().speed for _ in range(_NUM_LOOKS)]
        if statistics.stdev(speeds) <= _CALM * statistics.fmean(speeds):
            return


def _examined(case: Case, folder: Path) -> tuple[DoctorResult, int]:
    """Return what was found on a machine that stayed what it was, and how often it was looked for.

    Today's path runs in the examination, and again among the fixes: nothing is changed between. Where it gives another
    rate then, others have begun or ended to work on the machine, and no fix would give what was predicted, either. So
    such a case is examined again, a few times at most, whatever its predictions were.
    """
    # A disk that is only said to be slow gives what it gives: there is nothing to compare.
    verify_all = case.disk_bytes_s is None
    num_times = 0
    while True:
        result = examine_case(case, folder, verify_all=verify_all)
        num_times += 1
        unchanged = [abs(tried.error) for tried in result.tried if tried.fix == TODAY]
        if num_times == _MOST_EXAMINATIONS or all(error <= _SAME for error in unchanged):
            return result, num_times


def examine_case(case: Case, folder: Path, *, budget_s: float = BUDGET_S, verify_all: bool = True) -> DoctorResult:
    """Examine one case, every fix applied; leaves the folder away."""
    try:
        settings = _settings(case, folder, budget_s=budget_s, verify_all=verify_all)
        if case.num_cores is None:
            result = _examine(case, folder, settings)
        else:
            result = on_cores(case.num_cores, _examine_by_name, case.name, folder, budget_s, verify_all)
        if verify_all:
            result = replace(result, tried=(*result.tried, *applied(case, settings, result, folder)))
        return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _examine(case: Case, folder: Path, settings: DoctorSettings) -> DoctorResult:
    dataset = case.dataset(folder)
    if case.is_warm:
        assert settings.cache is not None
        fill_cache(dataset, settings.cache, num_threads=2)
    return examine(dataset, settings)


def _examine_by_name(name: str, folder: Path, budget_s: float, verify_all: bool) -> DoctorResult:
    """Return what another process is to find: functions of a case cannot be sent there, its name can."""
    case = next(case for case in CASES if case.name == name)
    return _examine(case, folder, _settings(case, folder, budget_s=budget_s, verify_all=verify_all))


def _settings(case: Case, folder: Path, *, budget_s: float, verify_all: bool) -> DoctorSettings:
    settings = DoctorSettings(
        step=TimedStep(case.step_s),
        batch_size=case.batch_size,
        cache=folder / "cache" if case.is_warm else None,
        budget_s=budget_s,
        verify_all=verify_all,
    )
    if case.disk_bytes_s is None:
        return settings
    disk = Disk(read_bytes_s=case.disk_bytes_s, write_bytes_s=case.disk_bytes_s, is_memory=False)
    return replace(settings, disk=lambda *_: disk, free_memory_bytes=lambda: 0)


def _demo(data: DemoData) -> Case:
    return Case(
        name="the demo",
        stages=frozenset({"fetch"}),
        dataset=lambda _: ranking_dataset(data.paths, storage=MeteredLink(data.folder)),
        batch_size=4_096,
        step_s=4_096 / 1e6,
    )


def _tried(result: DoctorResult) -> str:
    return ", ".join(
        f"{tried.fix} {tried.predicted_s:,.0f} predicted, {tried.measured.samples_s:,.0f} measured ({tried.error:+.0%})"
        for tried in result.tried
    )
