"""Traces of torch.profiler, whoever wrote the training loop: where a device idles, and why.

Read: `inflate` (gzip) ──► `window` (bytes) ──► `scan` (rows) ──► `collect` (columns) ──► `ProfilerTrace`.
Understood: `names` (what is what) ──► `host`, `device` (who did what, when) ──► `times` (exact sums) ──► `ranks`,
`pipeline` ──► `result` ──► `verdict`, `report`.
"""

from stoker.doctor.traces.events import ProfilerTrace
from stoker.doctor.traces.pipeline import SCHEDULES, Schedule
from stoker.doctor.traces.read import read_trace
from stoker.doctor.traces.report import as_json
from stoker.doctor.traces.result import TraceResult, analyse
from stoker.doctor.traces.verdict import verdict_of

__all__ = ["SCHEDULES", "ProfilerTrace", "Schedule", "TraceResult", "analyse", "as_json", "read_trace", "verdict_of"]
