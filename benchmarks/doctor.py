"""Does the doctor find what was planted, and how far are the rates that it promises from what comes of its fixes?"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.measure import Answer, in_a_new_process
from benchmarks.planted import CASES, RANKS, SHARING, SLOW_RANK, Case
from stoker import Loader
from stoker.demo.data import DemoData, MeteredLink, ranking_dataset
from stoker.doctor.examine import examine
from stoker.doctor.settings import DoctorSettings
from stoker.doctor.verdict import DoctorResult, compare_ranks

BUDGET_S = 60.0
_RANK_BUDGET_S = 20.0
# All fixes that are advised are run once more.
_ALL = 100
# Half a core, in slices that no scheduler smooths away.
_NEIGHBOUR = """
import time
while True:
    end = time.perf_counter() + 0.05
    while time.perf_counter() < end:
        pass
    time.sleep(0.05)
"""


@dataclass(frozen=True)
class Finding:
    """What came of a case.

    Attributes:
        name: The case.
        is_named: Whether the verdict names what was planted.
        errors: |promised / measured - 1| of each fix; of a promised range, how far it was missed.
        to_rates: The same of the one rate that the page shows first, where a range is promised, too.
        num_ranges: Fixes whose promise is a range, since their repeats did not agree.
        num_open: Fixes that could not be run once more.
        remark: All of it as a line.
    """

    name: str
    is_named: bool
    errors: list[float]
    to_rates: list[float]
    num_ranges: int
    num_open: int
    remark: str


def run(
    data: DemoData, folder: Path, *, num_rounds: int, names: Collection[str] = (), kept: Path | None = None
) -> Answer:
    """Ask it of the demo and of every planted case; an error is |promised / measured - 1|.

    Args:
        data: The demo's.
        folder: For caches.
        num_rounds: Is nothing to it: every case is looked at once.
        names: Only these cases, and not the ranks.
        kept: File of findings, a line each: what is there is not asked again, what is found is added. Lines that
            another version of this wrote are asked again.
    """
    del num_rounds
    done = _read(kept)
    findings: list[Finding] = []
    for case in (*CASES, *SHARING, _demo(data)):
        if names and case.name not in names:
            continue
        finding = done.get(case.name)
        if finding is None:
            finding = _find(case, folder / "doctor")
            if kept is not None:
                with kept.open("a") as file:
                    file.write(json.dumps(asdict(finding)) + "\n")
        findings.append(finding)
        print(finding.remark, file=sys.stderr, flush=True)  # all of them take an hour
    found, num_cases = sum(finding.is_named for finding in findings), len(findings)
    remarks = [finding.remark for finding in findings]
    if not names:
        results = [examine_case(case, folder / "doctor", budget_s=_RANK_BUDGET_S, verify=0) for case in RANKS]
        ranks = compare_ranks([result.to_json() for result in results])
        found += (ranks["rank"], ranks["stage"]) == (SLOW_RANK, "fetch")
        num_cases += 1
        remarks.append(f"one slow rank of {len(RANKS)}: {ranks['sentence']}")
    errors = [error for finding in findings for error in finding.errors] or [0.0]
    to_rates = [error for finding in findings for error in finding.to_rates] or [0.0]
    num_ranges, num_open = (sum(getattr(finding, name) for finding in findings) for name in ("num_ranges", "num_open"))
    return Answer(
        question="doctor: promised rates that come within 5 %, and within 15 %",
        ours=statistics.median(errors),
        ceiling=max(errors),
        unit="error: the median as ours, the worst as the ceiling",
        ratios=(found / num_cases,),
        promise=1.0,
        remarks=(
            f"planted stages named: {found} of {num_cases}",
            f"{len(errors)} fixes run once more, {num_ranges} of them promised as a range; {num_open} could not be",
            f"error to what was promised, 0 inside a range: median {_both(errors)}",
            f"error to the rate that the page shows first, ranges or not: median {_both(to_rates)}",
            *remarks,
        ),
        data="the demo's ranking rows, and the planted cases' own",
    )


def _both(errors: list[float]) -> str:
    return f"{statistics.median(errors):.1%}, worst {max(errors):.1%}"


def examine_case(case: Case, folder: Path, *, budget_s: float = BUDGET_S, verify: int = _ALL) -> DoctorResult:
    """Examine one case, and run so many of the fixes that are advised once more; leaves the folder away."""
    try:
        with _neighbour() if case.has_neighbour else nullcontext():
            if case.num_cores is None:
                return _examine(case, folder, budget_s, verify)
            result: DoctorResult = in_a_new_process(_on_cores, case.num_cores, case.name, folder, budget_s, verify)
            return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _find(case: Case, folder: Path) -> Finding:
    result = examine_case(case, folder)
    verified = [path for path in result.numbers.paths if path.came_s is not None]
    open_ends = [f", {fix.key} not run once more" for fix in result.fixes if fix.came_s is None]
    is_named = case.stages <= set(result.stages)
    mark = "named" if is_named else f"NOT NAMED, but {', '.join(result.stages)}"
    promised = [" to ".join(dict.fromkeys(f"{rate_s:,.0f}" for rate_s in path.promised)) for path in verified]
    to_rates = [path.rate_s / path.came_s - 1 for path in verified if path.came_s]
    tried = ", ".join(
        f"{path.key} {said} promised, {path.came_s:,.0f} came ({path.error:+.0%}; {off:+.0%} of {path.rate_s:,.0f})"
        for path, said, off in zip(verified, promised, to_rates, strict=True)
    )
    return Finding(
        name=case.name,
        is_named=is_named,
        errors=[abs(path.error) for path in verified],
        to_rates=[abs(error) for error in to_rates],
        num_ranges=sum(path.promised[0] < path.promised[1] for path in verified),
        num_open=len(open_ends),
        remark=f"{case.name}: {', '.join(sorted(case.stages))} {mark} ({result.sure}); {tried or 'nothing to mend'}"
        + "".join(open_ends),
    )


def _read(kept: Path | None) -> dict[str, Finding]:
    if kept is None or not kept.exists():
        return {}
    names = {one.name for one in fields(Finding)}
    found = [one for one in map(json.loads, kept.read_text().splitlines()) if one.keys() == names]
    return {one["name"]: Finding(**one) for one in found}


def _examine(case: Case, folder: Path, budget_s: float, verify: int) -> DoctorResult:
    dataset = case.dataset(folder)
    more: dict[str, Any] = {}
    if case.is_warm:
        more["cache"] = folder / "cache"
        with Loader(dataset, batch_size=4_096, cache=folder / "cache") as loader:
            for _ in loader:
                pass
    if case.disk_bytes_s is not None:
        disk = {"disk_read": case.disk_bytes_s, "disk_write": case.disk_bytes_s}
        more |= {"disk": lambda *_: disk, "free_memory_bytes": lambda: 0}
    settings = DoctorSettings(
        step=case.step(), batch_size=case.batch_size, budget_s=budget_s, verify=verify, scratch=folder, **more
    )
    return examine(dataset, settings)


def _on_cores(num_cores: int, name: str, folder: Path, budget_s: float, verify: int) -> DoctorResult:
    """Return what another process is to find: functions of a case cannot be sent there, its name can."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:num_cores])
    case = next(case for case in CASES if case.name == name)
    return _examine(case, folder, budget_s, verify)


@contextmanager
def _neighbour() -> Iterator[None]:
    """Have somebody take half a core meanwhile."""
    process = subprocess.Popen([sys.executable, "-c", _NEIGHBOUR])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _demo(data: DemoData) -> Case:
    return Case(
        "the demo",
        {"fetch"},
        lambda _: ranking_dataset(data.paths, storage=MeteredLink(data.folder)),
        batch_size=4_096,
        step_s=4_096 / 1e6,
    )
