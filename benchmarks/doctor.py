"""Does the doctor find what was planted, and how far are its predictions from what the fixes really give?"""

from __future__ import annotations

import shutil
import statistics
from dataclasses import replace
from pathlib import Path

from benchmarks.measure import Answer
from benchmarks.planted import CASES, Case
from stoker import Dataset, Field
from stoker.demo.data import DemoData
from stoker.demo.link import BANDWIDTH_BYTES_S, LATENCY_S, MeteredLink
from stoker.demo.ranking import COUNTRIES
from stoker.doctor.examine import examine
from stoker.doctor.probe_machine import Disk
from stoker.doctor.results import DoctorResult
from stoker.doctor.settings import DoctorSettings
from stoker.doctor.step import TimedStep
from stoker.doctor.verify import TODAY
from stoker.feed.chunks import open_chunks
from stoker.source.storage import storage_for
from stoker.trace.stages import ignore_stage

BUDGET_S = 45.0


def run(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """Ask it of the demo and of every planted case; an error is |predicted / measured - 1|."""
    del num_rounds
    errors: list[float] = []
    remarks: list[str] = []
    found = 0
    for case in (*CASES, _demo(data)):
        # A disk that is only said to be slow gives what it gives: there is nothing to compare.
        result = examine_case(case, folder / "doctor", verify_all=case.disk_bytes_s is None)
        is_named = case.stages <= set(result.verdict.stages)
        found += is_named
        mark = "named" if is_named else f"NOT NAMED, but {', '.join(result.verdict.stages)}"
        remarks.append(f"{case.name}: {', '.join(sorted(case.stages))} {mark}; {_tried(result)}")
        # Today's path was measured to be described, so it is no prediction.
        errors += [abs(tried.error) for tried in result.tried if tried.fix != TODAY]
    return Answer(
        question="doctor: predictions that are right within 5 %, and within 15 %",
        ours=statistics.median(errors),
        ceiling=max(errors),
        unit="error: the median as ours, the worst as the ceiling",
        ratios=(found / (len(CASES) + 1),),
        promise=1.0,
        remarks=(
            f"median error {statistics.median(errors):.1%}, worst {max(errors):.1%}, of {len(errors)} predictions; "
            f"planted stages named: {found} of {len(CASES) + 1}",
            *remarks,
        ),
    )


def examine_case(case: Case, folder: Path, *, budget_s: float = BUDGET_S, verify_all: bool = True) -> DoctorResult:
    """Examine one case, every fix applied; leaves the folder away."""
    try:
        dataset = case.dataset(folder)
        cache = None
        if case.is_warm:
            cache = folder / "cache"
            chunks = open_chunks(
                dataset, cache=cache, limit_bytes=None, num_threads=2, transform_in="threads", on_stage=ignore_stage
            )
            try:
                chunks.warm(num_threads=2)
            finally:
                chunks.close()
        settings = DoctorSettings(
            step=TimedStep(case.step_s),
            batch_size=case.batch_size,
            cache=cache,
            budget_s=budget_s,
            verify_all=verify_all,
        )
        if case.disk_bytes_s is not None:
            disk = Disk(read_bytes_s=case.disk_bytes_s, write_bytes_s=case.disk_bytes_s, is_memory=False)
            settings = replace(settings, disk=lambda *_: disk, free_memory_bytes=lambda: 0)
        return examine(dataset, settings)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
