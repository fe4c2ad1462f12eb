"""Anyone's loader, watched: does the training loop wait for it, when, why, and what would it be worth?

    watched ──► iterator ──► meter ──► tally ──► findings ──► report ──► text
    the loop    hands on     moments   bounded   patterns     verdict    for people
    sees this   and times    to times  memory    by name      + JSON
                   replay: batches in RAM   device: the GPU's clock   ranks: who lags

Callbacks for frameworks that own the loop: `stoker.doctor.watch.callbacks`.
"""

from stoker.doctor.watch.findings import Finding
from stoker.doctor.watch.ranks import RankFigures, find_straggler, read_ranks
from stoker.doctor.watch.report import WatchReport
from stoker.doctor.watch.verdict import Replay, WatchVerdict
from stoker.doctor.watch.watched import Watched, watch

__all__ = [
    "Finding",
    "RankFigures",
    "Replay",
    "WatchReport",
    "WatchVerdict",
    "Watched",
    "find_straggler",
    "read_ranks",
    "watch",
]
