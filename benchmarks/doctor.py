"""Does the doctor find what was planted, and how far are its predictions from what the fixes really give?"""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from benchmarks.elsewhere import applied, on_cores
from benchmarks.measure import Answer
from benchmarks.planted import CASES, RANKS, SLOW_RANK, Case
from stoker import Dataset, Field
from stoker.demo.data import DemoData
from stoker.demo.link import BANDWIDTH_BYTES_S, LATENCY_S, MeteredLink
from stoker.demo.ranking import COUNTRIES
from stoker.doctor.examine import examine
from stoker.doctor.fill import fill_cache
from stoker.doctor.probe_machine import Disk
from stoker.doctor.ranks import compare
from stoker.doctor.results import DoctorResult
from stoker.doctor.settings import DoctorSettings
from stoker.doctor.step import TimedStep
from stoker.doctor.verify import TODAY
from stoker.source.storage import storage_for

BUDGET_S = 60.0
_RANK_BUDGET_S = 20.0
# Rates of one path on one machine, as shares of each other; and how often a case is examined at most.
_SAME = 0.06
_MOST_EXAMINATIONS = 3


def run(data: DemoData, folder: Path, *, num_rounds: int, names: Collection[str] = ()) -> Answer:
    """Ask it of the demo and of every planted case; an error is |predicted / measured - 1|.

    Args:
        data: The demo's.
        folder: For caches.
        num_rounds: Is nothing to it: every case is looked at once.
        names: Only these cases, and not the ranks.
    """
    del num_rounds
    errors: list[float] = []
    remarks: list[str] = []
    found = 0
    cases = [case for case in (*CASES, _demo(data)) if not names or case.name in names]
    for case in cases:
        result, num_times = _examined(case, folder / "doctor")
        is_named = case.stages <= set(result.verdict.stages)
        found += is_named
        mark = "named" if is_named else f"NOT NAMED, but {', '.join(result.verdict.stages)}"
        again = f" (examined {num_times} times)" if num_times > 1 else ""
        remarks.append(f"{case.name}{again}: {', '.join(sorted(case.stages))} {mark}; {_tried(result)}")
        print(remarks[-1], file=sys.stderr, flush=True)  # all of them take an hour
        # Today's path was measured to be described, so it is no prediction.
        errors += [abs(tried.error) for tried in result.tried if tried.fix != TODAY]
    num_cases = len(cases)
    if not names:
        results = [examine_case(case, folder / "doctor", budget_s=_RANK_BUDGET_S, verify_all=False) for case in RANKS]
        ranks = compare([result.to_json() for result in results])
        found += (ranks.rank, ranks.stage) == (SLOW_RANK, "fetch")
        num_cases += 1
        remarks.append(f"one slow rank of {len(RANKS)}: {ranks.sentence}")
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
    link = MeteredLink(storage_for(str(data.folder)), latency_s=LATENCY_S, bandwidth_bytes_s=BANDWIDTH_BYTES_S)
    fields = {
        "dense": Field("float32", columns="dense_*"),
        "context": Field("float32", columns="context_*"),
        "ids": Field("int64", columns="id_*"),
        "country": Field("int32", vocabulary=COUNTRIES),
    }
    return Case(
        name="the demo",
        stages=frozenset({"fetch"}),
        dataset=lambda _: Dataset([str(path) for path in data.paths], fields=fields, storage=link),
        batch_size=4_096,
        step_s=4_096 / 1e6,
    )


def _tried(result: DoctorResult) -> str:
    return ", ".join(
        f"{tried.fix} {tried.predicted_s:,.0f} predicted, {tried.measured.samples_s:,.0f} measured ({tried.error:+.0%})"
        for tried in result.tried
    )
