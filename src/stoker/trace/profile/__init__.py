"""Traces of torch.profiler, whoever wrote the training loop: where a device idles, and why.

Read: `inflate` (gzip) ──► `window` (bytes) ──► `scan` (rows) ──► `collect` (columns) ──► `ProfilerTrace`.
Understood: `names` (what is what) ──► `host`, `device` (who did what, when) ──► `times` (exact sums) ──► `ranks`,
`pipeline` ──► `result` ──► `verdict`, `report`.
"""

from stoker.trace.profile.events import ProfilerTrace
from stoker.trace.profile.pipeline import SCHEDULES, Schedule
from stoker.trace.profile.read import read_trace
from stoker.trace.profile.report import as_json
from stoker.trace.profile.result import TraceResult, analyse
from stoker.trace.profile.verdict import verdict_of

__all__ = ["SCHEDULES", "ProfilerTrace", "Schedule", "TraceResult", "analyse", "as_json", "read_trace", "verdict_of"]
