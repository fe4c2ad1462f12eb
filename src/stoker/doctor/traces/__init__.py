"""Traces of torch.profiler, whoever wrote the training loop: where a device idles, and why.

Read: `read` (bytes) ──► `collect` (columns) ──► `ProfilerTrace`.
Understood: `names` (what is what) ──► `timeline` (why each gap) ──► `times` (exact sums) ──► `collectives`, `result`
(ranks) ──► `verdict`, `report`.
"""

from stoker.doctor.traces.events import ProfilerTrace
from stoker.doctor.traces.names import NAMES, EventNames
from stoker.doctor.traces.read import read_trace
from stoker.doctor.traces.report import as_json
from stoker.doctor.traces.result import TraceResult, analyse
from stoker.doctor.traces.verdict import verdict_of

__all__ = [
    "NAMES",
    "EventNames",
    "ProfilerTrace",
    "TraceResult",
    "analyse",
    "as_json",
    "read_trace",
    "verdict_of",
]
